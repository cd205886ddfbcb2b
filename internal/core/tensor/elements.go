package tensor

import (
	"bytes"
	"fmt"
	"math"
	"unsafe"

	"github.com/x448/float16"
)

// elements reads the data of a tensor: an array nested to any depth, or one
// scalar, flattened in row-major order. Arrays at one depth must be of one
// length, as numpy demands.
type elements[T any] struct {
	scanner *scanner
	one     func(*scanner) (T, *Error)
	// many appends elements of the most common form to values, and stops
	// before any other and at the limit; nil: there is no such form.
	many   func(s *scanner, values []T, limit int64) []T
	values []T
	limit  int64 // elements the shape allows; -1: any number
	dims   []int // lengths of the arrays at each depth, -1 while unknown
	leaf   int   // depth at which scalars stand, -1 while unknown
}

// readElements reads a value at pos. Space is reserved for the number of elements
// that is expected (-1: nobody knows), but no more bytes than the rest of the body
// has. With exact more are refused.
func readElements[T any](s *scanner, expected int64, exact bool, one func(*scanner) (T, *Error), many func(*scanner, []T, int64) []T) ([]T, []int, *Error) {
	e := &elements[T]{scanner: s, one: one, many: many, limit: -1, leaf: -1}
	if exact {
		e.limit = expected
	}
	if expected >= 0 {
		var element T
		e.values = make([]T, 0, min(expected, int64(len(s.data)-s.pos)/int64(unsafe.Sizeof(element))+1))
	}
	if s.space() != '[' {
		v, err := one(s)
		e.mark()
		return append(e.values, v), nil, err
	}
	err := e.array(0)
	return e.values, e.dims, err
}

func (e *elements[T]) array(depth int) *Error {
	s := e.scanner
	if err := s.enter(); err != nil {
		return err
	}
	if len(e.dims) == depth {
		e.dims = append(e.dims, -1)
	}
	c := s.space()
	if c == ']' {
		s.pos++
		s.depth--
		return e.closed(depth, 0, false)
	}
	nested := c == '['
	for n := 1; ; n++ {
		if e.many != nil && !nested {
			before := len(e.values)
			e.values = e.many(s, e.values, e.limit)
			n += len(e.values) - before
			c = s.space()
		}
		if (c == '[') != nested {
			return raggedError(s)
		}
		var err *Error
		if nested {
			err = e.array(depth + 1)
		} else {
			err = e.scalar()
		}
		if err != nil {
			return err
		}
		if s.pos < len(s.data) && s.data[s.pos] == ',' { // as nearly always
			s.pos++
		} else if done, err := s.next(']', "',' or ']'"); err != nil {
			return err
		} else if done {
			return e.closed(depth, n, nested)
		}
		c = s.space()
	}
}

func (e *elements[T]) scalar() *Error {
	v, err := e.one(e.scanner)
	if err != nil {
		if err.Kind == KindInvalid && err.Path == nil {
			err.Path = []any{len(e.values)}
		}
		return err
	}
	if int64(len(e.values)) == e.limit {
		return &Error{Kind: KindInvalid, Type: tooMany}
	}
	e.mark()
	e.values = append(e.values, v)
	return nil
}

// mark marks the element that comes next, if its reader asks for it.
func (e *elements[T]) mark() {
	if e.scanner.marked {
		e.scanner.marked = false
		e.scanner.written.Mark(len(e.values))
	}
}

// tooMany marks the error of data beyond its shape, which readData words.
const tooMany = "too_many"

// closed checks the array of n that ended at depth against its siblings.
func (e *elements[T]) closed(depth, n int, nested bool) *Error {
	if e.dims[depth] < 0 {
		e.dims[depth] = n
	}
	if e.dims[depth] != n || (nested && e.leaf == depth) {
		return raggedError(e.scanner)
	}
	if !nested && n > 0 {
		if len(e.dims) > depth+1 {
			return raggedError(e.scanner)
		}
		e.leaf = depth
	}
	return nil
}

func raggedError(s *scanner) *Error {
	e := Errorf(KindInvalid, "data is ragged: arrays at one depth differ in length or kind, at byte %d", s.pos)
	e.Path = []any{}
	return e
}

// mismatch is the error for a value at pos that is not of the datatype.
func mismatch(s *scanner, d Datatype) *Error {
	found, err := s.skip()
	if err != nil {
		return err
	}
	if len(found) > maxInput {
		found = append(found[:maxInput:maxInput], "…"...)
	}
	return Errorf(KindInvalid, "%s is no %s", found, d)
}

// numeric reports whether a number stands at pos.
func (s *scanner) numeric() bool {
	c := s.space()
	return c-'0' <= 9 || c == '-'
}

func outOfRange(text []byte, d Datatype) *Error {
	if len(text) > maxInput {
		text = append(text[:maxInput:maxInput], "…"...)
	}
	return Errorf(KindInvalid, "%s does not fit %s", text, d)
}

func readFloat32(s *scanner) (float32, *Error) {
	if !s.numeric() {
		if s.literal("null") {
			return float32(math.NaN()), nil
		}
		return 0, mismatch(s, FP32)
	}
	var d decimal
	if err := s.decimal(&d); err != nil {
		return 0, err
	}
	f, ok := d.float32()
	if !ok {
		return 0, outOfRange(d.text, FP32)
	}
	s.marked = s.noting && !bytes.ContainsAny(d.text, ".eE")
	return f, nil
}

func readFloat64(s *scanner) (float64, *Error) {
	if !s.numeric() {
		if s.literal("null") {
			return math.NaN(), nil
		}
		return 0, mismatch(s, FP64)
	}
	var d decimal
	if err := s.decimal(&d); err != nil {
		return 0, err
	}
	f, ok := d.float64()
	if !ok {
		return 0, outOfRange(d.text, FP64)
	}
	s.marked = s.noting && !bytes.ContainsAny(d.text, ".eE")
	return f, nil
}

// readHalf reads FP16 and BF16, which round to the nearest value they hold.
func readHalf(d Datatype) func(*scanner) (float32, *Error) {
	return func(s *scanner) (float32, *Error) {
		start := s.pos
		f, err := readFloat32(s)
		if err != nil {
			return 0, err
		}
		half := roundHalf(d, f)
		if math.IsInf(float64(half), 0) {
			return 0, outOfRange(s.data[start:s.pos], d)
		}
		return half, nil
	}
}

// roundHalf rounds f to the nearest FP16 or BF16, ties to even.
func roundHalf(d Datatype, f float32) float32 {
	if d == FP16 {
		return float16.Fromfloat32(f).Float32()
	}
	return math.Float32frombits(uint32(bf16(f)) << 16)
}

// bf16 is the upper half of f's bits, rounded to the nearest, ties to even.
func bf16(f float32) uint16 {
	bits := math.Float32bits(f)
	if f != f {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// readSigned reads an integer of the datatype, whose range is [-limit-1,
// limit].
func readSigned[T int8 | int16 | int32 | int64](d Datatype, limit uint64) func(*scanner) (T, *Error) {
	return func(s *scanner) (T, *Error) {
		if !s.numeric() {
			return 0, mismatch(s, d)
		}
		var number decimal
		if err := s.decimal(&number); err != nil {
			return 0, err
		}
		n, whole, fits := number.integer()
		switch {
		case !whole:
			return 0, Errorf(KindInvalid, "%s is no whole number, as %s needs", number.text, d)
		case !fits, !number.negative && n > limit, number.negative && n > limit+1:
			return 0, outOfRange(number.text, d)
		case number.negative:
			return T(-n), nil
		}
		return T(n), nil
	}
}

// readUnsigned reads an integer of the datatype, at most limit.
func readUnsigned[T uint8 | uint16 | uint32 | uint64](d Datatype, limit uint64) func(*scanner) (T, *Error) {
	return func(s *scanner) (T, *Error) {
		if !s.numeric() {
			return 0, mismatch(s, d)
		}
		var number decimal
		if err := s.decimal(&number); err != nil {
			return 0, err
		}
		n, whole, fits := number.integer()
		switch {
		case !whole:
			return 0, Errorf(KindInvalid, "%s is no whole number, as %s needs", number.text, d)
		case !fits, n > limit, number.negative && n > 0:
			return 0, outOfRange(number.text, d)
		}
		return T(n), nil
	}
}

// readBool reads true or false, or numpy's 1 and 0.
func readBool(s *scanner) (bool, *Error) {
	switch {
	case s.space() == 0:
		return false, s.syntax("a value")
	case s.literal("true"):
		return true, nil
	case s.literal("false"):
		return false, nil
	}
	if s.numeric() {
		var d decimal
		if err := s.decimal(&d); err != nil {
			return false, err
		}
		if n, whole, fits := d.integer(); whole && fits && n <= 1 && (n == 0 || !d.negative) {
			return n == 1, nil
		}
		return false, outOfRange(d.text, Bool)
	}
	return false, mismatch(s, Bool)
}

// readBytes reads a string or null, which is a nil element; where it is noted how
// the data is written, also other JSON.
func readBytes(s *scanner) ([]byte, *Error) {
	if s.space() != '"' {
		if s.literal("null") {
			return nil, nil
		}
		if !s.noting {
			return nil, mismatch(s, Bytes)
		}
		found, err := s.skip()
		s.marked = err == nil
		return bytes.Clone(found), err
	}
	text, err := s.text()
	if err != nil {
		return nil, err
	}
	return append(make([]byte, 0, len(text)), text...), nil
}

// readValues reads data at pos into v, as readElements does; dims are the lengths
// of its arrays.
func readValues(s *scanner, d Datatype, v *Values, expected int64, exact bool) (dims []int, err *Error) {
	switch d {
	case Bool:
		v.Bool, dims, err = readElements(s, expected, exact, readBool, nil)
	case Uint8:
		v.Uint8, dims, err = readElements(s, expected, exact, readUnsigned[uint8](d, math.MaxUint8), nil)
	case Uint16:
		v.Uint16, dims, err = readElements(s, expected, exact, readUnsigned[uint16](d, math.MaxUint16), nil)
	case Uint32:
		v.Uint32, dims, err = readElements(s, expected, exact, readUnsigned[uint32](d, math.MaxUint32), nil)
	case Uint64:
		v.Uint64, dims, err = readElements(s, expected, exact, readUnsigned[uint64](d, math.MaxUint64), nil)
	case Int8:
		v.Int8, dims, err = readElements(s, expected, exact, readSigned[int8](d, math.MaxInt8), nil)
	case Int16:
		v.Int16, dims, err = readElements(s, expected, exact, readSigned[int16](d, math.MaxInt16), nil)
	case Int32:
		v.Int32, dims, err = readElements(s, expected, exact, readSigned[int32](d, math.MaxInt32), nil)
	case Int64:
		v.Int64, dims, err = readElements(s, expected, exact, readSigned[int64](d, math.MaxInt64), nil)
	case FP16, BF16:
		v.Float32, dims, err = readElements(s, expected, exact, readHalf(d), nil)
	case FP32:
		v.Float32, dims, err = readElements(s, expected, exact, readFloat32, plainFloat32s)
	case FP64:
		v.Float64, dims, err = readElements(s, expected, exact, readFloat64, plainFloat64s)
	case Bytes:
		v.Bytes, dims, err = readElements(s, expected, exact, readBytes, nil)
	}
	return dims, err
}

// values reads the data at pos into t, whose shape and datatype are known.
func (s *scanner) values(role string, t *Tensor) *Error {
	want, open, err := declared(t.Shape)
	if err != nil {
		return named(role, t, err)
	}
	// Code of models writes shapes as it likes, and texts are read by code alone.
	exact := open < 0 && t.Datatype != Bytes && role == "input"
	if s.space() == 'n' && want == 0 && s.literal("null") {
		return nil
	}
	t.Text = t.Datatype == Bytes
	start := *s
	s.noting = true
	dims, err := readValues(s, t.Datatype, &t.Data, want, exact)
	t.Written = s.noted(dims)
	if err != nil {
		if err.Type != tooMany {
			return named(role, t, err)
		}
		// Count the elements without keeping them, for the message.
		*s = start
		n, err := s.count()
		if err != nil {
			return err
		}
		return mismatched(role, t, want, int64(n))
	}
	got := int64(t.Len())
	if open < 0 {
		if exact && got != want {
			return mismatched(role, t, want, got)
		}
		return nil
	}
	if want == 0 || got%want != 0 {
		return named(role, t, Errorf(KindInvalid, "shape %v cannot hold %d elements: no size for -1 fits", t.Shape, got))
	}
	t.Shape[open] = got / want
	return nil
}

// noted is how the data with these lengths of arrays was written, nil of plain
// data; the next data are noted anew.
func (s *scanner) noted(dims []int) *Written {
	w := s.written
	s.noting, s.written, s.marked = false, Written{}, false
	if len(dims) > 1 {
		w.Dims = dims
	}
	if w.Dims == nil && w.Marks == nil {
		return nil
	}
	return &w
}

// declared is the number of elements the shape asks for, not counting the
// size written -1, whose index is open (else -1).
func declared(shape []int64) (want int64, open int, err *Error) {
	open = -1
	known := make([]int64, 0, 8)
	for i, size := range shape {
		switch {
		case size == -1 && open < 0:
			open = i
		case size < 0:
			return 0, open, Errorf(KindInvalid, "shape %v has a negative size", shape)
		default:
			known = append(known, size)
		}
	}
	want, ok := Elements(known)
	if !ok {
		// More than any body holds; the data will fall short of it.
		want = math.MaxInt64
	}
	return want, open, nil
}

// count counts the scalars of the value at pos.
func (s *scanner) count() (n int, err *Error) {
	if s.space() != '[' {
		_, err = s.skip()
		return 1, err
	}
	err = s.array(func(int) *Error {
		m, err := s.count()
		n += m
		return err
	})
	return n, err
}

// mismatched is the error for data of another size than its shape's.
func mismatched(role string, t *Tensor, want, got int64) *Error {
	holds := fmt.Sprint(want)
	if want == math.MaxInt64 {
		holds = "more than 2^63"
	}
	return Errorf(KindInvalid, "%s %q: shape %v holds %s elements, data has %d", role, t.Name, t.Shape, holds, got)
}

// named puts the tensor, and the element where there is one, before an
// error's message.
func named(role string, t *Tensor, err *Error) *Error {
	if err.Kind != KindInvalid {
		return err
	}
	if len(err.Path) == 1 {
		err.Message = fmt.Sprintf("%s %q: element %d: %s", role, t.Name, err.Path[0], err.Message)
	} else {
		err.Message = fmt.Sprintf("%s %q: %s", role, t.Name, err.Message)
	}
	return err
}
