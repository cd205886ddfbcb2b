package batch

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

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
