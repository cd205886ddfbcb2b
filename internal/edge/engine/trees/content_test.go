package trees

import (
	"context"
	"errors"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// TestContentTypes: what MLServer's codecs make of numbers is taken, and what
// they make something else of is a 400 that says so.
func TestContentTypes(t *testing.T) {
	of := func(name string) tensor.Parameters { return tensor.Parameters{"content_type": name} }
	columns := func(parameters tensor.Parameters) []tensor.Tensor {
		var list []tensor.Tensor
		for range 4 {
			list = append(list, tensor.Tensor{Datatype: tensor.FP32, Shape: []int64{1}, Parameters: parameters, Data: tensor.Values{Float32: []float32{1}}})
		}
		return list
	}
	matrix := func(parameters tensor.Parameters) []tensor.Tensor {
		in := rows(1, 4)(5.1, 3.5, 1.4, 0.2)
		in[0].Parameters = parameters
		return in
	}
	for _, c := range []struct {
		name    string
		options Options
		request tensor.Request
		says    string
	}{
		{name: "none", request: tensor.Request{Inputs: matrix(nil)}},
		{name: "np", request: tensor.Request{Parameters: of("np"), Inputs: matrix(of("np"))}},
		{name: "pd of columns", request: tensor.Request{Parameters: of("pd"), Inputs: columns(of("np"))}},
		{name: "columns without one", request: tensor.Request{Inputs: columns(nil)}},
		{name: "an unknown one", request: tensor.Request{Parameters: of("mine"), Inputs: matrix(of("yours"))}},
		{name: "no text", request: tensor.Request{Parameters: tensor.Parameters{"content_type": 5.0}, Inputs: matrix(nil)}},
		{name: "np of columns", request: tensor.Request{Parameters: of("np"), Inputs: columns(nil)},
			says: "There was an error encoding / decoding the payload: The 'np' codec only supports a single input tensor (4 were received)"},
		{name: "np by the model", options: Options{RequestContentType: "np"}, request: tensor.Request{Inputs: columns(nil)}, says: "single input tensor"},
		{name: "the request wins over the model", options: Options{RequestContentType: "np"}, request: tensor.Request{Parameters: of("pd"), Inputs: columns(nil)}},
		{name: "str", request: tensor.Request{Parameters: of("str"), Inputs: matrix(nil)}, says: `the request's content type "str" is not of numbers`},
		{name: "base64 input", request: tensor.Request{Inputs: matrix(of("base64"))}, says: `input "x": the content type "base64" is not of numbers`},
		{name: "datetime by metadata", options: Options{Inputs: []tensor.TensorMetadata{{Name: "x", Parameters: of("datetime")}}}, request: tensor.Request{Inputs: matrix(nil)}, says: `"datetime"`},
		{name: "the input wins over metadata", options: Options{Inputs: []tensor.TensorMetadata{{Name: "x", Parameters: of("datetime")}}}, request: tensor.Request{Inputs: matrix(of("np"))}},
		{name: "str output", request: tensor.Request{Inputs: matrix(nil), Outputs: []tensor.RequestedOutput{{Name: Predict, Parameters: of("str")}}}, says: `output "predict": numbers cannot be given as content type "str"`},
		{name: "np output", request: tensor.Request{Inputs: matrix(nil), Outputs: []tensor.RequestedOutput{{Name: Predict, Parameters: of("np")}}}},
	} {
		m := New(load(t, "iris.ubj"), c.options)
		if m.index != nil { // columns go by the file's names
			for i, name := range m.model.FeatureNames() {
				if len(c.request.Inputs) > 1 {
					c.request.Inputs[i].Name = name
				}
			}
		}
		_, err := m.Infer(context.Background(), &c.request)
		fault, ok := errors.AsType[*tensor.Error](err)
		if c.says == "" && err != nil || c.says != "" && (!ok || fault.Kind != tensor.KindInvalid || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
