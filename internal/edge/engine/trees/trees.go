// Package trees answers Open Inference Protocol requests with gradient-boosted
// tree models, whichever format they were read from.
//
// # Inputs
//
// One tensor of numbers, [N, F]: N rows of F features; [N] is N rows of one
// feature. Or F tensors, [N] or [N, 1] each, one per feature, by the names in
// the model file in any order; a file without names, or with those that lightgbm
// makes up, takes them in the order given. NaN (JSON's null) is a missing value.
//
// # Outputs
//
// The output "predict" is what the format's own package answers:
// Booster.predict of xgboost (FP32) or lightgbm (FP64), as KServe's servers
// give it: [N] for one value a row, else [N, C], so probabilities for
// binary:logistic and multi:softprob.
//
// MLServer's servers differ, and Options follows them where asked. Columns
// makes one value a row [N, 1] instead of [N]. Labels makes "predict" of a
// classifier the class, INT64, as xgboost's XGBClassifier.predict does: the
// likeliest class, or for two classes whether the probability exceeds one half.
// MLServer's xgboost runtime loads an XGBClassifier only from a file that an
// XGBClassifier saved; a booster that xgboost.train made, whatever its objective,
// gives its values. Its lightgbm runtime uses Booster.predict, so it has Columns
// alone.
//
// A request may ask for "predict_proba" of a classifier, alone or beside
// "predict": probabilities [N, C]; for two classes the two columns 1-p and p.
package trees

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt"
)

// The names MLServer gives to the runtimes that tree models need no more.
const (
	MLServerXGBoost  = "mlserver_xgboost.XGBoostModel"
	MLServerLightGBM = "mlserver_lightgbm.LightGBMModel"
)

// The names of the outputs.
const (
	Predict      = "predict"
	PredictProba = "predict_proba"
)

// MaxValues bounds the values of one answer, so that a short request to a
// model of many classes cannot ask for more memory than there is.
const MaxValues = 1 << 25

// chunk is how many rows are predicted between two looks at the context.
const chunk = 4096

// Options are how a model is presented.
type Options struct {
	Name     string
	Version  string // "" for none
	Platform string // as in the model's metadata, e.g. "xgboost"
	Labels   bool   // "predict" of a classifier gives classes
	Columns  bool   // one value a row has shape [N, 1]

	// ContentType is the content_type parameter of every output; "" for none.
	ContentType string

	// RequestContentType is that of requests that name none; "" for none.
	RequestContentType string

	// Inputs and Outputs replace the metadata that follows from the model.
	Inputs, Outputs []tensor.TensorMetadata
}

// Model is a model ready to answer. It is immutable and safe for concurrent
// use.
type Model struct {
	model    *gbdt.Model
	options  Options
	index    map[string]int // feature by name; nil if the file has no names
	metadata tensor.ModelMetadata
}

// New presents m.
func New(m *gbdt.Model, o Options) *Model {
	t := &Model{model: m, options: o}
	if names := m.FeatureNames(); len(names) > 0 && !madeUp(names) {
		t.index = make(map[string]int, len(names))
		for i, name := range names {
			t.index[name] = i
		}
	}
	t.metadata = t.describe()
	return t
}

// madeUp tells whether names are those that lightgbm gives to the columns of a
// table without any.
func madeUp(names []string) bool {
	for i, name := range names {
		if name != fmt.Sprintf("Column_%d", i) {
			return false
		}
	}
	return true
}

// describe derives the metadata.
func (m *Model) describe() tensor.ModelMetadata {
	d := tensor.FP64
	if m.model.Single() {
		d = tensor.FP32
	}
	o := &m.options
	meta := tensor.ModelMetadata{Name: o.Name, Platform: o.Platform, Inputs: o.Inputs, Outputs: o.Outputs, Parameters: tensor.Parameters{}}
	if o.Version != "" {
		meta.Versions = []string{o.Version}
	}
	if len(meta.Inputs) == 0 {
		in := tensor.TensorMetadata{Name: tensor.InputV1, Datatype: d, Shape: []int64{-1, int64(m.model.NumFeatures())}}
		if m.index != nil {
			in.Parameters = tensor.Parameters{"feature_names": m.model.FeatureNames()}
		}
		meta.Inputs = []tensor.TensorMetadata{in}
	}
	if len(meta.Outputs) == 0 {
		predict := tensor.TensorMetadata{Name: Predict, Datatype: d, Shape: m.shape(-1, m.model.NumOutputs())}
		if o.Labels && m.model.NumClasses() > 0 {
			predict.Datatype, predict.Shape = tensor.Int64, m.shape(-1, 1)
		}
		meta.Outputs = append(meta.Outputs, predict)
		if classes := m.model.NumClasses(); classes > 0 {
			meta.Outputs = append(meta.Outputs, tensor.TensorMetadata{Name: PredictProba, Datatype: d, Shape: []int64{-1, int64(classes)}})
		}
	}
	return meta
}

// shape is that of n rows of width values.
func (m *Model) shape(n int64, width int) []int64 {
	if width == 1 && !m.options.Columns {
		return []int64{n}
	}
	return []int64{n, int64(width)}
}

// Metadata describes the model. The caller must not change it.
func (m *Model) Metadata() tensor.ModelMetadata { return m.metadata }

// Close does nothing: the memory goes with the last reference.
func (m *Model) Close(context.Context) error { return nil }

// Infer answers r. Errors about the request are *tensor.Error; the context's
// error comes when it ends first.
func (m *Model) Infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	if err := m.checkContent(r); err != nil {
		return nil, err
	}
	wanted := []string{Predict}
	if len(r.Outputs) > 0 {
		wanted = wanted[:0]
		for _, o := range r.Outputs {
			if err := m.hasOutput(o.Name); err != nil {
				return nil, err
			}
			if n, ok := o.Parameters["classification"]; ok {
				return nil, tensor.Errorf(tensor.KindInvalid, "output %q: classification %v (class_count of Triton's clients) is not served; ask for %q", o.Name, n, PredictProba)
			}
			if !slices.Contains(wanted, o.Name) {
				wanted = append(wanted, o.Name)
			}
		}
	}
	response := &tensor.Response{ModelName: m.options.Name, ModelVersion: m.options.Version}
	var err error
	if m.model.Single() {
		response.Outputs, err = infer[float32](ctx, m, r.Inputs, wanted)
	} else {
		response.Outputs, err = infer[float64](ctx, m, r.Inputs, wanted)
	}
	if err != nil {
		return nil, err
	}
	if m.options.ContentType != "" {
		for i := range response.Outputs {
			response.Outputs[i].Parameters = tensor.Parameters{"content_type": m.options.ContentType}
		}
	}
	return response, nil
}

// hasOutput checks the name of a requested output.
func (m *Model) hasOutput(name string) error {
	switch {
	case name == Predict:
		return nil
	case name != PredictProba:
		return tensor.Errorf(tensor.KindInvalid, "model %q has no output %q: it has %q and, for a classifier, %q", m.options.Name, name, Predict, PredictProba)
	case m.model.NumClasses() == 0:
		return tensor.Errorf(tensor.KindInvalid, "model %q has no output %q: its objective %q is no classifier's", m.options.Name, name, m.model.Objective())
	}
	return nil
}

// infer computes the wanted outputs in the model's own precision.
func infer[T gbdt.Number](ctx context.Context, m *Model, inputs []tensor.Tensor, wanted []string) ([]tensor.Tensor, error) {
	rows, n, err := gather[T](m, inputs)
	if err != nil {
		return nil, err
	}
	width := max(m.model.NumOutputs(), m.model.NumMargins(), m.model.NumClasses())
	if n > MaxValues/width {
		return nil, tensor.Errorf(tensor.KindTooLarge, "%d rows of %d outputs are more than %d values: send fewer rows at once", n, width, MaxValues)
	}
	scores := make([]T, n*m.model.NumOutputs())
	if err := score(ctx, m.model, scores, rows, n, gbdt.Predict[T, T]); err != nil {
		return nil, err
	}
	outputs := make([]tensor.Tensor, 0, len(wanted))
	for _, name := range wanted {
		switch {
		case name == PredictProba:
			p, err := probabilities(ctx, m.model, scores, rows, n)
			if err != nil {
				return nil, err
			}
			outputs = append(outputs, floats(name, p, []int64{int64(n), int64(m.model.NumClasses())}))
		case m.options.Labels && m.model.NumClasses() > 0:
			outputs = append(outputs, tensor.Tensor{Name: name, Datatype: tensor.Int64, Shape: m.shape(int64(n), 1),
				Data: tensor.Values{Int64: labels(scores, n, m.model.NumClasses())}})
		default:
			outputs = append(outputs, floats(name, scores, m.shape(int64(n), m.model.NumOutputs())))
		}
	}
	return outputs, nil
}

// score runs predict chunk by chunk until the context ends.
func score[T gbdt.Number](ctx context.Context, m *gbdt.Model, dst, rows []T, n int, predict func(*gbdt.Model, []T, []T, int) error) error {
	if n == 0 {
		return nil
	}
	features, width := len(rows)/n, len(dst)/n
	for from := 0; from < n; from += chunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		to := min(n, from+chunk)
		if err := predict(m, dst[from*width:to*width], rows[from*features:to*features], to-from); err != nil {
			return tensor.Errorf(tensor.KindInvalid, "%v", err)
		}
	}
	return nil
}

// probabilities are those of every class. Scores are what Predict gave; a
// model that predicts the class itself is asked for its margins.
func probabilities[T gbdt.Number](ctx context.Context, m *gbdt.Model, scores, rows []T, n int) ([]T, error) {
	classes := m.NumClasses()
	if m.NumOutputs() == classes {
		return scores, nil
	}
	if classes == 2 && m.NumMargins() == 1 {
		p := make([]T, 0, 2*n)
		raw := m.Objective() == "binary:logitraw" // Predict gives margins
		for _, x := range scores {
			if raw {
				x = T(1 / (1 + math.Exp(-float64(x))))
			}
			p = append(p, 1-x, x)
		}
		return p, nil
	}
	p := make([]T, n*m.NumMargins())
	if err := score(ctx, m, p, rows, n, gbdt.Margin[T, T]); err != nil {
		return nil, err
	}
	for row := range slices.Chunk(p, m.NumMargins()) {
		softmax(row)
	}
	return p, nil
}

// softmax normalises margins, shifted by the largest so that nothing overflows.
func softmax[T gbdt.Number](row []T) {
	top := slices.Max(row)
	var sum float64
	for i, x := range row {
		e := math.Exp(float64(x - top))
		row[i] = T(e)
		sum += e
	}
	for i := range row {
		row[i] = T(float64(row[i]) / sum)
	}
}

// labels are the classes that n rows of scores speak for.
func labels[T gbdt.Number](scores []T, n, classes int) []int64 {
	out := make([]int64, n)
	if n == 0 {
		return out
	}
	width := len(scores) / n
	for i := range out {
		row := scores[i*width : (i+1)*width]
		if width == 1 && classes == 2 {
			if row[0] > 0.5 {
				out[i] = 1
			}
			continue
		}
		if width == 1 { // the class itself
			out[i] = int64(row[0])
			continue
		}
		for c, x := range row {
			if x > row[out[i]] {
				out[i] = int64(c)
			}
		}
	}
	return out
}

// floats makes a tensor of values.
func floats[T gbdt.Number](name string, values []T, shape []int64) tensor.Tensor {
	t := tensor.Tensor{Name: name, Shape: shape}
	switch v := any(values).(type) {
	case []float32:
		t.Datatype, t.Data.Float32 = tensor.FP32, v
	case []float64:
		t.Datatype, t.Data.Float64 = tensor.FP64, v
	}
	return t
}

// gather brings the inputs into row-major form: n rows of the model's
// features. The result may alias an input.
func gather[T gbdt.Number](m *Model, inputs []tensor.Tensor) (rows []T, n int, err error) {
	switch len(inputs) {
	case 0:
		return nil, 0, tensor.Errorf(tensor.KindInvalid, "the request has no inputs")
	case 1:
		return matrix[T](m, &inputs[0])
	}
	return columns[T](m, inputs)
}

// matrix reads the one tensor of [N, F], or [N] for one feature.
func matrix[T gbdt.Number](m *Model, in *tensor.Tensor) ([]T, int, error) {
	features := int64(m.model.NumFeatures())
	got := int64(1)
	switch len(in.Shape) {
	case 1:
	case 2:
		got = in.Shape[1]
	default:
		return nil, 0, tensor.Errorf(tensor.KindInvalid, "input %q has shape %v: expected [rows, %d]", in.Name, in.Shape, features)
	}
	if got != features {
		hint := ""
		if len(in.Shape) == 1 {
			hint = fmt.Sprintf(" (shape %v is %d rows of one feature; one row is [1, %d])", in.Shape, in.Shape[0], features)
		}
		return nil, 0, tensor.Errorf(tensor.KindInvalid, "input %q: expected %d features per row, got %d%s", in.Name, features, got, hint)
	}
	rows, err := values[T](in)
	return rows, int(in.Shape[0]), err
}

// columns reads one tensor per feature.
func columns[T gbdt.Number](m *Model, inputs []tensor.Tensor) ([]T, int, error) {
	features := m.model.NumFeatures()
	columns, err := m.columns(inputs)
	if err != nil {
		return nil, 0, err
	}
	n := inputs[0].Len()
	rows := make([]T, n*features)
	for i := range inputs {
		in := &inputs[i]
		if len(in.Shape) == 0 || len(in.Shape) > 2 || (len(in.Shape) == 2 && in.Shape[1] != 1) {
			return nil, 0, tensor.Errorf(tensor.KindInvalid, "input %q has shape %v: one feature of several is [rows] or [rows, 1]", in.Name, in.Shape)
		}
		if in.Len() != n {
			return nil, 0, tensor.Errorf(tensor.KindInvalid, "input %q has %d rows, input %q has %d", in.Name, in.Len(), inputs[0].Name, n)
		}
		column, err := values[T](in)
		if err != nil {
			return nil, 0, err
		}
		for row, x := range column {
			rows[row*features+columns[i]] = x
		}
	}
	return rows, n, nil
}

// columns finds the feature of every input.
func (m *Model) columns(inputs []tensor.Tensor) ([]int, error) {
	columns := make([]int, len(inputs))
	taken := make([]bool, m.model.NumFeatures())
	for i := range inputs {
		at := i
		if m.index != nil {
			var ok bool
			if at, ok = m.index[inputs[i].Name]; !ok {
				return nil, tensor.Errorf(tensor.KindInvalid, "input %q is no feature of model %q, which has %s", inputs[i].Name, m.options.Name, list(m.model.FeatureNames()))
			}
		}
		if at >= len(taken) {
			break // too many, reported below
		}
		if taken[at] {
			return nil, tensor.Errorf(tensor.KindInvalid, "input %q is given twice", inputs[i].Name)
		}
		taken[at], columns[i] = true, at
	}
	if len(inputs) == len(taken) {
		return columns, nil
	}
	missing := ""
	if m.index != nil {
		var names []string
		for i, name := range m.model.FeatureNames() {
			if !taken[i] {
				names = append(names, name)
			}
		}
		missing = ": missing " + list(names)
	}
	return nil, tensor.Errorf(tensor.KindInvalid, "expected %d features per row, got %d%s", len(taken), len(inputs), missing)
}

// maxListed bounds the names that an error lists.
const maxListed = 20

func list(names []string) string {
	if len(names) > maxListed {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), len(names)-maxListed)
	}
	return strings.Join(names, ", ")
}

// values are the elements of in as numbers, its own slice where it has them so.
func values[T gbdt.Number](in *tensor.Tensor) ([]T, error) {
	var out []T
	var err error
	switch o := any(&out).(type) {
	case *[]float32:
		if *o = in.Data.Float32; in.Datatype < tensor.FP16 || in.Datatype > tensor.FP32 {
			*o, err = in.AppendFloat32(make([]float32, 0, in.Len()))
		}
	case *[]float64:
		if *o = in.Data.Float64; in.Datatype != tensor.FP64 {
			*o, err = in.AppendFloat64(make([]float64, 0, in.Len()))
		}
	}
	return out, err
}
