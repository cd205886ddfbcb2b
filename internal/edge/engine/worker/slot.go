package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// slot is the place of one worker in a pool: it starts the worker, replaces it
// when it ends, and loads its models again in the new one.
type slot struct {
	name    string
	pool    *pool
	stopped chan struct{} // closed when run has returned
	// loading holds a token while a load is under way. A worker loads one model
	// after the other anyway. With one load at a time, a model that crashes the
	// worker while it loads does not fail another model's load.
	loading chan struct{}

	mu struct {
		sync.Mutex
		live       *worker       // nil while there is none
		startErr   error         // of the last start, nil once one succeeded
		changed    chan struct{} // closed and replaced when live or startErr changes
		placements []*placement  // in the order of their loads
	}
	restarts atomic.Int64
}

// The states of a placement.
const (
	stateUnknown int32 = iota // loading, or not loaded
	stateReady
	stateNotReady // loaded; its code reports that it is not ready
)

func stateOf(ready bool) int32 {
	if ready {
		return stateReady
	}
	return stateNotReady
}

// placement is one model in one slot.
type placement struct {
	model *Model
	slot  *slot
	live  atomic.Pointer[worker] // the worker that has it, nil if none
	state atomic.Int32

	failures int       // loads again that failed, one after the other; of run alone
	due      time.Time // when the next may be tried; of run alone
}

// ready returns the worker that can take a request for the model, or nil.
func (p *placement) ready() *worker {
	w := p.live.Load()
	if w == nil || p.state.Load() != stateReady {
		return nil
	}
	return w
}

func newSlot(p *pool, name string) *slot {
	s := &slot{name: name, pool: p, stopped: make(chan struct{}), loading: make(chan struct{}, 1)}
	s.mu.changed = make(chan struct{})
	return s
}

// settled is the least lifetime of a worker whose end does not count as a failure
// to start.
const settled = 10 * time.Second

// run keeps a worker running until ctx ends.
func (s *slot) run(ctx context.Context) {
	defer close(s.stopped)
	backoff := &s.pool.engine.config.Limits
	for failures := 0; ctx.Err() == nil; s.restarts.Add(1) {
		began := time.Now()
		w, err := s.pool.start(ctx, s.name)
		if err != nil {
			s.change(nil, err)
			s.pool.log.Error("worker cannot be started", "worker", s.name, "error", err)
		} else {
			s.change(w, nil)
			w.log.Info("worker started", "python", w.hello.Worker.Version, "executable", w.hello.Worker.Executable)
			s.serve(ctx, w)
			s.change(nil, nil)
			if ctx.Err() == nil {
				w.log.Error("worker ended; it is replaced", "reason", w.conn.err)
			}
		}
		if time.Since(began) >= settled {
			failures = 0
			continue
		}
		sleep(ctx, min(backoff.MinBackoff<<min(failures, 20), backoff.MaxBackoff))
		failures++
	}
}

// sleep waits for the duration or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// change records which worker there is, or why there is none.
func (s *slot) change(w *worker, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.live, s.mu.startErr = w, err
	if w == nil {
		for _, p := range s.mu.placements {
			p.live.Store(nil)
		}
	}
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// serve loads the models of the slot's last worker and waits until w or ctx ends;
// when ctx ends it stops w. It tries failed loads again.
func (s *slot) serve(ctx context.Context, w *worker) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			w.stop()
			return
		case <-w.conn.done:
			return
		case <-timer.C:
			timer.Reset(s.reload(ctx, w))
		}
	}
}

// idle is how often a slot looks for models to load without being told of one.
const idle = time.Hour

// reload loads the placements that w lacks and that are due. It returns when to
// call it again.
func (s *slot) reload(ctx context.Context, w *worker) time.Duration {
	s.mu.Lock()
	placements := slices.Clone(s.mu.placements)
	s.mu.Unlock()
	next := idle
	for _, p := range placements {
		if p.live.Load() == w {
			continue
		}
		if wait := time.Until(p.due); wait > 0 {
			next = min(next, wait)
			continue
		}
		if _, err := s.loadAlone(ctx, w, p, func() bool { return s.adopt(p, w) }); errors.Is(err, errGone) {
			_ = w.unload(ctx, p) // it was unloaded meanwhile
			continue
		} else if err != nil {
			if ctx.Err() != nil {
				return idle
			}
			// A model that crashes the worker while it loads must not crash the
			// next one before the other models are loaded.
			limits := &s.pool.engine.config.Limits
			wait := min(limits.MinBackoff<<min(p.failures+2, 20), 10*limits.MaxBackoff)
			p.failures++
			p.due = time.Now().Add(wait)
			next = min(next, wait)
			w.log.Error("model cannot be reloaded", "model", p.model.settings.Name, "next_try", wait, "error", err)
			select {
			case <-w.conn.done:
				return idle
			default:
			}
			continue
		}
		p.failures, p.due = 0, time.Time{}
		w.log.Info("model reloaded", "model", p.model.settings.Name)
	}
	return next
}

// adopt records that w has the placement's model. It returns false if the placement
// is no longer in the slot.
func (s *slot) adopt(p *placement, w *worker) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.mu.placements, p) {
		return false
	}
	if s.mu.live == w {
		p.live.Store(w)
	}
	return true
}

// await waits for a worker other than gone. Its error is the reason why none could
// be started.
func (s *slot) await(ctx context.Context, gone *worker) (*worker, error) {
	for {
		s.mu.Lock()
		w, err, changed := s.mu.live, s.mu.startErr, s.mu.changed
		s.mu.Unlock()
		if w != nil && w != gone || err != nil {
			return w, err
		}
		select {
		case <-changed:
		case <-s.stopped:
			return nil, errClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// loadAlone loads the placement's model in w once no other load is under way, and
// records it with keep. Its error is errGone when keep returns false, because the
// placement or the worker is gone.
func (s *slot) loadAlone(ctx context.Context, w *worker, p *placement, keep func() bool) (*message, error) {
	select {
	case s.loading <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.loading }()
	m, err := w.load(ctx, p)
	if err == nil && !keep() {
		err = errGone
	}
	return m, err
}

// load loads a model for the first time. If the worker ended before it was asked,
// or after it had answered, the model did not cause that: load tries the next one.
func (s *slot) load(ctx context.Context, m *Model) (*placement, *message, error) {
	p := &placement{model: m, slot: s}
	var w *worker
	var answer *message
	keep := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mu.live != w {
			return false
		}
		p.live.Store(w)
		s.mu.placements = append(s.mu.placements, p)
		return true
	}
	err := errGone
	for errors.Is(err, errGone) || errors.Is(err, errNotSent) {
		if w, err = s.await(ctx, w); err == nil {
			answer, err = s.loadAlone(ctx, w, p, keep)
		}
	}
	var e *Error
	if errors.As(err, &e) && e.Kind == kindDied {
		err = NewError(kindDied, fmt.Sprintf("%s; the model %q was being loaded%s", e.Message, m.settings.Name, quoted(w.output)))
	}
	if err != nil {
		return nil, nil, err
	}
	return p, answer, nil
}

// unload removes a model from the slot.
func (s *slot) unload(ctx context.Context, p *placement) error {
	s.mu.Lock()
	s.mu.placements = slices.DeleteFunc(s.mu.placements, func(o *placement) bool { return o == p })
	w := p.live.Swap(nil)
	s.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.unload(ctx, p)
}
