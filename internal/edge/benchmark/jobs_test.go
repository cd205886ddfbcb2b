package benchmark

import (
	"context"
	"log/slog"
	"maps"
	"sync"
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

// A job whose target does not answer fails with the reason.
func TestJobFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := job("a", "1")
		want := &desired{jobs: []Job{a}}
		store := &texts{of: map[service.Key][]byte{a.Key: []byte("{")}}
		j := NewJobs(JobsConfig{List: want.list, Target: func(*load.Job) Target { return target(&engine{status: 404}) }, Store: store, Log: slog.New(slog.DiscardHandler)})
		ctx, cancel := context.WithCancel(t.Context())
		go j.Run(ctx)
		synctest.Wait()
		if o := j.Outcome(a.Key, "1"); o.State != Running {
			t.Errorf("its service may not be there yet: %+v", o)
		}
		time.Sleep(patience + retryInterval)
		synctest.Wait()
		if o := j.Outcome(a.Key, "1"); o.State != Failed || o.Reason != "404 Not Found: busy" {
			t.Errorf("%+v", o)
		}
		cancel()
		synctest.Wait()
	})
}
