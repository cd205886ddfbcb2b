package modelserver

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Duration is how often something was done, and how long it took in all.
type Duration struct {
	Count uint64 `json:"count"`
	NS    uint64 `json:"ns"`
}

func (d *Duration) add(took time.Duration) {
	d.Count++
	d.NS += uint64(max(took, 0))
}

// InferStatistics are those of requests. What a model's Infer does with inputs and
// outputs is part of ComputeInfer.
type InferStatistics struct {
	Success       Duration `json:"success"`
	Fail          Duration `json:"fail"`
	Queue         Duration `json:"queue"`
	ComputeInput  Duration `json:"compute_input"`
	ComputeInfer  Duration `json:"compute_infer"`
	ComputeOutput Duration `json:"compute_output"`
	CacheHit      Duration `json:"cache_hit"`
	CacheMiss     Duration `json:"cache_miss"`
}

// BatchStatistics are those of the executions of one number of requests.
type BatchStatistics struct {
	BatchSize     uint64   `json:"batch_size"`
	ComputeInput  Duration `json:"compute_input"`
	ComputeInfer  Duration `json:"compute_infer"`
	ComputeOutput Duration `json:"compute_output"`
}

// ModelStatistics are Triton's of one version of a model, since the server started.
type ModelStatistics struct {
	Name           string            `json:"name"`
	Version        string            `json:"version"`
	LastInference  uint64            `json:"last_inference"` // milliseconds since 1970, 0 for never
	InferenceCount uint64            `json:"inference_count"`
	ExecutionCount uint64            `json:"execution_count"`
	Infer          InferStatistics   `json:"inference_stats"`
	Batches        []BatchStatistics `json:"batch_stats"`
}

// maxBatchSizes is of how many sizes of batches there are statistics.
const maxBatchSizes = 256

// statistics counts what is done with one version of a model.
type statistics struct {
	mu struct {
		sync.Mutex
		last                   time.Time
		inferences, executions uint64
		infer                  InferStatistics
		batches                map[int]*Duration // by size
	}
}

// ended counts a request that ended.
func (s *statistics) ended(now time.Time, took time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.last = now; !ok {
		s.mu.infer.Fail.add(took)
		return
	}
	s.mu.infer.Success.add(took)
	s.mu.inferences++
}

// waited counts a request that was executed, and how long it had waited for that.
func (s *statistics) waited(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.infer.Queue.add(d)
}

// executed counts an execution of a model for so many requests.
func (s *statistics) executed(requests int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.executions++
	for range requests {
		s.mu.infer.ComputeInput.add(0)
		s.mu.infer.ComputeInfer.add(took)
		s.mu.infer.ComputeOutput.add(0)
	}
	if s.mu.batches == nil {
		s.mu.batches = map[int]*Duration{}
	}
	d := s.mu.batches[requests]
	if d == nil && len(s.mu.batches) < maxBatchSizes {
		d = &Duration{}
		s.mu.batches[requests] = d
	}
	if d != nil {
		d.add(took)
	}
}

// looked counts a look into the cache, and how long an answer took from there, or without.
func (s *statistics) looked(took time.Duration, hit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if hit {
		s.mu.infer.CacheHit.add(took)
		return
	}
	s.mu.infer.CacheMiss.add(took)
}

// of returns the numbers as they are now.
func (s *statistics) of(name, version string) ModelStatistics {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := ModelStatistics{Name: name, Version: version, InferenceCount: s.mu.inferences, ExecutionCount: s.mu.executions, Infer: s.mu.infer, Batches: []BatchStatistics{}}
	if !s.mu.last.IsZero() {
		out.LastInference = uint64(s.mu.last.UnixMilli())
	}
	for size, d := range s.mu.batches {
		empty := Duration{Count: d.Count}
		out.Batches = append(out.Batches, BatchStatistics{BatchSize: uint64(size), ComputeInput: empty, ComputeInfer: *d, ComputeOutput: empty})
	}
	slices.SortFunc(out.Batches, func(a, b BatchStatistics) int { return cmp.Compare(a.BatchSize, b.BatchSize) })
	return out
}

// Statistics are those of a model's versions, or of one; name "" is all models. They
// include versions that do not serve at present, but not models that were unloaded.
func (s *service) Statistics(name, version string) ([]ModelStatistics, error) {
	return s.registry.statistics(name, version)
}

func (r *registry) statistics(name, version string) ([]ModelStatistics, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	out := []ModelStatistics{}
	add := func(s *slot) {
		if !s.gone {
			out = append(out, s.meter.stats.of(s.name, s.version))
		}
	}
	if name == "" {
		for _, slots := range r.mu.models {
			for _, s := range slots {
				add(s)
			}
		}
		slices.SortFunc(out, func(a, b ModelStatistics) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
		})
		return out, nil
	}
	found, err := r.seek(name, version)
	if err != nil {
		return nil, err
	}
	if version != "" {
		add(found)
		return out, nil
	}
	for _, s := range r.mu.models[name] {
		add(s)
	}
	if len(out) == 0 {
		return nil, tensor.Errorf(tensor.KindNotFound, "Model %s not found", name)
	}
	return out, nil
}
