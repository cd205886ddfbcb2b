package tensor

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

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
