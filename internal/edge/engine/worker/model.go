package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Model is a model loaded in one or more workers. Its methods are safe for
// concurrent use.
type Model struct {
	engine     *Engine
	pool       *pool
	settings   Settings
	key        string // of this instance, in the protocol
	chosen     []int  // slots of the pool
	placements []*placement
	metadata   tensor.ModelMetadata
	handlers   []Handler
	streams    bool // its code has predict_stream
	turn       atomic.Uint32
	closed     atomic.Bool
}

// Metadata returns the model's description of itself, made when it was loaded. The
// caller must not change it.
func (m *Model) Metadata() tensor.ModelMetadata { return m.metadata }

// Ready reports whether at least one worker has the model loaded and its code
// reports that it is ready.
func (m *Model) Ready() bool {
	for _, p := range m.placements {
		if w := p.ready(); w != nil && !w.conn.ended() {
			return true
		}
	}
	return false
}

// Workers returns the number of workers that have the model.
func (m *Model) Workers() int { return len(m.placements) }

// Close unloads the model. A pool's workers end with its last model.
func (m *Model) Close(ctx context.Context) error {
	if m.closed.Swap(true) {
		return nil
	}
	err := unloadAll(ctx, m.placements)
	m.pool.leave(m.chosen)
	m.engine.release(m.pool, m)
	return err
}

// pick returns the ready worker with the fewest requests in flight, round robin
// among equals, or nil if none is ready.
func (m *Model) pick() *worker {
	var best *worker
	var least int64
	n := len(m.placements)
	from := int(m.turn.Add(1) % uint32(n))
	for i := range n {
		w := m.placements[(from+i)%n].ready()
		if w == nil || w.conn.ended() {
			continue
		}
		if load := w.conn.inFlight.Load(); best == nil || load < least {
			best, least = w, load
		}
	}
	return best
}

// begin starts a call on a worker. It skips workers that have ended.
func (m *Model) begin(call *call, build func(id uint64) (*frame, error)) (*worker, error) {
	for range 2*len(m.placements) + 1 {
		w := m.pick()
		if w == nil {
			break
		}
		switch err := w.conn.start(call, build); {
		case err == nil:
			return w, nil
		case errors.Is(err, errGone):
		case errors.Is(err, errFull):
			return nil, NewError(kindUnavailable, fmt.Sprintf("model %q: its workers have %d requests in flight each and take no more; try again", m.settings.Name, m.engine.config.Limits.MaxInFlight))
		default:
			return nil, err
		}
	}
	return nil, m.notReady()
}

// notReady returns the error of requests while no worker can answer.
func (m *Model) notReady() error {
	for _, p := range m.placements {
		if p.live.Load() != nil {
			return NewError(kindUnavailable, fmt.Sprintf("model %q is not ready: its code says so", m.settings.Name))
		}
	}
	return NewError(kindUnavailable, fmt.Sprintf("model %q is not ready: its workers are being replaced; try again", m.settings.Name))
}

// ask makes a request that has one answer.
func (m *Model) ask(ctx context.Context, kind string, build func(id uint64) (*frame, error)) (*message, error) {
	answer, _, err := m.askFirst(ctx, kind, build)
	return answer, err
}

// asked is a call that is under way at a worker.
type asked struct {
	*call
	worker *worker
}

// askFirst makes a request and waits for the first message of its answer. It tries
// another worker as long as no worker has seen the request.
func (m *Model) askFirst(ctx context.Context, kind string, build func(id uint64) (*frame, error)) (*message, asked, error) {
	for range len(m.placements) + 1 {
		a := asked{call: newCall(kind, m.settings.RequestTimeout)}
		var err error
		if a.worker, err = m.begin(a.call, build); err != nil {
			return nil, a, err
		}
		answer, err := m.next(ctx, a)
		if errors.Is(err, errNotSent) {
			continue
		}
		return answer, a, err
	}
	return nil, asked{}, m.notReady()
}

// next waits for the next message of an answer, within the time for one.
func (m *Model) next(ctx context.Context, a asked) (*message, error) {
	within, cancel := context.WithTimeout(ctx, m.settings.RequestTimeout)
	defer cancel()
	answer, err := a.worker.conn.wait(within, a.call)
	switch {
	case errors.Is(err, errNotSent):
		return nil, err
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		err = a.worker.overdue(a.call)
	}
	m.logFailure(err)
	return answer, m.explain(err)
}

// explain adds the model's name, and the setting that allows more time, to the
// error of an answer that took too long.
func (m *Model) explain(err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Kind != kindTimeout {
		return err
	}
	return NewError(kindTimeout, fmt.Sprintf("model %q gave no answer within %s; inference_timeout, in its model-settings.json or in settings.json, allows more seconds",
		m.settings.Name, m.settings.RequestTimeout))
}

// logFailure logs the exception of the model's code with its traceback. Clients do
// not get the traceback.
func (m *Model) logFailure(err error) {
	var e *Error
	if errors.As(err, &e) && e.Traceback != "" {
		m.pool.log.Warn("model failed", "model", m.settings.Name, "version", m.settings.Version, "error", e.Message, "type", e.Type, "traceback", e.Traceback)
	}
}

// Infer answers a request. It does not copy the request's tensors and may still
// read them after it has returned because ctx ended: the caller must not change
// them afterwards. Errors are *Error, *tensor.Error, or ctx's.
func (m *Model) Infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	answer, err := m.ask(ctx, kindInfer, func(id uint64) (*frame, error) {
		f := control(kindInfer, "id", id, "model", m.key)
		return f, f.withRequest(r)
	})
	if err != nil {
		return nil, err
	}
	return answer.response()
}

// withRequest adds a request to a control message as a further member of its
// object.
func (f *frame) withRequest(r *tensor.Request) error {
	f.head = f.head[:len(f.head)-1]
	err := f.request(r)
	f.head = append(f.head, '}')
	return err
}
