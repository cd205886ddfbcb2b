package openai

import (
	"bytes"
	"unicode/utf8"
)

// maxUsage is the longest member "usage" or "meta" of an answer that is looked
// into, in bytes.
const maxUsage = 16 << 10

// BodyReader watches a JSON answer of any length as it passes by and remembers
// its usage. Write it every chunk, cut anywhere. It looks for members "usage"
// and "meta" of the outermost object and keeps nothing else, so an answer's
// length costs time but no memory. Bodies that are no JSON give nothing or
// nonsense. The zero value is ready. Not for concurrent use.
type BodyReader struct {
	usage usageReader

	depth    int
	inString bool
	escaped  bool   // the next byte is escaped
	key      []byte // the last string of the outermost object, at most longestKey of it
	value    []byte // the member so far, from its key on
	keeping  bool   // a member is being kept
}

// longestKey is more than any key that is looked for.
const longestKey = 8

// Usage returns the usage seen so far; ok is false while none has been seen.
func (r *BodyReader) Usage() (u Usage, ok bool) { return r.usage.usage(), r.usage.seen }

// Write takes the next chunk. It never fails.
func (r *BodyReader) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if r.inString {
			p = p[r.string(p):]
			continue
		}
		at := r.nextMark(p)
		if at < 0 {
			r.keep(p)
			break
		}
		r.keep(p[:at])
		r.mark(p[at])
		p = p[at+1:]
	}
	return n, nil
}

// nextMark is the offset of the next byte that changes what is going on between
// strings, -1 if there is none. Deeper down, commas and colons do not.
func (r *BodyReader) nextMark(p []byte) int {
	for i, c := range p {
		switch c {
		case '"', '{', '}', '[', ']':
			return i
		case ',', ':':
			if r.depth <= 1 {
				return i
			}
		}
	}
	return -1
}

// string takes the bytes of a string up to its end or the chunk's, and returns
// how many.
func (r *BodyReader) string(p []byte) int {
	start := 0
	if r.escaped {
		r.escaped, start = false, 1
	}
	for quote := -1; start < len(p); {
		if quote < start {
			if quote = bytes.IndexByte(p[start:], '"'); quote < 0 {
				quote = len(p)
			} else {
				quote += start
			}
		}
		escape := bytes.IndexByte(p[start:quote], '\\')
		if escape < 0 {
			r.inString = quote == len(p)
			start = min(quote+1, len(p))
			break
		}
		start += escape + 1
		if start == len(p) {
			r.escaped = true
			break
		}
		start++ // the escaped byte
	}
	r.keep(p[:start])
	if r.depth == 1 && !r.keeping {
		text := p[:start]
		if !r.inString {
			text = p[:start-1]
		}
		r.key = append(r.key, text[:min(len(text), longestKey-len(r.key))]...)
	}
	return start
}

// mark takes a byte of structure.
func (r *BodyReader) mark(c byte) {
	switch c {
	case '"':
		r.inString = true
		if !r.keeping {
			r.key = r.key[:0]
		}
	case '{', '[':
		r.depth++
	case '}', ']':
		if r.depth == 1 {
			r.endMember()
		}
		r.depth = max(r.depth-1, 0)
	case ',':
		if r.depth == 1 {
			r.endMember()
		}
	case ':':
		if r.depth == 1 && !r.keeping && (string(r.key) == "usage" || string(r.key) == "meta") {
			r.keeping = true
			r.value = append(append(append(r.value[:0], `{"`...), r.key...), '"')
		}
	}
	r.keep([]byte{c})
}

func (r *BodyReader) keep(p []byte) {
	switch {
	case !r.keeping || r.value == nil:
	case len(r.value)+len(p) > maxUsage:
		r.value = nil // too long: pass over it
	default:
		r.value = append(r.value, p...)
	}
}

// endMember reads the member that has been kept.
func (r *BodyReader) endMember() {
	if r.keeping && r.value != nil {
		r.usage.read(append(r.value, '}'))
	}
	r.keeping = false
}

// Error types of OpenAI's API.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypePermission     = "permission_error"
	TypeNotFound       = "not_found_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
)

// ErrorJSON builds OpenAI's error body,
// {"error":{"message","type","param","code"}}; an empty param or code is null.
func ErrorJSON(message, typ, param, code string) []byte {
	b := make([]byte, 0, 64+len(message)+len(typ)+len(param)+len(code))
	b = append(b, `{"error":{"message":`...)
	b = AppendQuoted(b, message)
	b = append(b, `,"type":`...)
	b = AppendQuoted(b, typ)
	b = append(b, `,"param":`...)
	b = appendQuotedOrNull(b, param)
	b = append(b, `,"code":`...)
	b = appendQuotedOrNull(b, code)
	return append(b, "}}\n"...)
}

func appendQuotedOrNull(b []byte, v string) []byte {
	if v == "" {
		return append(b, "null"...)
	}
	return AppendQuoted(b, v)
}

// AppendQuoted appends v as a JSON string. Only what JSON requires is escaped
// (quotes, backslashes, control characters); invalid UTF-8 becomes U+FFFD.
func AppendQuoted(b []byte, v string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for _, r := range v {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, '\\', 'n')
		case r == '\t':
			b = append(b, '\\', 't')
		case r == '\r':
			b = append(b, '\\', 'r')
		case r < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}
