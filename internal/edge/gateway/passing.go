package gateway

import (
	"bytes"
	"net/http"
	"time"
)

// passing writes an answer to the client as it comes.
type passing struct {
	x      *exchange
	flush  bool // after every write: the answer has no stated length
	events bool // such an answer is a text/event-stream: pass on whole events
	// broken: the last bytes written do not end an event.
	broken bool
}

// write passes on buf[:*n] and sets *n to how many bytes it kept at buf's
// start: the beginning of an event whose end is not there yet, so that a
// stream that fails never shows half an event. At the end of the answer
// nothing is kept. It is false when the client is gone.
func (p *passing) write(buf []byte, n *int, end bool) bool {
	out := buf[:*n]
	if p.events && !end {
		switch whole := eventEnd(out); {
		case whole > 0:
			out, p.broken = out[:whole], false
		case *n == len(buf):
			p.broken = true // longer than the buffer: pass it on in parts
		default:
			return true
		}
	}
	if !p.send(out) {
		return false
	}
	*n = copy(buf, buf[len(out):*n])
	return true
}

// send writes b and flushes it if the answer is a stream.
func (p *passing) send(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	p.x.passed(b)
	// Not every ResponseWriter has deadlines (HTTP servers' do).
	_ = p.x.rc.SetWriteDeadline(time.Now().Add(p.x.gw.cfg.ClientTimeout))
	if _, err := p.x.w.Write(b); err != nil {
		return false
	}
	return !p.flush || p.x.rc.Flush() == nil
}

// errorEvent ends an event stream with what went wrong.
func (p *passing) errorEvent(message string) {
	var b []byte
	if p.broken {
		b = append(b, "\n\n"...)
	}
	b = append(b, "event: error\ndata: "...)
	b = append(b, bytes.TrimSpace(errorBody(p.x.surface, http.StatusBadGateway, message, "", "replica_failed"))...)
	p.send(append(b, "\n\n"...))
}

// eventEnd is the offset after the last complete event of b: after its last
// empty line, whatever line ends it uses. 0 if there is none.
func eventEnd(b []byte) int {
	for i := len(b) - 1; i > 0; i-- {
		switch {
		case b[i] == '\n' && (b[i-1] == '\n' || i >= 2 && b[i-1] == '\r' && b[i-2] == '\n'),
			b[i] == '\r' && b[i-1] == '\r':
			return i + 1
		}
	}
	return 0
}
