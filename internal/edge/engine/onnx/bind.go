package onnx

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/ort"
)

// bind makes a value of every input, in the session's order. What was made
// before an error is returned with it; the caller releases it.
func (m *model) bind(r *request, payload []byte) ([]*ort.Value, error) {
	ports := m.session.Inputs
	values := make([]*ort.Value, len(ports))
	if len(r.Inputs) > maxTensors {
		return nil, fault(kindInvalid, "%d inputs; %d are allowed", len(r.Inputs), maxTensors)
	}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		index, v1, err := m.index(t.Name)
		if err != nil {
			return values, err
		}
		if values[index] != nil {
			return values, fault(kindInvalid, "input %q is given twice", t.Name)
		}
		if values[index], err = m.value(t, &ports[index].Type, payload, v1); err != nil {
			return values, err
		}
	}
	if missing := slices.Index(values, nil); missing >= 0 {
		return values, fault(kindInvalid, "model %q also needs the input %q", m.name, ports[missing].Name)
	}
	return values, nil
}

// index returns the index of the input with a name. v1 reports that the name only
// stands for the model's single input.
func (m *model) index(name string) (index int, v1 bool, err error) {
	if index, ok := m.inputs[name]; ok {
		return index, false, nil
	}
	if name == tensor.InputV1 && len(m.inputs) == 1 {
		return 0, true, nil
	}
	return 0, false, fault(kindInvalid, "model %q has no input %q: it has %s", m.name, name, portNames(m.session.Inputs))
}

// value makes an input's value; convert allows a tensor of another numeric datatype.
func (m *model) value(t *wireTensor, want *ort.Type, payload []byte, convert bool) (*ort.Value, error) {
	d, ok := tensor.ParseDatatype(t.Datatype)
	if !ok {
		return nil, fault(kindInvalid, "input %q: %q is no datatype", t.Name, t.Datatype)
	}
	if d != want.Datatype && !(convert && d == tensor.FP64 && want.Datatype != tensor.Bool && want.Datatype != tensor.Bytes) {
		return nil, fault(kindInvalid, "input %q is %s; the model takes %s", t.Name, d, want.Datatype)
	}
	if !fits(t.Shape, want.Shape) {
		return nil, fault(kindInvalid, "input %q: shape %v does not fit the model's %v", t.Name, t.Shape, want.Shape)
	}
	raw, err := t.raw(payload)
	if err != nil {
		return nil, err
	}
	n, ok := tensor.Elements(t.Shape)
	if size := int64(d.Size()); !ok || size > 0 && (int64(len(raw))%size != 0 || int64(len(raw))/size != n) {
		return nil, fault(kindInvalid, "input %q: shape %v of %s does not hold %d bytes", t.Name, t.Shape, d, len(raw))
	}
	switch {
	case d == tensor.Bytes:
		return m.strings(t, raw, n)
	case d == tensor.Bool:
		err = checkBools(t.Name, raw)
	case d != want.Datatype:
		raw, err = converted(t.Name, raw, want.Datatype)
	}
	if err != nil {
		return nil, err
	}
	return m.library.NewTensor(want.Datatype, t.Shape, raw)
}

// checkBools refuses bytes that are not 0 or 1: native code reads them as C++ bools.
func checkBools(name string, raw []byte) error {
	for i, b := range raw {
		if b > 1 {
			return fault(kindInvalid, "input %q: element %d is the byte %d; a BOOL is 0 or 1", name, i, b)
		}
	}
	return nil
}

// fits reports whether a tensor of the shape can be an input of that shape.
// An empty shape means a scalar or an unknown shape; ONNX Runtime does not tell them
// apart, so that only its operators can refuse.
func fits(shape, want []int64) bool {
	if len(shape) > maxRank {
		return false
	}
	if len(want) == 0 {
		return true
	}
	return slices.EqualFunc(shape, want, func(size, w int64) bool { return w < 0 || size == w })
}

// raw returns the tensor's elements in the payload's encoding, and sets the tensor's
// shape to that of its data.
func (t *wireTensor) raw(payload []byte) ([]byte, error) {
	if t.Offset != nil {
		return t.in(payload)
	}
	if t.Data == nil {
		return nil, nil
	}
	body, err := json.Marshal(map[string]any{"inputs": []any{map[string]any{
		"name": t.Name, "shape": t.Shape, "datatype": t.Datatype, "data": t.Data}}})
	if err != nil {
		return nil, fault(kindInvalid, "input %q: %v", t.Name, err)
	}
	r, err := tensor.DecodeRequest(body)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(r.Inputs[0].Data.Bytes, func(e []byte) bool { return e == nil }) {
		return nil, noNull(t.Name)
	}
	t.Shape = r.Inputs[0].Shape
	return r.Inputs[0].AppendRaw(aligned(8)[:0]), nil
}

func noNull(name string) error {
	return fault(kindInvalid, "input %q holds null, which ONNX has not", name)
}

// nullLength stands for null in place of an element's length.
const nullLength = math.MaxUint32

// strings makes a value of n BYTES elements.
func (m *model) strings(t *wireTensor, raw []byte, n int64) (*ort.Value, error) {
	if t.Marks != nil {
		return nil, fault(kindInvalid, "input %q holds elements that are no strings", t.Name)
	}
	if n > int64(len(raw))/4 {
		return nil, fault(kindInvalid, "input %q: shape %v of BYTES does not hold %d bytes", t.Name, t.Shape, len(raw))
	}
	elements := make([][]byte, n)
	for i := range elements {
		if len(raw) < 4 {
			return nil, fault(kindInvalid, "input %q: the data ends before element %d", t.Name, i)
		}
		size := binary.LittleEndian.Uint32(raw)
		if raw = raw[4:]; size == nullLength {
			return nil, noNull(t.Name)
		}
		if uint64(size) > uint64(len(raw)) {
			return nil, fault(kindInvalid, "input %q: element %d takes %d bytes, %d are left", t.Name, i, size, len(raw))
		}
		if slices.Contains(raw[:size], 0) {
			return nil, fault(kindInvalid, "input %q: element %d holds a zero byte, which ends a string of ONNX Runtime", t.Name, i)
		}
		elements[i], raw = raw[:size:size], raw[size:]
	}
	if len(raw) > 0 {
		return nil, fault(kindInvalid, "input %q: %d bytes after its %d elements", t.Name, len(raw), n)
	}
	return m.library.NewStrings(t.Shape, elements)
}

// converted returns FP64 elements as another numeric datatype.
func converted(name string, raw []byte, to tensor.Datatype) ([]byte, error) {
	n := len(raw) / 8
	out := make([]byte, 0, n*to.Size()+8)
	half := tensor.Tensor{Datatype: to}
	for i := range n {
		x := math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:]))
		switch to {
		case tensor.FP32, tensor.FP16, tensor.BF16:
			f := float32(x)
			if math.IsInf(float64(f), 0) && !math.IsInf(x, 0) {
				return nil, fault(kindInvalid, "input %q: element %d: %v does not fit %s", name, i, x, to)
			}
			half.Data.Float32 = []float32{f}
			out = half.AppendRaw(out)
		default:
			bits, ok := whole(x, to)
			if !ok {
				return nil, fault(kindInvalid, "input %q: element %d: %v is no %s", name, i, x, to)
			}
			var le [8]byte
			binary.LittleEndian.PutUint64(le[:], bits)
			out = append(out, le[:to.Size()]...)
		}
	}
	return out, nil
}

// whole returns x as an integer of the datatype, in two's complement.
func whole(x float64, to tensor.Datatype) (bits uint64, ok bool) {
	width := 8 * to.Size()
	if to <= tensor.Uint64 {
		return uint64(x), x == math.Trunc(x) && x >= 0 && x < math.Ldexp(1, width)
	}
	limit := math.Ldexp(1, width-1)
	return uint64(int64(x)), x == math.Trunc(x) && x >= -limit && x < limit
}
