// Package ensemble decides how the tensors of an ensemble go from model to model: Triton's
// graphs of models, each of whose steps runs once all tensors that it reads are there.
package ensemble

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// MaxSteps is how many steps an ensemble may have.
const MaxSteps = 100

// Config is an ensemble as its author wrote it.
type Config struct {
	Name string
	// MaxBatchSize above 0 has every tensor begin with a size for rows, of at most so
	// many, that Dims leave out.
	MaxBatchSize    int
	Inputs, Outputs []Tensor
	Steps           []Step
}

// Tensor is an input or output of the ensemble. A size of -1 varies.
type Tensor struct {
	Name     string
	Datatype tensor.Datatype
	Dims     []int64
	Optional bool
}

// Step is one model of the ensemble.
type Step struct {
	Model, Version string // Version "" is the default one
	// Inputs and Outputs lead from the model's tensors to the ensemble's.
	Inputs, Outputs map[string]string
}

// Model is what is known of a model that a step runs. No inputs, or no outputs, mean
// that they are not known.
type Model struct {
	Inputs, Outputs []tensor.TensorMetadata
}

// Shape is a tensor's shape with its rows.
func (c *Config) Shape(t *Tensor) []int64 {
	if c.MaxBatchSize > 0 {
		return append([]int64{-1}, t.Dims...)
	}
	return t.Dims
}

// title names a step in messages.
func (c *Config) title(step int) string {
	return fmt.Sprintf("step %d (model %q)", step, excerpt.Of(c.Steps[step].Model, 80))
}

// Plan is an ensemble that can run. It does not change.
type Plan struct {
	Config
	// writers is which step writes a tensor; of the request's there is none.
	writers map[string]int
}

// Check makes a plan of an ensemble, or returns everything that is wrong with it. find
// returns what is known of a step's model, or why that cannot be had.
func Check(c Config, find func(name, version string) (Model, error)) (*Plan, error) {
	k := &checker{Plan: &Plan{Config: c, writers: map[string]int{}}}
	if len(c.Steps) == 0 || len(c.Steps) > MaxSteps {
		return nil, fmt.Errorf("ensemble_scheduling has %d steps: 1 to %d are expected", len(c.Steps), MaxSteps)
	}
	k.tensors()
	k.steps()
	if len(k.errs) == 0 {
		k.reads()
		k.circle()
		k.models(find)
	}
	if len(k.errs) > 0 {
		return nil, errors.Join(k.errs...)
	}
	return k.Plan, nil
}

// checker is one Check under way.
type checker struct {
	*Plan
	errs []error
}

func (k *checker) errorf(format string, args ...any) {
	k.errs = append(k.errs, fmt.Errorf(format, args...))
}

// own are the ensemble's inputs and outputs.
func (k *checker) own(yield func(role string, list []Tensor) bool) {
	_ = yield("input", k.Inputs) && yield("output", k.Outputs)
}

// tensors checks the ensemble's own inputs and outputs.
func (k *checker) tensors() {
	for role, list := range k.own {
		if len(list) == 0 {
			k.errorf("%s: there is none", role)
		}
		for i := range list {
			t := &list[i]
			switch {
			case t.Name == "":
				k.errorf("%s[%d] has no name", role, i)
			case slices.ContainsFunc(list[:i], func(o Tensor) bool { return o.Name == t.Name }):
				k.errorf("%s[%d]: %q is there twice", role, i, t.Name)
			case t.Datatype == tensor.NoDatatype:
				k.errorf("%s %q has no data_type", role, t.Name)
			case slices.ContainsFunc(t.Dims, func(n int64) bool { return n < -1 || n == 0 }):
				k.errorf("%s %q: dims %v: sizes are above 0, or -1 for any", role, t.Name, t.Dims)
			case t.Optional:
				k.errorf("input %q is optional: an ensemble has all of its inputs", t.Name)
			}
		}
	}
}

// steps checks what each step says by itself, and notes who writes which tensor.
func (k *checker) steps() {
	for i := range k.Steps {
		s := &k.Steps[i]
		at := fmt.Sprintf("step %d", i)
		switch {
		case s.Model == "":
			k.errorf("%s has no model_name", at)
			continue
		case s.Model == k.Name:
			k.errorf("%s: model_name is the ensemble's own", at)
		case len(s.Inputs) == 0 || len(s.Outputs) == 0:
			k.errorf("%s has no input_map or no output_map: it needs both", k.title(i))
		}
		for _, name := range slices.Sorted(maps.Keys(s.Outputs)) {
			to := s.Outputs[name]
			first, written := k.writers[to]
			switch {
			case to == "":
				k.errorf("%s: output_map: %q leads to no tensor", k.title(i), name)
			case slices.ContainsFunc(k.Inputs, func(t Tensor) bool { return t.Name == to }):
				k.errorf("%s: output_map: tensor %q is an input of the ensemble, which nothing may write", k.title(i), to)
			case written:
				k.errorf("%s: output_map: tensor %q is written by %s already", k.title(i), to, k.title(first))
			default:
				k.writers[to] = i
			}
		}
	}
}

// reads checks that what is read is written, and what is given is read.
func (k *checker) reads() {
	read := map[string]bool{}
	for i := range k.Steps {
		for _, name := range slices.Sorted(maps.Keys(k.Steps[i].Inputs)) {
			from := k.Steps[i].Inputs[name]
			read[from] = true
			if _, written := k.writers[from]; !written && !slices.ContainsFunc(k.Inputs, func(t Tensor) bool { return t.Name == from }) {
				k.errorf("%s: input_map: no step writes tensor %q, and it is no input of the ensemble", k.title(i), from)
			}
		}
	}
	for i := range k.Inputs {
		if name := k.Inputs[i].Name; !read[name] {
			k.errorf("input %q is read by no step", name)
		}
	}
	for i := range k.Outputs {
		if _, written := k.writers[k.Outputs[i].Name]; !written {
			k.errorf("output %q is written by no step", k.Outputs[i].Name)
		}
	}
}

// circle looks for steps that wait for one another.
func (k *checker) circle() {
	done := make([]bool, len(k.Steps))
	for range k.Steps {
		for i := range k.Steps {
			done[i] = done[i] || !slices.ContainsFunc(slices.Collect(maps.Values(k.Steps[i].Inputs)), func(from string) bool {
				writer, written := k.writers[from]
				return written && !done[writer]
			})
		}
	}
	var waiting []string
	for i := range done {
		if !done[i] {
			waiting = append(waiting, k.title(i))
		}
	}
	if len(waiting) > 0 {
		k.errorf("these wait for one another's tensors: %s", strings.Join(waiting, ", "))
	}
}

// seen is a tensor as one side of the ensemble has it.
type seen struct {
	where    string
	datatype tensor.Datatype
	shape    []int64
}

// models checks the steps against their models, and that all agree on each tensor.
func (k *checker) models(find func(name, version string) (Model, error)) {
	known := map[string][]seen{}
	for role, list := range k.own {
		for i := range list {
			known[list[i].Name] = append(known[list[i].Name], seen{fmt.Sprintf("%s %q of the ensemble", role, list[i].Name), list[i].Datatype, k.Shape(&list[i])})
		}
	}
	for i := range k.Steps {
		s := &k.Steps[i]
		m, err := find(s.Model, s.Version)
		if err != nil {
			k.errorf("%s: %w", k.title(i), err)
			continue
		}
		k.side(known, i, "input", m.Inputs, s.Inputs)
		k.side(known, i, "output", m.Outputs, s.Outputs)
		for t := range m.Inputs {
			if _, mapped := s.Inputs[m.Inputs[t].Name]; !mapped && m.Inputs[t].Parameters["optional"] != true {
				k.errorf("%s: input_map lacks the model's input %q", k.title(i), m.Inputs[t].Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		all := known[name]
		slices.SortStableFunc(all, func(a, b seen) int { return cmp.Compare(a.where, b.where) })
		for i := range all[1:] {
			if a, b := &all[0], &all[i+1]; !agree(a, b) {
				k.errorf("tensor %q: %s %v as %s, %s %v as %s", name, a.datatype, a.shape, a.where, b.datatype, b.shape, b.where)
			}
		}
	}
}

// side checks one side of a step against the model's tensors.
func (k *checker) side(known map[string][]seen, step int, role string, list []tensor.TensorMetadata, mapped map[string]string) {
	if len(list) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(mapped)) {
		i := slices.IndexFunc(list, func(t tensor.TensorMetadata) bool { return t.Name == name })
		if i < 0 {
			var have []string
			for _, t := range list {
				have = append(have, t.Name)
			}
			k.errorf("%s: %s_map: the model has no %s %q (%s)", k.title(step), role, role, name, strings.Join(have, ", "))
			continue
		}
		to := mapped[name]
		known[to] = append(known[to], seen{fmt.Sprintf("%s %q of %s", role, name, k.title(step)), list[i].Datatype, list[i].Shape})
	}
}

// agree reports whether two sides may mean one tensor: what is not known, or varies,
// agrees with anything.
func agree(a, b *seen) bool {
	if a.datatype != b.datatype && a.datatype != tensor.NoDatatype && b.datatype != tensor.NoDatatype {
		return false
	}
	if len(a.shape) == 0 || len(b.shape) == 0 {
		return true
	}
	return slices.EqualFunc(a.shape, b.shape, func(x, y int64) bool { return x == y || x == -1 || y == -1 })
}
