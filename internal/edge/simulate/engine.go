// Package simulate holds an inference engine that computes nothing and takes
// its time: an OpenAI-compatible server whose queueing, batching, prefix cache,
// KV memory, LoRA slots and token rates follow those of an LLM engine, for
// demonstrations, tests and the evaluation of routing and scaling policies on
// machines without a GPU.
//
// [Scheduler] is the physics: a state machine without clock, I/O or randomness,
// stepped with events and the time they happen at, so that the HTTP server here
// drives it with the real clock and a trace replay with a virtual one. [Engine]
// is the server. Its answers say that they are simulated, in a header.
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
	"sync/atomic"
	"time"
)

// Engine is an OpenAI-compatible server over a Scheduler driven by the real
// clock. It owns no goroutine while nothing is being computed.
type Engine struct {
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	driver   *driver
	adapters adapters
	controls controls
	standby  *standby
	saver    *memorySaver // nil: not SGLang
	events   *publisher   // nil: it publishes none
	ranks    ranks        // of its server, itself the first; nil of any other
	draining atomic.Bool
}

// driver steps a Scheduler with the real clock.
type driver struct {
	speed   float64 // simulated seconds in one second
	started time.Time
	metrics *metrics
	events  *publisher

	mu        sync.Mutex
	scheduler *Scheduler
	timer     *time.Timer      // runs tick when the scheduler's next instant comes
	calls     map[uint64]*call // by sequence id
	lastID    uint64
}

// job is the work of one HTTP request: one sequence for each choice.
type job struct {
	calls    []*call
	progress chan struct{} // of capacity 1: something about a call has changed
}

// call is one sequence as its request sees it. What follows arrived is guarded
// by the driver's mutex.
type call struct {
	sequence Sequence
	text     string // of the prompt and the answer
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
	e := newEngine(cfg, log)
	e.ranks = newRanks(e, log)
	return e, nil
}

// newEngine makes one rank.
func newEngine(cfg Config, log *slog.Logger) *Engine {
	d := &driver{speed: cfg.Speed, started: time.Now(), scheduler: NewScheduler(cfg.Physics), calls: map[uint64]*call{}}
	e := &Engine{cfg: cfg, log: log, driver: d}
	e.adapters = adapters{models: cfg.Models, api: cfg.API, enabled: cfg.Physics.MaxAdapters > 0, names: slices.Clone(cfg.Adapters)}
	e.metrics = newMetrics(&e.cfg, func() shownStats { return e.controls.shown(d.stats()) })
	d.metrics = e.metrics
	if cfg.KVEvents != "" {
		e.events = newPublisher(cfg.KVTopic, log)
		d.events = e.events
		d.scheduler.Watch(e.events.change)
	}
	e.standby = newStandby(&e.cfg.Physics, d.realTime)
	if cfg.Dev && cfg.API == APIvLLM && cfg.rank == 0 {
		e.metrics.registry.MustRegister(e.standby)
	}
	if cfg.API == APISGLang {
		e.saver = e.newMemorySaver()
	}
	return e
}

// Run waits out the startup delay, listens, and serves until ctx is done; then
// it stops accepting and gives the requests under way their grace.
func (e *Engine) Run(ctx context.Context) error {
	if delay := e.driver.realTime(e.cfg.StartupDelay); delay > 0 {
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
		return fmt.Errorf("simulate engine: %w", err)
	}
	return e.Serve(ctx, listener)
}

// Serve is Run without startup delay, on a listener that it closes.
func (e *Engine) Serve(ctx context.Context, listener net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if err := e.ranks.publish(ctx); err != nil {
		_ = listener.Close() // nothing was accepted
		return err
	}
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
	e.draining.Store(true)
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

// publish opens the sockets for KV events; ctx closes them.
func (e *Engine) publish(ctx context.Context) error {
	for _, s := range []struct {
		address, socket string
		handle          func(net.Conn)
	}{{e.cfg.KVEvents, "PUB", e.events.publish}, {e.cfg.KVReplay, "ROUTER", e.events.replay}} {
		if s.address == "" || e.events == nil {
			continue
		}
		l, err := net.Listen("tcp", s.address)
		if err != nil {
			return fmt.Errorf("simulate engine: %w", err)
		}
		go e.events.serve(ctx, l, s.socket, s.handle)
	}
	return nil
}

// now is simulated time since the start.
func (d *driver) now() time.Duration {
	return time.Duration(float64(time.Since(d.started)) * d.speed)
}

// realTime is how long a simulated duration takes.
func (d *driver) realTime(simulated time.Duration) time.Duration {
	return time.Duration(float64(simulated) / d.speed)
}

// step feeds the scheduler, tells the calls what became of them, and sets the
// timer. d.mu must be held.
func (d *driver) step(event Event) {
	now := d.now()
	for _, effect := range d.scheduler.Step(event, now) {
		if c, ok := d.calls[effect.ID]; ok {
			d.deliver(c, effect)
		}
	}
	at, ok := d.scheduler.Next()
	switch {
	case !ok && d.timer != nil:
		d.timer.Stop()
	case ok && d.timer == nil:
		d.timer = time.AfterFunc(d.realTime(at-now)+1, d.tick)
	case ok:
		d.timer.Reset(d.realTime(at-now) + 1)
	}
}

func (d *driver) tick() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.step(Tick{})
}

// deliver records one effect at its call. d.mu must be held.
func (d *driver) deliver(c *call, effect Effect) {
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
		d.metrics.token(c, effect.At)
		c.lastToken = effect.At
	case Finished, Cancelled, RejectedFull, RejectedTooLong:
		c.ended = true
		c.rejected = effect.Kind == RejectedFull || effect.Kind == RejectedTooLong
		delete(d.calls, effect.ID)
		if d.events != nil {
			d.events.withdraw(c.sequence.Keys)
		}
		d.metrics.end(c, effect)
	}
	select {
	case c.job.progress <- struct{}{}:
	default: // it has not looked at the last news yet
	}
}

// errBusy is the answer to a request that finds the queue full.
var errBusy = errors.New("the queue of the engine is full")

// submit starts the sequences of a job, all or none of them.
func (d *driver) submit(j *job) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range j.calls {
		d.lastID++
		if d.events != nil {
			d.events.describe(c.sequence.Keys, c.text, c.sequence.Adapter)
		}
		c.sequence.ID = d.lastID
		c.job = j
		c.arrived = d.now()
		d.calls[c.sequence.ID] = c
		d.step(Arrive{c.sequence})
		if c.rejected {
			d.abandonLocked(j)
			return errBusy
		}
	}
	return nil
}

// abandon cancels what has not ended of a job.
func (d *driver) abandon(j *job) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.abandonLocked(j)
}

func (d *driver) abandonLocked(j *job) {
	for _, c := range j.calls {
		if id := c.sequence.ID; id != 0 && !c.ended {
			d.step(Cancel{id})
		}
	}
}

// stats returns the scheduler's figures.
func (d *driver) stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.scheduler.Stats()
}

// forget empties the slot of an adapter that no request uses.
func (d *driver) forget(adapter string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.step(Forget{adapter})
}

// standing is how far a call has come.
type standing struct {
	tokens, cached int
	ended          bool
}

// look appends the standing of each call of a job to dst, which may be nil.
func (d *driver) look(j *job, dst []standing) []standing {
	d.mu.Lock()
	defer d.mu.Unlock()
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
