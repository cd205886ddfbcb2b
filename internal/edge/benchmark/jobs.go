package benchmark

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/load"
)

// State is how far a job is, in OME's words.
type State string

// The states.
const (
	Pending   State = "Pending"
	Running   State = "Running"
	Completed State = "Completed"
	Failed    State = "Failed"
)

// Outcome is what is known of a job.
type Outcome struct {
	// Mark is of the manifest that was run.
	Mark   string      `json:"mark"`
	State  State       `json:"state"`
	Reason string      `json:"reason,omitempty"` // why it failed
	Report load.Report `json:"report"`
}

// Job is a benchmark to run once. Mark changes with its manifest.
type Job struct {
	load.Job
	Mark string
}

// JobsConfig is what jobs are run with. All is required.
type JobsConfig struct {
	// List is the jobs that there are.
	List func() []Job
	// Target is whose answers a job measures.
	Target func(*load.Job) Target
	// Store keeps outcomes over restarts.
	Store Store
	Log   *slog.Logger
}

// Store keeps a text for each key.
type Store interface {
	Load() (map[service.Key][]byte, error)
	Save(service.Key, []byte) error
	Remove(service.Key) error
}

// Jobs runs jobs, one after the other, each once. One that was under way when the
// process ended is run again. It is safe for concurrent use.
type Jobs struct {
	cfg     JobsConfig
	changed chan struct{}

	mu       sync.Mutex
	outcomes map[service.Key]Outcome
}

// NewJobs makes a runner with the outcomes that are stored.
func NewJobs(cfg JobsConfig) *Jobs {
	j := &Jobs{cfg: cfg, changed: make(chan struct{}, 1), outcomes: map[service.Key]Outcome{}}
	stored, err := cfg.Store.Load()
	if err != nil {
		cfg.Log.Warn("not all reports of benchmarks can be read", "error", err)
	}
	for k, text := range stored {
		var o Outcome
		if err := json.Unmarshal(text, &o); err != nil {
			cfg.Log.Warn("the report of a benchmark cannot be read: it is run again", "benchmark", k.String(), "error", err)
			continue
		}
		j.outcomes[k] = o
	}
	return j
}

// Changed has the jobs looked at again.
func (j *Jobs) Changed() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// Outcome is what is known of a job.
func (j *Jobs) Outcome(k service.Key, mark string) Outcome {
	j.mu.Lock()
	defer j.mu.Unlock()
	if o, ok := j.outcomes[k]; ok && o.Mark == mark {
		return o
	}
	return Outcome{Mark: mark, State: Pending}
}

// Run runs jobs until ctx ends.
func (j *Jobs) Run(ctx context.Context) {
	for ctx.Err() == nil {
		next := j.next()
		if next == nil {
			select {
			case <-j.changed:
			case <-ctx.Done():
			}
			continue
		}
		j.run(ctx, next)
	}
}

// next is a job that is to be run; nil for none. Outcomes of jobs that are gone are
// removed.
func (j *Jobs) next() (next *Job) {
	jobs := j.cfg.List()
	j.mu.Lock()
	defer j.mu.Unlock()
	there := map[service.Key]bool{}
	for i := range jobs {
		k := jobs[i].Key
		there[k] = true
		o, known := j.outcomes[k]
		if ended := known && o.Mark == jobs[i].Mark && (o.State == Completed || o.State == Failed); !ended && next == nil {
			next = &jobs[i]
		}
	}
	for k := range j.outcomes {
		if there[k] {
			continue
		}
		delete(j.outcomes, k)
		if err := j.cfg.Store.Remove(k); err != nil {
			j.cfg.Log.Error("the report of a deleted benchmark cannot be removed", "benchmark", k.String(), "error", err)
		}
	}
	return next
}

// run runs a job until it ends, or is changed or deleted.
func (j *Jobs) run(ctx context.Context, job *Job) {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-j.changed:
				if !j.wanted(job) {
					cancel()
					j.Changed() // for Run
					return
				}
			case <-running.Done():
				return
			}
		}
	}()
	o := Outcome{Mark: job.Mark, State: Running}
	j.keep(job.Key, o)
	loads, err := job.Plan()
	began := time.Now()
	for again := err == nil; again; {
		b := &Benchmark{Target: j.cfg.Target(&job.Job), Loads: loads, Done: func(r load.Report) {
			o.Report = r
			o.Report.Points = append([]load.Point{}, r.Points...)
			if running.Err() == nil {
				j.keep(job.Key, o)
			}
		}}
		o.Report, err = b.Run(running)
		again = err != nil && len(o.Report.Points) == 0 && time.Since(began) < patience && pause(running)
	}
	cut := running.Err() != nil
	cancel()
	<-watched
	switch {
	case cut:
		return // it is run again, or is gone
	case err != nil:
		o.State, o.Reason = Failed, err.Error()
	default:
		o.State = Completed
	}
	j.keep(job.Key, o)
	j.Changed() // what came while it ran
}

// A job whose first request is not answered is tried again: its service may still fetch
// its model.
const (
	patience      = 15 * time.Minute
	retryInterval = 5 * time.Second
)

// pause reports whether ctx has not ended after a while.
func pause(ctx context.Context) bool {
	select {
	case <-time.After(retryInterval):
		return true
	case <-ctx.Done():
		return false
	}
}

// wanted reports whether a job is there still as it was.
func (j *Jobs) wanted(job *Job) bool {
	for _, other := range j.cfg.List() {
		if other.Key == job.Key {
			return other.Mark == job.Mark
		}
	}
	return false
}

// keep stores an outcome. One that cannot be stored is known until the process ends.
func (j *Jobs) keep(k service.Key, o Outcome) {
	text, err := json.Marshal(o)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.outcomes[k] = o
	if err == nil {
		err = j.cfg.Store.Save(k, text)
	}
	if err != nil {
		j.cfg.Log.Error("the report of a benchmark cannot be stored", "benchmark", k.String(), "error", err)
	}
}

// JobTimeout bounds each request of a job.
const JobTimeout = 10 * time.Minute
