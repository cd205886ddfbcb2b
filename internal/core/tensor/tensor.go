// Package tensor holds the words of the Open Inference Protocol (OIP, KServe
// v2) and of KServe's v1 protocol: tensors, requests, responses, metadata,
// with their JSON and binary forms.
//
// The JSON reader is written by hand because tensor data is nearly all of a
// request's cost; everything it reads is checked. A request's numbers fill their
// shape; BYTES and a response's outputs need not (Filled), since models' code
// takes and gives them so. It is fuzzed against
// encoding/json. The rest of the protocol's JSON (parameters, metadata) goes
// through encoding/json.
//
// Nothing that is decoded aliases the bytes it was decoded from.
package tensor

import (
	"fmt"
	"math"
)

// MaxTensors bounds the inputs of a request, its requested outputs, and the
// outputs of a response: each takes far more memory than its JSON.
const MaxTensors = 1 << 14

// Parameters are a request's, response's or tensor's open parameters: any
// JSON. Numbers decode as json.Number, so large integers stay whole.
type Parameters map[string]any

// Values holds the elements of one tensor, in row-major order. Only the slice
// of the tensor's Datatype is used. FP16 and BF16 are held as float32, which
// is exact. In Bytes a nil element is JSON's null.
type Values struct {
	Bool    []bool
	Uint8   []uint8
	Uint16  []uint16
	Uint32  []uint32
	Uint64  []uint64
	Int8    []int8
	Int16   []int16
	Int32   []int32
	Int64   []int64
	Float32 []float32
	Float64 []float64
	Bytes   [][]byte
}

// Tensor is one named array.
type Tensor struct {
	Name       string
	Datatype   Datatype
	Shape      []int64 // of a decoded or computed tensor: no negative sizes
	Parameters Parameters
	// Text reports that BYTES came as, or will be, JSON strings: a model's code
	// is given characters rather than bytes.
	Text bool
	Data Values
	// Written is how JSON wrote the data, where Data alone does not say; nil
	// elsewhere. It is never changed.
	Written *Written
}

// Written is how JSON wrote the data of a tensor. A model's code may be shown it;
// what reads numbers needs none of it.
type Written struct {
	// Dims are the lengths of nested arrays, outermost first; nil of a flat one.
	Dims []int
	// Marks has a bit for each element that was written as another kind than the
	// datatype's own: in floating-point data a number without fraction or
	// exponent, in BYTES what is neither string nor null, whose JSON the element
	// then is. It ends with the last that is marked.
	Marks []byte
}

// Marked reports whether element i is marked.
func (w *Written) Marked(i int) bool {
	return w != nil && i/8 < len(w.Marks) && w.Marks[i/8]&(1<<(i%8)) != 0
}

// Mark marks element i.
func (w *Written) Mark(i int) {
	for len(w.Marks) <= i/8 {
		w.Marks = append(w.Marks, 0)
	}
	w.Marks[i/8] |= 1 << (i % 8)
}

// RequestedOutput names an output the client wants.
type RequestedOutput struct {
	Name       string
	Parameters Parameters
}

// Request is an inference request. ModelName and ModelVersion are not part of
// the JSON: the edge fills them from the path.
type Request struct {
	ID           string
	ModelName    string
	ModelVersion string
	Parameters   Parameters
	Inputs       []Tensor
	Outputs      []RequestedOutput // empty: what the model gives by default
}

// Response is an inference response.
type Response struct {
	ModelName    string
	ModelVersion string
	ID           string
	Parameters   Parameters
	Outputs      []Tensor
}

// ModelMetadata describes a model, as GET /v2/models/{m} answers.
type ModelMetadata struct {
	Name       string           `json:"name"`
	Versions   []string         `json:"versions,omitempty"`
	Platform   string           `json:"platform"`
	Inputs     []TensorMetadata `json:"inputs"`
	Outputs    []TensorMetadata `json:"outputs"`
	Parameters Parameters       `json:"parameters"`
}

// TensorMetadata describes an input or output. A size of -1 in Shape varies.
type TensorMetadata struct {
	Name       string     `json:"name"`
	Datatype   Datatype   `json:"datatype"`
	Shape      []int64    `json:"shape"`
	Parameters Parameters `json:"parameters,omitempty"`
}

// Elements is the number of elements a shape holds; ok is false when a size
// is negative or the product does not fit an int64. The empty shape is a
// scalar: one element.
func Elements(shape []int64) (n int64, ok bool) {
	n = 1
	zero := false
	for _, size := range shape {
		switch {
		case size < 0:
			return 0, false
		case size == 0:
			zero = true
		case !zero && n > math.MaxInt64/size:
			// Keep looking: a later zero makes the product zero.
			if !hasZero(shape) {
				return 0, false
			}
			zero = true
		case !zero:
			n *= size
		}
	}
	if zero {
		return 0, true
	}
	return n, true
}

func hasZero(shape []int64) bool {
	for _, size := range shape {
		if size == 0 {
			return true
		}
	}
	return false
}

// Filled reports whether t has as many elements as its shape says.
func (t *Tensor) Filled() bool {
	n, ok := Elements(t.Shape)
	return ok && n == int64(t.Len())
}

// Mismatch is the error for a tensor that is not Filled; role is input or output.
func (t *Tensor) Mismatch(role string) error {
	want, ok := Elements(t.Shape)
	if !ok {
		want = math.MaxInt64
	}
	return mismatched(role, t, want, int64(t.Len()))
}

// Len is the number of elements t holds.
func (t *Tensor) Len() int {
	switch t.Datatype {
	case Bool:
		return len(t.Data.Bool)
	case Uint8:
		return len(t.Data.Uint8)
	case Uint16:
		return len(t.Data.Uint16)
	case Uint32:
		return len(t.Data.Uint32)
	case Uint64:
		return len(t.Data.Uint64)
	case Int8:
		return len(t.Data.Int8)
	case Int16:
		return len(t.Data.Int16)
	case Int32:
		return len(t.Data.Int32)
	case Int64:
		return len(t.Data.Int64)
	case FP16, BF16, FP32:
		return len(t.Data.Float32)
	case FP64:
		return len(t.Data.Float64)
	case Bytes:
		return len(t.Data.Bytes)
	}
	return 0
}

// AppendFloat64 appends t's elements to dst as float64; false and true are 0
// and 1. It fails for BYTES, which have no value as a number. Integers beyond
// 2^53 are rounded, as numpy's astype does.
func (t *Tensor) AppendFloat64(dst []float64) ([]float64, error) {
	return appendFloats(dst, t)
}

// AppendFloat32 is AppendFloat64 in single precision.
func (t *Tensor) AppendFloat32(dst []float32) ([]float32, error) {
	return appendFloats(dst, t)
}

func appendFloats[D float32 | float64](dst []D, t *Tensor) ([]D, error) {
	v := &t.Data
	switch t.Datatype {
	case Bool:
		for _, b := range v.Bool {
			if b {
				dst = append(dst, 1)
			} else {
				dst = append(dst, 0)
			}
		}
		return dst, nil
	case Uint8:
		return convert(dst, v.Uint8), nil
	case Uint16:
		return convert(dst, v.Uint16), nil
	case Uint32:
		return convert(dst, v.Uint32), nil
	case Uint64:
		return convert(dst, v.Uint64), nil
	case Int8:
		return convert(dst, v.Int8), nil
	case Int16:
		return convert(dst, v.Int16), nil
	case Int32:
		return convert(dst, v.Int32), nil
	case Int64:
		return convert(dst, v.Int64), nil
	case FP16, BF16, FP32:
		return convert(dst, v.Float32), nil
	case FP64:
		return convert(dst, v.Float64), nil
	}
	return dst, Errorf(KindInvalid, "input %q: %s holds no numbers", t.Name, t.Datatype)
}

// number is what a tensor can hold as numbers.
type number interface {
	uint8 | uint16 | uint32 | uint64 | int8 | int16 | int32 | int64 | float32 | float64
}

func convert[D float32 | float64, S number](dst []D, src []S) []D {
	for _, x := range src {
		dst = append(dst, D(x))
	}
	return dst
}

// Datatype is the element type of a tensor, as the Open Inference Protocol
// names it. The zero value is no datatype.
type Datatype uint8

// The datatypes of the protocol. BF16 is Triton's addition.
const (
	NoDatatype Datatype = iota
	Bool
	Uint8
	Uint16
	Uint32
	Uint64
	Int8
	Int16
	Int32
	Int64
	FP16
	BF16
	FP32
	FP64
	Bytes
)

// datatypes holds, by Datatype, the protocol's name and the bytes of one
// element in binary form (0 where elements vary).
var datatypes = [...]struct {
	name string
	size int
}{
	NoDatatype: {"", 0},
	Bool:       {"BOOL", 1},
	Uint8:      {"UINT8", 1},
	Uint16:     {"UINT16", 2},
	Uint32:     {"UINT32", 4},
	Uint64:     {"UINT64", 8},
	Int8:       {"INT8", 1},
	Int16:      {"INT16", 2},
	Int32:      {"INT32", 4},
	Int64:      {"INT64", 8},
	FP16:       {"FP16", 2},
	BF16:       {"BF16", 2},
	FP32:       {"FP32", 4},
	FP64:       {"FP64", 8},
	Bytes:      {"BYTES", 0},
}

// ParseDatatype reads a datatype by its exact name; ok is false for others.
func ParseDatatype(name string) (d Datatype, ok bool) {
	for i := Bool; i <= Bytes; i++ {
		if datatypes[i].name == name {
			return i, true
		}
	}
	return NoDatatype, false
}

// String is the protocol's name of d; "" for none.
func (d Datatype) String() string {
	if int(d) >= len(datatypes) {
		return fmt.Sprintf("Datatype(%d)", uint8(d))
	}
	return datatypes[d].name
}

// Size is the number of bytes of one element in binary form; 0 for BYTES,
// whose elements vary, and for no datatype.
func (d Datatype) Size() int {
	if int(d) >= len(datatypes) {
		return 0
	}
	return datatypes[d].size
}

// Floating reports whether d can hold a missing value (NaN).
func (d Datatype) Floating() bool { return d >= FP16 && d <= FP64 }

// MarshalText writes the protocol's name.
func (d Datatype) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the protocol's name, or MLServer's and KServe's "" for
// a tensor without one.
func (d *Datatype) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*d = NoDatatype
		return nil
	}
	parsed, ok := ParseDatatype(string(text))
	if !ok {
		return fmt.Errorf("unknown datatype %q (have %s)", text, datatypeNames)
	}
	*d = parsed
	return nil
}

// datatypeNames lists the names for error messages.
const datatypeNames = "BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, BF16, FP32, FP64, BYTES"
