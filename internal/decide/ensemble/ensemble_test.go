package ensemble

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// step is "MODEL a=IN,b=OTHER c=OUT".
func step(text string) Step {
	w := strings.Fields(text)
	s := Step{Model: w[0], Inputs: map[string]string{}, Outputs: map[string]string{}}
	for i, m := range []map[string]string{s.Inputs, s.Outputs} {
		for pair := range strings.SplitSeq(w[i+1], ",") {
			if name, at, ok := strings.Cut(pair, "="); ok {
				m[name] = at
			}
		}
	}
	return s
}

func config(rows int, inputs, outputs string, steps ...string) Config {
	c := Config{Name: "e", MaxBatchSize: rows}
	list := func(text string) (out []Tensor) {
		for _, name := range strings.Fields(text) {
			out = append(out, Tensor{Name: name, Datatype: tensor.FP32, Dims: []int64{4}})
		}
		return out
	}
	c.Inputs, c.Outputs = list(inputs), list(outputs)
	for _, s := range steps {
		c.Steps = append(c.Steps, step(s))
	}
	return c
}

// find knows models of one input a and one output b: "vector" of shape [4], "rows" of
// [-1 4], "whole" of whole numbers, "two" of two inputs; of "any" nothing is known.
func find(name, _ string) (Model, error) {
	of := func(d tensor.Datatype, shape ...int64) Model {
		return Model{Inputs: []tensor.TensorMetadata{{Name: "a", Datatype: d, Shape: shape}}, Outputs: []tensor.TensorMetadata{{Name: "b", Datatype: d, Shape: shape}}}
	}
	switch name {
	case "any":
		return Model{}, nil
	case "vector":
		return of(tensor.FP32, 4), nil
	case "rows":
		return of(tensor.FP32, -1, 4), nil
	case "whole":
		return of(tensor.Int64, 4), nil
	case "two":
		m := of(tensor.FP32, 4)
		m.Inputs = append(m.Inputs, tensor.TensorMetadata{Name: "c", Datatype: tensor.FP32, Shape: []int64{-1}}, tensor.TensorMetadata{Name: "d", Datatype: tensor.FP32, Parameters: tensor.Parameters{"optional": true}})
		return m, nil
	}
	return Model{}, errors.New("is not there")
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		what   string
		config Config
		want   []string // of the error; none: it can run
	}{
		{"one", config(0, "IN", "OUT", "vector a=IN b=OUT"), nil},
		{"a chain, in any order", config(0, "IN", "OUT", "vector a=MID b=OUT", "vector a=IN b=MID"), nil},
		{"rows", config(8, "IN", "OUT", "rows a=IN b=OUT"), nil},
		{"a diamond", config(0, "IN", "OUT", "vector a=IN b=L", "vector a=IN b=R", "two a=L,c=R b=OUT"), nil},
		{"a tensor that is read twice, and one that is not", config(0, "IN", "OUT", "vector a=IN b=OUT", "vector a=OUT b=REST"), nil},
		{"nothing known", config(0, "IN", "OUT", "any x=IN y=OUT"), nil},
		{"no steps", config(0, "IN", "OUT"), []string{"0 steps"}},
		{"too many steps", config(0, "IN", "OUT", slices.Repeat([]string{"vector a=IN b=OUT"}, 101)...), []string{"101 steps"}},
		{"no inputs", config(0, "", "OUT", "vector a=IN b=OUT"), []string{"input: there is none"}},
		{"itself", config(0, "IN", "OUT", "e a=IN b=OUT"), []string{"step 0: model_name is the ensemble's own"}},
		{"no maps", config(0, "IN", "OUT", "vector - b=OUT"), []string{`step 0 (model "vector") has no input_map`}},
		{"written twice", config(0, "IN", "OUT", "vector a=IN b=OUT", "rows a=IN b=OUT"), []string{`step 1 (model "rows"): output_map: tensor "OUT" is written by step 0 (model "vector") already`}},
		{"an input that is written", config(0, "IN", "OUT", "vector a=IN b=OUT", "vector a=OUT b=IN"), []string{`tensor "IN" is an input of the ensemble, which nothing may write`}},
		{"read and not written", config(0, "IN", "OUT", "vector a=IN b=MID", "vector a=OTHER b=OUT"), []string{`step 1 (model "vector"): input_map: no step writes tensor "OTHER"`}},
		{"an input that nobody reads", config(0, "IN MORE", "OUT", "vector a=IN b=OUT"), []string{`input "MORE" is read by no step`}},
		{"an output that nobody writes", config(0, "IN", "OUT MORE", "vector a=IN b=OUT"), []string{`output "MORE" is written by no step`}},
		{"a circle", config(0, "IN", "OUT", "two a=IN,c=Y b=X", "vector a=X b=Y", "vector a=IN b=OUT"), []string{`wait for one another's tensors: step 0 (model "two"), step 1 (model "vector")`}},
		{"a circle of one", config(0, "IN", "OUT", "two a=IN,c=OUT b=OUT"), []string{`one another's tensors: step 0 (model "two")`}},
		{"unknown models, all at once", config(0, "IN", "OUT", "nope a=IN b=MID", "never a=MID b=OUT"), []string{`step 0 (model "nope"): is not there`, `step 1 (model "never"): is not there`}},
		{"an input that the model has not", config(0, "IN", "OUT", "vector z=IN b=OUT"), []string{`input_map: the model has no input "z" (a)`, `input_map lacks the model's input "a"`}},
		{"an output that the model has not", config(0, "IN", "OUT", "vector a=IN z=OUT"), []string{`output_map: the model has no output "z" (b)`}},
		{"an input that is not mapped", config(0, "IN", "OUT", "two a=IN b=OUT"), []string{`input_map lacks the model's input "c"`}},
		{"another datatype", config(0, "IN", "OUT", "vector a=IN b=MID", "whole a=MID b=OUT"), []string{`tensor "MID": INT64 [4] as input "a" of step 1 (model "whole"), FP32 [4] as output "b" of step 0`, `tensor "OUT"`}},
		{"another rank", config(0, "IN", "OUT", "rows a=IN b=OUT"), []string{`tensor "IN": FP32 [4] as input "IN" of the ensemble, FP32 [-1 4] as input "a" of step 0 (model "rows")`}},
	} {
		_, err := Check(c.config, find)
		if len(c.want) == 0 && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", c.what, err, want)
			}
		}
	}
}

// TestRun goes through a diamond: which steps begin when, and with what.
func TestRun(t *testing.T) {
	plan, err := Check(config(0, "IN", "OUT LEFT", "two a=LEFT,c=R b=OUT", "vector a=IN b=LEFT", "vector a=IN b=R", "any x=IN y=UNUSED"), find)
	if err != nil {
		t.Fatal(err)
	}
	given := &tensor.Request{ID: "1", Parameters: tensor.Parameters{"p": 1}, Inputs: []tensor.Tensor{{Name: "IN", Datatype: tensor.FP32, Shape: []int64{4}, Data: tensor.Values{Float32: []float32{1, 2, 3, 4}}}}}
	run, ready, err := plan.Begin(given)
	if err != nil || !slices.Equal(ready, []int{1, 2}) {
		t.Fatalf("%v %v", ready, err)
	}
	if r := run.Request(1); r.ID != "1" || r.Parameters["p"] != 1 || len(r.Inputs) != 1 || r.Inputs[0].Name != "a" || r.Inputs[0].Data.Float32[3] != 4 || fmt.Sprint(r.Outputs) != "[{b map[]}]" {
		t.Errorf("%+v", r)
	}
	answer := func(name string) *tensor.Response {
		return &tensor.Response{Outputs: []tensor.Tensor{{Name: "more"}, {Name: name, Datatype: tensor.FP32, Shape: []int64{1}}}}
	}
	if ready, err = run.Done(2, answer("b")); err != nil || len(ready) > 0 {
		t.Errorf("%v %v", ready, err)
	}
	if ready, err = run.Done(1, answer("b")); err != nil || !slices.Equal(ready, []int{0}) {
		t.Errorf("%v %v", ready, err)
	}
	if _, err = run.Done(0, answer("z")); err == nil || !strings.Contains(err.Error(), `step 0 (model "two") did not answer with its output "b"`) {
		t.Error(err)
	}
	if ready, err = run.Done(0, answer("b")); err != nil || len(ready) > 0 {
		t.Errorf("%v %v", ready, err)
	}
	if out := run.Response().Outputs; len(out) != 2 || out[0].Name != "OUT" || out[1].Name != "LEFT" {
		t.Errorf("%+v", out)
	}
	given.Outputs = []tensor.RequestedOutput{{Name: "LEFT"}, {Name: "LEFT"}}
	if run, ready, err = plan.Begin(given); err != nil || !slices.Equal(ready, []int{1}) {
		t.Errorf("%v %v", ready, err)
	}
	if ready, err = run.Done(1, answer("b")); err != nil || len(ready) > 0 || len(run.Response().Outputs) != 1 {
		t.Errorf("%v %v", ready, err)
	}
}

func TestRows(t *testing.T) {
	plan, err := Check(config(2, "IN", "OUT", "rows a=IN b=OUT"), find)
	if err != nil {
		t.Fatal(err)
	}
	for rows, want := range map[int64]string{1: "", 2: "", 3: "the request has 3 rows", 0: "the request has 0 rows"} {
		_, _, err := plan.Begin(&tensor.Request{Inputs: []tensor.Tensor{{Name: "IN", Datatype: tensor.FP32, Shape: []int64{rows, 4}}}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d rows: %v", rows, err)
		}
	}
}
