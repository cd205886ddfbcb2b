package trees

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
	"roundhouse.dev/roundhouse/internal/edge/engine/lightgbm"
	"roundhouse.dev/roundhouse/internal/edge/engine/xgboost"
)

func load(t *testing.T, file string) *gbdt.Model {
	t.Helper()
	read := xgboost.Load
	if strings.HasSuffix(file, ".txt") {
		read = lightgbm.Load
	}
	m, err := read("../../../../examples/quickstart/models/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// linear makes a model whose margin j of a row is the sum of row[i] times
// weights[i][j].
func linear(t *testing.T, spec gbdt.Spec, weights ...float64) *gbdt.Model {
	t.Helper()
	spec.BestIteration = -1
	m, err := gbdt.NewLinear(spec, append(weights, make([]float64, spec.Margins)...))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func rows(shape ...int64) func(values ...float32) []tensor.Tensor {
	return func(values ...float32) []tensor.Tensor {
		return []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: shape, Data: tensor.Values{Float32: values}}}
	}
}

func ask(t *testing.T, m *Model, inputs []tensor.Tensor, outputs ...string) []tensor.Tensor {
	t.Helper()
	r := &tensor.Request{Inputs: inputs}
	for _, name := range outputs {
		r.Outputs = append(r.Outputs, tensor.RequestedOutput{Name: name})
	}
	response, err := m.Infer(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return response.Outputs
}

func near(got []float32, want ...float64) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if math.Abs(float64(got[i])-want[i]) > 1e-6 {
			return false
		}
	}
	return true
}

// The sample row's probabilities, as Python's Booster.predict gives them.
var iris = []float64{0.99185115, 0.00543696, 0.00271187}

func TestIris(t *testing.T) {
	m := New(load(t, "iris.ubj"), Options{Name: "iris", Version: "v1", Platform: "xgboost"})
	out := ask(t, m, rows(1, 4)(5.1, 3.5, 1.4, 0.2))
	if got := out[0].String(); len(out) != 1 || got != `"predict" FP32[1 3]` || !near(out[0].Data.Float32, iris...) {
		t.Errorf("predict = %s %v", got, out[0].Data.Float32)
	}
	both := ask(t, m, rows(1, 4)(5.1, 3.5, 1.4, 0.2), Predict, PredictProba, Predict)
	if len(both) != 2 || !near(both[1].Data.Float32, iris...) {
		t.Errorf("predict and predict_proba = %v", both)
	}
	sk := New(load(t, "iris.ubj"), Options{Labels: true, Columns: true, ContentType: "np"})
	label := ask(t, sk, rows(2, 4)(5.1, 3.5, 1.4, 0.2, 6.7, 3.0, 5.2, 2.3))
	if got := label[0]; got.String() != `"predict" INT64[2 1]` || !reflect.DeepEqual(got.Data.Int64, []int64{0, 2}) {
		t.Errorf("labels = %s %v, want 0 and 2", &got, got.Data.Int64)
	}
	if got := label[0].Parameters; !reflect.DeepEqual(got, tensor.Parameters{"content_type": "np"}) || out[0].Parameters != nil {
		t.Errorf("parameters of outputs: %v, and %v without a content type", got, out[0].Parameters)
	}
}

// TestDatatypes gives the same row in every datatype that can hold it.
func TestDatatypes(t *testing.T) {
	m := New(linear(t, gbdt.Spec{Features: 3, Margins: 1, Single: true}, 100, 10, 1), Options{})
	values := tensor.Values{Bool: []bool{true, false, true}, Uint8: []uint8{1, 0, 1}, Uint16: []uint16{1, 0, 1}, Uint32: []uint32{1, 0, 1},
		Uint64: []uint64{1, 0, 1}, Int8: []int8{1, 0, 1}, Int16: []int16{1, 0, 1}, Int32: []int32{1, 0, 1}, Int64: []int64{1, 0, 1},
		Float32: []float32{1, 0, 1}, Float64: []float64{1, 0, 1}}
	for d := tensor.Bool; d < tensor.Bytes; d++ {
		in := tensor.Tensor{Name: "x", Datatype: d, Shape: []int64{1, 3}, Data: values}
		out := ask(t, m, []tensor.Tensor{in})
		if out[0].String() != `"predict" FP32[1]` || !near(out[0].Data.Float32, 101) {
			t.Errorf("%s: %s %v, want 101", d, &out[0], out[0].Data.Float32)
		}
	}
}

func TestColumns(t *testing.T) {
	m := New(load(t, "iris.ubj"), Options{})
	column := func(name string, v float64, shape ...int64) tensor.Tensor {
		return tensor.Tensor{Name: name, Datatype: tensor.FP64, Shape: shape, Data: tensor.Values{Float64: []float64{v}}}
	}
	out := ask(t, m, []tensor.Tensor{column("petal_width", 0.2, 1), column("sepal_length", 5.1, 1, 1), column("petal_length", 1.4, 1), column("sepal_width", 3.5, 1)})
	if !near(out[0].Data.Float32, iris...) {
		t.Errorf("by name: %v", out[0].Data.Float32)
	}
	unnamed := New(linear(t, gbdt.Spec{Features: 2, Margins: 1, Single: true}, 10, 1), Options{})
	out = ask(t, unnamed, []tensor.Tensor{column("b", 3, 1), column("a", 4, 1)})
	if !near(out[0].Data.Float32, 34) {
		t.Errorf("in order: %v, want 34", out[0].Data.Float32)
	}
	madeUp := New(linear(t, gbdt.Spec{Features: 2, Margins: 1, Single: true, FeatureNames: []string{"Column_0", "Column_1"}}, 10, 1), Options{})
	out = ask(t, madeUp, []tensor.Tensor{column("b", 3, 1), column("Column_0", 4, 1)})
	if !near(out[0].Data.Float32, 34) || madeUp.Metadata().Inputs[0].Parameters != nil {
		t.Errorf("names that nobody chose: %v, want 34; metadata %v", out[0].Data.Float32, madeUp.Metadata().Inputs)
	}
}

// TestOutputs covers the rule of the package comment for every kind of model.
func TestOutputs(t *testing.T) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	p := sigmoid(2)
	soft := []float64{1 / (1 + math.E), math.E / (1 + math.E)}
	binary := gbdt.Spec{Features: 1, Margins: 1, Single: true, Objective: "binary:logistic", Link: gbdt.LinkSigmoid}
	tests := []struct {
		name    string
		spec    gbdt.Spec
		weights []float64
		options Options
		output  string
		want    string
		values  []float64
	}{
		{"regression", gbdt.Spec{Features: 1, Margins: 1, Single: true, Objective: "reg:squarederror"}, []float64{2}, Options{}, Predict, `"predict" FP32[1]`, []float64{2}},
		{"regression in columns", gbdt.Spec{Features: 1, Margins: 1, Single: true, Objective: "reg:squarederror"}, []float64{2}, Options{Labels: true, Columns: true}, Predict, `"predict" FP32[1 1]`, []float64{2}},
		{"binary", binary, []float64{2}, Options{}, Predict, `"predict" FP32[1]`, []float64{p}},
		{"binary label", binary, []float64{2}, Options{Labels: true}, Predict, `"predict" INT64[1]`, []float64{1}},
		{"binary label below", binary, []float64{-2}, Options{Labels: true}, Predict, `"predict" INT64[1]`, []float64{0}},
		{"binary probabilities", binary, []float64{2}, Options{}, PredictProba, `"predict_proba" FP32[1 2]`, []float64{1 - p, p}},
		{"logitraw probabilities", gbdt.Spec{Features: 1, Margins: 1, Single: true, Objective: "binary:logitraw"}, []float64{2}, Options{}, PredictProba, `"predict_proba" FP32[1 2]`, []float64{1 - p, p}},
		{"softprob", gbdt.Spec{Features: 1, Margins: 2, Single: true, Link: gbdt.LinkSoftmax}, []float64{0, 1}, Options{}, Predict, `"predict" FP32[1 2]`, soft},
		{"softmax", gbdt.Spec{Features: 1, Margins: 3, Single: true, Link: gbdt.LinkArgmax}, []float64{0, 1, 5}, Options{}, Predict, `"predict" FP32[1]`, []float64{2}},
		{"softmax label", gbdt.Spec{Features: 1, Margins: 3, Single: true, Link: gbdt.LinkArgmax}, []float64{0, 1, 5}, Options{Labels: true}, Predict, `"predict" INT64[1]`, []float64{2}},
		{"softmax probabilities", gbdt.Spec{Features: 1, Margins: 2, Single: true, Link: gbdt.LinkArgmax}, []float64{0, 1}, Options{}, PredictProba, `"predict_proba" FP32[1 2]`, soft},
		{"float64", gbdt.Spec{Features: 1, Margins: 1, Objective: "regression"}, []float64{2}, Options{}, Predict, `"predict" FP64[1]`, []float64{2}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := New(linear(t, test.spec, test.weights...), test.options)
			out := ask(t, m, rows(1)(1), test.output)
			if got := out[0].String(); got != test.want {
				t.Errorf("output %s, want %s", got, test.want)
			}
			got, err := out[0].AppendFloat32(nil)
			if err != nil || !near(got, test.values...) {
				t.Errorf("values %v (%v), want %v", got, err, test.values)
			}
			for _, meta := range m.Metadata().Outputs {
				if meta.Name == test.output && meta.Datatype != out[0].Datatype {
					t.Errorf("metadata says %s, the output is %s", meta.Datatype, out[0].Datatype)
				}
			}
		})
	}
}

func TestErrors(t *testing.T) {
	m := New(load(t, "iris.ubj"), Options{Name: "iris"})
	text := tensor.Tensor{Name: "x", Datatype: tensor.Bytes, Shape: []int64{1, 4}, Data: tensor.Values{Bytes: make([][]byte, 4)}}
	named := func(names ...string) (in []tensor.Tensor) {
		for _, name := range names {
			in = append(in, tensor.Tensor{Name: name, Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{1}}})
		}
		return in
	}
	short := named("sepal_length", "sepal_width", "petal_length", "petal_width")
	short[2] = tensor.Tensor{Name: "petal_length", Datatype: tensor.FP32, Shape: []int64{2}, Data: tensor.Values{Float32: []float32{1, 2}}}
	wide := named("sepal_length", "sepal_width", "petal_length", "petal_width")
	wide[0].Shape = []int64{1, 1, 1}
	tests := []struct {
		name   string
		inputs []tensor.Tensor
		output string
		says   string
	}{
		{"no input", nil, Predict, "no inputs"},
		{"three features", rows(1, 3)(1, 2, 3), Predict, `input "x": expected 4 features per row, got 3`},
		{"one row without its brackets", rows(4)(1, 2, 3, 4), Predict, "4 rows of one feature; one row is [1, 4]"},
		{"scalar", rows()(1), Predict, "expected [rows, 4]"},
		{"three sizes", rows(1, 2, 2)(1, 2, 3, 4), Predict, "expected [rows, 4]"},
		{"text", []tensor.Tensor{text}, Predict, "BYTES holds no numbers"},
		{"unknown output", rows(1, 4)(1, 2, 3, 4), "transform", `no output "transform"`},
		{"unknown feature", named("sepal_length", "colour"), Predict, `"colour" is no feature`},
		{"missing feature", named("sepal_length", "sepal_width", "petal_length"), Predict, "got 3: missing petal_width"},
		{"feature twice", named("sepal_length", "sepal_length"), Predict, "given twice"},
		{"rows differ", short, Predict, "has 2 rows"},
		{"column of three sizes", wide, Predict, "[rows] or [rows, 1]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := m.Infer(context.Background(), &tensor.Request{Inputs: test.inputs, Outputs: []tensor.RequestedOutput{{Name: test.output}}})
			var e *tensor.Error
			if !errors.As(err, &e) || e.Kind != tensor.KindInvalid || !strings.Contains(e.Message, test.says) {
				t.Errorf("error %v does not say %q", err, test.says)
			}
		})
	}
	regression := New(linear(t, gbdt.Spec{Features: 1, Margins: 1, Objective: "regression"}, 1), Options{})
	if _, err := regression.Infer(context.Background(), &tensor.Request{Inputs: rows(1)(1), Outputs: []tensor.RequestedOutput{{Name: PredictProba}}}); err == nil {
		t.Error("a regression gave probabilities")
	}
	many := New(linear(t, gbdt.Spec{Features: 1, Margins: 4096, Single: true}, make([]float64, 4096)...), Options{})
	_, err := many.Infer(context.Background(), &tensor.Request{Inputs: rows(10_000)(make([]float32, 10_000)...)})
	var e *tensor.Error
	if !errors.As(err, &e) || e.Kind != tensor.KindTooLarge {
		t.Errorf("an answer of 40 million values: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := m.Infer(ctx, &tensor.Request{Inputs: rows(1, 4)(1, 2, 3, 4)}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestChunks checks that rows beyond a chunk are predicted as those within.
func TestChunks(t *testing.T) {
	m := New(linear(t, gbdt.Spec{Features: 2, Margins: 2, Single: true}, 1, 0, 0, 1), Options{})
	n := 2*chunk + 5
	values := make([]float32, 2*n)
	for i := range values {
		values[i] = float32(i)
	}
	out := ask(t, m, rows(int64(n), 2)(values...))
	if !reflect.DeepEqual(out[0].Data.Float32, values) {
		t.Error("the identity changed its rows")
	}
	if empty := ask(t, m, rows(0, 2)()); empty[0].Len() != 0 || fmt.Sprint(empty[0].Shape) != "[0 2]" {
		t.Errorf("no rows: %s", &empty[0])
	}
}

func TestMetadata(t *testing.T) {
	text, err := json.Marshal(New(load(t, "digits.txt"), Options{Name: "digits", Version: "2", Platform: "lightgbm"}).Metadata())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"name":"digits"`, `"versions":["2"]`, `"platform":"lightgbm"`, `"datatype":"FP64","shape":[-1,64]`,
		`{"name":"predict","datatype":"FP64","shape":[-1,10]}`, `{"name":"predict_proba"`, `"parameters":{}`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("metadata %s lacks %s", text, want)
		}
	}
	given := []tensor.TensorMetadata{{Name: "rows", Datatype: tensor.FP64, Shape: []int64{-1, 4}}}
	if got := New(load(t, "iris.ubj"), Options{Inputs: given}).Metadata().Inputs; !reflect.DeepEqual(got, given) {
		t.Errorf("inputs %v, want those of the settings", got)
	}
}

// TestClassification: an answer without what was asked would be taken for one with
// it.
func TestClassification(t *testing.T) {
	m := New(load(t, "iris.ubj"), Options{Name: "iris"})
	_, err := m.Infer(context.Background(), &tensor.Request{Inputs: rows(1, 4)(5.1, 3.5, 1.4, 0.2),
		Outputs: []tensor.RequestedOutput{{Name: Predict, Parameters: tensor.Parameters{"classification": 3}}}})
	if err == nil || !strings.Contains(err.Error(), "classification 3") {
		t.Errorf("error %v", err)
	}
}
