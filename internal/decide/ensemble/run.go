package ensemble

import (
	"maps"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Run is one request on its way through an ensemble. It is for one goroutine.
type Run struct {
	plan    *Plan
	request *tensor.Request
	outputs []string // of the answer, in order
	needed  []bool   // the steps whose tensors are asked for
	begun   []bool
	have    map[string]*tensor.Tensor
}

// Begin checks a request and returns its run, and the steps that can begin. Steps whose
// tensors nobody asked for are left out.
func (p *Plan) Begin(r *tensor.Request) (*Run, []int, error) {
	run := &Run{plan: p, request: r, needed: make([]bool, len(p.Steps)), begun: make([]bool, len(p.Steps)), have: map[string]*tensor.Tensor{}}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		if err := p.takes(t); err != nil {
			return nil, nil, err
		}
		if run.have[t.Name] != nil {
			return nil, nil, tensor.Errorf(tensor.KindInvalid, "input %q is there twice", t.Name)
		}
		run.have[t.Name] = t
	}
	for i := range p.Inputs {
		if name := p.Inputs[i].Name; run.have[name] == nil {
			return nil, nil, tensor.Errorf(tensor.KindInvalid, "input %q is missing", name)
		}
	}
	if err := p.sameRows(r); err != nil {
		return nil, nil, err
	}
	for i := range r.Outputs {
		name := r.Outputs[i].Name
		if !slices.ContainsFunc(p.Outputs, func(t Tensor) bool { return t.Name == name }) {
			return nil, nil, tensor.Errorf(tensor.KindInvalid, "the ensemble %q has no output %q", p.Name, name)
		}
		if !slices.Contains(run.outputs, name) {
			run.outputs = append(run.outputs, name)
		}
	}
	for i := range p.Outputs {
		if len(r.Outputs) == 0 {
			run.outputs = append(run.outputs, p.Outputs[i].Name)
		}
	}
	for _, name := range run.outputs {
		run.need(name)
	}
	return run, run.ready(), nil
}

// takes checks an input of a request.
func (p *Plan) takes(t *tensor.Tensor) error {
	i := slices.IndexFunc(p.Inputs, func(in Tensor) bool { return in.Name == t.Name })
	if i < 0 {
		return tensor.Errorf(tensor.KindInvalid, "the ensemble %q has no input %q", p.Name, t.Name)
	}
	in := &p.Inputs[i]
	if t.Datatype != in.Datatype {
		return tensor.Errorf(tensor.KindInvalid, "input %q is %s, the ensemble %q takes %s", t.Name, t.Datatype, p.Name, in.Datatype)
	}
	if want := p.Shape(in); !slices.EqualFunc(want, t.Shape, func(want, got int64) bool { return want == -1 || want == got }) {
		return tensor.Errorf(tensor.KindInvalid, "input %q has the shape %v, the ensemble %q takes %v", t.Name, t.Shape, p.Name, want)
	}
	return nil
}

// sameRows checks the rows of a request that has some.
func (p *Plan) sameRows(r *tensor.Request) error {
	if p.MaxBatchSize == 0 {
		return nil
	}
	rows := r.Inputs[0].Shape[0]
	for i := range r.Inputs {
		if n := r.Inputs[i].Shape[0]; n != rows {
			return tensor.Errorf(tensor.KindInvalid, "input %q has %d rows, input %q %d", r.Inputs[i].Name, n, r.Inputs[0].Name, rows)
		}
	}
	if rows < 1 || rows > int64(p.MaxBatchSize) {
		return tensor.Errorf(tensor.KindInvalid, "the request has %d rows, the ensemble %q takes 1 to %d", rows, p.Name, p.MaxBatchSize)
	}
	return nil
}

// need marks the step that writes a tensor, and those before it.
func (r *Run) need(name string) {
	step, written := r.plan.writers[name]
	if !written || r.needed[step] {
		return
	}
	r.needed[step] = true
	for _, from := range r.plan.Steps[step].Inputs {
		r.need(from)
	}
}

// ready are the steps that can begin and did not; they count as begun.
func (r *Run) ready() (out []int) {
	for i := range r.plan.Steps {
		if !r.needed[i] || r.begun[i] {
			continue
		}
		lacks := false
		for _, from := range r.plan.Steps[i].Inputs {
			lacks = lacks || r.have[from] == nil
		}
		if !lacks {
			r.begun[i] = true
			out = append(out, i)
		}
	}
	return out
}

// Request is what a step's model is asked. Its tensors' data are shared with other
// steps: nobody changes them.
func (r *Run) Request(step int) *tensor.Request {
	s := &r.plan.Steps[step]
	out := &tensor.Request{ID: r.request.ID, Parameters: maps.Clone(r.request.Parameters)}
	if headers, ok := out.Parameters["headers"].(map[string]any); ok { // a model may change them
		out.Parameters["headers"] = maps.Clone(headers)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Inputs)) {
		t := *r.have[s.Inputs[name]]
		t.Name, t.Parameters = name, maps.Clone(t.Parameters)
		out.Inputs = append(out.Inputs, t)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Outputs)) {
		out.Outputs = append(out.Outputs, tensor.RequestedOutput{Name: name})
	}
	return out
}

// Done takes in what a step's model answered, and returns the steps that can begin now.
func (r *Run) Done(step int, answer *tensor.Response) ([]int, error) {
	s := &r.plan.Steps[step]
	for i := range answer.Outputs {
		if to, ok := s.Outputs[answer.Outputs[i].Name]; ok {
			t := answer.Outputs[i]
			t.Name = to
			r.have[to] = &t
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Outputs)) {
		if r.have[s.Outputs[name]] == nil {
			return nil, tensor.Errorf(tensor.KindInvalid, "%s did not answer with its output %q", r.plan.title(step), name)
		}
	}
	return r.ready(), nil
}

// Response is the answer, once no step is under way and none can begin.
func (r *Run) Response() *tensor.Response {
	out := &tensor.Response{}
	for _, name := range r.outputs {
		out.Outputs = append(out.Outputs, *r.have[name])
	}
	return out
}

// Title names a step in messages.
func (p *Plan) Title(step int) string { return p.title(step) }
