package tensor

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth bounds how deep JSON may nest, in arrays and objects.
const MaxDepth = 64

// scanner reads JSON from a slice. Its methods leave pos behind what they
// read; after an error it is not used again.
type scanner struct {
	data  []byte
	pos   int
	depth int
	tail  *binaryTail // nil without the binary extension

	noting  bool    // how data is written is kept
	written Written // of the data that is read
	marked  bool    // the element that was read is to be marked in it
}

// space skips white space and returns the byte at pos, 0 at the end.
func (s *scanner) space() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// syntax is the error for JSON that is not.
func (s *scanner) syntax(want string) *Error {
	if s.pos >= len(s.data) {
		e := schemaError("json_invalid", "JSON decode error: unexpected end of the body, expected "+want, nil)
		e.Path = []any{len(s.data)}
		return e
	}
	e := Errorf(KindSchema, "JSON decode error: expected %s at byte %d, found %q", want, s.pos, rune(s.data[s.pos]))
	e.Type = "json_invalid"
	e.Path = []any{s.pos}
	return e
}

// enter steps into an array or object whose opening byte is at pos.
func (s *scanner) enter() *Error {
	s.pos++
	s.depth++
	if s.depth > MaxDepth {
		e := Errorf(KindSchema, "JSON decode error: nested deeper than %d at byte %d", MaxDepth, s.pos-1)
		e.Type = "json_invalid"
		return e
	}
	return nil
}

// object reads an object at pos and calls field for each member with pos at
// the value; field must read it. The key is good until field returns.
func (s *scanner) object(field func(key []byte) *Error) *Error {
	if s.space() != '{' {
		return s.syntax("an object")
	}
	if err := s.enter(); err != nil {
		return err
	}
	if s.space() == '}' {
		s.pos++
		s.depth--
		return nil
	}
	for {
		if s.space() != '"' {
			return s.syntax("a field name")
		}
		key, err := s.text()
		if err != nil {
			return err
		}
		if s.space() != ':' {
			return s.syntax("':'")
		}
		s.pos++
		s.space()
		if err := field(key); err != nil {
			return err
		}
		done, err := s.next('}', "',' or '}'")
		if done || err != nil {
			return err
		}
	}
}

// array reads an array at pos and calls element for each with pos at it.
func (s *scanner) array(element func(i int) *Error) *Error {
	if s.space() != '[' {
		return s.syntax("an array")
	}
	if err := s.enter(); err != nil {
		return err
	}
	if s.space() == ']' {
		s.pos++
		s.depth--
		return nil
	}
	for i := 0; ; i++ {
		s.space()
		if err := element(i); err != nil {
			return err
		}
		done, err := s.next(']', "',' or ']'")
		if done || err != nil {
			return err
		}
	}
}

// next steps over a comma, or over the end of an array or object.
func (s *scanner) next(end byte, want string) (done bool, err *Error) {
	switch s.space() {
	case ',':
		s.pos++
		return false, nil
	case end:
		s.pos++
		s.depth--
		return true, nil
	}
	return false, s.syntax(want)
}

// skip reads any value and returns its bytes, which alias the body.
func (s *scanner) skip() ([]byte, *Error) {
	c := s.space()
	start := s.pos
	var err *Error
	switch {
	case c == '{':
		err = s.object(func([]byte) *Error { _, err := s.skip(); return err })
	case c == '[':
		err = s.array(func(int) *Error { _, err := s.skip(); return err })
	case c == '"':
		_, err = s.text()
	case c == '-' || (c >= '0' && c <= '9'):
		err = s.decimal(new(decimal))
	case s.literal("null"), s.literal("true"), s.literal("false"):
	default:
		err = s.syntax("a value")
	}
	if err != nil {
		return nil, err
	}
	return s.data[start:s.pos], nil
}

// literal steps over word if it stands at pos.
func (s *scanner) literal(word string) bool {
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		return false
	}
	s.pos += len(word)
	return true
}

// end checks that nothing follows the value.
func (s *scanner) end() *Error {
	s.space()
	if s.pos < len(s.data) {
		return s.syntax("the end of the body")
	}
	return nil
}

// text reads a string at pos. The result aliases the body unless the string
// has escapes.
func (s *scanner) text() ([]byte, *Error) {
	start := s.pos + 1
	n := bytes.IndexByte(s.data[start:], '"')
	if n < 0 {
		s.pos = len(s.data)
		return nil, s.syntax("'\"'")
	}
	raw := s.data[start : start+n]
	plain := true
	for i, c := range raw {
		if c == '\\' {
			plain = false
			break
		}
		if c < ' ' {
			s.pos = start + i
			return nil, s.syntax("no control character in a string")
		}
	}
	if !plain {
		return s.escaped(start)
	}
	if !utf8.Valid(raw) {
		return nil, s.notUTF8(start)
	}
	s.pos = start + n + 1
	return raw, nil
}

func (s *scanner) notUTF8(at int) *Error {
	e := Errorf(KindInvalid, "the string at byte %d is not UTF-8", at)
	return e
}

// escaped reads the string that begins at start and has escapes.
func (s *scanner) escaped(start int) ([]byte, *Error) {
	out := make([]byte, 0, 32)
	s.pos = start
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			if !utf8.Valid(out) {
				return nil, s.notUTF8(start)
			}
			return out, nil
		case c < ' ':
			return nil, s.syntax("no control character in a string")
		case c != '\\':
			out = append(out, c)
			s.pos++
		default:
			var err *Error
			if out, err = s.escape(out); err != nil {
				return nil, err
			}
		}
	}
	return nil, s.syntax("'\"'")
}

// escapes maps the byte after a backslash to what it stands for.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape appends what the escape at pos stands for. A surrogate without its
// other half stands for nothing and is an error.
func (s *scanner) escape(out []byte) ([]byte, *Error) {
	s.pos++
	if s.pos >= len(s.data) {
		return nil, s.syntax("an escape")
	}
	c := s.data[s.pos]
	if c != 'u' {
		if escapes[c] == 0 {
			return nil, s.syntax("an escape")
		}
		s.pos++
		return append(out, escapes[c]), nil
	}
	s.pos++
	r, ok := s.hex4()
	if !ok {
		return nil, s.syntax("four hexadecimal digits")
	}
	if utf16.IsSurrogate(r) {
		if !s.literal(`\u`) {
			return nil, s.syntax("the second half of a surrogate pair")
		}
		low, ok := s.hex4()
		if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
			return nil, s.syntax("the second half of a surrogate pair")
		}
	}
	return utf8.AppendRune(out, r), nil
}

// hex4 reads four hexadecimal digits.
func (s *scanner) hex4() (r rune, ok bool) {
	if len(s.data)-s.pos < 4 {
		return 0, false
	}
	for _, c := range s.data[s.pos : s.pos+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	s.pos += 4
	return r, true
}
