package dispatch

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// Dispatcher admits requests to replicas. All its methods are safe for
// concurrent use.
type Dispatcher struct {
	cfg    Config
	demand Demand
	clock  Clock
	random func(n int) int // in [0, n)

	view atomic.Pointer[view] // what Admit reads without a lock
	mu   sync.Mutex           // serializes changes of the view
}

// view is an immutable picture of which pools there are.
type view struct {
	table *route.Table
	pools map[service.Key]*pool
	// leaving are removed pools that still had requests in flight.
	leaving []*pool
	closed  bool
}

// all iterates over the pools there are and those that leave.
func (v *view) all(yield func(*pool) bool) {
	for _, p := range v.pools {
		if !yield(p) {
			return
		}
	}
	for _, p := range v.leaving {
		if !yield(p) {
			return
		}
	}
}

// New makes a Dispatcher without pools. A nil clock is the machine's; random
// gives a number in [0, n) and may be nil for a seeded source of its own.
func New(cfg Config, demand Demand, clock Clock, random func(n int) int) (*Dispatcher, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if clock == nil {
		clock = SystemClock{}
	}
	if random == nil {
		random = rand.IntN
	}
	d := &Dispatcher{cfg: cfg, demand: demand, clock: clock, random: random}
	d.view.Store(&view{table: &route.Table{}})
	return d, nil
}

// SetPool adds a pool or replaces its facts. Requests that wait go on as soon
// as a replica is ready. It does nothing after Close.
func (d *Dispatcher) SetPool(f Pool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.view.Load()
	if old.closed {
		return
	}
	f.settle()
	if p := old.pools[f.Key]; p != nil && p.host() == f.Host {
		p.set(&f)
		return
	}
	pools := maps.Clone(old.pools)
	if pools == nil {
		pools = map[service.Key]*pool{}
	}
	d.put(pools, &f)
	d.publish(pools)
}

// SetPools makes these the only pools there are.
func (d *Dispatcher) SetPools(facts []Pool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.view.Load()
	if old.closed {
		return
	}
	pools := make(map[service.Key]*pool, len(facts))
	for _, f := range facts {
		f.settle()
		if p := old.pools[f.Key]; p != nil {
			pools[f.Key] = p
		}
		d.put(pools, &f)
	}
	var removed []*pool
	for k, p := range old.pools {
		if pools[k] == nil {
			removed = append(removed, p)
		}
	}
	d.publish(pools, removed...)
}

// RemovePool forgets a pool. Requests that wait fail; those in flight go on.
func (d *Dispatcher) RemovePool(k service.Key) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.view.Load()
	p := old.pools[k]
	if p == nil || old.closed {
		return
	}
	pools := maps.Clone(old.pools)
	delete(pools, k)
	d.publish(pools, p)
}

// Close refuses every waiting and every later request. Requests in flight go
// on.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.view.Load()
	closed := *old
	closed.closed = true
	d.view.Store(&closed)
	for _, p := range old.pools {
		p.remove("the gateway is shutting down")
	}
}

func (f *Pool) settle() {
	if f.Entry == "" {
		f.Entry = service.RoleEngine
	}
	if f.ServedName == "" {
		f.ServedName = f.Key.Name
	}
}

func (d *Dispatcher) put(pools map[service.Key]*pool, f *Pool) {
	p := pools[f.Key]
	if p == nil {
		p = newPool(d, f.Key.String())
		pools[f.Key] = p
	}
	p.set(f)
}

// publish makes pools the view and closes those removed.
func (d *Dispatcher) publish(pools map[service.Key]*pool, removed ...*pool) {
	entries := make([]route.Entry, 0, len(pools))
	for k, p := range pools {
		entries = append(entries, route.Entry{Key: k, Host: p.host()})
	}
	next := &view{table: route.NewTable(entries, d.cfg.Domain), pools: pools}
	for _, p := range append(slices.Clone(d.view.Load().leaving), removed...) {
		if p.remove("the service was deleted") {
			next.leaving = append(next.leaving, p)
		}
	}
	d.view.Store(next)
}

// Resolve finds the pool a request is for without admitting it. Errors are
// those of package route.
func (d *Dispatcher) Resolve(r Request) (Status, error) {
	v := d.view.Load()
	t, err := v.table.Resolve(route.Query{Host: r.Host, Model: r.Model}, d.random)
	if err != nil {
		return Status{}, err
	}
	return v.pools[t.Pool.Key].status(v.table), nil
}

// Key is the service a request is for. Errors are those of package route.
func (d *Dispatcher) Key(r Request) (service.Key, error) {
	t, err := d.view.Load().table.Resolve(route.Query{Host: r.Host, Model: r.Model}, d.random)
	return t.Pool.Key, err
}

// Admit finds the pool a request is for and reserves a place on one of its
// replicas, waiting for one if need be. The caller must call Done on the grant
// exactly once. The error is one of package route, the context's, or an
// *Error.
func (d *Dispatcher) Admit(ctx context.Context, r Request) (*Grant, error) {
	v := d.view.Load()
	t, err := v.table.Resolve(route.Query{Host: r.Host, Model: r.Model}, d.random)
	if err != nil {
		return nil, err
	}
	p := v.pools[t.Pool.Key]
	g := &Grant{pool: p, named: t.Named, bytes: r.Bytes}
	if err := p.admit(ctx, g); err != nil {
		return nil, err
	}
	return g, nil
}

// Sleep asks for the pool's replicas to end until the next request.
func (d *Dispatcher) Sleep(ctx context.Context, pool string) error {
	return d.demand.Sleep(ctx, pool)
}

// Snapshot is the state of one pool, named "namespace/name", now.
func (d *Dispatcher) Snapshot(pool string) (Status, bool) {
	v := d.view.Load()
	p := v.pools[service.ParseKey(pool)]
	if p == nil {
		return Status{}, false
	}
	return p.status(v.table), true
}

// Pools is the state of every pool, by namespace and name.
func (d *Dispatcher) Pools() []Status {
	v := d.view.Load()
	out := make([]Status, 0, len(v.pools))
	for _, p := range v.pools {
		out = append(out, p.status(v.table))
	}
	slices.SortFunc(out, func(a, b Status) int {
		return strings.Compare(a.Pool.Key.String(), b.Pool.Key.String())
	})
	return out
}

// InFlight is how many requests a replica works on.
func (d *Dispatcher) InFlight(replicaID string) int {
	for p := range d.view.Load().all {
		if n, ok := p.inFlight(replicaID); ok {
			return n
		}
	}
	return 0
}

// Drain gives a replica no more requests, from this moment on and for good,
// and waits until those it has are settled. An unknown replica is idle. The
// error is the context's.
func (d *Dispatcher) Drain(ctx context.Context, replicaID string) error {
	for p := range d.view.Load().all {
		idle := p.drain(replicaID)
		if idle == nil {
			continue
		}
		select {
		case <-idle:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// entries lists the replicas of the pool's entry role.
func (f *Pool) entries() []replica.Replica {
	out := make([]replica.Replica, 0, len(f.Replicas))
	for _, r := range f.Replicas {
		if r.Role == f.Entry {
			out = append(out, r)
		}
	}
	return out
}
