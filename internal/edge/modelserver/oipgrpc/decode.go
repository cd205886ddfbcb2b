package oipgrpc

import (
	"bytes"

	"google.golang.org/protobuf/encoding/protowire"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// inferRequest is a ModelInferRequest that was read.
type inferRequest struct {
	tensor.Request
	raw bool  // some input was raw: the outputs are to be
	err error // why it could not be read; the rest is then not to be used
}

// The fields of ModelInferRequest.
const (
	requestModel = iota + 1
	requestVersion
	requestID
	requestParameters
	requestInputs
	requestOutputs
	requestRaw
)

// decode reads a message, of which it keeps nothing. Errors are *tensor.Error.
func (in *inferRequest) decode(message []byte) error {
	var raw [][]byte
	r := reader{rest: message}
	in.Inputs = make([]tensor.Tensor, 0, 1)
	for r.next() {
		if r.kind != protowire.BytesType {
			continue // a field that is not known
		}
		if r.number == requestRaw {
			if len(raw) == tensor.MaxTensors {
				return tensor.Errorf(tensor.KindInvalid, "raw_input_contents has more than %d entries", tensor.MaxTensors)
			}
			raw = append(raw, r.value)
		} else if err := in.field(&r); err != nil {
			return err
		}
	}
	if r.err != nil {
		return r.err
	}
	in.raw = len(raw) > 0
	return in.takeRaw(raw)
}

func (in *inferRequest) field(r *reader) (err error) {
	switch r.number {
	case requestModel:
		in.ModelName, err = r.text()
	case requestVersion:
		in.ModelVersion, err = r.text()
	case requestID:
		in.ID, err = r.text()
	case requestParameters:
		err = readParameter(&in.Parameters, r.value)
	case requestInputs:
		if len(in.Inputs) == tensor.MaxTensors {
			return tensor.Errorf(tensor.KindInvalid, "the request has more than %d inputs", tensor.MaxTensors)
		}
		in.Inputs = append(in.Inputs, tensor.Tensor{})
		err = readInput(&in.Inputs[len(in.Inputs)-1], r.value)
	case requestOutputs:
		if len(in.Outputs) == tensor.MaxTensors {
			return tensor.Errorf(tensor.KindInvalid, "the request asks for more than %d outputs", tensor.MaxTensors)
		}
		in.Outputs = append(in.Outputs, tensor.RequestedOutput{})
		err = readOutput(&in.Outputs[len(in.Outputs)-1], r.value)
	}
	return err
}

// readOutput reads an InferRequestedOutputTensor.
func readOutput(o *tensor.RequestedOutput, message []byte) error {
	r := reader{rest: message}
	for r.next() {
		var err error
		switch {
		case r.kind != protowire.BytesType:
		case r.number == 1:
			o.Name, err = r.text()
		case r.number == 2:
			err = readParameter(&o.Parameters, r.value)
		}
		if err != nil {
			return err
		}
	}
	return r.err
}

// The fields of InferInputTensor and of InferOutputTensor.
const (
	tensorName = iota + 1
	tensorDatatype
	tensorShape
	tensorParameters
	tensorContents
)

// readInput reads an InferInputTensor. Its contents wait for its datatype, which
// may follow them.
func readInput(t *tensor.Tensor, message []byte) error {
	var datatype string
	var first [1][]byte
	contents := first[:0]
	t.Shape = make([]int64, 0, 4)
	r := reader{rest: message}
	for r.next() {
		var err error
		switch {
		case r.number == tensorShape:
			err = readShape(t, &r)
		case r.kind != protowire.BytesType:
		case r.number == tensorName:
			t.Name, err = r.text()
		case r.number == tensorDatatype:
			datatype, err = r.text()
		case r.number == tensorParameters:
			err = readParameter(&t.Parameters, r.value)
		case r.number == tensorContents:
			contents = append(contents, r.value)
		}
		if err != nil {
			return err
		}
	}
	if r.err != nil {
		return r.err
	}
	var ok bool
	if t.Datatype, ok = tensor.ParseDatatype(datatype); !ok {
		return tensor.Errorf(tensor.KindInvalid, "input %q: unknown datatype %q", t.Name, bounded(datatype))
	}
	for _, c := range contents {
		if err := readContents(t, c); err != nil {
			return err
		}
	}
	return nil
}

// readShape appends sizes, packed or one alone.
func readShape(t *tensor.Tensor, r *reader) (err error) {
	if t.Shape, err = varints(t.Shape, r, func(x uint64) (int64, bool) { return int64(x), true }); err != nil {
		return err
	}
	if len(t.Shape) > tensor.MaxDepth {
		return tensor.Errorf(tensor.KindInvalid, "input %q: a shape has at most %d sizes", t.Name, tensor.MaxDepth)
	}
	return nil
}

// takeRaw gives the inputs without contents the raw ones, in order, and checks
// all inputs against their shapes.
func (in *inferRequest) takeRaw(raw [][]byte) error {
	left := raw
	for i := range in.Inputs {
		t := &in.Inputs[i]
		if t.Len() == 0 && t.Parameters.InSharedMemory() {
			continue
		}
		// An input of no elements has one only where one of no bytes is next.
		if t.Len() > 0 || len(left) == 0 || len(left[0]) > 0 && isEmpty(t.Shape) {
			if err := checkShape(t); err != nil {
				return err
			}
			continue
		}
		if err := setRaw(t, left[0]); err != nil {
			return err
		}
		left = left[1:]
	}
	if len(left) > 0 {
		return tensor.Errorf(tensor.KindInvalid, "raw_input_contents has %d entries, %d of the %d inputs take one: others have contents",
			len(raw), len(raw)-len(left), len(in.Inputs))
	}
	return nil
}

func isEmpty(shape []int64) bool {
	n, ok := tensor.Elements(shape)
	return ok && n == 0
}

// setRaw copies t's elements. Those of BYTES share one copy.
func setRaw(t *tensor.Tensor, raw []byte) error {
	if t.Datatype == tensor.Bytes {
		return t.AdoptRaw(bytes.Clone(raw))
	}
	return t.SetRaw(raw)
}

// checkShape compares the shape of numbers with their elements, and fills a size
// of -1.
func checkShape(t *tensor.Tensor) error {
	got := int64(t.Len())
	open := -1
	for i, size := range t.Shape {
		if size == -1 && open < 0 {
			open = i
		}
	}
	known := t.Shape // without the open size
	if open >= 0 {
		known = append(append(make([]int64, 0, len(t.Shape)), t.Shape[:open]...), t.Shape[open+1:]...)
	}
	want, ok := tensor.Elements(known)
	switch {
	case !ok:
		return tensor.Errorf(tensor.KindInvalid, "input %q: shape %v has a negative size or is too large", t.Name, t.Shape)
	case open >= 0 && (want == 0 || got%want != 0):
		return tensor.Errorf(tensor.KindInvalid, "input %q: shape %v cannot hold %d elements: no size for -1 fits", t.Name, t.Shape, got)
	case open >= 0:
		t.Shape[open] = got / want
	case got != want && got == 0 && !hasField(t.Datatype):
		return tensor.Errorf(tensor.KindInvalid, "input %q: %s has no contents field; send it in raw_input_contents", t.Name, t.Datatype)
	case got != want && t.Datatype != tensor.Bytes:
		return tensor.Errorf(tensor.KindInvalid, "input %q: shape %v holds %d elements, contents has %d", t.Name, t.Shape, want, got)
	}
	return nil
}
