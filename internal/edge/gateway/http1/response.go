package http1

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"time"
)

// Response is an answer. One goroutine reads it. Its Body is read by Read
// until io.EOF, which may come with the last bytes; the connection is then
// used for other requests. Close releases the answer; before the end of its body it
// closes the connection.
type Response struct {
	Status int
	// Fields are the header, in its order; framing and hop-by-hop fields are
	// among them.
	Fields []Field
	// Length is the body's, in bytes; -1 when it is not known before its end.
	Length int64
	// Announced is the value of the header's field Trailer.
	Announced string

	conn   *conn
	client *Client
	stop   func() bool // of the watch on the context
	flags
	written chan error // the result of the writer; nil when the request is written by the reader

	interim bool // a 1xx answer came
	close   bool // the connection cannot be used again
	state   state
	left    int64 // bytes of the body, or of the chunk
	trailer []Field
	trailed int           // bytes of the trailer
	pause   time.Duration // for every read; 0: the request's Timeout goes on
	err     error         // of the body, once it failed or ended

	storage [12]Field // for Fields; most headers fit
}

// state is what comes next of a body.
type state int

const (
	stateLength  state = iota // left bytes
	stateClose                // all until the connection ends
	stateSize                 // the line before a chunk
	stateChunk                // left bytes of a chunk
	stateChunkLF              // the line end behind it
	stateTrailer              // lines of the trailer
)

// begin determines how the body ends (RFC 9112 6.3).
func (x *Response) begin(h *head, method string) {
	x.Status, x.Fields, x.Announced = h.status, h.fields, h.trailers
	x.close = x.close || h.close || h.old
	switch {
	case method == "HEAD" || h.status == 204 || h.status == 304:
		x.Length, x.state = 0, stateLength
		if method == "HEAD" {
			x.Length = h.length
		}
		x.left = 0
		// A server that writes a body all the same may do so when the next
		// request is on its way, and would answer that with it.
		x.close = x.close || h.chunked || h.length > 0
	case h.chunked:
		x.Length, x.state = -1, stateSize
	case h.length >= 0:
		x.Length, x.left, x.state = h.length, h.length, stateLength
	default:
		x.Length, x.state, x.close = -1, stateClose, true
	}
	if x.state == stateLength && x.left == 0 {
		x.end()
	}
}

// Trailer are the fields that followed a body in chunks, once it has ended.
func (x *Response) Trailer() []Field { return x.trailer }

// SetPause limits every later read to d, or up to an eighth more.
func (x *Response) SetPause(d time.Duration) { x.pause = d }

// Read reads the body. It waits for some bytes, not for p to be full, and returns
// what has arrived, up to the length of p.
func (x *Response) Read(p []byte) (int, error) {
	if x.err != nil {
		return 0, x.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	n := 0
	for {
		m, more, err := x.take(p[n:])
		n += m
		switch {
		case err != nil:
			if !errors.Is(err, io.EOF) {
				x.fail(err)
			}
			return n, x.err
		case n > 0 && (more || n == len(p)):
			return n, nil
		case !more:
			continue
		}
		if m, err := x.more(p); err != nil || m > 0 {
			return m, err
		}
	}
}

// more waits for bytes: into p if many are wanted that are all of the body's,
// else into the buffer.
func (x *Response) more(p []byte) (int, error) {
	if x.pause > 0 {
		if err := x.conn.expect(time.Now(), x.pause); err != nil {
			x.fail(err)
			return 0, x.err
		}
	}
	room := int64(len(p))
	switch x.state {
	case stateLength, stateChunk:
		room = min(room, x.left)
	case stateClose:
	default:
		room = 0
	}
	if room < bufferSize {
		if err := x.conn.fill(); err != nil {
			return 0, x.ended(err)
		}
		return 0, nil
	}
	n, err := x.conn.read(p[:room])
	if err != nil {
		return 0, x.ended(err)
	}
	if x.state != stateClose {
		x.left -= int64(n)
		if x.state == stateLength && x.left == 0 {
			x.end()
		}
	}
	return n, x.err
}

// ended is what the end of the connection, or its failure, means here.
func (x *Response) ended(err error) error {
	switch {
	case !errors.Is(err, io.EOF):
		x.fail(err)
	case x.state == stateClose:
		x.end()
	default:
		x.fail(io.ErrUnexpectedEOF)
	}
	return x.err
}

// take moves the buffered part of the body to p. more reports that the buffer is
// used up; io.EOF is the end of the body.
func (x *Response) take(p []byte) (n int, more bool, err error) {
	b := x.conn.buffered()
	switch x.state {
	case stateLength, stateChunk, stateClose:
		if x.state != stateClose {
			b = b[:min(int64(len(b)), x.left)]
		}
		n = copy(p, b)
		x.conn.r += n
		if x.state == stateClose {
			return n, len(x.conn.buffered()) == 0, nil
		}
		x.left -= int64(n)
		switch {
		case x.left > 0:
			return n, len(x.conn.buffered()) == 0, nil
		case x.state == stateLength:
			x.end()
			return n, false, io.EOF
		}
		x.state = stateChunkLF
		return n, false, nil
	case stateChunkLF:
		if len(b) < 2 {
			return 0, true, nil
		}
		if b[0] != '\r' || b[1] != '\n' {
			return 0, false, malformed("a chunk is longer than its size")
		}
		x.conn.r += 2
		x.state = stateSize
		return 0, false, nil
	}
	return x.takeLine(b)
}

// takeLine takes the line before a chunk, or one of the trailer.
func (x *Response) takeLine(b []byte) (n int, more bool, err error) {
	limit := maxChunkLine
	if x.state == stateTrailer {
		limit = bufferSize - 1
	}
	end := bytes.IndexByte(b, '\n')
	if end >= limit || end < 0 && len(b) >= limit {
		return 0, false, malformed("a line of more than %d bytes within a body in chunks", limit)
	}
	if end < 0 {
		return 0, true, nil
	}
	if x.state == stateTrailer {
		line := string(b[:end])
		x.conn.r += end + 1
		x.trailed += end + 1
		return 0, false, x.trailerLine(strings.TrimSuffix(line, "\r"))
	}
	size, err := chunkSize(b[:end])
	if err != nil {
		return 0, false, err
	}
	x.conn.r += end + 1
	x.left, x.state = size, stateChunk
	if size == 0 {
		x.state = stateTrailer
	}
	return 0, false, nil
}

// chunkSize parses the line before a chunk, without its LF. The CR must be
// there, and a second one must not. Extensions are ignored (RFC 9112 7.1.1).
func chunkSize(line []byte) (int64, error) {
	size, ok := bytes.CutSuffix(line, []byte("\r"))
	if !ok || bytes.IndexByte(size, '\r') >= 0 {
		return 0, malformed("chunk line %q does not end in CR LF", clip(string(line)))
	}
	size, _, _ = bytes.Cut(size, []byte(";"))
	size = bytes.TrimRight(size, " \t")
	if len(size) == 0 || len(size) > 15 {
		return 0, malformed("chunk size %q", clip(string(line)))
	}
	n := int64(0)
	for _, c := range size {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, malformed("chunk size %q", clip(string(line)))
		}
		n = n<<4 | int64(c)
	}
	return n, nil
}

// trailerLine takes a line of the trailer; the empty one ends the body.
func (x *Response) trailerLine(line string) error {
	if line == "" {
		x.end()
		return io.EOF
	}
	f, err := parseField(line)
	if err != nil {
		return err
	}
	if len(x.trailer) == maxFields || x.trailed > maxTrailerBytes {
		return malformed("a trailer of more than %d fields or %d bytes", maxFields, maxTrailerBytes)
	}
	// What frames a message, or routes or authenticates it, has no place
	// behind it (RFC 9110 6.5.1).
	if f.Name != "Content-Length" && f.Name != "Host" && !HopByHop(f.Name) {
		x.trailer = append(x.trailer, f)
	}
	return nil
}

// end settles a body that was read whole: the connection goes back unless
// something stands against it.
func (x *Response) end() {
	x.err = io.EOF
	c := x.conn
	if !x.stop() || x.close || len(c.buffered()) > 0 || !x.wrote() {
		c.close()
		return
	}
	c.dropBuffer()
	x.client.idle.put(c, time.Now())
}

// wrote reports whether the whole request was sent.
func (x *Response) wrote() bool {
	if x.written == nil {
		return true
	}
	select {
	case err := <-x.written:
		return err == nil
	default:
		return false // an answer before the request's end
	}
}

// fail ends the body with an error.
func (x *Response) fail(err error) {
	if why := x.aborted.Load(); why != nil {
		err = *why
	}
	x.err = err
	x.abandon()
}

// abandon gives the connection up.
func (x *Response) abandon() {
	x.stop()
	x.conn.close()
}

// Close ends the use of an answer, read to its end or not. It must be called
// once; the answer and its Fields must not be used afterwards.
func (x *Response) Close() error {
	if x.err == nil {
		x.fail(errClosed)
	}
	if x.written == nil { // nobody else knows it
		*x = Response{}
		responses.Put(x)
	}
	return nil
}

// responses that were closed.
var responses = sync.Pool{New: func() any { return &Response{} }}

var errClosed = errors.New("http1: the answer was closed")
