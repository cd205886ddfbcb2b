package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/edge/child"
)

// worker is one running worker process and the connection to it.
type worker struct {
	name    string
	process *child.Process
	output  *output
	conn    *conn
	limits  Limits
	grace   time.Duration
	log     *slog.Logger
	report  report
	hello   hello

	rss     atomic.Int64 // bytes, as of the last heartbeat
	stopped atomic.Bool  // we asked it to end
	reason  atomic.Pointer[string]

	mu struct {
		sync.Mutex
		placements map[string]*placement // by the model's key
	}
}

func (l launch) newWorker(g *connected) *worker {
	w := &worker{name: l.name, process: g.process, output: g.output, limits: l.limits, grace: l.grace, report: l.report, hello: g.hello,
		log: l.log.With("pid", g.process.PID())}
	w.mu.placements = map[string]*placement{}
	w.conn = newConn(g.conn, g.reader, l.limits, w.pushed)
	go w.conn.write()
	go w.run()
	go w.watch()
	return w
}

// exitWait is how long a worker whose connection ended may take to exit.
const exitWait = time.Second

// run reads until the connection ends, waits until the process has ended too, and
// then fails the calls in flight with the reason.
func (w *worker) run() {
	err := w.conn.read()
	var broken *protocolError
	if errors.As(err, &broken) {
		goodbye := control(kindGoodbye, "reason", excerpt.Of(broken.Error(), 1024))
		_ = w.conn.nc.SetWriteDeadline(time.Now().Add(exitWait / 10))
		_ = writeFrame(w.conn.nc, goodbye)
	}
	w.conn.close()
	wait := exitWait
	if w.stopped.Load() {
		wait += w.grace
	}
	select {
	case <-w.process.Done():
	case <-time.After(wait):
	}
	exit := w.process.Kill()
	w.output.close()
	w.report.collected.end(w)
	w.conn.fail(NewError(kindDied, fmt.Sprintf("worker %d died while answering: %s", w.process.PID(), w.why(err, exit))))
}

// why returns how the worker ended.
func (w *worker) why(err error, exit child.Exit) string {
	if reason := w.reason.Load(); reason != nil {
		return *reason
	}
	var broken *protocolError
	var goodbye *goodbyeError
	switch {
	case errors.As(err, &broken), errors.As(err, &goodbye):
		return err.Error()
	case exit.Signal == syscall.SIGKILL && err != nil:
		return fmt.Sprintf("%s (%v)", exit, err)
	}
	return exit.String()
}

// end kills the worker for the given reason.
func (w *worker) end(reason string) {
	w.reason.CompareAndSwap(nil, &reason)
	w.process.Kill()
}

// stop lets the worker finish its requests and ends it.
func (w *worker) stop() {
	w.stopped.Store(true)
	w.conn.send(control(kindStop, "grace", w.grace.Seconds()))
	select {
	case <-w.conn.done:
	case <-time.After(w.grace + exitWait):
		w.end("it did not stop in time")
		<-w.conn.done
	}
}

// watch sends heartbeats and ends a worker that is stuck: one that has not answered
// a heartbeat for PongTimeout, unless it is busy with a request or a load within
// its time limit.
func (w *worker) watch() {
	tick := time.NewTicker(w.limits.PingInterval)
	defer tick.Stop()
	var ping *call
	var sent time.Time
	for {
		if ping == nil {
			ping, sent = newCall(kindPing, 0), time.Now()
			if w.conn.start(ping, func(id uint64) (*frame, error) { return control(kindPing, "id", id), nil }) != nil {
				return
			}
		}
		select {
		case <-w.conn.done:
			return
		case m := <-ping.messages:
			w.rss.Store(m.RSS)
			ping = nil
		case <-tick.C:
			w.judge(time.Now(), sent)
			continue
		}
		select {
		case <-w.conn.done:
			return
		case <-tick.C:
			w.conn.expire(time.Now(), w.overdue)
		}
	}
}

// judge decides about a worker that has not answered the heartbeat sent at sent.
func (w *worker) judge(now, sent time.Time) {
	silent := now.Sub(sent)
	if silent < w.limits.PongTimeout {
		return
	}
	busy, loading, late := w.conn.oldest(now, w.limits.RequestTimeout)
	if busy && (loading || !late) {
		return
	}
	w.log.Error("worker is stuck; it is replaced", "silent", silent.Round(time.Millisecond), "busy", busy)
	reason := fmt.Sprintf("it was stuck: it answered nothing for %s", silent.Round(time.Millisecond))
	w.end(reason)
}

// overdue returns the error of a call beyond its limit.
func (w *worker) overdue(c *call) error {
	return NewError(kindTimeout, fmt.Sprintf("worker %d gave no answer within %s", w.process.PID(), c.limit))
}

// pushed handles messages that answer no request: metrics and log records.
func (w *worker) pushed(m *message) {
	switch m.Kind {
	case kindReady:
		if p := w.placement(m.Model); p != nil && m.Ready != nil {
			p.state.Store(stateOf(*m.Ready))
		}
	case kindMetrics:
		w.report.metrics(w.placement(m.Model), m)
		w.report.collected.update(w, w.process.PID(), m)
	case kindLog:
		for i := range m.Records {
			w.report.record(w.log, w.placement(m.Records[i].Model), &m.Records[i])
		}
		if m.Dropped > 0 {
			w.log.Warn("worker left out log records", "records", m.Dropped)
		}
	}
}

func (w *worker) placement(key string) *placement {
	if key == "" {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.placements[key]
}

// ask sends a request and waits for its one answer.
func (w *worker) ask(ctx context.Context, kind string, limit time.Duration, build func(id uint64) (*frame, error)) (*message, error) {
	call := newCall(kind, limit)
	if err := w.conn.start(call, build); err != nil {
		return nil, err
	}
	return w.conn.wait(ctx, call)
}

// load loads the placement's model and returns the answer, its metadata.
func (w *worker) load(ctx context.Context, p *placement) (*message, error) {
	limit := loadTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = max(time.Until(deadline), time.Millisecond)
	}
	p.state.Store(stateUnknown)
	w.mu.Lock()
	w.mu.placements[p.model.key] = p
	w.mu.Unlock()
	m, err := w.ask(ctx, kindLoad, limit, func(id uint64) (*frame, error) {
		fields := []any{"id", id, "model", p.model.key, "settings", p.model.settings.Document}
		if p.model.settings.Folder != "" {
			fields = append(fields, "folder", p.model.settings.Folder)
		}
		return control(kindLoad, fields...), nil
	})
	if err != nil {
		w.forget(p)
		return nil, err
	}
	p.state.CompareAndSwap(stateUnknown, stateOf(m.Ready == nil || *m.Ready))
	return m, nil
}

// unload unloads the placement's model. A worker that ends has unloaded it too.
func (w *worker) unload(ctx context.Context, p *placement) error {
	defer w.forget(p)
	_, err := w.ask(ctx, kindUnload, w.grace+w.limits.PongTimeout, func(id uint64) (*frame, error) {
		return control(kindUnload, "id", id, "model", p.model.key, "grace", w.grace.Seconds()), nil
	})
	var e *Error
	if errors.Is(err, errGone) || errors.Is(err, errNotSent) || errors.As(err, &e) && (e.Kind == kindDied || e.Kind == kindNotFound) {
		return nil
	}
	return err
}

func (w *worker) forget(p *placement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.mu.placements, p.model.key)
}
