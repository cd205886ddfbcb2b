package tensor

import (
	"fmt"
	"slices"
	"strconv"
)

// InputV1 names the one input that KServe v1 instances become.
const InputV1 = "input-0"

// DecodeV1 reads KServe's v1 request, {"instances": […]}, also with "inputs"
// in its place. Instances that are numbers, or arrays nested to any depth,
// become one tensor named InputV1: FP64 for numbers (null is NaN), BOOL or
// BYTES by the first of them. Instances that are objects become one input per
// field, [N] each, named after it: FP64 (true and false are 1 and 0, null is
// NaN) or BYTES; a value may stand in an array of one, and every instance
// must have every field. Other fields of the request are dropped.
func DecodeV1(body []byte) (*Request, error) {
	s := &scanner{data: body}
	r := &Request{}
	seen := fields{known: fieldsV1}
	err := s.mapping(func(key []byte) *Error {
		name := seen.note(key)
		return s.fieldOf(name, func() (err *Error) {
			r.Inputs, err = s.instances()
			return err
		})
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && (seen.seen == 3 || seen.twice != "") {
		err = schemaError("value_error", `Give "instances" or "inputs", not both or either twice`, nil).within("instances")
	}
	if err == nil && seen.seen == 0 {
		err = seen.need("instances")
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// instances reads the array at pos.
func (s *scanner) instances() ([]Tensor, *Error) {
	if s.space() != '[' {
		found, err := s.skip()
		if err != nil {
			return nil, err
		}
		return nil, schemaError("list_type", "instances should be a list", found)
	}
	switch s.firstLeaf() {
	case '{':
		return s.rows()
	case '"':
		return s.nested(Bytes)
	case 't', 'f':
		return s.nested(Bool)
	}
	return s.nested(FP64)
}

// firstLeaf is the byte at which the first thing that is no array begins,
// '{' only when it stands directly in the outermost array.
func (s *scanner) firstLeaf() byte {
	ahead := scanner{data: s.data, pos: s.pos}
	for depth := 0; ; depth++ {
		switch c := ahead.space(); c {
		case '[':
			ahead.pos++
		case '{':
			if depth > 1 {
				return 0
			}
			return c
		default:
			return c
		}
	}
}

// nested reads arrays of one datatype; the shape is theirs.
func (s *scanner) nested(d Datatype) ([]Tensor, *Error) {
	t := Tensor{Name: InputV1, Datatype: d, Text: d == Bytes}
	dims, err := readValues(s, d, &t.Data, -1, false)
	if err != nil {
		return nil, named("instances", &t, err)
	}
	for _, n := range dims {
		t.Shape = append(t.Shape, int64(n))
	}
	return []Tensor{t}, nil
}

// rows reads objects into columns.
func (s *scanner) rows() ([]Tensor, *Error) {
	var columns []Tensor
	index := map[string]int{}
	n := 0
	err := s.array(func(i int) *Error {
		n = i + 1
		return s.row(i, &columns, index)
	})
	for i := range columns {
		columns[i].Shape = []int64{int64(n)}
	}
	return columns, err
}

// row reads instance i.
func (s *scanner) row(i int, columns *[]Tensor, index map[string]int) *Error {
	if s.space() != '{' {
		return Errorf(KindInvalid, "instance %d is no object, but the first is", i)
	}
	got := 0
	err := s.object(func(key []byte) *Error {
		at, known := index[string(key)]
		if !known {
			if i > 0 {
				return Errorf(KindInvalid, "instance %d has %q, which the first lacks", i, key)
			}
			if at = len(*columns); at == MaxTensors {
				return Errorf(KindInvalid, "instance %d has more than %d fields", i, MaxTensors)
			}
			index[string(key)] = at
			*columns = append(*columns, Tensor{Name: string(key)})
		}
		column := &(*columns)[at]
		if known && column.Len() > i {
			return Errorf(KindInvalid, "instance %d has %q twice", i, key)
		}
		got++
		return s.cell(i, column)
	})
	if err != nil {
		return err
	}
	if got == len(*columns) {
		return nil
	}
	lacking := slices.IndexFunc(*columns, func(c Tensor) bool { return c.Len() <= i })
	return Errorf(KindInvalid, "instance %d lacks %q; a missing value is null", i, (*columns)[lacking].Name)
}

// cell reads one value into its column, whose datatype the first decides.
func (s *scanner) cell(i int, column *Tensor) *Error {
	boxed := s.space() == '['
	if boxed {
		if err := s.enter(); err != nil {
			return err
		}
	}
	c := s.space()
	if column.Datatype == NoDatatype {
		column.Datatype = FP64
		if c == '"' {
			column.Datatype, column.Text = Bytes, true
		}
	}
	var err *Error
	v := &column.Data
	switch {
	case column.Datatype == Bytes:
		var text []byte
		text, err = readBytes(s)
		v.Bytes = append(v.Bytes, text)
	case s.literal("true"):
		v.Float64 = append(v.Float64, 1)
	case s.literal("false"):
		v.Float64 = append(v.Float64, 0)
	default:
		var f float64
		f, err = readFloat64(s)
		v.Float64 = append(v.Float64, f)
	}
	if err != nil {
		if err.Kind == KindInvalid {
			err.Message = fmt.Sprintf("instance %d: %q: %s", i, column.Name, err.Message)
		}
		return err
	}
	if boxed {
		if s.space() != ']' {
			return Errorf(KindInvalid, "instance %d: %q holds more than one value", i, column.Name)
		}
		s.pos++
		s.depth--
	}
	return nil
}

// AppendV1 appends KServe's v1 response, {"predictions": […]}: the output's
// rows nested by its shape, a last size of 1 dropped. Several outputs become
// one object per row, by output name.
func AppendV1(dst []byte, r *Response) ([]byte, error) {
	dst = append(dst, `{"predictions":`...)
	var err error
	if len(r.Outputs) == 1 {
		t := &r.Outputs[0]
		shape := squeezed(t.Shape)
		if !t.Filled() {
			shape = []int64{int64(t.Len())}
		}
		dst, err = t.appendNested(dst, shape, 0, t.Len())
		return append(dst, '}'), err
	}
	n := int64(-1)
	for i := range r.Outputs {
		t := &r.Outputs[i]
		if len(t.Shape) == 0 || (n >= 0 && t.Shape[0] != n) || !t.Filled() {
			return dst, Errorf(KindInvalid, "outputs differ in their number of rows: v1 cannot say that, ask for one")
		}
		n = t.Shape[0]
	}
	dst = append(dst, '[')
	for row := range int(max(n, 0)) {
		if row > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendRow(dst, r.Outputs, row, int(n)); err != nil {
			return dst, err
		}
	}
	return append(dst, "]}"...), nil
}

// appendRow appends row of n of all outputs, as an object.
func appendRow(dst []byte, outputs []Tensor, row, n int) ([]byte, error) {
	var err error
	for i := range outputs {
		t := &outputs[i]
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		if dst, err = appendString(append(dst, sep), t.Name); err != nil {
			return dst, err
		}
		width := t.Len() / n
		if dst, err = t.appendNested(append(dst, ':'), squeezed(t.Shape)[1:], row*width, width); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

// squeezed is shape without a last size of 1, as long as rows remain.
func squeezed(shape []int64) []int64 {
	if n := len(shape); n > 1 && shape[n-1] == 1 {
		return shape[:n-1]
	}
	return shape
}

// appendNested appends the n elements from the given one, as arrays of shape.
func (t *Tensor) appendNested(dst []byte, shape []int64, from, n int) ([]byte, error) {
	if len(shape) == 0 {
		// One element, without the array appendFlat puts around it.
		start := len(dst)
		dst, err := t.appendFlat(dst, from, from+n)
		if err != nil {
			return dst, err
		}
		copy(dst[start:], dst[start+1:])
		return dst[:len(dst)-2], nil
	}
	if len(shape) == 1 {
		return t.appendFlat(dst, from, from+n)
	}
	var err error
	dst = append(dst, '[')
	for i := range int(shape[0]) {
		if i > 0 {
			dst = append(dst, ',')
		}
		width := n / int(shape[0])
		if dst, err = t.appendNested(dst, shape[1:], from+i*width, width); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

// String returns what t is, for logs and errors: its name, datatype and shape.
func (t *Tensor) String() string {
	return strconv.Quote(t.Name) + " " + t.Datatype.String() + fmt.Sprint(t.Shape)
}
