package tensor

import (
	"encoding/binary"
	"math"

	"github.com/x448/float16"
)

// AppendRaw appends t's elements in the protocol's binary form: little-endian
// and back to back, BOOL one byte, BYTES each a 32-bit length and its bytes
// (a null is empty: the form has no null).
func (t *Tensor) AppendRaw(dst []byte) []byte {
	le := binary.LittleEndian
	v := &t.Data
	switch t.Datatype {
	case Bool:
		dst = appendEach(dst, v.Bool, appendBit)
	case Uint8:
		dst = append(dst, v.Uint8...)
	case Int8:
		dst = appendEach(dst, v.Int8, func(b []byte, x int8) []byte { return append(b, byte(x)) })
	case Uint16:
		dst = appendEach(dst, v.Uint16, le.AppendUint16)
	case Int16:
		dst = appendEach(dst, v.Int16, func(b []byte, x int16) []byte { return le.AppendUint16(b, uint16(x)) })
	case Uint32:
		dst = appendEach(dst, v.Uint32, le.AppendUint32)
	case Int32:
		dst = appendEach(dst, v.Int32, func(b []byte, x int32) []byte { return le.AppendUint32(b, uint32(x)) })
	case Uint64:
		dst = appendEach(dst, v.Uint64, le.AppendUint64)
	case Int64:
		dst = appendEach(dst, v.Int64, func(b []byte, x int64) []byte { return le.AppendUint64(b, uint64(x)) })
	case FP16:
		dst = appendEach(dst, v.Float32, func(b []byte, x float32) []byte {
			return le.AppendUint16(b, float16.Fromfloat32(x).Bits())
		})
	case BF16:
		dst = appendEach(dst, v.Float32, func(b []byte, x float32) []byte { return le.AppendUint16(b, bf16(x)) })
	case FP32:
		dst = appendEach(dst, v.Float32, func(b []byte, x float32) []byte { return le.AppendUint32(b, math.Float32bits(x)) })
	case FP64:
		dst = appendEach(dst, v.Float64, func(b []byte, x float64) []byte { return le.AppendUint64(b, math.Float64bits(x)) })
	case Bytes:
		dst = appendEach(dst, v.Bytes, func(b, x []byte) []byte {
			return append(le.AppendUint32(b, uint32(len(x))), x...)
		})
	}
	return dst
}

func appendBit(dst []byte, x bool) []byte {
	if x {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendEach[T any](dst []byte, values []T, one func([]byte, T) []byte) []byte {
	for _, v := range values {
		dst = one(dst, v)
	}
	return dst
}

// SetRaw fills t, whose datatype and shape are set, from its binary form. The
// elements are copied. A length that does not agree with the shape is an
// *Error and leaves the data empty.
func (t *Tensor) SetRaw(raw []byte) error {
	t.Data = Values{}
	want, ok := Elements(t.Shape)
	if !ok {
		return Errorf(KindInvalid, "input %q: shape %v has a negative size or is too large", t.Name, t.Shape)
	}
	if t.Datatype == Bytes {
		return t.setRawBytes(raw, want)
	}
	size := int64(t.Datatype.Size())
	if size == 0 {
		return Errorf(KindInvalid, "input %q has no datatype", t.Name)
	}
	if n := int64(len(raw)); n%size != 0 || n/size != want {
		return Errorf(KindInvalid, "input %q: shape %v of %s takes %d × %d bytes, the binary data has %d", t.Name, t.Shape, t.Datatype, want, size, n)
	}
	t.setRawFixed(raw)
	return nil
}

func (t *Tensor) setRawFixed(raw []byte) {
	le := binary.LittleEndian
	v := &t.Data
	switch t.Datatype {
	case Bool:
		v.Bool = each(raw, 1, func(b []byte) bool { return b[0] != 0 })
	case Uint8:
		v.Uint8 = append([]uint8(nil), raw...)
	case Int8:
		v.Int8 = each(raw, 1, func(b []byte) int8 { return int8(b[0]) })
	case Uint16:
		v.Uint16 = each(raw, 2, le.Uint16)
	case Int16:
		v.Int16 = each(raw, 2, func(b []byte) int16 { return int16(le.Uint16(b)) })
	case Uint32:
		v.Uint32 = each(raw, 4, le.Uint32)
	case Int32:
		v.Int32 = each(raw, 4, func(b []byte) int32 { return int32(le.Uint32(b)) })
	case Uint64:
		v.Uint64 = each(raw, 8, le.Uint64)
	case Int64:
		v.Int64 = each(raw, 8, func(b []byte) int64 { return int64(le.Uint64(b)) })
	case FP16:
		v.Float32 = each(raw, 2, func(b []byte) float32 { return float16.Frombits(le.Uint16(b)).Float32() })
	case BF16:
		v.Float32 = each(raw, 2, func(b []byte) float32 { return math.Float32frombits(uint32(le.Uint16(b)) << 16) })
	case FP32:
		v.Float32 = each(raw, 4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) })
	case FP64:
		v.Float64 = each(raw, 8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) })
	}
}

func each[T any](raw []byte, size int, one func([]byte) T) []T {
	out := make([]T, len(raw)/size)
	for i := range out {
		out[i] = one(raw[i*size : (i+1)*size])
	}
	return out
}

func (t *Tensor) setRawBytes(raw []byte, want int64) error {
	const header = 4
	values := make([][]byte, 0, min(want, int64(len(raw)/header)))
	for rest := raw; len(rest) > 0; {
		if len(rest) < header {
			return Errorf(KindInvalid, "input %q: element %d: the binary data ends inside its length", t.Name, len(values))
		}
		n := int64(binary.LittleEndian.Uint32(rest))
		rest = rest[header:]
		if n > int64(len(rest)) {
			return Errorf(KindInvalid, "input %q: element %d: %d bytes announced, %d left", t.Name, len(values), n, len(rest))
		}
		values = append(values, append(make([]byte, 0, n), rest[:n]...))
		rest = rest[n:]
	}
	if int64(len(values)) != want {
		return mismatched("input", t, want, int64(len(values)))
	}
	t.Data.Bytes = values
	return nil
}
