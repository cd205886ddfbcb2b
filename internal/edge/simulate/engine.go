// Package simulate holds an inference engine that computes nothing and takes
// its time: an OpenAI-compatible server whose queueing, batching, prefix cache,
// KV memory, LoRA slots and token rates follow those of an LLM engine, for
// demonstrations, tests and the evaluation of routing and scaling policies on
// machines without a GPU.
//
// [Scheduler] is the physics: a state machine without clock, I/O or randomness,
// stepped with events and the time they happen at, so that the HTTP server here
// drives it with the real clock and a trace replay with a virtual one. [Engine]
// is the server. Its answers say that they are simulated.
//
// # Physics
//
// The engine works in iterations, as engines with continuous batching do. One
// iteration computes a chunk of prefill tokens and one token of every decoding
// sequence, within a budget of tokens, and lasts
//
//	prefill tokens / prefill rate + load(n) / decode rate + adapter loads * load time
//
// with n sequences decoding and load(n) = 1 + slowdown*(n-1), never below 1.
//
// KV memory is a fixed number of blocks of 16 tokens. Running sequences hold
// blocks; blocks nobody holds stay as the prefix cache and are evicted, least
// recently used first, when memory is needed. A sequence at the head of the
// queue waits until its prompt fits. When a running sequence needs a block and
// none is left, the sequence admitted last is preempted: it gives up its blocks,
// returns to the head of the queue and is computed again.
//
// A token is four bytes of text; a block is 64 bytes.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Engine is an OpenAI-compatible server over a Scheduler driven by the real
// clock. It owns no goroutine while nothing is being computed.
type Engine struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	metrics *metrics

	mu struct {
		sync.Mutex
		scheduler *Scheduler
		timer     *time.Timer      // runs tick when the scheduler's next instant comes
		calls     map[uint64]*call // by sequence id
		lastID    uint64
		adapters  []string // LoRA adapters that may be asked for
		pinned    pin
		faults    fault
		draining  bool
	}
}

// job is the work of one HTTP request: one sequence for each choice.
type job struct {
	calls    []*call
	progress chan struct{} // of capacity 1: something about a call has changed
}

// call is one sequence as its request sees it. What follows arrived is guarded
// by Engine.mu.
type call struct {
	sequence Sequence
	answer   answer
	job      *job
	arrived  time.Duration // simulated

	tokens    int
	cached    int           // prompt tokens found in the prefix cache
	lastToken time.Duration // when the latest token was computed
	ended     bool
	rejected  bool // it never came into the queue
	admitted  bool // cached is known
}

// New returns an engine that is ready to answer through Handler. A nil logger
// discards.
func New(cfg Config, log *slog.Logger) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("simulate engine: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{cfg: cfg, log: log, started: time.Now()}
	e.mu.scheduler = NewScheduler(cfg.Physics)
	e.mu.calls = map[uint64]*call{}
	e.mu.adapters = slices.Clone(cfg.Adapters)
	e.metrics = newMetrics(e)
	return e, nil
}

// Run waits out the startup delay, listens, and serves until ctx is done; then
// it stops accepting and gives the requests under way their grace.
func (e *Engine) Run(ctx context.Context) error {
	if delay := e.realTime(e.cfg.StartupDelay); delay > 0 {
		e.log.Info("starting", "delay", delay)
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
	listener, err := net.Listen("tcp", e.cfg.Address)
	if err != nil {
		return fmt.Errorf("simulate engine: %w: choose another --host or --port", err)
	}
	return e.Serve(ctx, listener)
}

// Serve is Run without startup delay, on a listener that it closes.
func (e *Engine) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler:           e.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(e.log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	e.log.Info("simulated engine listening", "url", "http://"+listener.Addr().String(), "model", e.cfg.Models[0], "role", string(e.cfg.Role))
	select {
	case err := <-failed:
		return fmt.Errorf("simulate engine: %w", err)
	case <-ctx.Done():
	}
	e.mu.Lock()
	e.mu.draining = true
	e.mu.Unlock()
	grace, cancel := context.WithTimeout(context.Background(), e.cfg.Grace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		e.log.Warn("shutdown timed out; the remaining requests were ended", "grace", e.cfg.Grace)
		return server.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// now is simulated time since the engine was made.
func (e *Engine) now() time.Duration {
	return time.Duration(float64(time.Since(e.started)) * e.cfg.Speed)
}

// realTime is how long a simulated duration takes.
func (e *Engine) realTime(d time.Duration) time.Duration {
	return time.Duration(float64(d) / e.cfg.Speed)
}

// step feeds the scheduler, tells the calls what became of them, and sets the
// timer. e.mu must be held.
func (e *Engine) step(event Event) {
	now := e.now()
	for _, effect := range e.mu.scheduler.Step(event, now) {
		if c, ok := e.mu.calls[effect.ID]; ok {
			e.tell(c, effect)
		}
	}
	at, ok := e.mu.scheduler.Next()
	switch {
	case !ok && e.mu.timer != nil:
		e.mu.timer.Stop()
	case ok && e.mu.timer == nil:
		e.mu.timer = time.AfterFunc(e.realTime(at-now)+1, e.tick)
	case ok:
		e.mu.timer.Reset(e.realTime(at-now) + 1)
	}
}

func (e *Engine) tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.step(Tick{})
}

// tell records one effect at its call. e.mu must be held.
func (e *Engine) tell(c *call, effect Effect) {
	switch effect.Kind {
	case Admitted:
		if !c.admitted {
			c.admitted, c.cached = true, effect.Cached
		}
		return
	case Preempted:
		return
	case Token:
		c.tokens = effect.Tokens
		e.metrics.token(c, effect.At)
		c.lastToken = effect.At
	case Finished, Cancelled, RejectedFull, RejectedTooLong:
		c.ended = true
		c.rejected = effect.Kind == RejectedFull || effect.Kind == RejectedTooLong
		delete(e.mu.calls, effect.ID)
		e.metrics.end(c, effect)
	}
	select {
	case c.job.progress <- struct{}{}:
	default: // it has not looked at the last news yet
	}
}

// errBusy is the answer to a request that finds the queue full.
var errBusy = errors.New("the queue of the engine is full")

// submit starts the sequences of a job, all or none of them.
func (e *Engine) submit(j *job) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range j.calls {
		e.mu.lastID++
		c.sequence.ID = e.mu.lastID
		c.job = j
		c.arrived = e.now()
		e.mu.calls[c.sequence.ID] = c
		e.step(Arrive{c.sequence})
		if c.rejected {
			e.abandonLocked(j)
			return errBusy
		}
	}
	return nil
}

// abandon cancels what has not ended of a job.
func (e *Engine) abandon(j *job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.abandonLocked(j)
}

func (e *Engine) abandonLocked(j *job) {
	for _, c := range j.calls {
		if id := c.sequence.ID; id != 0 && !c.ended {
			e.step(Cancel{id})
		}
	}
}

// standing is how far a call has come.
type standing struct {
	tokens, cached int
	ended          bool
}

// look appends the standing of each call of a job to dst, which may be nil.
func (e *Engine) look(j *job, dst []standing) []standing {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range j.calls {
		dst = append(dst, standing{tokens: c.tokens, cached: c.cached, ended: c.ended})
	}
	return dst
}

// wait blocks until the job has news or the context is done.
func (j *job) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-j.progress:
		return nil
	}
}
