package ort

import (
	"bytes"
	"fmt"
	"slices"
	"unsafe"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Value is a tensor, sequence or map.
type Value struct {
	library *Library
	handle  unsafe.Pointer
	memory  []byte // of the elements, where they are Go's
}

// Release gives the value's memory back; what was read of it must not be used
// any more.
func (v *Value) Release() {
	v.library.release(fnReleaseValue, v.handle)
	v.handle, v.memory = nil, nil
}

// ReleaseAll releases values; nil ones are passed by.
func ReleaseAll(values []*Value) {
	for _, v := range values {
		if v != nil {
			v.Release()
		}
	}
}

// somewhere is where the elements of an empty tensor are.
var somewhere [8]byte

// NewTensor makes a tensor of any datatype but BYTES, whose elements are raw:
// row-major in the machine's byte order, as many as the shape holds. The value
// uses raw where it lies, which must not change before its release.
func (l *Library) NewTensor(d tensor.Datatype, shape []int64, raw []byte) (*Value, error) {
	n, ok := tensor.Elements(shape)
	if size := int64(d.Size()); size == 0 || !ok || int64(len(raw))%size != 0 || int64(len(raw))/size != n {
		return nil, fmt.Errorf("ort: shape %v of %s does not hold %d bytes", shape, d, len(raw))
	}
	v := &Value{library: l, memory: raw}
	data := &somewhere[0]
	if len(raw) > 0 {
		data = &raw[0]
	}
	sizes := append(slices.Clone(shape), 0)
	err := l.call(fnCreateTensorWithDataAsOrtValue, uintptr(l.memory), uintptr(unsafe.Pointer(data)), uintptr(len(raw)),
		uintptr(unsafe.Pointer(&sizes[0])), uintptr(len(shape)), uintptr(elementTypes[d]), uintptr(unsafe.Pointer(&v.handle)))
	if err != nil {
		return nil, err
	}
	return v, nil
}

// NewStrings makes a tensor of BYTES, which are copied. An element may not
// hold a zero byte: the library's API cannot say it.
func (l *Library) NewStrings(shape []int64, elements [][]byte) (*Value, error) {
	if n, ok := tensor.Elements(shape); !ok || n != int64(len(elements)) {
		return nil, fmt.Errorf("ort: shape %v does not hold %d elements", shape, len(elements))
	}
	total := 0
	for i, e := range elements {
		if bytes.IndexByte(e, 0) >= 0 {
			return nil, fmt.Errorf("ort: element %d holds a zero byte", i)
		}
		total += len(e) + 1
	}
	v := &Value{library: l}
	sizes := append(slices.Clone(shape), 0)
	if err := l.call(fnCreateTensorAsOrtValue, uintptr(l.allocator), uintptr(unsafe.Pointer(&sizes[0])), uintptr(len(shape)),
		uintptr(elementTypes[tensor.Bytes]), uintptr(unsafe.Pointer(&v.handle))); err != nil {
		return nil, err
	}
	if len(elements) == 0 {
		return v, nil
	}
	all := make([]byte, 0, total) // never moves
	list := make([]*byte, len(elements))
	for i, e := range elements {
		at := len(all)
		all = append(append(all, e...), 0)
		list[i] = &all[at]
	}
	err := l.call(fnFillStringTensor, uintptr(v.handle), uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)))
	keep(all, list)
	if err != nil {
		v.Release()
		return nil, err
	}
	return v, nil
}

// Kind is the value's kind.
func (v *Value) Kind() (k Kind, err error) {
	err = v.library.call(fnGetValueType, uintptr(v.handle), uintptr(unsafe.Pointer(&k)))
	return k, err
}

// Shape is a tensor's datatype and shape.
func (v *Value) Shape() (tensor.Datatype, []int64, error) {
	var info unsafe.Pointer
	if err := v.library.call(fnGetTensorTypeAndShape, uintptr(v.handle), uintptr(unsafe.Pointer(&info))); err != nil {
		return 0, nil, err
	}
	defer v.library.release(fnReleaseTensorTypeAndShapeInfo, info)
	return v.library.shape(info)
}

// Raw is the elements of a tensor of d, not BYTES, and of that shape, where
// the library has them: good until the value's release.
func (v *Value) Raw(d tensor.Datatype, shape []int64) ([]byte, error) {
	n, ok := tensor.Elements(shape)
	if !ok || d.Size() == 0 {
		return nil, fmt.Errorf("ort: a result of shape %v and %s", shape, name(d))
	}
	if n == 0 {
		return nil, nil
	}
	var data unsafe.Pointer
	if err := v.library.call(fnGetTensorMutableData, uintptr(v.handle), uintptr(unsafe.Pointer(&data))); err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(data), n*int64(d.Size())), nil
}

// Strings copies the elements of a tensor of BYTES that has that shape.
func (v *Value) Strings(shape []int64) ([][]byte, error) {
	n, ok := tensor.Elements(shape)
	if !ok {
		return nil, fmt.Errorf("ort: a result of shape %v", shape)
	}
	if n == 0 {
		return nil, nil
	}
	var total uintptr
	if err := v.library.call(fnGetStringTensorDataLength, uintptr(v.handle), uintptr(unsafe.Pointer(&total))); err != nil {
		return nil, err
	}
	all, starts := make([]byte, total+1), make([]uintptr, n)
	if err := v.library.call(fnGetStringTensorContent, uintptr(v.handle), uintptr(unsafe.Pointer(&all[0])), total,
		uintptr(unsafe.Pointer(&starts[0])), uintptr(n)); err != nil {
		return nil, err
	}
	elements := make([][]byte, n)
	for i, start := range starts {
		end := total
		if i+1 < len(starts) {
			end = starts[i+1]
		}
		elements[i] = all[start:end:end]
	}
	return elements, nil
}

// Len is the number of elements of a sequence. A map has two: a tensor of its
// keys and one of its values.
func (v *Value) Len() (int, error) {
	var n uintptr
	err := v.library.call(fnGetValueCount, uintptr(v.handle), uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// At is element i of a sequence or map. The caller releases it.
func (v *Value) At(i int) (*Value, error) {
	e := &Value{library: v.library}
	if err := v.library.call(fnGetValue, uintptr(v.handle), uintptr(i), uintptr(v.library.allocator), uintptr(unsafe.Pointer(&e.handle))); err != nil {
		return nil, err
	}
	return e, nil
}
