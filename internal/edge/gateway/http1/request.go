package http1

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// Request is one request to a server. It may be sent again after a failure
// unless its Tail was read.
type Request struct {
	// Address is the server's "host:port", Host the value of the field.
	Address, Host string
	Method        string
	// Target is the path and query as they stand on the request line.
	Target string
	// Fields are encoded by AppendField, without Host, Content-Length,
	// Transfer-Encoding and Connection, which the client writes itself.
	Fields []byte
	// Body is the body's parts in memory; empty ones are allowed. Their bytes
	// must not change until Do returns, and not ever if they are more than
	// InlineBytes or Tail is set.
	Body [][]byte
	// Tail is read once for what follows Body; nil when nothing does. Its Reads
	// must end when the context does. It may still be read after the answer was
	// closed, until its next Read returns.
	Tail io.Reader
	// TailRead is set by Do when it fails: some of Tail was read, so the
	// request cannot be sent again.
	TailRead bool
	// Length is the whole body's, in bytes; -1 when it is not known, with a
	// Tail only.
	Length int64
	// Timeout is for the answer to begin; every piece of a long body that is
	// sent has as long.
	Timeout time.Duration
}

// InlineBytes is the length from which on a body may still be written when
// the answer is there.
const InlineBytes = inlineBytes

// maxParts is how many parts a Body may have.
const maxParts = 7

var errRequest = errors.New("invalid request")

// check refuses what would break the request's framing.
func (q *Request) check() error {
	switch {
	case q.Method == "" || !isToken(q.Method):
		return fmt.Errorf("%w: method %q", errRequest, q.Method)
	case q.Target == "" || !ValidTarget(q.Target):
		return fmt.Errorf("%w: target %q", errRequest, q.Target)
	case !ValidTarget(q.Host):
		return fmt.Errorf("%w: host %q", errRequest, q.Host)
	case len(q.Body) > maxParts:
		return fmt.Errorf("%w: a body in %d parts, at most %d", errRequest, len(q.Body), maxParts)
	case q.Timeout <= 0:
		return fmt.Errorf("%w: timeout %v", errRequest, q.Timeout)
	}
	held := int64(0)
	for _, b := range q.Body {
		held += int64(len(b))
	}
	if q.Tail == nil && held != q.Length || q.Length >= 0 && held > q.Length {
		return fmt.Errorf("%w: a body of %d bytes with length %d", errRequest, held, q.Length)
	}
	return nil
}

func isToken(s string) bool {
	for i := range len(s) {
		if !tokenByte[s[i]] {
			return false
		}
	}
	return true
}

// ValidTarget reports whether s has neither spaces nor control characters, so that
// it can stand on a request line.
func ValidTarget(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}

// inline reports whether the whole request is written at once.
func (q *Request) inline() bool { return q.Tail == nil && q.Length <= inlineBytes }

// appendHead encodes the request line and the header.
func (q *Request) appendHead(b []byte) []byte {
	b = append(b, q.Method...)
	b = append(b, ' ')
	b = append(b, q.Target...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, q.Host...)
	b = append(b, "\r\n"...)
	b = append(b, q.Fields...)
	switch {
	case q.Length < 0:
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	case q.Length > 0 || q.Method == "POST" || q.Method == "PUT" || q.Method == "PATCH":
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, q.Length, 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// AppendField encodes a field of a request. Line ends and NULs in the value
// become spaces, so that no value can end its line.
func AppendField(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	at := len(b)
	b = append(b, value...)
	for i, c := range b[at:] {
		if c == '\r' || c == '\n' || c == 0 {
			b[at+i] = ' '
		}
	}
	return append(b, "\r\n"...)
}
