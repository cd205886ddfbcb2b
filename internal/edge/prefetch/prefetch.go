// Package prefetch fetches models ahead of their use, some at a time, and again where
// that failed.
package prefetch

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/precache"
	"roundhouse.dev/roundhouse/internal/state/wakeup"
)

// maxFetches is how many models are fetched at a time.
const maxFetches = 2

// Model is a model to fetch.
type Model struct {
	Key   service.Key
	Files service.Files
	// Refused says why it is not fetched; "" where it is.
	Refused string
}

// Outcome is how far a model is.
type Outcome struct {
	State service.CacheState
	// Reason says why it is not there, or not yet.
	Reason string
	// Done and Total are bytes; Total is 0 while it is not known.
	Done, Total int64
	// Again is when a fetch that failed is tried again.
	Again time.Time
}

// Config is what models are fetched with. All is required.
type Config struct {
	// List is the models that there are to be.
	List func() []Model
	// Fetch returns once a model is here.
	Fetch func(ctx context.Context, f service.Files, progress func(done, total int64)) error
	// Told is called when a model has come, or fails to for another reason than before.
	Told func(service.Key, Outcome)
}

// Fetches are the fetches of models. It is safe for concurrent use.
type Fetches struct {
	cfg     Config
	changed wakeup.Bell

	mu  sync.Mutex
	all map[service.Key]*fetch
}

// fetch is what is known of a model.
type fetch struct {
	Outcome
	files    string // its Files' key
	failures int
	failure  string             // the last one
	cancel   context.CancelFunc // of the fetch that runs; nil for none
	// doubtful: the model has come, and a secret may lead elsewhere since.
	doubtful bool
}

// New makes fetches, which Run starts.
func New(cfg Config) *Fetches {
	return &Fetches{cfg: cfg, changed: wakeup.New(), all: map[service.Key]*fetch{}}
}

// Changed has the models looked at again, and what failed tried again now: what it lacked
// may have come. One that has come is fetched again, too, since what its secrets lead to may
// be another: Config.Fetch returns at once where it is not.
func (f *Fetches) Changed() {
	f.mu.Lock()
	for _, one := range f.all {
		one.Again, one.doubtful = time.Time{}, true
	}
	f.mu.Unlock()
	f.changed.Ring()
}

// Outcome is what is known of a model.
func (f *Fetches) Outcome(k service.Key) Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.all[k]; one != nil {
		return one.Outcome
	}
	return Outcome{State: service.CachePending}
}

// Run fetches models until ctx ends, and returns once no fetch runs.
func (f *Fetches) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for ctx.Err() == nil {
		again := f.look(ctx, &running)
		f.changed.Sleep(ctx, again)
	}
}

// look ends the fetches of models that are gone or changed, and starts those that are due,
// as many as may run. It returns when one is to be tried again, zero for never.
func (f *Fetches) look(ctx context.Context, running *sync.WaitGroup) (again time.Time) {
	models, now := f.cfg.List(), time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	count := f.settleLocked(models)
	for _, m := range models {
		one := f.all[m.Key]
		switch {
		case one.cancel != nil || one.State == service.CacheDownloaded && !one.doubtful:
		case m.Refused != "":
			one.Outcome = Outcome{State: service.CacheFailed, Reason: m.Refused}
		case one.Again.After(now):
			if again.IsZero() || one.Again.Before(again) {
				again = one.Again
			}
		case count == maxFetches && one.State == service.CacheDownloaded: // it waits
		case count == maxFetches:
			one.State, one.Reason = service.CachePending, fmt.Sprintf("%d models are fetched at a time: it waits for others", maxFetches)
		default:
			count++
			fetching, cancel := context.WithCancel(ctx)
			if one.cancel, one.doubtful = cancel, false; one.State != service.CacheDownloaded { // which it is until it is known better
				one.Outcome = Outcome{State: service.CacheDownloading}
			}
			running.Go(func() { f.fetch(fetching, m, one) })
		}
	}
	return again
}

// settleLocked has an entry for each model and no other, and counts the fetches that run
// still. One that was ended counts until it has ended.
func (f *Fetches) settleLocked(models []Model) (running int) {
	there := map[service.Key]string{}
	for _, m := range models {
		there[m.Key] = m.Files.Key()
		if m.Refused != "" {
			there[m.Key] = "refused"
		}
	}
	maps.DeleteFunc(f.all, func(k service.Key, one *fetch) bool {
		gone := there[k] != one.files
		switch {
		case one.cancel == nil:
			return gone
		case gone:
			one.cancel()
		}
		running++
		return false
	})
	for k, files := range there {
		if f.all[k] == nil {
			f.all[k] = &fetch{files: files, Outcome: Outcome{State: service.CachePending}}
		}
	}
	return running
}

// fetch fetches a model.
func (f *Fetches) fetch(ctx context.Context, m Model, one *fetch) {
	fetched := false
	err := f.cfg.Fetch(ctx, m.Files, func(done, total int64) {
		f.mu.Lock()
		defer f.mu.Unlock()
		fetched = true
		one.State, one.Reason, one.Done, one.Total = service.CacheDownloading, "", done, max(total, 0)
	})
	f.mu.Lock()
	ended := ctx.Err() != nil
	before := one.failure
	same := err == nil && !fetched && one.State == service.CacheDownloaded
	one.cancel()
	one.cancel = nil
	switch {
	case ended:
		one.Outcome = Outcome{State: service.CachePending}
	case err != nil:
		one.failures++
		one.State, one.Reason, one.failure = service.CacheFailed, err.Error(), err.Error()
		one.Again = time.Now().Add(precache.Wait(one.failures))
	default:
		one.failures, one.failure, one.State, one.Reason = 0, "", service.CacheDownloaded, ""
	}
	now := one.Outcome
	f.mu.Unlock()
	if !ended && !same && (err == nil || now.Reason != before) {
		f.cfg.Told(m.Key, now)
	}
	f.changed.Ring()
}
