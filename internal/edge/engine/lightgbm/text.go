package lightgbm

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// lines goes through a model file section by section: the header, then a
// section for each tree.
type lines struct {
	rest []byte
	line int  // of the next line, counted from 0
	tree bool // whether a tree's section follows
}

// section is a run of "key=value" lines. The values are parts of the file.
type section struct {
	line   int // the first line, counted from 1
	fields map[string][]byte
}

// maxFields bounds the lines of a section; LightGBM writes about 20.
const maxFields = 256

// next consumes a line without its end.
func (l *lines) next() []byte {
	line, rest, _ := bytes.Cut(l.rest, []byte("\n"))
	l.rest = rest
	l.line++
	return bytes.TrimSuffix(line, []byte("\r"))
}

// section reads up to the line that starts the next tree (consumed) or ends
// the trees.
func (l *lines) section() (section, error) {
	s := section{line: l.line + 1, fields: map[string][]byte{}}
	l.tree = false
	for len(l.rest) > 0 {
		line := l.next()
		switch {
		case len(line) == 0:
			continue
		case bytes.HasPrefix(line, []byte("Tree=")):
			l.tree = true
			return s, nil
		case string(line) == "end of trees":
			return s, nil
		}
		key, value, _ := bytes.Cut(line, []byte("="))
		if len(s.fields) == maxFields {
			return s, fmt.Errorf("line %d: more than %d fields in a section", l.line, maxFields)
		}
		s.fields[string(key)] = value
	}
	return s, nil
}

// has reports whether the section has that field.
func (s section) has(name string) bool {
	_, ok := s.fields[name]
	return ok
}

// fail is an error about a field.
func (s section) fail(name, format string, args ...any) error {
	return fmt.Errorf("%s, in the section of line %d: %w", name, s.line, fmt.Errorf(format, args...))
}

// integer reads a field that must be there and lie between low and high.
func (s section) integer(name string, low, high int) (int, error) {
	text, ok := s.fields[name]
	if !ok {
		return 0, s.fail(name, "missing")
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(text)))
	if err != nil {
		return 0, s.fail(name, "%q is not an integer", excerpt.Of(string(text), 40))
	}
	if n < low || n > high {
		return 0, s.fail(name, "%d is not between %d and %d", n, low, high)
	}
	return n, nil
}

// integers reads a list of exactly n integers, which the field must hold before
// room is made for them.
func (s section) integers(name string, n int) ([]int, error) {
	if got := count(s.fields[name]); got != n {
		return nil, s.fail(name, "expected %d numbers, got %d", n, got)
	}
	list := make([]int, 0, n)
	for word := range bytes.FieldsSeq(s.fields[name]) {
		i, err := strconv.Atoi(string(word))
		if err != nil {
			return nil, s.fail(name, "%q is not an integer", excerpt.Of(string(word), 40))
		}
		list = append(list, i)
	}
	return list, nil
}

// numbers is integers for real numbers.
func (s section) numbers(name string, n int) ([]float64, error) {
	if got := count(s.fields[name]); got != n {
		return nil, s.fail(name, "expected %d numbers, got %d", n, got)
	}
	list := make([]float64, 0, n)
	for word := range bytes.FieldsSeq(s.fields[name]) {
		f, err := number(string(word))
		if err != nil {
			return nil, s.fail(name, "%q is not a number", excerpt.Of(string(word), 40))
		}
		list = append(list, f)
	}
	return list, nil
}

// number reads a real number; "inf" and "nan" are numbers.
func number(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

// count is the number of words in a line.
func count(line []byte) int {
	n := 0
	for range bytes.FieldsSeq(line) {
		n++
	}
	return n
}

// words splits a line at white space.
func words(line []byte) []string { return strings.Fields(string(line)) }

// cut splits "name:value".
func cut(word string) (name, value string) {
	name, value, _ = strings.Cut(word, ":")
	return name, value
}
