package tensor

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

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

// littleEndian reports whether this machine's memory has the protocol's binary
// form, so that elements need no conversion.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// plain are the elements whose memory is their binary form.
type plain interface {
	uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64 | float32 | float64
}

// memory is the memory of values, as bytes.
func memory[T plain](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*int(unsafe.Sizeof(values[0])))
}

// elementsOf reads elements from their binary form. They alias raw if adopt is
// set and it is aligned for them, else they are copied.
func elementsOf[T plain](raw []byte, adopt bool) []T {
	var element T
	size := int(unsafe.Sizeof(element))
	n := len(raw) / size
	if n == 0 {
		return []T{}
	}
	if adopt && littleEndian {
		if p := unsafe.Pointer(unsafe.SliceData(raw)); uintptr(p)%uintptr(size) == 0 {
			return unsafe.Slice((*T)(p), n)
		}
	}
	out := make([]T, n)
	bytes := memory(out)
	copy(bytes, raw)
	if !littleEndian {
		swap(bytes, size)
	}
	return out
}

// appendElements appends the binary form of values.
func appendElements[T plain](dst []byte, values []T) []byte {
	var element T
	start := len(dst)
	dst = append(dst, memory(values)...)
	if !littleEndian {
		swap(dst[start:], int(unsafe.Sizeof(element)))
	}
	return dst
}

// swap reverses the bytes of every element of a size.
func swap(data []byte, size int) {
	for ; len(data) >= size; data = data[size:] {
		for i, j := 0, size-1; i < j; i, j = i+1, j-1 {
			data[i], data[j] = data[j], data[i]
		}
	}
}

// RawMemory is t's binary form where t's own memory has it, without a copy: it
// is not to be changed and lives as long as t's data. ok is false for BYTES,
// BOOL, FP16 and BF16 and on machines of the other byte order; AppendRaw
// serves all.
func (t *Tensor) RawMemory() (raw []byte, ok bool) {
	v := &t.Data
	switch t.Datatype {
	case Uint8:
		raw = v.Uint8
	case Int8:
		raw = memory(v.Int8)
	case Uint16:
		raw = memory(v.Uint16)
	case Int16:
		raw = memory(v.Int16)
	case Uint32:
		raw = memory(v.Uint32)
	case Int32:
		raw = memory(v.Int32)
	case Uint64:
		raw = memory(v.Uint64)
	case Int64:
		raw = memory(v.Int64)
	case FP32:
		raw = memory(v.Float32)
	case FP64:
		raw = memory(v.Float64)
	default:
		return nil, false
	}
	return raw, littleEndian
}

// RawSize is the number of bytes of t's binary form.
func (t *Tensor) RawSize() int {
	if t.Datatype != Bytes {
		return t.Len() * t.Datatype.Size()
	}
	n := 0
	for _, text := range t.Data.Bytes {
		n += lengthBytes + len(text)
	}
	return n
}

// Clone is t with a shape and elements of its own; it shares the parameters.
func (t *Tensor) Clone() Tensor {
	out, v := *t, t.Data
	out.Shape = slices.Clone(t.Shape)
	out.Data = Values{
		Bool: slices.Clone(v.Bool), Uint8: slices.Clone(v.Uint8), Uint16: slices.Clone(v.Uint16), Uint32: slices.Clone(v.Uint32), Uint64: slices.Clone(v.Uint64),
		Int8: slices.Clone(v.Int8), Int16: slices.Clone(v.Int16), Int32: slices.Clone(v.Int32), Int64: slices.Clone(v.Int64),
		Float32: slices.Clone(v.Float32), Float64: slices.Clone(v.Float64), Bytes: slices.Clone(v.Bytes),
	}
	for i, text := range out.Data.Bytes {
		out.Data.Bytes[i] = slices.Clone(text)
	}
	return out
}
