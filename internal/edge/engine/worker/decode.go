package worker

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"unsafe"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// response builds the answer from m. Tensors of numbers alias m's payload and own
// it from then on.
func (m *message) response() (*tensor.Response, error) {
	w := m.Response
	if w == nil {
		return nil, answerError("it has no response")
	}
	if len(w.Outputs) > maxTensors {
		return nil, answerError("%d outputs; %d are allowed", len(w.Outputs), maxTensors)
	}
	parameters, err := readParameters(w.Parameters)
	if err != nil {
		return nil, err
	}
	r := &tensor.Response{ID: w.ID, ModelName: w.ModelName, ModelVersion: w.ModelVersion, Parameters: parameters,
		Outputs: make([]tensor.Tensor, len(w.Outputs))}
	for i := range w.Outputs {
		if err := w.Outputs[i].read(&r.Outputs[i], m.payload); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// answerError reports an answer of the model that cannot be read.
func answerError(format string, args ...any) error {
	return &Error{Kind: kindFailed, Status: 500, Message: "the model's answer cannot be sent: " + fmt.Sprintf(format, args...)}
}

func readParameters(raw json.RawMessage) (tensor.Parameters, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var p tensor.Parameters
	if err := decoder.Decode(&p); err != nil {
		return nil, answerError("parameters: %v", err)
	}
	return p, nil
}

// read fills t.
func (w *wireTensor) read(t *tensor.Tensor, payload []byte) error {
	if w.Offset == nil {
		return w.readJSON(t)
	}
	datatype, ok := tensor.ParseDatatype(w.Datatype)
	if !ok {
		return answerError("output %q: %q is no datatype", w.Name, w.Datatype)
	}
	parameters, err := readParameters(w.Parameters)
	if err != nil {
		return err
	}
	*t = tensor.Tensor{Name: w.Name, Datatype: datatype, Shape: w.Shape, Parameters: parameters, Text: w.Text && datatype == tensor.Bytes}
	if t.Shape == nil {
		t.Shape = []int64{}
	}
	raw, ok := w.in(payload)
	_, fits := tensor.Elements(w.Shape)
	size := datatype.Size()
	switch {
	case !ok || w.Region != nil:
		return answerError("output %q: its %d bytes are not in the payload of %d", w.Name, w.Length, len(payload))
	case !fits || len(w.Shape) > maxRank:
		return answerError("output %q: shape %v", w.Name, w.Shape)
	case datatype == tensor.Bytes:
		t.Data.Bytes, err = readBytes(w.Name, raw)
		return err
	case len(raw)%size != 0:
		return answerError("output %q: elements of %s take %d bytes each, there are %d bytes", w.Name, datatype, size, len(raw))
	case !littleEndian || !alias(t, raw):
		t.Shape = []int64{int64(len(raw) / size)}
		err = t.SetRaw(raw)
		t.Shape = w.Shape
		return err
	}
	return nil
}

// readJSON fills t from "data" by the rules of the Open Inference Protocol's JSON.
func (w *wireTensor) readJSON(t *tensor.Tensor) error {
	if n, _ := tensor.Elements(w.Shape); w.Data == nil && n != 0 {
		return answerError("output %q: shape %v without data", w.Name, w.Shape)
	}
	body, err := json.Marshal(map[string]any{"outputs": []any{map[string]any{
		"name": w.Name, "shape": w.Shape, "datatype": w.Datatype, "parameters": w.Parameters, "data": w.Data}}})
	if err != nil {
		return answerError("output %q: %v", w.Name, err)
	}
	r, err := tensor.DecodeResponse(body)
	if err != nil {
		return answerError("%v", err)
	}
	*t = r.Outputs[0]
	return nil
}

// readBytes fills t with the elements in raw. They alias raw.
func readBytes(name string, raw []byte) ([][]byte, error) {
	values := [][]byte{}
	for len(raw) > 0 {
		if len(raw) < 4 {
			return nil, answerError("output %q: the data ends inside the length of element %d", name, len(values))
		}
		size := binary.LittleEndian.Uint32(raw)
		raw = raw[4:]
		if size == nullLength {
			values = append(values, nil)
			continue
		}
		if uint64(size) > uint64(len(raw)) {
			return nil, answerError("output %q: element %d: %d bytes announced, %d left", name, len(values), size, len(raw))
		}
		values, raw = append(values, raw[:size:size]), raw[size:]
	}
	return values, nil
}

// alias makes raw, whose address is a multiple of 8, the memory of t's elements.
// It returns false if the elements need another form in memory.
func alias(t *tensor.Tensor, raw []byte) bool {
	v := &t.Data
	switch t.Datatype {
	case tensor.Uint8:
		v.Uint8 = raw
	case tensor.Int8:
		v.Int8 = view[int8](raw)
	case tensor.Uint16:
		v.Uint16 = view[uint16](raw)
	case tensor.Int16:
		v.Int16 = view[int16](raw)
	case tensor.Uint32:
		v.Uint32 = view[uint32](raw)
	case tensor.Int32:
		v.Int32 = view[int32](raw)
	case tensor.Uint64:
		v.Uint64 = view[uint64](raw)
	case tensor.Int64:
		v.Int64 = view[int64](raw)
	case tensor.FP32:
		v.Float32 = view[float32](raw)
	case tensor.FP64:
		v.Float64 = view[float64](raw)
	default:
		return false
	}
	return true
}

// view returns raw as a slice of its elements.
func view[T any](raw []byte) []T {
	var one T
	if len(raw) == 0 {
		return []T{}
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(raw))), len(raw)/int(unsafe.Sizeof(one)))
}

// metadata converts w. An unknown datatype stays empty.
func (w *wireMetadata) metadata() (tensor.ModelMetadata, error) {
	parameters, err := readParameters(w.Parameters)
	if parameters == nil {
		parameters = tensor.Parameters{}
	}
	m := tensor.ModelMetadata{Name: w.Name, Platform: w.Platform, Versions: w.Versions, Parameters: parameters}
	for _, list := range []struct {
		from []wireTensor
		to   *[]tensor.TensorMetadata
	}{{w.Inputs, &m.Inputs}, {w.Outputs, &m.Outputs}} {
		*list.to = make([]tensor.TensorMetadata, len(list.from))
		for i, t := range list.from {
			datatype, _ := tensor.ParseDatatype(t.Datatype)
			own, bad := readParameters(t.Parameters)
			if bad != nil {
				err = bad
			}
			(*list.to)[i] = tensor.TensorMetadata{Name: t.Name, Datatype: datatype, Shape: t.Shape, Parameters: own}
			if t.Shape == nil {
				(*list.to)[i].Shape = []int64{}
			}
		}
	}
	return m, err
}
