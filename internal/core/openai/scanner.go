package openai

import (
	"encoding/binary"
	"encoding/json"
	"math/bits"
)

// MaxDepth bounds the nesting of arrays and objects in a body, the outermost
// counting as 1. encoding/json stops at 10,000; tool schemas, the deepest thing
// people send, stay under 50.
const MaxDepth = 512

// scanner walks one JSON text. pos is the next byte to read; invariant:
// 0 <= pos <= len(data). Every method returns false once err is set.
type scanner struct {
	data  []byte
	pos   int
	depth int
	err   *BodyError
}

// fail records the first error, at byte offset at.
func (s *scanner) fail(cause error, at int) bool {
	if s.err == nil {
		s.err = &BodyError{Cause: cause, Offset: at}
	}
	return false
}

// peek skips white space and returns the next byte, or 0 at the end (a NUL in
// the text is no token either, so the two need not be told apart).
func (s *scanner) peek() byte {
	for s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\n', '\t', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// value skips one value of any kind.
func (s *scanner) value() bool {
	switch c := s.peek(); c {
	case '"':
		_, _, ok := s.str()
		return ok
	case '{':
		return s.object(func([]byte, int) bool { return s.value() })
	case '[':
		return s.array()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		if c == '-' || (c >= '0' && c <= '9') {
			return s.number()
		}
		return s.fail(ErrSyntax, s.pos)
	}
}

// object walks an object whose '{' is next. visit is called with each key,
// escapes decoded, and the key's offset; it must consume exactly the value. (It holds the
// scanner by closure: an argument of an unknown function would be moved to the
// heap.)
func (s *scanner) object(visit func(key []byte, at int) bool) bool {
	if !s.open() {
		return false
	}
	if s.peek() == '}' {
		return s.closeBracket()
	}
	for {
		if s.peek() != '"' {
			return s.fail(ErrSyntax, s.pos)
		}
		at := s.pos
		raw, escaped, ok := s.str()
		if !ok {
			return false
		}
		if s.peek() != ':' {
			return s.fail(ErrSyntax, s.pos)
		}
		s.pos++
		s.peek()
		if escaped {
			raw = unquote(s.data[at : at+len(raw)+2])
		}
		if !visit(raw, at) {
			return false
		}
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			return s.closeBracket()
		default:
			return s.fail(ErrSyntax, s.pos)
		}
	}
}

// array skips an array whose '[' is next.
func (s *scanner) array() bool { return s.elements(func() bool { return s.value() }) }

// elements walks an array whose '[' is next. visit must consume exactly one value.
func (s *scanner) elements(visit func() bool) bool {
	if !s.open() {
		return false
	}
	if s.peek() == ']' {
		return s.closeBracket()
	}
	for {
		if !visit() {
			return false
		}
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			return s.closeBracket()
		default:
			return s.fail(ErrSyntax, s.pos)
		}
	}
}

func (s *scanner) open() bool {
	if s.depth == MaxDepth {
		return s.fail(ErrDepth, s.pos)
	}
	s.depth++
	s.pos++
	return true
}

func (s *scanner) closeBracket() bool {
	s.depth--
	s.pos++
	return true
}

const (
	everyByte = 0x0101010101010101
	highBits  = 0x8080808080808080
)

// special marks, in the high bit of its byte, the lowest byte of x that ends a
// run of ordinary string bytes: a quote, a backslash or a control character.
// Marks above the lowest may be false: a borrow carries upwards only.
//
// With its second bit flipped a quote, 0x22, is 0x20, the space and what follows up to
// the quote are above that, and control characters stay below.
func special(x uint64) uint64 {
	low := x ^ everyByte*0x02
	slash := x ^ everyByte*'\\'
	return ((low-everyByte*0x21)&^low | (slash-everyByte)&^slash) & highBits
}

// str scans the string token whose opening quote is next. It returns the bytes
// between the quotes, aliasing the text, and whether they hold escapes.
//
// Eight bytes are looked at together, which for prompts (long strings with an
// escaped line end every line or so) beats a search for the quote followed by
// searches for backslashes and control characters.
func (s *scanner) str() (raw []byte, escaped, ok bool) {
	data, start := s.data, s.pos+1
	i := start
	for {
		for i+8 <= len(data) {
			m := special(binary.LittleEndian.Uint64(data[i:]))
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		for i < len(data) && data[i] >= 0x20 && data[i] != '"' && data[i] != '\\' {
			i++
		}
		if i >= len(data) || data[i] < 0x20 {
			return nil, false, s.fail(ErrSyntax, i)
		}
		if data[i] == '"' {
			s.pos = i + 1
			return data[start:i], escaped, true
		}
		escaped = true
		if i = s.escape(i); i < 0 {
			return nil, false, false
		}
	}
}

// escape checks the escape whose backslash is at i and returns the offset after
// it, or -1.
func (s *scanner) escape(i int) int {
	if i+1 >= len(s.data) {
		s.fail(ErrSyntax, len(s.data))
		return -1
	}
	switch s.data[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		for k := i + 2; k < i+6; k++ {
			if k >= len(s.data) || !isHex(s.data[k]) {
				s.fail(ErrSyntax, min(k, len(s.data)))
				return -1
			}
		}
		return i + 6
	}
	s.fail(ErrSyntax, i+1)
	return -1
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// number skips a number by the grammar of RFC 8259, section 6.
func (s *scanner) number() bool {
	if s.data[s.pos] == '-' {
		s.pos++
	}
	if s.pos < len(s.data) && s.data[s.pos] == '0' {
		s.pos++
	} else if !s.digits() {
		return false
	}
	if s.pos < len(s.data) && s.data[s.pos] == '.' {
		s.pos++
		if !s.digits() {
			return false
		}
	}
	if s.pos < len(s.data) && (s.data[s.pos] == 'e' || s.data[s.pos] == 'E') {
		s.pos++
		if s.pos < len(s.data) && (s.data[s.pos] == '+' || s.data[s.pos] == '-') {
			s.pos++
		}
		return s.digits()
	}
	return true
}

// digits skips one or more digits.
func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		return s.fail(ErrSyntax, s.pos)
	}
	return true
}

func (s *scanner) literal(word string) bool {
	for k := range len(word) {
		if s.pos+k >= len(s.data) || s.data[s.pos+k] != word[k] {
			return s.fail(ErrSyntax, s.pos+k)
		}
	}
	s.pos += len(word)
	return true
}

// unquote decodes a string token, quotes included, that the scanner has already
// accepted. Invalid UTF-8 and lone surrogates become U+FFFD.
func unquote(token []byte) []byte {
	var v string
	if err := json.Unmarshal(token, &v); err != nil {
		return nil // the scanner accepts no token that encoding/json refuses
	}
	return []byte(v)
}
