package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// What can be wrong with an exposition.
var (
	errTooLong  = errors.New("the answer is longer than allowed")
	errLongLine = errors.New("a wanted line is longer than allowed")
	errLine     = errors.New("malformed line")
)

// bufferSize is what a reader reads at once, and with it the longest wanted
// line: the adapters of one engine, or the settings of its cache.
const bufferSize = 64 << 10

// maxLabels bounds the labels of one wanted line.
const maxLabels = 256

// names are the metrics that are looked for. All others are passed over
// without being looked into.
type names struct {
	prefix string // of all of them
	list   []string
}

func newNames(list []string) names {
	n := names{list: list}
	for i, name := range list {
		if i == 0 {
			n.prefix = name
		}
		for !strings.HasPrefix(name, n.prefix) {
			n.prefix = n.prefix[:len(n.prefix)-1]
		}
	}
	return n
}

// match finds the name a line begins with, its index in the list, and what
// follows it.
func (n *names) match(line []byte) (at int, rest []byte, ok bool) {
	for len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
		line = line[1:]
	}
	if len(line) < len(n.prefix) || string(line[:len(n.prefix)]) != n.prefix {
		return 0, nil, false
	}
	for i, name := range n.list {
		if len(line) <= len(name) || string(line[:len(name)]) != name {
			continue
		}
		if c := line[len(name)]; c == '{' || c == ' ' || c == '\t' {
			return i, line[len(name):], true
		}
	}
	return 0, nil, false
}

// sample is one line of an exposition. It is valid until the next is read.
type sample struct {
	name   int // in the list of names
	labels []label
	value  float64
}

// label is a label's name and its value without escapes.
type label struct{ name, value []byte }

// get is a label's value; ok is false when there is no such label.
func (s *sample) get(name string) (value []byte, ok bool) {
	for _, l := range s.labels {
		if string(l.name) == name {
			return l.value, true
		}
	}
	return nil, false
}

// reader reads expositions in Prometheus' text format, version 0.0.4, one
// after the other with the same buffers. Names in quotes within the braces,
// which need a later version, are passed over.
type reader struct {
	buf     [bufferSize]byte
	sample  sample
	scratch []byte // label values that held escapes
}

// read gives every sample with a wanted name to found, in order. Wanted lines
// are checked as strictly as Prometheus checks them; the others are skipped
// unread. At most limit bytes are taken.
func (r *reader) read(in io.Reader, limit int64, wanted *names, found func(*sample)) error {
	end, skipping, number := 0, false, 0
	for total := int64(0); ; {
		n, err := in.Read(r.buf[end:])
		if total += int64(n); total > limit {
			return fmt.Errorf("%w: over %d bytes", errTooLong, limit)
		}
		rest, old := r.buf[:end+n], end // no line ends in the old part
		if skipping {
			at := bytes.IndexByte(rest, '\n')
			if skipping = at < 0; skipping {
				at = len(rest) - 1
			} else {
				number++
			}
			rest, old = rest[at+1:], 0
		}
		for !skipping {
			at := bytes.IndexByte(rest[old:], '\n')
			if at < 0 {
				break
			}
			at, old = at+old, 0
			number++
			if err := r.line(rest[:at], wanted, found); err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
			rest = rest[at+1:]
		}
		if len(rest) < end+n {
			copy(r.buf[:], rest)
		}
		if end = len(rest); end == len(r.buf) {
			if _, _, ok := wanted.match(rest); ok {
				return fmt.Errorf("line %d: %w: over %d bytes", number+1, errLongLine, len(r.buf))
			}
			skipping, end = true, 0
		}
		if err == io.EOF {
			if _, _, ok := wanted.match(r.buf[:end]); ok {
				return fmt.Errorf("line %d: %w: the answer ends within it", number+1, errLine)
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// line reads one line, without its end.
func (r *reader) line(line []byte, wanted *names, found func(*sample)) error {
	if len(line) == 0 || line[0] == '#' {
		return nil
	}
	name, rest, ok := wanted.match(line)
	if !ok {
		return nil
	}
	rest = blanks(rest)
	r.sample.name, r.sample.labels, r.scratch = name, r.sample.labels[:0], r.scratch[:0]
	if len(rest) > 0 && rest[0] == '{' {
		var err error
		if rest, err = r.labels(rest[1:]); err != nil {
			return err
		}
	}
	value, rest := token(blanks(rest))
	var err error
	if r.sample.value, err = number(value); err != nil {
		return fmt.Errorf("%w: the value %.40q is not a number", errLine, value)
	}
	if len(rest) > 0 {
		stamp, left := token(blanks(rest))
		if _, err := strconv.ParseInt(string(stamp), 10, 64); err != nil || len(left) > 0 {
			return fmt.Errorf("%w: %.40q after the value is no timestamp", errLine, rest)
		}
	}
	found(&r.sample)
	return nil
}

// labels reads what follows an opening brace, up to the closing one.
func (r *reader) labels(rest []byte) ([]byte, error) {
	for {
		rest = blanks(rest)
		if len(rest) > 0 && rest[0] == '}' {
			return rest[1:], nil
		}
		name := labelName(rest)
		rest = blanks(rest[len(name):])
		if len(name) == 0 || len(rest) == 0 || rest[0] != '=' {
			return nil, fmt.Errorf("%w: want a label, =, and a value in quotes", errLine)
		}
		rest = blanks(rest[1:])
		value, after, err := r.quoted(rest)
		if err != nil {
			return nil, err
		}
		if _, twice := r.sample.get(string(name)); twice || string(name) == "__name__" || len(r.sample.labels) == maxLabels {
			return nil, fmt.Errorf("%w: label %.40q is there twice, reserved, or beyond the first %d", errLine, name, maxLabels)
		}
		r.sample.labels = append(r.sample.labels, label{name, value})
		rest = blanks(after)
		if len(rest) > 0 && rest[0] == ',' {
			rest = rest[1:]
			continue
		}
		if len(rest) == 0 || rest[0] != '}' {
			return nil, fmt.Errorf("%w: want , or } after a label", errLine)
		}
	}
}

// labelName is the name that b begins with.
func labelName(b []byte) []byte {
	n := 0
	for n < len(b) && (b[n] == '_' || isLetter(b[n]) || (n > 0 && b[n] >= '0' && b[n] <= '9')) {
		n++
	}
	return b[:n]
}

// quoted reads a value in quotes and what follows it.
func (r *reader) quoted(rest []byte) (value, after []byte, err error) {
	if len(rest) == 0 || rest[0] != '"' {
		return nil, nil, fmt.Errorf("%w: a label's value is not in quotes", errLine)
	}
	rest = rest[1:]
	end := bytes.IndexByte(rest, '"')
	if end < 0 {
		return nil, nil, fmt.Errorf("%w: a label's value has no end", errLine)
	}
	if bytes.IndexByte(rest[:end], '\\') < 0 {
		return rest[:end], rest[end+1:], nil
	}
	from := len(r.scratch)
	for i := 0; i < len(rest); i++ {
		c := rest[i]
		if c == '"' {
			return r.scratch[from:], rest[i+1:], nil
		}
		if c == '\\' {
			if i++; i == len(rest) {
				break
			}
			switch c = rest[i]; c {
			case '\\', '"':
			case 'n':
				c = '\n'
			default:
				return nil, nil, fmt.Errorf(`%w: \%c in a label's value`, errLine, c)
			}
		}
		r.scratch = append(r.scratch, c)
	}
	return nil, nil, fmt.Errorf("%w: a label's value has no end", errLine)
}

// number reads a value: as Go's floats, without hexadecimals and underscores.
func number(b []byte) (float64, error) {
	if bytes.ContainsAny(b, "pP_") {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(string(b), 64)
}

// token cuts b before its first blank.
func token(b []byte) (word, rest []byte) {
	for i, c := range b {
		if c == ' ' || c == '\t' {
			return b[:i], b[i:]
		}
	}
	return b, nil
}

// blanks drops leading blanks.
func blanks(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
