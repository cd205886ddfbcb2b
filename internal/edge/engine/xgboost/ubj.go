package xgboost

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ubjReader reads Universal Binary JSON (draft 12) as XGBoost writes it: big
// endian, typed and counted arrays, no counted objects.
type ubjReader struct {
	data []byte
	pos  int
	budget
}

// parseUBJ reads a whole document.
func parseUBJ(data []byte) (value, error) {
	r := &ubjReader{data: data}
	v, err := r.value()
	if err == nil && r.pos != len(data) {
		err = errTrailing
	}
	if err != nil {
		return value{}, fmt.Errorf("byte %d: %w", r.pos, err)
	}
	return v, nil
}

// take consumes n bytes, a count the file declared.
func (r *ubjReader) take(n int64) ([]byte, error) {
	if n < 0 || n > int64(len(r.data)-r.pos) {
		return nil, fmt.Errorf("%w: %d bytes declared, %d left", errEnd, n, len(r.data)-r.pos)
	}
	b := r.data[r.pos : r.pos+int(n)]
	r.pos += int(n)
	return b, nil
}

// peek gives the next byte without consuming it, 0 at the end.
func (r *ubjReader) peek() byte {
	if r.pos >= len(r.data) {
		return 0
	}
	return r.data[r.pos]
}

// marker consumes a type marker.
func (r *ubjReader) marker() (byte, error) {
	b, err := r.take(1)
	if err != nil {
		return 0, errEnd
	}
	return b[0], nil
}

// width is the size in bytes of a numeric type, 0 if it is none.
func width(marker byte) int64 {
	switch marker {
	case 'i', 'U', 'C':
		return 1
	case 'I':
		return 2
	case 'l', 'd':
		return 4
	case 'L', 'D':
		return 8
	}
	return 0
}

// scalar decodes one number of a type width knows.
func scalar(marker byte, b []byte) float64 {
	switch marker {
	case 'i':
		return float64(int8(b[0]))
	case 'U', 'C':
		return float64(b[0])
	case 'I':
		return float64(int16(binary.BigEndian.Uint16(b)))
	case 'l':
		return float64(int32(binary.BigEndian.Uint32(b)))
	case 'd':
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	case 'D':
		return math.Float64frombits(binary.BigEndian.Uint64(b))
	}
	return float64(int64(binary.BigEndian.Uint64(b)))
}

// value reads a marker and what it announces.
func (r *ubjReader) value() (value, error) {
	m, err := r.marker()
	if err != nil {
		return value{}, err
	}
	switch m {
	case '{':
		return r.object()
	case '[':
		return r.array()
	case 'S':
		return r.text()
	case 'Z':
		return value{kind: kindNull, number: math.NaN()}, nil
	case 'T':
		return value{kind: kindNumber, number: 1}, nil
	case 'F':
		return value{kind: kindNumber}, nil
	}
	w := width(m)
	if w == 0 {
		return value{}, fmt.Errorf("unknown UBJSON type %q", m)
	}
	b, err := r.take(w)
	if err != nil {
		return value{}, err
	}
	return value{kind: kindNumber, number: scalar(m, b)}, nil
}

// length reads a count: an integer with its marker.
func (r *ubjReader) length() (int64, error) {
	m, err := r.marker()
	if err != nil {
		return 0, err
	}
	w := width(m)
	if w == 0 || m == 'd' || m == 'D' || m == 'C' {
		return 0, fmt.Errorf("a length has type %q", m)
	}
	b, err := r.take(w)
	if err != nil {
		return 0, err
	}
	n := scalar(m, b)
	if n < 0 || n > float64(len(r.data)) {
		return 0, fmt.Errorf("a length of %.0f in a file of %d bytes", n, len(r.data))
	}
	return int64(n), nil
}

// text reads a string after its marker.
func (r *ubjReader) text() (value, error) {
	if err := r.enter(); err != nil {
		return value{}, err
	}
	defer r.leave()
	n, err := r.length()
	if err != nil {
		return value{}, err
	}
	b, err := r.take(n)
	return value{kind: kindText, text: string(b)}, err
}

// object reads the members of an object up to its brace.
func (r *ubjReader) object() (value, error) {
	if err := r.enter(); err != nil {
		return value{}, err
	}
	defer r.leave()
	v := value{kind: kindObject, fields: map[string]value{}}
	for r.peek() != '}' {
		key, err := r.text()
		if err != nil {
			return value{}, err
		}
		member, err := r.value()
		if err != nil {
			return value{}, err
		}
		if !unused[key.text] {
			v.fields[key.text] = member
		}
	}
	r.pos++
	return v, nil
}

// array reads an array of any of UBJSON's three shapes.
func (r *ubjReader) array() (value, error) {
	if err := r.enter(); err != nil {
		return value{}, err
	}
	defer r.leave()
	switch r.peek() {
	case '$':
		return r.typedArray()
	case '#':
		r.pos++
		n, err := r.length()
		if err != nil {
			return value{}, err
		}
		if n > int64(len(r.data)-r.pos) { // an element takes a byte at least
			return value{}, fmt.Errorf("%w: %d elements declared, %d bytes left", errEnd, n, len(r.data)-r.pos)
		}
		return r.elements(func(i int64) bool { return i < n })
	}
	v, err := r.elements(func(int64) bool { return r.peek() != ']' })
	r.pos++
	return v, err
}

// elements reads values as long as more returns true. The file's end is an
// error of value, so it cannot go on for ever.
func (r *ubjReader) elements(more func(i int64) bool) (value, error) {
	v := value{kind: kindNumbers}
	for i := int64(0); more(i); i++ {
		e, err := r.value()
		if err != nil {
			return value{}, err
		}
		if err := v.push(e); err != nil {
			return value{}, err
		}
	}
	return v, nil
}

// typedArray reads "$type#count" and the packed numbers.
func (r *ubjReader) typedArray() (value, error) {
	head, err := r.take(2)
	if err != nil {
		return value{}, err
	}
	w := width(head[1])
	if w == 0 {
		return value{}, fmt.Errorf("typed arrays of %q are not supported", head[1])
	}
	if m, err := r.marker(); err != nil || m != '#' {
		return value{}, errors.Join(errors.New("a typed array has no count"), err)
	}
	n, err := r.length()
	if err != nil {
		return value{}, err
	}
	b, err := r.take(n * w)
	if err != nil {
		return value{}, err
	}
	v := value{kind: kindNumbers, numbers: make([]float64, n)}
	for i := range v.numbers {
		v.numbers[i] = scalar(head[1], b[int64(i)*w:])
	}
	return v, nil
}
