package oipgrpc

import (
	"encoding/binary"
	"errors"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// contentsField is the field of InferTensorContents for each datatype; the two
// half-precision ones have none.
var contentsField = [...]protowire.Number{
	tensor.Bool: 1,
	tensor.Int8: 2, tensor.Int16: 2, tensor.Int32: 2,
	tensor.Int64: 3,
	tensor.Uint8: 4, tensor.Uint16: 4, tensor.Uint32: 4,
	tensor.Uint64: 5,
	tensor.FP32:   6,
	tensor.FP64:   7,
	tensor.Bytes:  8,
	tensor.FP16:   0, tensor.BF16: 0,
}

// contentsNames are the fields' names.
var contentsNames = [...]string{"", "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents", "fp32_contents", "fp64_contents", "bytes_contents"}

// hasField reports whether a datatype's elements have a field.
func hasField(d tensor.Datatype) bool { return contentsField[d] != 0 }

// readContents appends the elements of an InferTensorContents to t, whose
// datatype is known.
func readContents(t *tensor.Tensor, message []byte) error {
	field := contentsField[t.Datatype]
	r := reader{rest: message}
	for r.next() {
		switch {
		case r.number < 1 || int(r.number) >= len(contentsNames):
		case r.kind == protowire.BytesType && len(r.value) == 0 && r.number != 8:
		case field == 0:
			return tensor.Errorf(tensor.KindInvalid, "input %q: %s has no contents field; send it in raw_input_contents", t.Name, t.Datatype)
		case r.number != field:
			return tensor.Errorf(tensor.KindInvalid, "input %q: %s goes in %s, not in %s", t.Name, t.Datatype, contentsNames[field], contentsNames[r.number])
		default:
			if err := readElements(t, &r); err != nil {
				return err
			}
		}
	}
	if r.err != nil {
		return r.err
	}
	if t.Datatype == tensor.Bytes {
		keepTexts(t.Data.Bytes)
	}
	return nil
}

// readElements appends the elements at r. What does not fit the datatype is an
// error, as it is in JSON.
func readElements(t *tensor.Tensor, r *reader) (err error) {
	v := &t.Data
	fits := true
	switch t.Datatype {
	case tensor.Bool:
		v.Bool, err = varints(v.Bool, r, func(x uint64) (bool, bool) { return x != 0, true })
	case tensor.Int8:
		v.Int8, err = varints(v.Int8, r, signed[int8])
	case tensor.Int16:
		v.Int16, err = varints(v.Int16, r, signed[int16])
	case tensor.Int32:
		v.Int32, err = varints(v.Int32, r, signed[int32])
	case tensor.Int64:
		v.Int64, err = varints(v.Int64, r, func(x uint64) (int64, bool) { return int64(x), true })
	case tensor.Uint8:
		v.Uint8, err = varints(v.Uint8, r, unsigned[uint8])
	case tensor.Uint16:
		v.Uint16, err = varints(v.Uint16, r, unsigned[uint16])
	case tensor.Uint32:
		v.Uint32, err = varints(v.Uint32, r, unsigned[uint32])
	case tensor.Uint64:
		v.Uint64, err = varints(v.Uint64, r, func(x uint64) (uint64, bool) { return x, true })
	case tensor.FP32:
		v.Float32, fits = float32s(v.Float32, r)
	case tensor.FP64:
		v.Float64, fits = float64s(v.Float64, r)
	case tensor.Bytes:
		if r.kind == protowire.BytesType {
			v.Bytes = append(v.Bytes, r.value)
		}
	}
	if err == nil && !fits {
		err = malformed(errFixed)
	}
	if errors.Is(err, errRange) {
		err = tensor.Errorf(tensor.KindInvalid, "input %q: an element of %s does not fit %s", t.Name, contentsNames[contentsField[t.Datatype]], t.Datatype)
	}
	return err
}

// The errors that readElements words.
var (
	errRange = tensor.Errorf(tensor.KindInvalid, "an element does not fit its datatype")
	errFixed = tensor.Errorf(tensor.KindInvalid, "the message is malformed: the length of packed numbers is no multiple of their size")
)

// signed and unsigned read an element of the 32-bit fields; ok is false beyond
// the range of T.
func signed[T int8 | int16 | int32](x uint64) (v T, ok bool) {
	v = T(int32(x))
	return v, int32(v) == int32(x)
}

func unsigned[T uint8 | uint16 | uint32](x uint64) (v T, ok bool) {
	v = T(uint32(x))
	return v, uint32(v) == uint32(x)
}

// varints appends the numbers at r, packed or one alone.
func varints[T any](dst []T, r *reader, one func(uint64) (T, bool)) ([]T, error) {
	if r.kind == protowire.VarintType {
		v, ok := one(r.varint)
		if !ok {
			return dst, errRange
		}
		return append(dst, v), nil
	}
	if r.kind != protowire.BytesType {
		return dst, nil
	}
	packed := r.value
	// Every number ends with the one of its bytes that is below 0x80.
	count := 0
	for _, b := range packed {
		if b < 0x80 {
			count++
		}
	}
	if free := cap(dst) - len(dst); free < count {
		dst = append(make([]T, 0, len(dst)+count), dst...)
	}
	for len(packed) > 0 {
		x, n := uint64(packed[0]), 1
		if x >= 0x80 {
			if x, n = protowire.ConsumeVarint(packed); n < 0 {
				return dst, malformed(protowire.ParseError(n))
			}
		}
		v, ok := one(x)
		if !ok {
			return dst, errRange
		}
		dst, packed = append(dst, v), packed[n:]
	}
	return dst, nil
}

// float32s appends the numbers at r; ok is false if they end inside one.
func float32s(dst []float32, r *reader) (_ []float32, ok bool) {
	switch r.kind {
	case protowire.Fixed32Type:
		return append(dst, math.Float32frombits(binary.LittleEndian.Uint32(r.value))), true
	case protowire.BytesType:
		t := tensor.Tensor{Datatype: tensor.FP32, Shape: []int64{int64(len(r.value) / 4)}}
		if t.SetRaw(r.value) != nil {
			return dst, false
		}
		if len(dst) == 0 {
			return t.Data.Float32, true
		}
		return append(dst, t.Data.Float32...), true
	}
	return dst, true
}

// float64s is float32s in double precision.
func float64s(dst []float64, r *reader) (_ []float64, ok bool) {
	switch r.kind {
	case protowire.Fixed64Type:
		return append(dst, math.Float64frombits(binary.LittleEndian.Uint64(r.value))), true
	case protowire.BytesType:
		t := tensor.Tensor{Datatype: tensor.FP64, Shape: []int64{int64(len(r.value) / 8)}}
		if t.SetRaw(r.value) != nil {
			return dst, false
		}
		if len(dst) == 0 {
			return t.Data.Float64, true
		}
		return append(dst, t.Data.Float64...), true
	}
	return dst, true
}

// keepTexts copies texts out of the message they alias, into one piece of
// memory.
func keepTexts(texts [][]byte) {
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	memory := make([]byte, 0, size)
	for i, text := range texts {
		start := len(memory)
		memory = append(memory, text...)
		texts[i] = memory[start:len(memory):len(memory)]
	}
}
