package ort

import (
	"fmt"
	"strings"
	"unsafe"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Kind is what sort of value an input or output is.
type Kind int32

// The kinds that can be used, by the library's ONNXType.
const (
	Tensor   Kind = 1
	Sequence Kind = 2
	Map      Kind = 3
)

// elementTypes are the library's ONNXTensorElementDataType by datatype.
var elementTypes = [...]int32{
	tensor.FP32: 1, tensor.Uint8: 2, tensor.Int8: 3, tensor.Uint16: 4, tensor.Int16: 5, tensor.Int32: 6, tensor.Int64: 7,
	tensor.Bytes: 8, tensor.Bool: 9, tensor.FP16: 10, tensor.FP64: 11, tensor.Uint32: 12, tensor.Uint64: 13, tensor.BF16: 16,
}

// datatypeOf is the datatype of an element type; NoDatatype for those the
// protocol lacks (complex numbers, 8-bit floats, 4-bit integers).
func datatypeOf(element int32) tensor.Datatype {
	for d, e := range elementTypes {
		if e == element && e != 0 {
			return tensor.Datatype(d)
		}
	}
	return tensor.NoDatatype
}

// Port is an input or output of a session.
type Port struct {
	Name string
	Type Type
	name *byte // for C
}

// Type is the type of a value.
type Type struct {
	Kind     Kind
	Datatype tensor.Datatype // of a tensor, or of a map's values
	Shape    []int64         // of a tensor; -1 varies; empty also if the model says nothing of it
	Key      tensor.Datatype // of a map: INT64 or BYTES
	Element  *Type           // of a sequence
}

// String is the type in words, for errors.
func (t Type) String() string {
	switch t.Kind {
	case Tensor:
		return fmt.Sprintf("tensor of %s", name(t.Datatype))
	case Sequence:
		return "sequence of " + t.Element.String()
	case Map:
		return fmt.Sprintf("map of %s to %s", name(t.Key), name(t.Datatype))
	}
	return fmt.Sprintf("ONNX type %d", int32(t.Kind))
}

func name(d tensor.Datatype) string {
	if d == tensor.NoDatatype {
		return "an unsupported datatype"
	}
	return d.String()
}

// ports describes the inputs or the outputs of a session.
func (s *Session) ports(count, portName, portType function) ([]Port, error) {
	l := s.library
	var n uintptr
	if err := l.call(count, uintptr(s.handle), uintptr(unsafe.Pointer(&n))); err != nil {
		return nil, err
	}
	list := make([]Port, n)
	for i := range list {
		var title, info unsafe.Pointer
		if err := l.call(portName, uintptr(s.handle), uintptr(i), uintptr(l.allocator), uintptr(unsafe.Pointer(&title))); err != nil {
			return nil, err
		}
		list[i].Name = strings.Clone(text(title))
		if err := l.call(fnAllocatorFree, uintptr(l.allocator), uintptr(title)); err != nil {
			return nil, err
		}
		list[i].name = cString(list[i].Name)
		if err := l.call(portType, uintptr(s.handle), uintptr(i), uintptr(unsafe.Pointer(&info))); err != nil {
			return nil, err
		}
		var err error
		list[i].Type, err = l.typeOf(info, 0)
		l.release(fnReleaseTypeInfo, info)
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// maxDepth bounds how deep types may be nested.
const maxDepth = 4

// typeOf reads a type. What is not supported keeps its kind alone.
func (l *Library) typeOf(info unsafe.Pointer, depth int) (t Type, err error) {
	if err := l.call(fnGetOnnxTypeFromTypeInfo, uintptr(info), uintptr(unsafe.Pointer(&t.Kind))); err != nil {
		return t, err
	}
	var part, element unsafe.Pointer
	switch {
	case depth == maxDepth:
		return t, &Error{CodeNotImplemented, "a type is nested too deeply"}
	case t.Kind == Tensor:
		// The part belongs to the whole.
		if err = l.call(fnCastTypeInfoToTensorInfo, uintptr(info), uintptr(unsafe.Pointer(&part))); err == nil {
			t.Datatype, t.Shape, err = l.shape(part)
		}
	case t.Kind == Sequence:
		if err = l.call(fnCastTypeInfoToSequenceTypeInfo, uintptr(info), uintptr(unsafe.Pointer(&part))); err != nil {
			return t, err
		}
		if err = l.call(fnGetSequenceElementType, uintptr(part), uintptr(unsafe.Pointer(&element))); err != nil {
			return t, err
		}
		defer l.release(fnReleaseTypeInfo, element)
		t.Element = new(Type)
		*t.Element, err = l.typeOf(element, depth+1)
	case t.Kind == Map:
		var key int32
		if err = l.call(fnCastTypeInfoToMapTypeInfo, uintptr(info), uintptr(unsafe.Pointer(&part))); err != nil {
			return t, err
		}
		if err = l.call(fnGetMapKeyType, uintptr(part), uintptr(unsafe.Pointer(&key))); err != nil {
			return t, err
		}
		t.Key = datatypeOf(key)
		if err = l.call(fnGetMapValueType, uintptr(part), uintptr(unsafe.Pointer(&element))); err != nil {
			return t, err
		}
		defer l.release(fnReleaseTypeInfo, element)
		var value Type
		if value, err = l.typeOf(element, depth+1); err == nil && value.Kind == Tensor {
			t.Datatype = value.Datatype
		}
	}
	return t, err
}

// maxRank bounds the sizes of a shape.
const maxRank = 64

// shape reads a tensor's datatype and shape.
func (l *Library) shape(info unsafe.Pointer) (tensor.Datatype, []int64, error) {
	var element int32
	if err := l.call(fnGetTensorElementType, uintptr(info), uintptr(unsafe.Pointer(&element))); err != nil {
		return 0, nil, err
	}
	var rank uintptr
	if err := l.call(fnGetDimensionsCount, uintptr(info), uintptr(unsafe.Pointer(&rank))); err != nil {
		return 0, nil, err
	}
	if rank > maxRank {
		return 0, nil, &Error{CodeNotImplemented, fmt.Sprintf("a shape has %d sizes; %d are allowed", rank, maxRank)}
	}
	shape := make([]int64, rank)
	if rank > 0 {
		if err := l.call(fnGetDimensions, uintptr(info), uintptr(unsafe.Pointer(&shape[0])), rank); err != nil {
			return 0, nil, err
		}
	}
	for i := range shape {
		shape[i] = max(shape[i], -1)
	}
	return datatypeOf(element), shape, nil
}
