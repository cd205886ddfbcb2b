package safetensors

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads strict JSON. It exists beside encoding/json because headers
// are hostile and large: it keeps order, refuses what is there twice, takes
// only whole numbers for sizes, and makes no values that are not asked for.
type scanner struct {
	b  []byte
	at int
}

func (s *scanner) fail(what string) error { return malformed("byte %d: %s", s.at, what) }

func (s *scanner) space() {
	for s.at < len(s.b) {
		switch s.b[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// next skips white space and returns the byte there, 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.at == len(s.b) {
		return 0
	}
	return s.b[s.at]
}

func (s *scanner) expect(c byte) error {
	if s.next() != c {
		return s.fail("expected " + string(rune(c)))
	}
	s.at++
	return nil
}

// end checks that nothing but white space is left.
func (s *scanner) end() error {
	if s.space(); s.at != len(s.b) {
		return s.fail("something follows the object")
	}
	return nil
}

// object reads an object and calls member with each key; member reads the
// value.
func (s *scanner) object(member func(key string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.next() == '}' {
		s.at++
		return nil
	}
	for {
		s.space()
		key, err := s.text()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if s.next() == '}' {
			s.at++
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// array reads an array and calls element before each of its values.
func (s *scanner) array(element func() error) error {
	if err := s.expect('['); err != nil {
		return err
	}
	if s.next() == ']' {
		s.at++
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		if s.next() == ']' {
			s.at++
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// text reads a string.
func (s *scanner) text() (string, error) {
	if s.next() != '"' {
		return "", s.fail("expected a string")
	}
	s.at++
	start, escaped := s.at, false
	for s.at < len(s.b) {
		switch c := s.b[s.at]; {
		case c == '"':
			raw := s.b[start:s.at]
			s.at++
			if !utf8.Valid(raw) {
				return "", s.fail("a string is not UTF-8")
			}
			if !escaped {
				return string(raw), nil
			}
			return s.unescape(raw)
		case c < ' ':
			return "", s.fail("a control character in a string")
		case c == '\\':
			escaped = true
			s.at += 2
		default:
			s.at++
		}
	}
	s.at = len(s.b)
	return "", s.fail("a string does not end")
}

// escapes are the characters behind a backslash, but for u.
var escapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

func (s *scanner) unescape(raw []byte) (string, error) {
	var out strings.Builder
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			out.WriteByte(raw[i])
			i++
			continue
		}
		if plain, ok := escapes[raw[i+1]]; ok { // a string never ends in a backslash
			out.WriteByte(plain)
			i += 2
			continue
		}
		r, n := escapedRune(raw[i:])
		if n == 0 {
			return "", s.fail("a broken escape in a string")
		}
		out.WriteRune(r)
		i += n
	}
	return out.String(), nil
}

// escapedRune reads \uXXXX, or two of them that are a surrogate pair. n is the
// number of bytes read, 0 for none.
func escapedRune(b []byte) (r rune, n int) {
	unit := func(b []byte) (rune, bool) {
		if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
			return 0, false
		}
		v, err := strconv.ParseUint(string(b[2:6]), 16, 16)
		return rune(v), err == nil
	}
	first, ok := unit(b)
	if !ok {
		return 0, 0
	}
	if !utf16.IsSurrogate(first) {
		return first, 6
	}
	second, ok := unit(b[6:])
	if r = utf16.DecodeRune(first, second); !ok || r == utf8.RuneError {
		return 0, 0
	}
	return r, 12
}

// whole reads a number that has neither sign, fraction nor exponent.
func (s *scanner) whole() (int64, error) {
	s.space()
	start, v := s.at, uint64(0)
	for s.at < len(s.b) && s.b[s.at] >= '0' && s.b[s.at] <= '9' {
		digit := uint64(s.b[s.at] - '0')
		if v > (math.MaxInt64-digit)/10 {
			return 0, s.fail("a number is too large")
		}
		v = v*10 + digit
		s.at++
	}
	switch {
	case s.at == start:
		return 0, s.fail("expected a whole number")
	case s.b[start] == '0' && s.at > start+1:
		return 0, s.fail("a number begins with 0")
	}
	return int64(v), nil
}

// skip reads past any value.
func (s *scanner) skip(depth int) error {
	if depth > maxDepth {
		return s.fail("nests too deep")
	}
	switch c := s.next(); {
	case c == '{':
		return s.object(func(string) error { return s.skip(depth + 1) })
	case c == '[':
		return s.array(func() error { return s.skip(depth + 1) })
	case c == '"':
		_, err := s.text()
		return err
	case c == '-' || c >= '0' && c <= '9':
		_, err := s.number()
		return err
	}
	for _, word := range []string{"true", "false", "null"} {
		if strings.HasPrefix(string(s.b[s.at:min(len(s.b), s.at+5)]), word) {
			s.at += len(word)
			return nil
		}
	}
	return s.fail("expected a value")
}

// number reads any JSON number.
func (s *scanner) number() (float64, error) {
	s.space()
	start := s.at
	digits := func() bool {
		from := s.at
		for s.at < len(s.b) && s.b[s.at] >= '0' && s.b[s.at] <= '9' {
			s.at++
		}
		return s.at > from
	}
	is := func(any string) bool {
		if s.at < len(s.b) && strings.IndexByte(any, s.b[s.at]) >= 0 {
			s.at++
			return true
		}
		return false
	}
	is("-")
	ok := is("0") || digits()
	if ok && is(".") {
		ok = digits()
	}
	if ok && is("eE") {
		is("+-")
		ok = digits()
	}
	v, err := strconv.ParseFloat(string(s.b[start:s.at]), 64)
	if !ok || err != nil {
		return 0, s.fail("a broken or endless number")
	}
	return v, nil
}

// tensor reads the value of a tensor's name.
func (s *scanner) tensor(name string) (Tensor, error) {
	t := Tensor{Name: name}
	var dtype, shape, offsets int
	err := s.object(func(key string) (err error) {
		switch key {
		case "dtype":
			dtype++
			var text string
			text, err = s.text()
			t.Dtype = Dtype(text)
		case "shape":
			shape++
			t.Shape, err = s.shape()
		case "data_offsets":
			offsets++
			t.Begin, t.End, err = s.offsets()
		default:
			err = s.skip(1)
		}
		return err
	})
	if err != nil {
		return t, malformed("%s: %s", quote(name), strings.TrimPrefix(err.Error(), ErrMalformed.Error()+": "))
	}
	if dtype != 1 || shape != 1 || offsets != 1 {
		return t, malformed("%s: must have dtype, shape and data_offsets once each", quote(name))
	}
	return t, t.checkSize()
}

func (s *scanner) shape() ([]int64, error) {
	shape := make([]int64, 0, 4)
	err := s.array(func() error {
		if len(shape) == MaxRank {
			return s.fail("a shape of more than " + strconv.Itoa(MaxRank) + " dimensions")
		}
		dim, err := s.whole()
		shape = append(shape, dim)
		return err
	})
	return shape, err
}

func (s *scanner) offsets() (begin, end int64, err error) {
	var pair [2]int64
	n := 0
	err = s.array(func() (err error) {
		if n == 2 {
			return s.fail("data_offsets are not two")
		}
		pair[n], err = s.whole()
		n++
		return err
	})
	if err == nil && n != 2 {
		err = s.fail("data_offsets are not two")
	}
	return pair[0], pair[1], err
}

func (s *scanner) metadata(h *Header) error {
	if h.Metadata != nil {
		return s.fail("__metadata__ is there twice")
	}
	h.Metadata = map[string]string{}
	if s.next() == 'n' { // null stands for none
		return s.skip(1)
	}
	return s.object(func(key string) error {
		if _, twice := h.Metadata[key]; twice {
			return s.fail("__metadata__ has " + quote(key) + " twice")
		}
		value, err := s.text()
		h.Metadata[key] = value
		return err
	})
}
