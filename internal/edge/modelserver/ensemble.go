package modelserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/decide/ensemble"
)

// maxEnsembleDepth is how many ensembles may be within one another.
const maxEnsembleDepth = 8

// ensembleModel is a graph of the server's models as one model. Its steps are requests to
// them, which count in their statistics and wait for their batches as any.
type ensembleModel struct {
	plan     *ensemble.Plan
	registry *registry
}

// openEnsemble makes the model of a graph, whose models must serve.
func (r *registry) openEnsemble(c ensemble.Config) (Model, error) {
	plan, err := ensemble.Check(c, func(name, version string) (ensemble.Model, error) {
		i, err := r.acquire(name, version)
		if err != nil {
			return ensemble.Model{}, err
		}
		defer i.release()
		m := i.model.Metadata()
		return ensemble.Model{Inputs: m.Inputs, Outputs: m.Outputs}, nil
	})
	if err == nil && r.leadsTo(&c, c.Name, 0) {
		err = fmt.Errorf("its steps lead back to it, or through more than %d ensembles", maxEnsembleDepth)
	}
	if err != nil {
		return nil, fmt.Errorf("the ensemble cannot run: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return &ensembleModel{plan, r}, nil
}

// leadsTo reports whether a step of a graph, or of a graph that is one of its models, is
// of a model of this name.
func (r *registry) leadsTo(c *ensemble.Config, name string, depth int) bool {
	for i := range c.Steps {
		s := &c.Steps[i]
		if s.Model == name || depth > maxEnsembleDepth {
			return true
		}
		found, err := r.acquire(s.Model, s.Version)
		if err != nil {
			continue
		}
		e, ok := found.model.(*ensembleModel)
		found.release()
		if ok && r.leadsTo(&e.plan.Config, name, depth+1) {
			return true
		}
	}
	return false
}

// Metadata describes the ensemble as its configuration does.
func (e *ensembleModel) Metadata() tensor.ModelMetadata {
	list := func(of []ensemble.Tensor) (out []tensor.TensorMetadata) {
		for i := range of {
			out = append(out, tensor.TensorMetadata{Name: of[i].Name, Datatype: of[i].Datatype, Shape: e.plan.Shape(&of[i])})
		}
		return out
	}
	return tensor.ModelMetadata{Platform: ensemblePlatform, Inputs: list(e.plan.Inputs), Outputs: list(e.plan.Outputs)}
}

// Ready reports whether all of its models can answer. The registry's lock is held.
func (e *ensembleModel) Ready() bool {
	for i := range e.plan.Steps {
		s := &e.plan.Steps[i]
		found, err := e.registry.seek(s.Model, s.Version)
		if err != nil || found.live == nil || !found.live.ready() {
			return false
		}
	}
	return true
}

// Close leaves its models alone, which have lives of their own.
func (e *ensembleModel) Close(context.Context) error { return nil }

// Infer runs each step once its tensors are there, those at once that can. After the
// first that fails no more begin, and those under way are cancelled.
func (e *ensembleModel) Infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	run, ready, err := e.plan.Begin(r)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		step     int
		response *tensor.Response
		err      error
	}
	results := make(chan result, len(e.plan.Steps))
	running := 0
	var failed error
	for {
		for n, step := range ready {
			request := run.Request(step)
			running++
			if running == 1 && n == len(ready)-1 { // nothing else to do meanwhile
				response, err := e.step(ctx, step, request)
				results <- result{step, response, err}
				break
			}
			go func() {
				response, err := e.step(ctx, step, request)
				results <- result{step, response, err}
			}()
		}
		if ready = nil; running == 0 {
			break
		}
		done := <-results
		running--
		if done.err == nil && failed == nil {
			ready, done.err = run.Done(done.step, done.response)
		}
		if done.err != nil && failed == nil {
			failed = done.err
			cancel()
		}
	}
	if failed != nil {
		return nil, failed
	}
	return run.Response(), nil
}

// step asks a step's model. Its errors name the step; a model that is not there, or does
// not serve, is no fault of the request.
func (e *ensembleModel) step(ctx context.Context, step int, r *tensor.Request) (*tensor.Response, error) {
	s := &e.plan.Steps[step]
	response, err := e.registry.infer(ctx, s.Model, s.Version, r)
	if err == nil {
		return response, nil
	}
	if statusOf(err) == http.StatusNotFound || NotReady(err) {
		return nil, &httpError{http.StatusServiceUnavailable, fmt.Sprintf("%s: %v", e.plan.Title(step), err)}
	}
	return nil, fmt.Errorf("%s: %w", e.plan.Title(step), err)
}

// waves orders entries for loading: ensembles after the models that their steps name.
// Ensembles that name one another get an error.
func waves(entries []Entry) (out [][]int) {
	wave := make([]int, len(entries)) // of each entry; -1: not known yet
	of := func(name string) int {
		last := 0
		for i := range entries {
			switch {
			case entries[i].Settings.Name != name:
			case wave[i] < 0:
				return -1
			default:
				last = max(last, wave[i]+1)
			}
		}
		return last
	}
	for i := range entries {
		if entries[i].Settings.Ensemble != nil {
			wave[i] = -1
		}
	}
	for changed := true; changed; {
		changed = false
		for i := range entries {
			if wave[i] >= 0 {
				continue
			}
			after := 1
			for _, s := range entries[i].Settings.Ensemble.Steps {
				if n := of(s.Model); n < 0 {
					after = -1
					break
				} else {
					after = max(after, n)
				}
			}
			if after > 0 {
				wave[i], changed = after, true
			}
		}
	}
	for i := range entries {
		if wave[i] < 0 {
			entries[i].Err = fmt.Errorf("%s: the steps of this ensemble lead back to it, or to ensembles that name one another", entries[i].Settings.Source)
			wave[i] = 0
		}
		for len(out) <= wave[i] {
			out = append(out, nil)
		}
		out[wave[i]] = append(out[wave[i]], i)
	}
	return out
}

// withSteps are the entries of a model and, where that is an ensemble, those of the models
// of its steps that do not serve yet.
func (r *registry) withSteps(all []Entry, name string) []Entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	wanted := []string{name}
	for i := 0; i < len(wanted); i++ {
		for _, e := range all {
			if e.Settings.Name != wanted[i] || e.Settings.Ensemble == nil {
				continue
			}
			for _, s := range e.Settings.Ensemble.Steps {
				if found, err := r.find(s.Model, s.Version); (err != nil || found.live == nil) && !slices.Contains(wanted, s.Model) {
					wanted = append(wanted, s.Model)
				}
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(e Entry) bool { return !slices.Contains(wanted, e.Settings.Name) })
}
