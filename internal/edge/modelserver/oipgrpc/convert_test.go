package oipgrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"roundhouse.dev/roundhouse/api/oip"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// This file converts between tensors and the generated messages, element by
// element: the naive way that decode.go and encode.go are tested against.

// contentsOf is t's elements in the protocol's form; nil for FP16 and BF16.
func contentsOf(t *tensor.Tensor) *oip.InferTensorContents {
	c, v := &oip.InferTensorContents{}, &t.Data
	switch t.Datatype {
	case tensor.Bool:
		c.BoolContents = v.Bool
	case tensor.Int8:
		c.IntContents = widen[int32](v.Int8)
	case tensor.Int16:
		c.IntContents = widen[int32](v.Int16)
	case tensor.Int32:
		c.IntContents = v.Int32
	case tensor.Int64:
		c.Int64Contents = v.Int64
	case tensor.Uint8:
		c.UintContents = widen[uint32](v.Uint8)
	case tensor.Uint16:
		c.UintContents = widen[uint32](v.Uint16)
	case tensor.Uint32:
		c.UintContents = v.Uint32
	case tensor.Uint64:
		c.Uint64Contents = v.Uint64
	case tensor.FP32:
		c.Fp32Contents = v.Float32
	case tensor.FP64:
		c.Fp64Contents = v.Float64
	case tensor.Bytes:
		c.BytesContents = v.Bytes
	default:
		return nil
	}
	return c
}

func widen[D, S integer](values []S) []D {
	out := make([]D, len(values))
	for i, x := range values {
		out[i] = D(x)
	}
	return out
}

// narrow is the opposite; ok is false where a value changes.
func narrow[D, S integer](values []S) (out []D, ok bool) {
	for _, x := range values {
		if out = append(out, D(x)); int64(D(x)) != int64(x) {
			return nil, false
		}
	}
	return out, true
}

// valuesOf are the elements of contents; ok is false if they are not of the
// datatype.
func valuesOf(d tensor.Datatype, c *oip.InferTensorContents) (v tensor.Values, ok bool) {
	ok = true
	lengths := []int{0, len(c.GetBoolContents()), len(c.GetIntContents()), len(c.GetInt64Contents()), len(c.GetUintContents()),
		len(c.GetUint64Contents()), len(c.GetFp32Contents()), len(c.GetFp64Contents()), len(c.GetBytesContents())}
	for field, n := range lengths {
		if n > 0 && field != int(contentsField[d]) {
			return v, false
		}
	}
	switch d {
	case tensor.Bool:
		v.Bool = c.GetBoolContents()
	case tensor.Int8:
		v.Int8, ok = narrow[int8](c.GetIntContents())
	case tensor.Int16:
		v.Int16, ok = narrow[int16](c.GetIntContents())
	case tensor.Int32:
		v.Int32 = c.GetIntContents()
	case tensor.Int64:
		v.Int64 = c.GetInt64Contents()
	case tensor.Uint8:
		v.Uint8, ok = narrow[uint8](c.GetUintContents())
	case tensor.Uint16:
		v.Uint16, ok = narrow[uint16](c.GetUintContents())
	case tensor.Uint32:
		v.Uint32 = c.GetUintContents()
	case tensor.Uint64:
		v.Uint64 = c.GetUint64Contents()
	case tensor.FP32:
		v.Float32 = c.GetFp32Contents()
	case tensor.FP64:
		v.Float64 = c.GetFp64Contents()
	case tensor.Bytes:
		v.Bytes = c.GetBytesContents()
	}
	return v, ok
}

// messageOf is a request as a client sends it.
func messageOf(r *tensor.Request, raw bool) *oip.ModelInferRequest {
	m := &oip.ModelInferRequest{ModelName: r.ModelName, ModelVersion: r.ModelVersion, Id: r.ID, Parameters: parametersOf(r.Parameters)}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		in := &oip.ModelInferRequest_InferInputTensor{Name: t.Name, Datatype: t.Datatype.String(), Shape: t.Shape, Parameters: parametersOf(t.Parameters)}
		if in.Contents = contentsOf(t); raw || in.Contents == nil {
			in.Contents = nil
			m.RawInputContents = append(m.RawInputContents, t.AppendRaw(nil))
		}
		m.Inputs = append(m.Inputs, in)
	}
	for _, o := range r.Outputs {
		m.Outputs = append(m.Outputs, &oip.ModelInferRequest_InferRequestedOutputTensor{Name: o.Name, Parameters: parametersOf(o.Parameters)})
	}
	return m
}

func naiveParameters(p map[string]*oip.InferParameter) (out tensor.Parameters, ok bool) {
	for name, value := range p {
		v, err := fromParameter(value)
		if err != nil {
			return nil, false
		}
		if out == nil {
			out = tensor.Parameters{}
		}
		out[name] = v
	}
	return out, true
}

// naive is what decode makes of m; ok is false for an error.
func naive(m *oip.ModelInferRequest) (r tensor.Request, ok bool) {
	r = tensor.Request{ID: m.GetId(), ModelName: m.GetModelName(), ModelVersion: m.GetModelVersion()}
	if r.Parameters, ok = naiveParameters(m.GetParameters()); !ok {
		return r, false
	}
	raw := m.GetRawInputContents()
	for _, in := range m.GetInputs() {
		t := tensor.Tensor{Name: in.GetName(), Shape: in.GetShape()}
		if t.Parameters, ok = naiveParameters(in.GetParameters()); !ok || len(t.Shape) > tensor.MaxDepth {
			return r, false
		}
		if t.Datatype, ok = tensor.ParseDatatype(in.GetDatatype()); !ok {
			return r, false
		}
		if t.Data, ok = valuesOf(t.Datatype, in.GetContents()); !ok {
			return r, false
		}
		n, whole := tensor.Elements(t.Shape)
		if t.Len() == 0 && len(raw) > 0 && !(whole && n == 0 && len(raw[0]) > 0) {
			if t.SetRaw(raw[0]) != nil {
				return r, false
			}
			raw = raw[1:]
		} else if !naiveShape(&t) {
			return r, false
		}
		r.Inputs = append(r.Inputs, t)
	}
	for _, o := range m.GetOutputs() {
		p, ok := naiveParameters(o.GetParameters())
		if !ok {
			return r, false
		}
		r.Outputs = append(r.Outputs, tensor.RequestedOutput{Name: o.GetName(), Parameters: p})
	}
	return r, len(raw) == 0
}

// naiveShape tries all sizes for a -1.
func naiveShape(t *tensor.Tensor) bool {
	open := slices.Index(t.Shape, -1)
	if open < 0 {
		n, ok := tensor.Elements(t.Shape)
		return ok && n == int64(t.Len())
	}
	t.Shape = slices.Clone(t.Shape)
	for size := range int64(t.Len() + 1) {
		t.Shape[open] = size
		if n, ok := tensor.Elements(t.Shape); ok && n == int64(t.Len()) {
			t.Shape[open] = 1
			rest, _ := tensor.Elements(t.Shape) // 0 × anything is 0 elements, but says nothing of the size
			t.Shape[open] = size
			return rest != 0
		}
	}
	return false
}

// show is all there is to a list of tensors, comparable and NaN included.
func show(list []tensor.Tensor) string {
	var b bytes.Buffer
	for i := range list {
		t := &list[i]
		parameters, err := json.Marshal(t.Parameters)
		_, _ = fmt.Fprintf(&b, "%q %v %v %s %v %x\n", t.Name, t.Datatype, t.Shape, parameters, err, t.AppendRaw(nil))
	}
	return b.String()
}

func same(a, b *tensor.Request) bool {
	return a.ID == b.ID && a.ModelName == b.ModelName && a.ModelVersion == b.ModelVersion && reflect.DeepEqual(a.Parameters, b.Parameters) &&
		len(a.Outputs) == len(b.Outputs) && (len(a.Outputs) == 0 || reflect.DeepEqual(a.Outputs, b.Outputs)) && show(a.Inputs) == show(b.Inputs)
}

// random makes a tensor of the datatype.
func random(r *rand.Rand, name string, d tensor.Datatype) tensor.Tensor {
	t := tensor.Tensor{Name: name, Datatype: d, Shape: make([]int64, r.IntN(4))}
	n := 1
	for i := range t.Shape {
		t.Shape[i] = int64(r.IntN(5))
		n *= int(t.Shape[i])
	}
	if r.IntN(3) == 0 {
		t.Parameters = tensor.Parameters{"content_type": "np", "n": json.Number(fmt.Sprint(r.Int64())), "on": true, "f": json.Number("2.5")}
	}
	if d == tensor.Bytes {
		t.Data.Bytes = make([][]byte, n)
		for i := range t.Data.Bytes {
			t.Data.Bytes[i] = bytes.Repeat([]byte("ä"), r.IntN(9))
		}
		return t
	}
	raw := make([]byte, n*d.Size())
	for i := range raw {
		raw[i] = byte(r.Uint32())
		if d == tensor.Bool || r.IntN(4) == 0 {
			raw[i] &= 1
		}
	}
	if err := t.SetRaw(raw); err != nil {
		panic(err)
	}
	finite(t.Data.Float32)
	finite(t.Data.Float64)
	return t
}

// finite replaces what JSON lacks: NaN is null there, and has one form.
func finite[F float32 | float64](values []F) {
	for i, x := range values {
		if math.IsInf(float64(x), 0) || math.IsNaN(float64(x)) {
			values[i] = F(math.NaN())
		}
	}
}

var datatypes = []tensor.Datatype{tensor.Bool, tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64, tensor.Int8, tensor.Int16, tensor.Int32,
	tensor.Int64, tensor.FP16, tensor.BF16, tensor.FP32, tensor.FP64, tensor.Bytes}

func randomRequest(r *rand.Rand) *tensor.Request {
	request := &tensor.Request{ID: fmt.Sprint(r.IntN(3))}
	if r.IntN(2) == 0 {
		request.Parameters = tensor.Parameters{"s": "x", "b": false, "i": json.Number("-1"), "u": json.Number("18446744073709551615"), "d": json.Number("1.0")}
	}
	for i := range 1 + r.IntN(3) {
		request.Inputs = append(request.Inputs, random(r, fmt.Sprint("in", i), datatypes[r.IntN(len(datatypes))]))
	}
	for i := range r.IntN(3) {
		request.Outputs = append(request.Outputs, tensor.RequestedOutput{Name: fmt.Sprint("out", i)})
	}
	return request
}

func decoded(t *testing.T, m *oip.ModelInferRequest) *inferRequest {
	t.Helper()
	text, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	in := &inferRequest{}
	if in.err = in.decode(text); in.err == nil {
		clear(text) // nothing may alias it
	}
	return in
}
