package benchmark

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/load"
)

// texts is a store in memory.
type texts struct {
	mu sync.Mutex
	of map[service.Key][]byte
}

func (s *texts) Load() (map[service.Key][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.of), nil
}

func (s *texts) Save(k service.Key, text []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[k] = text
	return nil
}

func (s *texts) Remove(k service.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, k)
	return nil
}

// desired is the jobs that there are.
type desired struct {
	mu   sync.Mutex
	jobs []Job
}

func (d *desired) list() []Job {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Job{}, d.jobs...)
}

func (d *desired) set(jobs ...Job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jobs = jobs
}

func job(name, mark string) Job {
	j := Job{Mark: mark, Job: load.Job{Scenarios: []load.Scenario{{Name: "D(10,5)", Input: load.Fixed(10), Output: load.Fixed(5)}}, Concurrency: []int{2}, Requests: 10, Time: time.Hour}}
	j.Key = service.Key{Namespace: "default", Name: name}
	return j
}

// Jobs run one after the other, each once, also over a restart; one that is changed runs
// again, and that of one that is deleted is forgotten.
func TestJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{first: time.Second, each: time.Second}
		store, want := &texts{of: map[service.Key][]byte{}}, &desired{}
		begin := func() (*Jobs, context.CancelFunc) {
			j := NewJobs(JobsConfig{List: want.list, Target: func(*load.Job) Target { return target(e) }, Store: store, Log: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithCancel(t.Context())
			go j.Run(ctx)
			synctest.Wait()
			return j, cancel
		}
		state := func(j *Jobs, of Job, s State) Outcome {
			t.Helper()
			synctest.Wait()
			o := j.Outcome(of.Key, of.Mark)
			if o.State != s {
				t.Fatalf("%s is %s (%s), want %s", of.Name, o.State, o.Reason, s)
			}
			return o
		}
		a, b := job("a", "1"), job("b", "1")
		want.set(a, b)
		j, stop := begin()
		state(j, a, Running)
		state(j, b, Pending)
		time.Sleep(35 * time.Second) // 10 requests of 5 s, by two clients, and a warm-up
		state(j, a, Completed)
		state(j, b, Running)
		stop()
		synctest.Wait()

		asked := len(e.bodies)
		j, stop = begin()
		state(j, a, Completed)
		state(j, b, Running) // again
		time.Sleep(35 * time.Second)
		if o := state(j, b, Completed); o.Report.Points[0].Requests != 10 || len(e.bodies) != asked+11 {
			t.Errorf("%+v, %d requests", o, len(e.bodies)-asked)
		}
		changed := job("a", "2")
		want.set(changed)
		j.Changed()
		state(j, changed, Running)
		if _, kept := store.of[b.Key]; kept {
			t.Error("the report of a deleted benchmark is kept")
		}
		want.set()
		j.Changed()
		synctest.Wait()
		if len(store.of) != 0 {
			t.Errorf("%v", store.of)
		}
		stop()
		synctest.Wait()
	})
}

// A job whose target does not answer says why, lets the others run meanwhile and fails in
// the end; one that waits says for what.
func TestJobFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := job("a", "1"), job("b", "1")
		want := &desired{jobs: []Job{a, b}}
		store := &texts{of: map[service.Key][]byte{a.Key: []byte("{")}}
		engines := map[string]*engine{"a": {status: 404}, "b": {first: time.Second, each: time.Second}, "c": {status: 404}}
		j := NewJobs(JobsConfig{List: want.list, Target: func(of *load.Job) Target { return target(engines[of.Name]) }, Store: store, Log: slog.New(slog.DiscardHandler)})
		go j.Run(t.Context())
		check := func(of Job, s State, reason string) {
			t.Helper()
			synctest.Wait()
			if o := j.Outcome(of.Key, of.Mark); o.State != s || o.Reason != reason {
				t.Errorf("%s is %s (%s), want %s (%s)", of.Name, o.State, o.Reason, s, reason)
			}
		}
		tried := "its first request was not answered, and is tried again for up to 15 minutes: 404 Not Found: busy"
		check(a, Pending, tried)
		check(b, Running, "")
		c := job("c", "1")
		want.set(a, b, c)
		check(c, Pending, "jobs run one after the other: it waits for default/b")
		time.Sleep(35 * time.Second)
		check(a, Pending, tried)
		check(b, Completed, "")
		time.Sleep(patience + retryInterval)
		check(a, Failed, "404 Not Found: busy")
	})
}

// A job whose target comes to answer is run, without word of what failed before.
func TestJobWaitsForItsTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := job("a", "1")
		want := &desired{jobs: []Job{a}}
		var there atomic.Bool
		j := NewJobs(JobsConfig{List: want.list, Store: &texts{of: map[service.Key][]byte{}}, Log: slog.New(slog.DiscardHandler), Target: func(*load.Job) Target {
			if there.Load() {
				return target(&engine{first: time.Second, each: time.Second})
			}
			return target(&engine{status: 404})
		}})
		go j.Run(t.Context())
		time.Sleep(time.Minute)
		there.Store(true)
		time.Sleep(retryInterval + 35*time.Second)
		synctest.Wait()
		if o := j.Outcome(a.Key, "1"); o.State != Completed || o.Reason != "" || o.Report.Points[0].Requests != 10 {
			t.Errorf("%+v", o)
		}
	})
}

// The report of a job goes to its output; one that cannot be written fails the job at once,
// and so does a file of prompts that is not there.
func TestJobOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := job("a", "1"), job("b", "1"), job("c", "1")
		a.Output.URI, b.Output.URI, c.Dataset = "s3://bucket/report.json", "s3://refused/report.json", "file:///none/prompts.jsonl"
		want := &desired{jobs: []Job{a, b, c}}
		kept := map[string]int{}
		e := &engine{first: time.Second, each: time.Second}
		j := NewJobs(JobsConfig{List: want.list, Target: func(*load.Job) Target { return target(e) }, Store: &texts{of: map[service.Key][]byte{}}, Log: slog.New(slog.DiscardHandler),
			Keep: func(_ context.Context, of *load.Job, r load.Report) error {
				if of.Name == "b" {
					return errors.New("access denied")
				}
				kept[of.Output.URI] = len(r.Points)
				return nil
			}})
		go j.Run(t.Context())
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, of := range []struct {
			job    Job
			state  State
			reason string
		}{{a, Completed, ""}, {b, Failed, "the report cannot be written: access denied"}, {c, Failed, "spec.dataset: open /none/prompts.jsonl: no such file or directory"}} {
			if o := j.Outcome(of.job.Key, "1"); o.State != of.state || o.Reason != of.reason {
				t.Errorf("%s is %s (%s), want %s (%s)", of.job.Name, o.State, o.Reason, of.state, of.reason)
			}
		}
		if len(kept) != 1 || kept[a.Output.URI] != 1 || len(e.bodies) != 11 {
			t.Errorf("%v, %d requests", kept, len(e.bodies))
		}
	})
}
