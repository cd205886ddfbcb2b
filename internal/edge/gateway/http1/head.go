package http1

import (
	"bytes"
	"errors"
	"fmt"
	"net/textproto"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// Field is one line of a header. Name is in its canonical form, as of
// net/textproto.
type Field struct{ Name, Value string }

// ErrMalformed is wrapped by every error about an answer that is no HTTP/1.1,
// or ambiguous, or beyond a bound.
var ErrMalformed = errors.New("malformed answer")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// head is a status line and header, parsed.
type head struct {
	status int
	old    bool // HTTP/1.0
	fields []Field

	length   int64 // Content-Length; -1 when there is none
	chunked  bool
	close    bool   // Connection: close
	trailers string // value of Trailer
}

// headEnd is the offset after the empty line that ends a header, 0 while it is
// not there. The first from bytes are known not to hold it.
func headEnd(b []byte, from int) int {
	for i := max(from, 0); ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return 0
		}
		i += n + 1
		if i < len(b) && b[i] == '\n' {
			return i + 1
		}
		if i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n' {
			return i + 2
		}
	}
}

// parse reads a whole header, of which s is the text up to and with the empty
// line. Fields are appended to h.fields and alias s.
func (h *head) parse(s string) error {
	h.length = -1
	line, rest := cutLine(s)
	if err := h.statusLine(line); err != nil {
		return err
	}
	for {
		line, rest = cutLine(rest)
		if line == "" {
			return h.settle()
		}
		f, err := parseField(line)
		if err != nil {
			return err
		}
		if len(h.fields) == maxFields {
			return malformed("more than %d header fields", maxFields)
		}
		h.fields = append(h.fields, f)
		if err := h.note(f); err != nil {
			return err
		}
	}
}

// cutLine cuts the first line off s. Its end is LF, with or without CR, as
// RFC 9112 2.2 permits and net/http reads.
func cutLine(s string) (line, rest string) {
	line, rest, _ = strings.Cut(s, "\n")
	return strings.TrimSuffix(line, "\r"), rest
}

// statusLine parses "HTTP/1.1 200 OK".
func (h *head) statusLine(s string) error {
	const version = "HTTP/1."
	if len(s) < len("HTTP/1.1 200") || s[:len(version)] != version || s[8] != ' ' || s[7] != '0' && s[7] != '1' {
		return malformed("%q is no status line of HTTP/1.1", clip(s))
	}
	h.old = s[7] == '0'
	for _, c := range []byte(s[9:12]) {
		if c < '0' || c > '9' {
			return malformed("%q has no status of three digits", clip(s))
		}
		h.status = 10*h.status + int(c-'0')
	}
	if h.status < 100 || len(s) > 12 && s[12] != ' ' {
		return malformed("%q has no status of three digits", clip(s))
	}
	if !validValue(s[12:]) {
		return malformed("control characters in the status line %q", clip(s))
	}
	return nil
}

// parseField parses "Name: value". A line that begins with white space would
// continue the one before (obsolete folding) and is refused.
func parseField(line string) (Field, error) {
	colon := strings.IndexByte(line, ':')
	if colon <= 0 {
		return Field{}, malformed("%q is no header field", clip(line))
	}
	name, value := line[:colon], strings.Trim(line[colon+1:], " \t")
	for i := range len(name) {
		if !tokenByte[name[i]] {
			return Field{}, malformed("%q is no header field", clip(line))
		}
	}
	if !validValue(value) {
		return Field{}, malformed("control characters in the header field %q", clip(line))
	}
	return Field{textproto.CanonicalMIMEHeaderKey(name), value}, nil
}

// note keeps what decides how the body ends.
func (h *head) note(f Field) error {
	switch f.Name {
	case "Content-Length":
		n, err := parseLength(f.Value)
		if err != nil {
			return err
		}
		if h.length >= 0 && h.length != n {
			return malformed("Content-Length is given as %d and as %d", h.length, n)
		}
		h.length = n
	case "Transfer-Encoding":
		if h.chunked || !strings.EqualFold(f.Value, "chunked") {
			return malformed("Transfer-Encoding %q: only chunked, once, is understood", clip(f.Value))
		}
		h.chunked = true
	case "Connection":
		for token := range strings.SplitSeq(f.Value, ",") {
			if strings.EqualFold(strings.Trim(token, " \t"), "close") {
				h.close = true
			}
		}
	case "Trailer":
		if h.trailers != "" {
			h.trailers += ","
		}
		h.trailers += f.Value
	}
	return nil
}

// settle refuses what two readers could read in two ways.
func (h *head) settle() error {
	switch {
	case h.chunked && h.length >= 0:
		return malformed("both Content-Length and Transfer-Encoding")
	case h.chunked && h.old:
		return malformed("Transfer-Encoding in HTTP/1.0")
	}
	return nil
}

// parseLength parses digits alone: no sign, no list, no more than 18.
func parseLength(s string) (int64, error) {
	if s == "" || len(s) > 18 {
		return 0, malformed("Content-Length %q", clip(s))
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, malformed("Content-Length %q", clip(s))
		}
	}
	return strconv.ParseInt(s, 10, 64)
}

// validValue reports whether s has no control characters but tabs.
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// tokenByte are the characters of names (RFC 9110 5.6.2).
var tokenByte = func() (t [256]bool) {
	for c := range t {
		t[c] = c > ' ' && c < 0x7f && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, rune(c))
	}
	return t
}()

// clip shortens what is quoted in an error.
func clip(s string) string { return excerpt.Of(s, 100) }

// HopByHop reports whether a field is about one connection alone (RFC 9110 7.6.1)
// and must not be passed on. Fields that Connection names are, too.
func HopByHop(canonical string) bool {
	switch canonical {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}
