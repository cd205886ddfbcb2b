package benchmark

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/internal/state/wakeup"
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
	Reason string      `json:"reason,omitempty"` // why it failed, or is not under way
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
	// Keep writes the report of a job to its output.
	Keep func(context.Context, *load.Job, load.Report) error
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

// Jobs runs jobs, one after the other, each once. One whose target does not answer yet
// lets the others run before it is tried again. One that was under way when the process
// ended is run again. It is safe for concurrent use.
type Jobs struct {
	cfg     JobsConfig
	changed wakeup.Bell

	mu       sync.Mutex
	outcomes map[service.Key]Outcome
	tries    map[service.Key]tries // of the jobs whose target has not answered yet
	running  service.Key           // the job that the others wait for; zero for none
}

// tries are those of a job whose target has not answered yet.
type tries struct {
	mark        string
	began, next time.Time
}

// NewJobs makes a runner with the outcomes that are stored.
func NewJobs(cfg JobsConfig) *Jobs {
	j := &Jobs{cfg: cfg, changed: wakeup.New(), outcomes: map[service.Key]Outcome{}, tries: map[service.Key]tries{}}
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
func (j *Jobs) Changed() { j.changed.Ring() }

// Outcome is what is known of a job.
func (j *Jobs) Outcome(k service.Key, mark string) Outcome {
	j.mu.Lock()
	defer j.mu.Unlock()
	if o, ok := j.outcomes[k]; ok && o.Mark == mark {
		return o
	}
	o := Outcome{Mark: mark, State: Pending}
	if j.running != (service.Key{}) && j.running != k {
		o.Reason = "jobs run one after the other: it waits for " + j.running.String()
	}
	return o
}

// Run runs jobs until ctx ends.
func (j *Jobs) Run(ctx context.Context) {
	for ctx.Err() == nil {
		next, again := j.next(time.Now())
		if next == nil {
			j.changed.Sleep(ctx, again)
			continue
		}
		j.run(ctx, next)
	}
}

// next is a job that is to be run now; nil for none, and then when one is to be tried
// again. What is known of jobs that are gone is removed.
func (j *Jobs) next(now time.Time) (next *Job, again time.Time) {
	jobs := j.cfg.List()
	j.mu.Lock()
	defer j.mu.Unlock()
	there := map[service.Key]bool{}
	for i := range jobs {
		k := jobs[i].Key
		there[k] = true
		o, known := j.outcomes[k]
		if known && o.Mark == jobs[i].Mark && (o.State == Completed || o.State == Failed) {
			continue
		}
		if t := j.tries[k]; t.mark == jobs[i].Mark && t.next.After(now) {
			if again.IsZero() || t.next.Before(again) {
				again = t.next
			}
			continue
		}
		if next == nil {
			next = &jobs[i]
		}
	}
	j.forgetLocked(there)
	return next, again
}

// forgetLocked removes what is known of jobs that are gone.
func (j *Jobs) forgetLocked(there map[service.Key]bool) {
	maps.DeleteFunc(j.tries, func(k service.Key, _ tries) bool { return !there[k] })
	for k := range j.outcomes {
		if there[k] {
			continue
		}
		delete(j.outcomes, k)
		if err := j.cfg.Store.Remove(k); err != nil {
			j.cfg.Log.Error("the report of a deleted benchmark cannot be removed", "benchmark", k.String(), "error", err)
		}
	}
}

// run runs a job until it ends, is changed or deleted, or its target turns out not to
// answer yet.
func (j *Jobs) run(ctx context.Context, job *Job) {
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case <-j.changed.Rung():
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
	j.begin(job.Key)
	defer j.begin(service.Key{})
	o := Outcome{Mark: job.Mark, State: Running, Reason: j.Outcome(job.Key, job.Mark).Reason}
	j.keep(job.Key, o)
	b, err := j.benchmark(job)
	prepared := err == nil
	if prepared {
		b.Done = func(r load.Report) {
			o.Reason, o.Report = "", r
			o.Report.Points = append([]load.Point{}, r.Points...)
			if running.Err() == nil {
				j.keep(job.Key, o)
			}
		}
		o.Report, err = b.Run(running)
	}
	cut := running.Err() != nil
	cancel()
	<-watched
	switch {
	case cut:
		return // it is run again, or is gone
	case err == nil:
		o.State, o.Reason = Completed, ""
	case prepared && Unanswered(o.Report, err) && j.again(job, err):
		o.State, o.Reason = Pending, fmt.Sprintf("its first request was not answered, and is tried again for up to %.0f minutes: %v", patience.Minutes(), err)
	default:
		o.State, o.Reason = Failed, err.Error()
		j.cfg.Log.Warn("a benchmark failed", "benchmark", job.Key.String(), "error", err)
	}
	j.keep(job.Key, o)
	j.Changed() // what came while it ran
}

// benchmark is that of a job, or why there is none.
func (j *Jobs) benchmark(job *Job) (*Benchmark, error) {
	loads, err := job.Plan()
	if err != nil {
		return nil, err
	}
	b := &Benchmark{Target: j.cfg.Target(&job.Job), Loads: loads}
	if file, local := service.LocalPath(job.Dataset); local && file != "" {
		if b.Prompts, err = OpenPrompts(file, b.Target.API); err != nil {
			return nil, fmt.Errorf("spec.dataset: %w", err)
		}
	}
	if job.Output.URI != "" {
		b.Keep = func(ctx context.Context, r load.Report) error { return j.cfg.Keep(ctx, &job.Job, r) }
	}
	return b, nil
}

// begin notes the job that runs from now on.
func (j *Jobs) begin(k service.Key) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running = k
}

// A job whose first request is not answered is tried again, after others: its service may
// still fetch its model.
const (
	patience      = 15 * time.Minute
	retryInterval = 5 * time.Second
)

// again reports whether a job whose first request was not answered is to be tried again,
// and notes when.
func (j *Jobs) again(job *Job, err error) bool {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.tries[job.Key]
	if t.mark != job.Mark {
		t = tries{mark: job.Mark, began: now}
		j.cfg.Log.Warn("the target of a benchmark does not answer yet: it is tried again", "benchmark", job.Key.String(), "for", patience, "error", err)
	}
	t.next = now.Add(retryInterval)
	j.tries[job.Key] = t
	return now.Sub(t.began) < patience
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
