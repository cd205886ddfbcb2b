package modelserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/decide/batch"
)

// Parallel is a Model with a known number of requests that it works on at once. For
// others, the number of processors is assumed.
type Parallel interface {
	// Parallelism is at least 1, and always the same.
	Parallelism() int
}

// maxBatchTime is the longest wait there is, in seconds: what is longer means
// for ever.
const maxBatchTime = 24 * 60 * 60

// batchConfig is how the requests of a model are batched.
func batchConfig(s Settings, m Model) (batch.Config, error) {
	c := batch.DefaultConfig()
	c.MaxSize, c.MaxRows = s.MaxBatchSize, s.MaxBatchRows
	c.MaxTime = time.Duration(min(s.MaxBatchTime, maxBatchTime) * float64(time.Second))
	c.Executors = runtime.GOMAXPROCS(0)
	if p, ok := m.(Parallel); ok {
		c.Executors = p.Parallelism()
	}
	if err := c.Validate(); err != nil {
		return c, &uriError{err}
	}
	return c, nil
}

// batcher runs the requests of an instance in batches. It performs what a
// batch.Machine decides: every event is a step under the lock, and the runs
// that follow have goroutines of their own.
type batcher struct {
	instance *instance
	config   batch.Config
	log      *slog.Logger
	queue    queueMeter
	tracer   trace.Tracer // nil: no spans

	mu struct {
		sync.Mutex
		machine  *batch.Machine
		last     uint64 // id of a request
		waiters  map[uint64]*waiter
		runs     map[uint64]context.CancelFunc // by batch
		timer    *time.Timer
		due      time.Time // of the timer; zero: it is off
		reported int       // as waiting
		began    time.Time // of the batch whose end is the event of the step
	}
}

// waiter is a request whose caller waits.
type waiter struct {
	request  *tensor.Request
	arrived  time.Time
	span     trace.SpanContext
	answered chan struct{} // closed once the rest is set
	response *tensor.Response
	err      error
}

func newBatcher(c batch.Config, i *instance, queue queueMeter, tracer trace.Tracer, log *slog.Logger) *batcher {
	b := &batcher{instance: i, config: c, log: log, queue: queue, tracer: tracer}
	b.mu.machine = batch.New(c)
	b.mu.waiters, b.mu.runs = map[uint64]*waiter{}, map[uint64]context.CancelFunc{}
	b.mu.timer = time.AfterFunc(time.Hour, b.tick)
	b.mu.timer.Stop() // until something waits
	return b
}

// infer answers a request, by itself or with others. The caller holds a use of
// the instance. When ctx ends, the request leaves its batch; a batch that all
// have left is cancelled.
func (b *batcher) infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := &waiter{request: r, arrived: time.Now(), span: trace.SpanContextFromContext(ctx), answered: make(chan struct{})}
	arrive := batch.NewArrive(0, r) // reads the request: not under the lock
	b.mu.Lock()
	b.mu.last++
	arrive.ID = b.mu.last
	b.mu.waiters[arrive.ID] = w
	b.queue.arrived(b.mu.reported)
	b.step(arrive, nil, nil)
	b.mu.Unlock()
	select {
	case <-w.answered:
		return w.response, w.err
	case <-ctx.Done():
	}
	b.mu.Lock()
	delete(b.mu.waiters, arrive.ID)
	b.step(batch.Cancel{ID: arrive.ID}, nil, nil)
	b.mu.Unlock()
	return nil, ctx.Err()
}

func (b *batcher) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.due = time.Time{}
	b.step(batch.Tick{}, nil, nil)
}

// step has the machine decide what follows from an event, and does it. The
// event of a batch that ended comes with its responses or its error. The lock
// is held.
func (b *batcher) step(e batch.Event, responses []*tensor.Response, err error) {
	out := b.mu.machine.Step(e, time.Now())
	for _, m := range out.Answers {
		b.finish(m.ID, responses[m.Index], nil)
	}
	for _, m := range out.Failures {
		b.finish(m.ID, nil, err)
	}
	for _, r := range out.Rejects {
		b.finish(r.ID, nil, &httpError{http.StatusTooManyRequests, "model " + b.instance.name + ": " + string(r.Reason) + "; try again"})
	}
	for _, run := range out.Runs {
		b.begin(run)
	}
	for _, id := range out.Aborts {
		b.mu.runs[id]()
	}
	if !out.Timer.Equal(b.mu.due) {
		b.mu.timer.Stop() // a tick too many does no harm
		if b.mu.due = out.Timer; !out.Timer.IsZero() {
			b.mu.timer.Reset(time.Until(out.Timer))
		}
	}
	if n := b.mu.machine.Waiting(); n != b.mu.reported {
		b.queue.changed(n - b.mu.reported)
		b.mu.reported = n
	}
}

// finish answers a request; the lock is held.
func (b *batcher) finish(id uint64, r *tensor.Response, err error) {
	if w := b.mu.waiters[id]; w != nil {
		delete(b.mu.waiters, id)
		if r != nil {
			b.instance.meter.stats.waited(b.mu.began.Sub(w.arrived))
		}
		w.response, w.err = r, err
		close(w.answered)
	}
}

// begin starts a batch; the lock is held. The batch uses the instance by
// itself, since its requests may all leave before it ends.
func (b *batcher) begin(run batch.Run) {
	b.instance.acquire() // some request of the batch holds a use: it cannot fail
	ctx, cancel := context.WithCancel(context.Background())
	b.mu.runs[run.Batch] = cancel
	members := b.spans(run.Requests)
	go func() {
		defer b.instance.release()
		ctx, end := b.trace(ctx, members)
		began := time.Now()
		responses, err := b.run(ctx, run.Requests)
		if err == nil {
			b.instance.meter.stats.executed(len(run.Requests), time.Since(began))
		}
		end(err)
		cancel()
		var ended batch.Event = batch.Done{Batch: run.Batch}
		if err != nil {
			ended = batch.Failed{Batch: run.Batch, Final: hopeless(err)}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.mu.runs, run.Batch)
		b.mu.began = began
		b.step(ended, responses, err)
	}()
}

// spans are those of requests that still wait; the lock is held.
func (b *batcher) spans(requests []*tensor.Request) []trace.SpanContext {
	if b.tracer == nil {
		return nil
	}
	var list []trace.SpanContext
	for _, w := range b.mu.waiters {
		if w.span.IsValid() && slices.Contains(requests, w.request) {
			list = append(list, w.span)
		}
	}
	return list
}

// trace begins the span of a batch: the child of one of its requests' that is
// recorded, if one is, with links to all.
func (b *batcher) trace(ctx context.Context, members []trace.SpanContext) (context.Context, func(error)) {
	if len(members) == 0 {
		return ctx, func(error) {}
	}
	parent := members[0]
	var links []trace.Link
	for _, m := range members {
		if m.IsSampled() {
			parent = m
			links = append(links, trace.Link{SpanContext: m})
		}
	}
	ctx, span := b.tracer.Start(trace.ContextWithSpanContext(ctx, parent), "batch "+b.instance.name, trace.WithLinks(links...),
		trace.WithAttributes(attribute.String("model.name", b.instance.name), attribute.Int("batch.size", len(members))))
	return ctx, func(err error) { endSpan(span, err) }
}

// run answers the requests of a batch, in their order.
func (b *batcher) run(ctx context.Context, requests []*tensor.Request) (_ []*tensor.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(b.log, p, b.instance)
		}
	}()
	merged, layout, err := batch.Merge(requests)
	if err != nil {
		return nil, err
	}
	passTrace(ctx, merged)
	response, err := b.instance.model.Infer(ctx, merged)
	if err != nil {
		return nil, err
	}
	return batch.Split(response, layout)
}

// hopeless reports whether the members of a batch that failed so would fail
// alone, too: the model is not there, or out of time.
func hopeless(err error) bool {
	if errors.Is(err, context.Canceled) {
		return true // every caller has left
	}
	status := statusOf(err)
	return status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}
