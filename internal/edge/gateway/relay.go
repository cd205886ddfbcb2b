package gateway

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/payloads"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

// Sizes of the buffers answers pass through, in bytes. A stream keeps the
// small one, of which there may be thousands, until an event is longer.
const (
	smallChunk = 4 << 10
	// chunkSize is also the longest event that is held back until it is whole.
	chunkSize = 32 << 10
)

var (
	smallChunks = sync.Pool{New: func() any { b := make([]byte, smallChunk); return &b }}
	chunks      = sync.Pool{New: func() any { b := make([]byte, chunkSize); return &b }}
)

func putChunk(b *[]byte) {
	if len(*b) == smallChunk {
		smallChunks.Put(b)
	} else {
		chunks.Put(b)
	}
}

// relay reads a replica's answer and writes it to the client as it comes.
type relay struct {
	body incomingBody
	buf  *[]byte
	n    int   // bytes of buf that are not written yet
	err  error // of the last read: io.EOF at the answer's end

	flush  bool // after every write: the answer has no stated length
	events bool // such an answer is a text/event-stream: pass on whole events
	// broken: the last bytes written do not end an event.
	broken bool

	copied *payloads.Copy // for a logger; nil copies nothing

	to   *response // set by run
	seen *observe.Record
}

// run passes the answer on until its end (io.EOF), until the replica fails (its
// error) or until the client is gone (nil). A pause of the replica may take stall, and
// the whole until ends, if that is not zero.
func (p *relay) run(to *response, seen *observe.Record, stall time.Duration, ends time.Time) error {
	p.to, p.seen = to, seen
	for p.write() {
		if p.err != nil {
			return p.err
		}
		pause := stall
		if !ends.IsZero() {
			if pause = min(stall, time.Until(ends)); pause <= 0 {
				return errSlow
			}
		}
		p.body.SetPause(pause)
		p.read()
	}
	return nil
}

// begin decides how in is passed on.
func (p *relay) begin(in *incoming) {
	p.flush = in.length < 0
	p.events = p.flush && isEventStream(in.fields)
	if p.events || in.length >= 0 && in.length < smallChunk {
		p.buf = smallChunks.Get().(*[]byte)
	} else {
		p.buf = chunks.Get().(*[]byte)
	}
}

func (p *relay) close() {
	_ = p.body.Close() // what matters was read
	putChunk(p.buf)
}

// read appends what the replica has sent to the bytes that are not written yet.
func (p *relay) read() {
	var n int
	n, p.err = p.body.Read((*p.buf)[p.n:])
	p.n += n
}

// write passes on what was read, but for the beginning of an event whose end
// is not there yet, so that a stream that fails never shows half an event. At
// the end of the answer nothing is kept. It is false when the client is gone.
func (p *relay) write() bool {
	out := (*p.buf)[:p.n]
	if p.events && !errors.Is(p.err, io.EOF) {
		switch whole := eventEnd(out); {
		case whole > 0:
			out, p.broken = out[:whole], false
		case p.n < len(*p.buf):
			return true
		case p.n < chunkSize:
			p.grow()
			return true
		default:
			p.broken = true // longer than the buffer: pass it on in parts
		}
	}
	if !p.send(out) {
		return false
	}
	p.n = copy(*p.buf, (*p.buf)[len(out):p.n])
	return true
}

// grow moves to a buffer that holds a long event.
func (p *relay) grow() {
	bigger := chunks.Get().(*[]byte)
	copy(*bigger, (*p.buf)[:p.n])
	putChunk(p.buf)
	p.buf = bigger
}

// send writes b and flushes it if the answer is a stream.
func (p *relay) send(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	p.seen.Passing(b)
	p.copied.Write(b)
	p.to.writeDeadline(time.Now())
	if _, err := p.to.w.Write(b); err != nil {
		return false
	}
	return !p.flush || p.to.rc.Flush() == nil
}

// errorEvent ends an event stream with what went wrong.
func (p *relay) errorEvent(of *failure) {
	var b []byte
	if p.broken {
		b = append(b, "\n\n"...)
	}
	p.send(appendErrorEvent(b, surface.ErrorBody(p.to.surface, of.status, of.message, "", of.code)))
}

// appendErrorEvent appends an event with an error's body of one line.
func appendErrorEvent(b, body []byte) []byte {
	b = append(b, "event: error\ndata: "...)
	return append(append(b, bytes.TrimSpace(body)...), "\n\n"...)
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

// isEventStream reports whether an answer's events can be told apart: those of a
// compressed stream cannot.
func isEventStream(fields []http1.Field) bool {
	stream := false
	for _, f := range fields {
		switch f.Name {
		case "Content-Encoding":
			if f.Value != "" {
				return false
			}
		case "Content-Type":
			if !strings.HasPrefix(f.Value, "text/") && !strings.HasPrefix(f.Value, "Text/") && !strings.HasPrefix(f.Value, "TEXT/") {
				continue
			}
			t, _, err := mime.ParseMediaType(f.Value)
			stream = err == nil && t == "text/event-stream"
		}
	}
	return stream
}
