package batch

import (
	"fmt"
	"reflect"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Layout is which rows of a merged request belong to which request.
type Layout struct {
	ids  []string // of the requests, in order
	rows []int
	sum  int // of rows
	// listed reports that parameters of the requests themselves became lists.
	listed bool
}

// Requests is how many requests were merged.
func (l Layout) Requests() int { return len(l.ids) }

// Rows is how many rows they have together.
func (l Layout) Rows() int { return l.sum }

// Merge makes one request of several of equal keys (KeyOf). Unequal keys are an
// error. Each input's data is put one after the other, in order, and its first
// size is the sum. The new request has the first one's id.
//
// Of parameters, content types are alike by the key and the last headers
// win. Every other one becomes a list of one value per row, in which a request
// without it has nulls; the requests' own parameters, apart from their
// inputs', do so only where they differ. A lone request is returned itself, as
// it is.
//
// The requests are not changed. The merged one shares with them what does not
// differ.
func Merge(requests []*tensor.Request) (*tensor.Request, Layout, error) {
	var l Layout
	for _, r := range requests {
		rows, _ := rowsOf(r)
		l.ids, l.rows, l.sum = append(l.ids, r.ID), append(l.rows, rows), l.sum+rows
	}
	switch len(requests) {
	case 0:
		return nil, l, fmt.Errorf("no requests to merge")
	case 1:
		return requests[0], l, nil
	}
	first := requests[0]
	if err := alike(requests); err != nil {
		return nil, l, err
	}
	out := *first
	out.Parameters = l.lists(func(i int) tensor.Parameters { return requests[i].Parameters })
	l.listed = l.unlist(out.Parameters)
	out.Inputs = make([]tensor.Tensor, len(first.Inputs))
	for n := range first.Inputs {
		in := func(i int) *tensor.Tensor { return &requests[i].Inputs[n] }
		t := *in(0)
		t.Shape = slices.Clone(t.Shape)
		t.Shape[0] = int64(l.sum)
		t.Parameters = l.lists(func(i int) tensor.Parameters { return in(i).Parameters })
		t.Data = concatenate(t.Datatype, len(requests), in)
		t.Written = joinWritten(len(requests), in)
		out.Inputs[n] = t
	}
	return &out, l, nil
}

// alike checks that requests may share a batch and hold what they say.
func alike(requests []*tensor.Request) error {
	var first Key
	for i, r := range requests {
		key, _, ok := KeyOf(r)
		if i == 0 {
			first = key
		}
		if !ok || key != first {
			return fmt.Errorf("request %q cannot share a batch with %q: their inputs or outputs differ", r.ID, requests[0].ID)
		}
		for n := range r.Inputs {
			if err := whole(&r.Inputs[n]); err != nil {
				return fmt.Errorf("request %q: input %w", r.ID, err)
			}
		}
	}
	return nil
}

// whole checks that a tensor has as many elements as its shape says.
func whole(t *tensor.Tensor) error {
	if n, ok := tensor.Elements(t.Shape); !ok || n != int64(t.Len()) {
		return fmt.Errorf("%q: shape %v does not hold its %d elements", t.Name, t.Shape, t.Len())
	}
	return nil
}

// Split makes of a merged request's response one for each request, in order,
// with the request's own id. Outputs are split by rows. Of an output's
// parameters a list gives each request the value at its first row, and none if
// the list is shorter or has null there; every other value goes to all. The
// response's own parameters go to all, except that lists of one value per row
// are split like an output's if Merge made such lists of the requests' own. A
// lone request's response is returned itself, but for the id.
//
// It fails for all of them if an output has another number of rows than the
// requests, since nobody can tell whose they are. The responses share the
// data, each its own part.
func Split(r *tensor.Response, l Layout) ([]*tensor.Response, error) {
	if len(l.ids) == 1 {
		out := *r
		out.ID = l.ids[0]
		return []*tensor.Response{&out}, nil
	}
	for i := range r.Outputs {
		t := &r.Outputs[i]
		if len(t.Shape) == 0 || t.Shape[0] != int64(l.sum) {
			return nil, fmt.Errorf("the model answered a batch of %d rows with output %q of shape %v", l.sum, t.Name, t.Shape)
		}
		if err := whole(t); err != nil {
			return nil, fmt.Errorf("the model answered a batch with output %w", err)
		}
	}
	out := make([]*tensor.Response, len(l.ids))
	from := 0
	for i, id := range l.ids {
		part := *r
		part.ID = id
		part.Parameters = at(r.Parameters, from, func(list []any) bool { return l.listed && len(list) == l.sum })
		part.Outputs = make([]tensor.Tensor, len(r.Outputs))
		for n := range r.Outputs {
			part.Outputs[n] = rowsFrom(&r.Outputs[n], from, l.rows[i])
		}
		out[i] = &part
		from += l.rows[i]
	}
	return out, nil
}

// rowsFrom is count rows of a tensor, which has them and shares its data.
func rowsFrom(t *tensor.Tensor, from, count int) tensor.Tensor {
	out := *t
	out.Shape = slices.Clone(t.Shape)
	out.Shape[0] = int64(count)
	width := t.Len() / int(t.Shape[0])
	out.Data = cut(t, from*width, (from+count)*width)
	out.Written = cutWritten(t.Written, from*width, (from+count)*width)
	out.Parameters = at(t.Parameters, from, func([]any) bool { return true })
	return out
}

// The parameters that are not lists by row in a batch.
const (
	contentType = "content_type"
	headers     = "headers"
)

// lists makes one set of parameters of several: of gives the i-th request's.
func (l Layout) lists(of func(i int) tensor.Parameters) tensor.Parameters {
	var out tensor.Parameters
	row := 0
	for i, rows := range l.rows {
		for name, value := range of(i) {
			if out == nil {
				out = tensor.Parameters{}
			}
			if name == contentType || name == headers {
				out[name] = value
				continue
			}
			values, _ := out[name].([]any)
			if values == nil {
				values = make([]any, l.sum)
				out[name] = values
			}
			for n := range rows {
				values[row+n] = value
			}
		}
		row += rows
	}
	return out
}

// unlist puts a value in place of each list in which all are that value. It
// reports whether any list is left.
func (l Layout) unlist(p tensor.Parameters) (left bool) {
	for name, value := range p {
		if name == contentType || name == headers {
			continue
		}
		values := value.([]any)
		same, row := true, 0
		for _, rows := range l.rows {
			same = same && reflect.DeepEqual(values[row], values[0])
			row += rows
		}
		if same {
			p[name] = values[0]
		}
		left = left || !same
	}
	return left
}

// at is what a batch's parameters are to the request that begins at a row;
// byRow reports whether a list holds a value for each row. One that is left
// none has none, as a request without parameters.
func at(p tensor.Parameters, row int, byRow func([]any) bool) tensor.Parameters {
	if p == nil {
		return nil
	}
	out := make(tensor.Parameters, len(p))
	for name, value := range p {
		values, list := value.([]any)
		switch {
		case !list || !byRow(values):
			out[name] = value
		case row < len(values) && values[row] != nil:
			out[name] = values[row]
		}
	}
	if len(out) == 0 && len(p) > 0 {
		return nil
	}
	return out
}

// concatenate puts the elements of count tensors of one datatype one after
// the other; of gives the i-th.
func concatenate(d tensor.Datatype, count int, of func(i int) *tensor.Tensor) (v tensor.Values) {
	switch d {
	case tensor.Bool:
		v.Bool = join(count, func(i int) []bool { return of(i).Data.Bool })
	case tensor.Uint8:
		v.Uint8 = join(count, func(i int) []uint8 { return of(i).Data.Uint8 })
	case tensor.Uint16:
		v.Uint16 = join(count, func(i int) []uint16 { return of(i).Data.Uint16 })
	case tensor.Uint32:
		v.Uint32 = join(count, func(i int) []uint32 { return of(i).Data.Uint32 })
	case tensor.Uint64:
		v.Uint64 = join(count, func(i int) []uint64 { return of(i).Data.Uint64 })
	case tensor.Int8:
		v.Int8 = join(count, func(i int) []int8 { return of(i).Data.Int8 })
	case tensor.Int16:
		v.Int16 = join(count, func(i int) []int16 { return of(i).Data.Int16 })
	case tensor.Int32:
		v.Int32 = join(count, func(i int) []int32 { return of(i).Data.Int32 })
	case tensor.Int64:
		v.Int64 = join(count, func(i int) []int64 { return of(i).Data.Int64 })
	case tensor.FP16, tensor.BF16, tensor.FP32:
		v.Float32 = join(count, func(i int) []float32 { return of(i).Data.Float32 })
	case tensor.FP64:
		v.Float64 = join(count, func(i int) []float64 { return of(i).Data.Float64 })
	case tensor.Bytes:
		v.Bytes = join(count, func(i int) [][]byte { return of(i).Data.Bytes })
	}
	return v
}

func join[T any](count int, of func(i int) []T) []T {
	n := 0
	for i := range count {
		n += len(of(i))
	}
	out := make([]T, 0, n)
	for i := range count {
		out = append(out, of(i)...)
	}
	return out
}

// cut is the elements of t from (with) to (without), not copied.
func cut(t *tensor.Tensor, from, to int) (v tensor.Values) {
	in := &t.Data
	switch t.Datatype {
	case tensor.Bool:
		v.Bool = in.Bool[from:to:to]
	case tensor.Uint8:
		v.Uint8 = in.Uint8[from:to:to]
	case tensor.Uint16:
		v.Uint16 = in.Uint16[from:to:to]
	case tensor.Uint32:
		v.Uint32 = in.Uint32[from:to:to]
	case tensor.Uint64:
		v.Uint64 = in.Uint64[from:to:to]
	case tensor.Int8:
		v.Int8 = in.Int8[from:to:to]
	case tensor.Int16:
		v.Int16 = in.Int16[from:to:to]
	case tensor.Int32:
		v.Int32 = in.Int32[from:to:to]
	case tensor.Int64:
		v.Int64 = in.Int64[from:to:to]
	case tensor.FP16, tensor.BF16, tensor.FP32:
		v.Float32 = in.Float32[from:to:to]
	case tensor.FP64:
		v.Float64 = in.Float64[from:to:to]
	case tensor.Bytes:
		v.Bytes = in.Bytes[from:to:to]
	}
	return v
}

// joinWritten is how the data of count tensors that nest alike is written when one
// stands after the other.
func joinWritten(count int, of func(i int) *tensor.Tensor) *tensor.Written {
	var out *tensor.Written
	at := 0
	for i := range count {
		t := of(i)
		if w := t.Written; w != nil {
			if out == nil {
				out = &tensor.Written{}
			}
			for n := range 8 * len(w.Marks) {
				if w.Marked(n) {
					out.Mark(at + n)
				}
			}
			if out.Dims == nil {
				out.Dims = slices.Clone(w.Dims)
			} else if w.Dims != nil {
				out.Dims[0] += w.Dims[0]
			}
		}
		at += t.Len()
	}
	return out
}

// cutWritten is how the elements from (with) to (without) are written, flat.
func cutWritten(w *tensor.Written, from, to int) *tensor.Written {
	if w == nil {
		return nil
	}
	out := &tensor.Written{}
	for i := from; i < min(to, 8*len(w.Marks)); i++ {
		if w.Marked(i) {
			out.Mark(i - from)
		}
	}
	return out
}
