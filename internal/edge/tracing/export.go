package tracing

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// sender sends one ExportTraceServiceRequest. It returns a *retryError if the
// request may be sent again.
type sender interface {
	send(ctx context.Context, request []byte) error
	close()
}

// retryError is a failure after which the request may be sent again.
type retryError struct {
	err   error
	after time.Duration // what the collector asked for; 0: nothing
}

func (e *retryError) Error() string { return e.err.Error() }
func (e *retryError) Unwrap() error { return e.err }

// The pauses between two tries of a batch, which double.
const (
	minPause = 500 * time.Millisecond
	maxPause = 15 * time.Second
)

// warnEvery is the least time between two warnings of failed exports.
const warnEvery = time.Minute

// exporter sends ended spans in batches, from one goroutine.
type exporter struct {
	config   Config
	resource []byte
	sender   sender
	log      *slog.Logger

	queue   chan *span
	dropped atomic.Int64 // spans, since the last warning
	ending  chan struct{}
	once    sync.Once
	ctx     context.Context // of exports; ends when shutdown's time is over
	cancel  context.CancelFunc
	done    chan struct{}

	warned time.Time // when a warning was last logged; used by run only
}

func newExporter(c Config, s sender, log *slog.Logger) *exporter {
	e := &exporter{config: c, resource: encodeResource(c), sender: s, log: log,
		queue: make(chan *span, c.Batch.MaxQueue), ending: make(chan struct{}), done: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	return e
}

// add queues an ended span, or drops it.
func (e *exporter) add(s *span) {
	select {
	case <-e.ending:
	default:
		select {
		case e.queue <- s:
		default:
			e.dropped.Add(1)
		}
	}
}

// run exports batches until shutdown, and then what is left.
func (e *exporter) run() {
	defer close(e.done)
	defer e.sender.close()
	batch := make([]*span, 0, e.config.Batch.MaxSize)
	timer := time.NewTimer(time.Hour)
	timer.Stop() // until a span waits
	for {
		select {
		case s := <-e.queue:
			if batch = append(batch, s); len(batch) == 1 {
				timer.Reset(e.config.Batch.Delay)
			}
			if len(batch) < e.config.Batch.MaxSize {
				continue
			}
		case <-timer.C:
		case <-e.ending:
			e.flush(batch)
			return
		}
		timer.Stop()
		e.export(batch)
		clear(batch) // so that exported spans do not stay in memory
		batch = batch[:0]
	}
}

// flush exports a batch and all that is queued.
func (e *exporter) flush(batch []*span) {
	for {
		select {
		case s := <-e.queue:
			if batch = append(batch, s); len(batch) == e.config.Batch.MaxSize {
				e.export(batch)
				batch = batch[:0]
			}
		default:
			if len(batch) > 0 {
				e.export(batch)
			}
			return
		}
	}
}

// export sends a batch, and again after a failure that allows it.
func (e *exporter) export(batch []*span) {
	if n := e.dropped.Swap(0); n > 0 {
		e.warn("spans were dropped: more ended than could be exported", "spans", n)
	}
	request := encodeBatch(e.resource, batch)
	began, pause := time.Now(), minPause
	for {
		ctx, cancel := context.WithTimeout(e.ctx, e.config.Batch.Timeout)
		err := e.sender.send(ctx, request)
		cancel()
		var again *retryError
		switch {
		case err == nil:
			return
		case !errors.As(err, &again), time.Since(began) > e.config.Batch.RetryFor, !e.wait(max(pause, again.after)):
			e.warn("spans were dropped: the collector does not take them", "endpoint", e.config.Endpoint, "spans", len(batch), "error", err)
			return
		}
		pause = min(2*pause, maxPause)
	}
}

// wait pauses before another try, and reports whether there is one.
func (e *exporter) wait(pause time.Duration) bool {
	timer := time.NewTimer(min(pause, maxPause))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-e.ending:
		return false // an absent collector does not delay the shutdown
	}
}

// warn logs a warning, at most once in warnEvery.
func (e *exporter) warn(message string, args ...any) {
	if now := time.Now(); e.warned.IsZero() || now.Sub(e.warned) >= warnEvery {
		e.warned = now
		e.log.Warn(message, args...)
	}
}

// shutdown exports the spans that have ended, while ctx lasts, and ends run.
func (e *exporter) shutdown(ctx context.Context) error {
	e.once.Do(func() { close(e.ending) })
	defer e.cancel()
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		e.cancel()
		<-e.done
		return errors.New("tracing: the last spans could not be exported in time")
	}
}
