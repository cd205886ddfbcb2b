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
		return appendEach(dst, v.Bool, appendBit)
	case Uint8:
		return append(dst, v.Uint8...)
	case Int8:
		return appendElements(dst, v.Int8)
	case Uint16:
		return appendElements(dst, v.Uint16)
	case Int16:
		return appendElements(dst, v.Int16)
	case Uint32:
		return appendElements(dst, v.Uint32)
	case Int32:
		return appendElements(dst, v.Int32)
	case Uint64:
		return appendElements(dst, v.Uint64)
	case Int64:
		return appendElements(dst, v.Int64)
	case FP16:
		return appendEach(dst, v.Float32, func(b []byte, x float32) []byte {
			return le.AppendUint16(b, float16.Fromfloat32(x).Bits())
		})
	case BF16:
		return appendEach(dst, v.Float32, func(b []byte, x float32) []byte { return le.AppendUint16(b, bf16(x)) })
	case FP32:
		return appendElements(dst, v.Float32)
	case FP64:
		return appendElements(dst, v.Float64)
	case Bytes:
		return appendEach(dst, v.Bytes, func(b, x []byte) []byte {
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
// elements are copied. A length that does not agree with the shape of numbers is
// an *Error and leaves the data empty.
func (t *Tensor) SetRaw(raw []byte) error { return t.readRaw(raw, false) }

// AdoptRaw is SetRaw without the copy where memory allows: t may alias raw,
// which the caller gives up.
func (t *Tensor) AdoptRaw(raw []byte) error { return t.readRaw(raw, true) }

func (t *Tensor) readRaw(raw []byte, adopt bool) error {
	t.Data = Values{}
	want, ok := Elements(t.Shape)
	if !ok {
		return Errorf(KindInvalid, "input %q: shape %v has a negative size or is too large", t.Name, t.Shape)
	}
	if t.Datatype == Bytes {
		return t.setRawBytes(raw, want, adopt)
	}
	size := int64(t.Datatype.Size())
	if size == 0 {
		return Errorf(KindInvalid, "input %q has no datatype", t.Name)
	}
	if n := int64(len(raw)); n%size != 0 || n/size != want {
		return Errorf(KindInvalid, "input %q: shape %v of %s takes %d × %d bytes, the binary data has %d", t.Name, t.Shape, t.Datatype, want, size, n)
	}
	t.setRawFixed(raw, adopt)
	return nil
}

func (t *Tensor) setRawFixed(raw []byte, adopt bool) {
	le := binary.LittleEndian
	v := &t.Data
	switch t.Datatype {
	case Bool:
		v.Bool = each(raw, 1, func(b []byte) bool { return b[0] != 0 })
	case Uint8:
		v.Uint8 = elementsOf[uint8](raw, adopt)
	case Int8:
		v.Int8 = elementsOf[int8](raw, adopt)
	case Uint16:
		v.Uint16 = elementsOf[uint16](raw, adopt)
	case Int16:
		v.Int16 = elementsOf[int16](raw, adopt)
	case Uint32:
		v.Uint32 = elementsOf[uint32](raw, adopt)
	case Int32:
		v.Int32 = elementsOf[int32](raw, adopt)
	case Uint64:
		v.Uint64 = elementsOf[uint64](raw, adopt)
	case Int64:
		v.Int64 = elementsOf[int64](raw, adopt)
	case FP16:
		v.Float32 = each(raw, 2, func(b []byte) float32 { return float16.Frombits(le.Uint16(b)).Float32() })
	case BF16:
		v.Float32 = each(raw, 2, func(b []byte) float32 { return math.Float32frombits(uint32(le.Uint16(b)) << 16) })
	case FP32:
		v.Float32 = elementsOf[float32](raw, adopt)
	case FP64:
		v.Float64 = elementsOf[float64](raw, adopt)
	}
}

func each[T any](raw []byte, size int, one func([]byte) T) []T {
	out := make([]T, len(raw)/size)
	for i := range out {
		out[i] = one(raw[i*size : (i+1)*size])
	}
	return out
}

// lengthBytes is the size of the length before every element of BYTES.
const lengthBytes = 4

func (t *Tensor) setRawBytes(raw []byte, want int64, adopt bool) error {
	values := make([][]byte, 0, min(want, int64(len(raw)/lengthBytes)))
	for rest := raw; len(rest) > 0; {
		if len(rest) < lengthBytes {
			return Errorf(KindInvalid, "input %q: element %d: the binary data ends inside its length", t.Name, len(values))
		}
		n := int64(binary.LittleEndian.Uint32(rest))
		rest = rest[lengthBytes:]
		if n > int64(len(rest)) {
			return Errorf(KindInvalid, "input %q: element %d: %d bytes announced, %d left", t.Name, len(values), n, len(rest))
		}
		if adopt {
			values = append(values, rest[:n:n])
		} else {
			values = append(values, append(make([]byte, 0, n), rest[:n]...))
		}
		rest = rest[n:]
	}
	t.Data.Bytes = values
	return nil
}
