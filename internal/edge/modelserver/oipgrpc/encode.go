package oipgrpc

import (
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// inferResponse is a ModelInferResponse in its binary form.
type inferResponse struct{ parts mem.BufferSlice }

// sharedBytes is from where on a tensor's memory is sent as it is, in place of
// a copy.
const sharedBytes = 4 << 10

// writer makes a message of parts, so that tensors need not be copied into it.
type writer struct {
	parts mem.BufferSlice
	small []byte // follows parts
}

// memory appends bytes that nobody changes any more.
func (w *writer) memory(b []byte) {
	if len(b) < sharedBytes {
		w.small = append(w.small, b...)
		return
	}
	w.flush()
	w.parts = append(w.parts, mem.SliceBuffer(b))
}

// flush makes what was written a part.
func (w *writer) flush() {
	if len(w.small) > 0 {
		w.parts = append(w.parts, mem.SliceBuffer(w.small))
		w.small = w.small[len(w.small):]
	}
}

// The fields of ModelInferResponse.
const (
	responseModel = iota + 1
	responseVersion
	responseID
	responseParameters
	responseOutputs
	responseRaw
)

// headBytes is the room for what is around the tensors' elements.
const headBytes = 256

// encode writes a response, whose tensors it may share: they are not to be
// changed any more. All outputs are raw, or, if that is not asked for and each
// has a contents field, none. A null among BYTES is empty in both forms.
func encode(r *tensor.Response, raw bool) (*inferResponse, error) {
	for i := range r.Outputs {
		raw = raw || !hasField(r.Outputs[i].Datatype)
		if at := slices.IndexFunc(r.Outputs[i].Data.Bytes, func(b []byte) bool { return b == nil }); at >= 0 {
			return nil, tensor.Errorf(tensor.KindInvalid, "output %q: element %d is null, which gRPC has no form for; ask over REST", r.Outputs[i].Name, at)
		}
	}
	w := writer{small: make([]byte, 0, headBytes)}
	w.small = appendString(w.small, responseModel, r.ModelName)
	w.small = appendString(w.small, responseVersion, r.ModelVersion)
	w.small = appendString(w.small, responseID, r.ID)
	var err error
	if len(r.Parameters) > 0 {
		if w.small, err = appendParameters(w.small, responseParameters, r.Parameters); err != nil {
			return nil, err
		}
	}
	for i := range r.Outputs {
		if err := w.output(&r.Outputs[i], raw); err != nil {
			return nil, err
		}
	}
	if raw {
		for i := range r.Outputs {
			w.raw(&r.Outputs[i])
		}
	}
	w.flush()
	return &inferResponse{w.parts}, nil
}

// appendString appends a string field, unless it is empty.
func appendString(dst []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return dst
	}
	return appendText(dst, field, text)
}

// output appends an InferOutputTensor; if raw, without contents.
func (w *writer) output(t *tensor.Tensor, raw bool) error {
	var parameters []byte
	if len(t.Parameters) > 0 {
		var err error
		if parameters, err = appendParameters(nil, tensorParameters, t.Parameters); err != nil {
			return err
		}
	}
	datatype := t.Datatype.String()
	shape, contents := 0, 0
	for _, size := range t.Shape {
		shape += protowire.SizeVarint(uint64(size))
	}
	if !raw && t.Len() > 0 {
		contents = contentsSize(t)
	}
	total := len(parameters) + sizeOfText(t.Name) + sizeOfText(datatype) + sizeOfBytes(shape) + sizeOfBytes(contents)
	dst := protowire.AppendVarint(protowire.AppendTag(w.small, responseOutputs, protowire.BytesType), uint64(total))
	dst = appendString(dst, tensorName, t.Name)
	dst = appendString(dst, tensorDatatype, datatype)
	if shape > 0 {
		dst = protowire.AppendVarint(protowire.AppendTag(dst, tensorShape, protowire.BytesType), uint64(shape))
		for _, size := range t.Shape {
			dst = protowire.AppendVarint(dst, uint64(size))
		}
	}
	w.small = append(dst, parameters...)
	if contents > 0 {
		w.small = protowire.AppendVarint(protowire.AppendTag(w.small, tensorContents, protowire.BytesType), uint64(contents))
		w.contents(t)
	}
	return nil
}

// sizeOfText and sizeOfBytes are the sizes of fields with a number below 16
// that are left out when empty.
func sizeOfText(text string) int { return sizeOfBytes(len(text)) }

func sizeOfBytes(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}

// raw appends t's elements to raw_output_contents.
func (w *writer) raw(t *tensor.Tensor) {
	size := t.RawSize()
	w.small = protowire.AppendVarint(protowire.AppendTag(w.small, responseRaw, protowire.BytesType), uint64(size))
	if b, ok := t.RawMemory(); ok {
		w.memory(b)
		return
	}
	w.small = t.AppendRaw(slices.Grow(w.small, size))
}

// contentsSize is the size of t's InferTensorContents; t has elements.
func contentsSize(t *tensor.Tensor) int {
	if t.Datatype != tensor.Bytes {
		return sizeOfBytes(packedSize(t))
	}
	n := 0
	for _, text := range t.Data.Bytes {
		n += 1 + protowire.SizeBytes(len(text))
	}
	return n
}

// packedSize is the size of t's packed elements.
func packedSize(t *tensor.Tensor) int {
	v := &t.Data
	switch t.Datatype {
	case tensor.Int8:
		return varintsSize(v.Int8)
	case tensor.Int16:
		return varintsSize(v.Int16)
	case tensor.Int32:
		return varintsSize(v.Int32)
	case tensor.Int64:
		return varintsSize(v.Int64)
	case tensor.Uint8:
		return varintsSize(v.Uint8)
	case tensor.Uint16:
		return varintsSize(v.Uint16)
	case tensor.Uint32:
		return varintsSize(v.Uint32)
	case tensor.Uint64:
		return varintsSize(v.Uint64)
	}
	return t.RawSize() // BOOL, FP32, FP64: the packed form is the raw one
}

// contents appends t's InferTensorContents without its length.
func (w *writer) contents(t *tensor.Tensor) {
	field := contentsField[t.Datatype]
	if t.Datatype == tensor.Bytes {
		for _, text := range t.Data.Bytes {
			w.small = protowire.AppendVarint(protowire.AppendTag(w.small, field, protowire.BytesType), uint64(len(text)))
			w.memory(text)
		}
		return
	}
	size := packedSize(t)
	w.small = protowire.AppendVarint(protowire.AppendTag(w.small, field, protowire.BytesType), uint64(size))
	v := &t.Data
	switch t.Datatype {
	case tensor.FP32, tensor.FP64:
		if b, ok := t.RawMemory(); ok {
			w.memory(b)
			return
		}
	case tensor.Bool:
	default:
		w.small = slices.Grow(w.small, size)
	}
	switch t.Datatype {
	case tensor.Int8:
		w.small = appendVarints(w.small, v.Int8)
	case tensor.Int16:
		w.small = appendVarints(w.small, v.Int16)
	case tensor.Int32:
		w.small = appendVarints(w.small, v.Int32)
	case tensor.Int64:
		w.small = appendVarints(w.small, v.Int64)
	case tensor.Uint8:
		w.small = appendVarints(w.small, v.Uint8)
	case tensor.Uint16:
		w.small = appendVarints(w.small, v.Uint16)
	case tensor.Uint32:
		w.small = appendVarints(w.small, v.Uint32)
	case tensor.Uint64:
		w.small = appendVarints(w.small, v.Uint64)
	default:
		w.small = t.AppendRaw(slices.Grow(w.small, size))
	}
}

// integer is what travels as varints; negative ones sign-extended to 64 bits.
type integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

func varintsSize[T integer](values []T) int {
	n := 0
	for _, x := range values {
		if u := uint64(x); u < 0x80 {
			n++
		} else {
			n += protowire.SizeVarint(u)
		}
	}
	return n
}

func appendVarints[T integer](dst []byte, values []T) []byte {
	for _, x := range values {
		if u := uint64(x); u < 0x80 {
			dst = append(dst, byte(u))
		} else {
			dst = protowire.AppendVarint(dst, u)
		}
	}
	return dst
}
