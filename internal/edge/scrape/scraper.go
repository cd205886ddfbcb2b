package scrape

import (
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/orca"
	"roundhouse.dev/roundhouse/internal/core/replica"
)

// Scraper reads servers' metrics and tells a Sink. Its methods are safe for
// concurrent use.
type Scraper struct {
	cfg     Config
	metrics *metrics
	buffers sync.Pool // of *worker
	stop    context.CancelFunc
	ctx     context.Context
	done    sync.WaitGroup

	pools atomic.Pointer[map[string]*pool] // what Wake reads without a lock

	mu struct {
		sync.Mutex
		servers map[string]*server
		due     dueHeap
		backlog []*server   // due, and waiting for a worker for those that failed
		working int         // goroutines
		failing int         // of them, how many read servers that failed
		timer   func() bool // stops the timer; nil when none is set
		wakeAt  time.Time   // when it ends
		closed  bool
	}
}

// pool is a set of servers that requests are spread over.
type pool struct {
	servers map[string]*server // guarded by Scraper.mu
	asked   atomic.Int64       // when the last request came, in Unix nanoseconds
	parked  atomic.Int64       // how many of the servers are parked
}

// server is one target's state. Scraper.mu guards every field, except that
// source belongs to the worker while phase is busy.
type server struct {
	target   Target
	source   source
	pools    []*pool
	phase    phase
	due      time.Time
	index    int // in the heap
	gone     bool
	pause    time.Duration
	failures int
	err      error
	loads    []*replica.Load // one for each rank
	told     sync.Mutex      // orders the sink's calls
}

// phase is where a server is: parked → queued → busy → queued or parked.
type phase int

const (
	parked phase = iota
	queued
	busy
)

// Status is how the readings of one server go.
type Status struct {
	Target Target
	// Load is the last that was read, of all ranks together; nil for none.
	Load *replica.Load
	// Engine is whose metrics they are; "" while not known.
	Engine string
	// Failures counts those in a row, Err is the last.
	Failures int
	Err      error
	// Idle reports that nothing is read, since there is no traffic.
	Idle bool
}

// New makes a Scraper that has nothing to read yet.
func New(cfg Config) (*Scraper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.settle()
	s := &Scraper{cfg: cfg, metrics: newMetrics()}
	s.buffers.New = func() any { return &worker{} }
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.pools.Store(&map[string]*pool{})
	s.mu.servers = map[string]*server{}
	return s, nil
}

// SetPool makes these the servers of a pool; none removes it. A server may be
// in several pools; the last target given for its ID counts. New servers are
// read at once, whether there is traffic or not. The error names the targets
// that cannot be read; the others are.
func (s *Scraper) SetPool(name string, targets []Target) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closed {
		return nil
	}
	old := (*s.pools.Load())[name]
	next := &pool{servers: make(map[string]*server, len(targets))}
	if old != nil {
		next.asked.Store(old.asked.Load())
	}
	var failed error
	for _, t := range targets {
		srv, err := s.add(t)
		if err != nil && failed == nil {
			failed = err
		}
		if err == nil {
			next.servers[t.ID] = srv
			srv.pools = append(srv.pools, next)
			if srv.phase == parked {
				next.parked.Add(1)
			}
		}
	}
	pools := maps.Clone(*s.pools.Load())
	if pools[name] = next; len(next.servers) == 0 {
		delete(pools, name)
	}
	s.pools.Store(&pools)
	if old != nil {
		s.leave(old)
	}
	s.pump()
	return failed
}

// add finds or makes a target's server.
func (s *Scraper) add(t Target) (*server, error) {
	srv := s.mu.servers[t.ID]
	if srv != nil && srv.target == t {
		return srv, nil
	}
	at, err := t.source()
	if err != nil {
		return nil, err
	}
	if srv == nil && len(s.mu.servers) >= s.cfg.MaxTargets {
		return nil, fmt.Errorf("scrape: target %s is one more than may be read (%d)", t.ID, s.cfg.MaxTargets)
	}
	next := &server{target: t, source: at, index: -1, loads: make([]*replica.Load, max(1, t.Ranks))}
	if srv != nil { // it has moved: what was known is about another server
		next.pools = srv.pools
		for _, p := range srv.pools {
			p.servers[t.ID] = next
			if srv.phase != parked {
				p.parked.Add(1)
			}
		}
		s.remove(srv)
	}
	s.mu.servers[t.ID] = next
	s.unpark(next, s.cfg.Clock.Now())
	return next, nil
}

// leave takes a pool that is no more from its servers.
func (s *Scraper) leave(old *pool) {
	for id, srv := range old.servers {
		rest := srv.pools[:0:0]
		for _, p := range srv.pools {
			if p != old {
				rest = append(rest, p)
			}
		}
		if srv.pools = rest; len(rest) == 0 && s.mu.servers[id] == srv {
			delete(s.mu.servers, id)
			s.remove(srv)
		}
	}
}

func (s *Scraper) remove(srv *server) {
	srv.gone = true
	if srv.index >= 0 {
		heap.Remove(&s.mu.due, srv.index)
	}
}

// Wake tells that a request came for a pool. It is meant to be called for
// every request: while the pool is read anyway it costs some 50 ns.
func (s *Scraper) Wake(name string) {
	p := (*s.pools.Load())[name]
	if p == nil {
		return
	}
	now := s.cfg.Clock.Now()
	if n := now.UnixNano(); n-p.asked.Load() > int64(s.cfg.Fast)/2 {
		p.asked.Store(n)
	}
	// A server that is about to park counts itself as parked first and looks
	// at asked then, so one of the two sees the other.
	if p.parked.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, srv := range p.servers {
		if srv.phase == parked && !srv.gone {
			s.unpark(srv, now)
		}
	}
	s.pump()
}

// Heard tells what an answer's header said of a server's load. It is laid over
// what was read last.
func (s *Scraper) Heard(id string, r orca.Report) {
	s.mu.Lock()
	srv, rank := s.mu.servers[id], 0
	if srv == nil {
		id, rank = replica.OfRank(id)
		srv = s.mu.servers[id]
	}
	s.mu.Unlock()
	if srv != nil && rank < len(srv.loads) {
		s.tell(srv, rank, func(last *replica.Load) *replica.Load { return r.Over(last, s.cfg.Clock.Now()) })
	}
}

// tell has the sink told the next load of a server's rank.
func (s *Scraper) tell(srv *server, rank int, next func(last *replica.Load) *replica.Load) {
	srv.told.Lock()
	defer srv.told.Unlock()
	s.mu.Lock()
	l := next(srv.loads[rank])
	srv.loads[rank] = l
	gone := srv.gone
	s.mu.Unlock()
	if !gone {
		s.cfg.Sink.SetLoad(srv.target.id(rank), l)
	}
}

// Status is how the readings of a server go.
func (s *Scraper) Status(id string) (Status, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	srv := s.mu.servers[id]
	if srv == nil {
		return Status{}, false
	}
	st := Status{Target: srv.target, Load: replica.Sum(srv.loads), Failures: srv.failures, Err: srv.err, Idle: srv.phase == parked}
	if srv.phase != busy && len(srv.source.plan.engines) == 1 {
		st.Engine = srv.source.plan.engines[0].Name
	}
	return st, true
}

// Close stops reading and waits until nothing runs. The sink is told nothing
// afterwards.
func (s *Scraper) Close() {
	s.mu.Lock()
	s.mu.closed = true
	s.mu.due, s.mu.backlog = nil, nil
	for _, srv := range s.mu.servers {
		srv.gone, srv.index = true, -1
	}
	if s.mu.timer != nil {
		s.mu.timer()
		s.mu.timer = nil
	}
	s.mu.Unlock()
	s.stop()
	s.done.Wait()
	if t, ok := s.cfg.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// log tells of failures in a row, and of their end. A single one is no news: some
// engines open the port of their metrics a moment after they are ready, and one that
// ends answers no more.
func (s *Scraper) log(srv *server, err error) {
	if err != nil && srv.failures == 2 {
		s.cfg.Log.Warn("cannot read a server's metrics; its load is unknown", slog.String("server", srv.target.ID), slog.Any("error", err))
	}
	if err == nil && srv.failures > 1 {
		s.cfg.Log.Info("a server's metrics can be read again", slog.String("server", srv.target.ID))
	}
}

// wanted reports whether a pool of the server had a request lately.
func (s *Scraper) wanted(srv *server, now time.Time) bool {
	for _, p := range srv.pools {
		if now.UnixNano()-p.asked.Load() < int64(s.cfg.IdleAfter) {
			return true
		}
	}
	return false
}

// metrics are about reading itself. No label names a server: there may be
// thousands. A server of several pools counts in each.
type metrics struct {
	duration prometheus.Histogram
	failures *prometheus.CounterVec
	servers  *prometheus.Desc
	age      *prometheus.Desc
}

func newMetrics() *metrics {
	const prefix = "roundhouse_scrape_"
	m := &metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "duration_seconds",
			Help: "Time to read one server's metrics.", Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "failures_total",
			Help: "Readings that failed, by what was wrong."}, []string{"reason"}),
		servers: prometheus.NewDesc(prefix+"servers", "Servers of a pool whose metrics are read (active), are not for want of traffic (idle), or cannot be (failing).", []string{"pool", "state"}, nil),
		age:     prometheus.NewDesc(prefix+"age_seconds", "Age of the oldest load among the active servers.", nil, nil),
	}
	for _, r := range reasons {
		m.failures.WithLabelValues(r)
	}
	return m
}

func (m *metrics) read(took time.Duration, err error) {
	m.duration.Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(reason(err)).Inc()
	}
}

// Describe implements prometheus.Collector.
func (s *Scraper) Describe(c chan<- *prometheus.Desc) {
	s.metrics.duration.Describe(c)
	s.metrics.failures.Describe(c)
	c <- s.metrics.servers
	c <- s.metrics.age
}

// Collect implements prometheus.Collector.
func (s *Scraper) Collect(c chan<- prometheus.Metric) {
	s.metrics.duration.Collect(c)
	s.metrics.failures.Collect(c)
	now := s.cfg.Clock.Now()
	var age time.Duration
	for name, p := range *s.pools.Load() {
		states := map[string]int{"active": 0, "idle": 0, "failing": 0}
		s.mu.Lock()
		for _, srv := range p.servers {
			switch {
			case srv.failures > 0:
				states["failing"]++
			case srv.phase == parked:
				states["idle"]++
			default:
				states["active"]++
				if l := srv.loads[0]; l != nil { // they are read at once
					age = max(age, now.Sub(l.At))
				}
			}
		}
		s.mu.Unlock()
		for state, n := range states {
			c <- prometheus.MustNewConstMetric(s.metrics.servers, prometheus.GaugeValue, float64(n), name, state)
		}
	}
	c <- prometheus.MustNewConstMetric(s.metrics.age, prometheus.GaugeValue, age.Seconds())
}
