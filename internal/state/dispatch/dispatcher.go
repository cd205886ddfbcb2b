package dispatch

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// Dispatcher admits requests to replicas. All its methods are safe for
// concurrent use.
//
// Mutexes are taken in this order: mu, a pool's, and then one of those of
// accounts, endpoints or a single endpoint.
type Dispatcher struct {
	cfg       Config
	demand    Demand
	clock     Clock
	random    func(n int) int // in [0, n)
	endpoints registry
	caches    caches

	view atomic.Pointer[view] // what Admit reads without a lock
	mu   sync.Mutex           // serializes changes of the view

	routes struct {
		sync.Mutex
		byID map[route.ID]*routeState
	}
	accounts struct {
		sync.Mutex
		byKey map[service.Key]*demandCounter
	}
}

// view is an immutable picture of which pools there are.
type view struct {
	// table is built when first asked for: many changes that come together, as at
	// a start, cost one.
	table   func() *route.Table
	pools   map[routing.Ref]*pool
	objects []routing.Object
	closed  bool
	graphs  bool    // objects has one
	scopes  *scopes // tables of some namespaces
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
	d.endpoints.clock, d.endpoints.breaker = clock, cfg.Breaker
	d.endpoints.byID, d.endpoints.servers = map[string]*endpoint{}, map[string]*server{}
	d.accounts.byKey = map[service.Key]*demandCounter{}
	d.routes.byID = map[route.ID]*routeState{}
	empty := &route.Table{}
	d.view.Store(&view{table: func() *route.Table { return empty }, pools: map[routing.Ref]*pool{}, scopes: &scopes{}})
	return d, nil
}

// SetPool adds a pool or replaces its configuration. Requests that wait go on as soon
// as a replica is ready. It does nothing after Close.
func (d *Dispatcher) SetPool(f PoolConfig) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.view.Load()
	if old.closed {
		return
	}
	f.setDefaults()
	ref := f.Ref()
	if p := old.pools[ref]; p != nil {
		if c := p.config.Load(); c.Host == f.Host && c.Parent == f.Parent && c.Repository == f.Repository && c.Access.Equal(f.Access) && slices.Equal(c.adapterNames(), f.adapterNames()) && slices.Equal(c.served(), f.served()) {
			d.put(old.pools, &f)
			return
		}
	}
	pools := maps.Clone(old.pools)
	d.put(pools, &f)
	d.publish(pools, old.objects)
}

// SetPools makes these the only pools there are.
func (d *Dispatcher) SetPools(facts []PoolConfig) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.view.Load()
	if old.closed {
		return
	}
	pools := make(map[routing.Ref]*pool, len(facts))
	for _, f := range facts {
		f.setDefaults()
		if p := old.pools[f.Ref()]; p != nil {
			pools[f.Ref()] = p
		}
		d.put(pools, &f)
	}
	d.publish(pools, old.objects)
}

// SetObjects makes these the routing objects that requests are routed by. The
// caller must not change them any more.
func (d *Dispatcher) SetObjects(objects []routing.Object) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.view.Load(); !old.closed {
		d.publish(old.pools, objects)
		d.forgetRoutes(objects)
	}
}

// Remove forgets a pool. Requests that wait fail; those in flight go on.
func (d *Dispatcher) Remove(r routing.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old := d.view.Load()
	if old.pools[r] == nil || old.closed {
		return
	}
	pools := maps.Clone(old.pools)
	delete(pools, r)
	d.publish(pools, old.objects)
}

// Close refuses every waiting and every later request. Requests in flight go
// on.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	closed := *d.view.Load()
	closed.closed = true
	d.view.Store(&closed)
	for _, p := range closed.pools {
		p.close("the gateway is shutting down")
	}
}

// put gives a pool its configuration; it is made if need be. The other pools that
// share its endpoints count those again.
func (d *Dispatcher) put(pools map[routing.Ref]*pool, f *PoolConfig) {
	p := pools[f.Ref()]
	if p == nil {
		p = newPool(d, f.Ref())
		pools[f.Ref()] = p
	}
	p.set(f)
	p.mu.Lock()
	sharers := p.sharers()
	p.mu.Unlock()
	for q := range sharers {
		if q != p {
			q.recount()
		}
	}
}

// publish makes pools the view and closes those that were.
func (d *Dispatcher) publish(pools map[routing.Ref]*pool, objects []routing.Object) {
	old := d.view.Load()
	entries := make([]route.Entry, 0, len(pools))
	for r, p := range pools {
		if !r.Pool {
			c := p.config.Load()
			entries = append(entries, route.Entry{Key: r.Key, Host: c.Host, Parent: c.Parent, Repository: c.Repository, Adapters: c.adapterNames(), Served: c.served(), Access: c.Access})
		}
	}
	table := sync.OnceValue(func() *route.Table { return route.NewTable(entries, d.cfg.Domain, objects...) })
	graphs := slices.ContainsFunc(objects, func(o routing.Object) bool { return o.RoutingKind() == routing.KindGraph })
	d.view.Store(&view{table: table, pools: pools, objects: objects, graphs: graphs, scopes: &scopes{entries: entries}})
	for r, p := range old.pools {
		if pools[r] == p {
			continue
		}
		if r.Pool {
			p.remove("the pool was deleted")
		} else {
			p.remove("the service was deleted")
			d.accounts.Lock()
			delete(d.accounts.byKey, r.Key)
			d.accounts.Unlock()
		}
	}
}

// demandOf is the demand counter of a service; it is made if need be.
func (d *Dispatcher) demandOf(k service.Key) *demandCounter {
	d.accounts.Lock()
	defer d.accounts.Unlock()
	a := d.accounts.byKey[k]
	if a == nil {
		a = newDemandCounter(d, k.String())
		d.accounts.byKey[k] = a
	}
	return a
}

// Below finds the service below whose path a request's is: its host, and the rest of
// the path.
func (d *Dispatcher) Below(r Request) (host, rest string, ok bool) {
	t := d.view.Load().table()
	k, rest, ok := t.Below(r.where())
	return t.HostOf(k), rest, ok
}

// route finds the pool of a request and the target that led to it.
func (d *Dispatcher) route(r *Request) (*view, *pool, route.Target, error) {
	v := d.view.Load()
	q := r.where()
	var t route.Target
	var err error
	if r.To.Name != "" {
		t, err = v.within(r.Namespaces, d.cfg.Domain).ResolveIn(r.To, q, d.random)
	} else {
		t, err = v.within(r.Namespaces, d.cfg.Domain).Resolve(q, d.random)
	}
	if err != nil {
		return v, nil, t, err
	}
	p := v.pools[t.Pool]
	if p == nil {
		return v, nil, t, unavailable(id(t.Pool), "there is no such "+t.Pool.String(), nil)
	}
	if share := p.config.Load().CanaryPercent; share > 0 && d.random(100) < share {
		if c := v.pools[routing.Service(t.Pool.Key.Canary())]; c != nil && (t.Adapter == "" || c.config.Load().adapter(t.Adapter) != nil) && (r.Subset == nil || c.hasAny(r.Subset)) {
			p = c
		}
	}
	return v, p, t, nil
}

// where is what the request says of where it wants to go.
func (r *Request) where() route.Query {
	return route.Query{Host: r.Host, Path: r.Path, RawQuery: r.RawQuery, Method: r.Method, GRPC: r.GRPC, RawPath: r.RawPath, Secure: r.Secure, Header: r.Header, Model: r.Model, Objective: r.Objective}
}

// NamesPath reports whether an HTTPRoute that names a path takes a request.
func (d *Dispatcher) NamesPath(r Request) bool {
	return d.view.Load().within(r.Namespaces, d.cfg.Domain).NamesPath(r.where())
}

// Passes reports whether an HTTPRoute leads a request to Kubernetes Services alone;
// known marks a path that is a call to the gateway or to a model.
func (d *Dispatcher) Passes(r Request, known bool) bool {
	return r.To.Name == "" && d.view.Load().within(r.Namespaces, d.cfg.Domain).Passes(r.where(), known)
}

// HasHTTPRoutes reports whether there is any.
func (d *Dispatcher) HasHTTPRoutes() bool { return d.view.Load().table().HasHTTPRoutes() }

// HasRoot reports whether "/" at a host is the HTTPRoutes' alone.
func (d *Dispatcher) HasRoot(host string) bool { return d.view.Load().table().HasRoot(host) }

// Broken is why the HTTPRoute that takes a request can forward none, nil for
// nothing. own reports that the gateway answers such a request itself otherwise.
func (d *Dispatcher) Broken(r Request, own bool) error {
	return d.view.Load().within(r.Namespaces, d.cfg.Domain).Broken(r.where(), own)
}

// EditsRequests reports whether any HTTPRoute has answers of its own, or changes URLs.
func (d *Dispatcher) EditsRequests() bool { return d.view.Load().table().Edits() }

// Redirected is the answer of an HTTPRoute itself to a request whose model may not be
// known yet, nil for none. No route has a say where it is settled where a request goes.
func (d *Dispatcher) Redirected(r Request) error {
	if r.To.Name != "" {
		return nil
	}
	return d.view.Load().within(r.Namespaces, d.cfg.Domain).Redirected(r.where())
}

// Rewritten is the escaped path that a request's HTTPRoute gives replicas.
func (d *Dispatcher) Rewritten(r Request) (path string, ok bool) {
	return d.view.Load().within(r.Namespaces, d.cfg.Domain).Rewritten(r.where())
}

// Resolve finds the pool a request is for without admitting it. Errors are
// those of package route, or an *Error.
func (d *Dispatcher) Resolve(r Request) (Status, error) {
	v, p, t, err := d.route(&r)
	if err != nil {
		return Status{}, err
	}
	s := p.status(v.table())
	s.Adapter = s.Pool.adapter(t.Adapter)
	return s, nil
}

// Name is the shortest name that routes to a service, for requests of some
// namespaces; none means all.
func (d *Dispatcher) Name(k service.Key, namespaces []string) string {
	return d.view.Load().within(namespaces, d.cfg.Domain).Name(k)
}

// HasGraphs reports whether there is any graph.
func (d *Dispatcher) HasGraphs() bool { return d.view.Load().graphs }

// Graph is the graph that a request is for; nil for none.
func (d *Dispatcher) Graph(r Request) *routing.Graph {
	return d.view.Load().within(r.Namespaces, d.cfg.Domain).Graph(r.where())
}

// Batcher is the batcher of the pool that a request goes to, that pool, and the model
// to ask it for, "" as the request names it. It is nil for none, and for a request that
// would be treated otherwise if it asked the pool itself, as a batch does: by its route's
// timeouts, mirrors or priority.
func (d *Dispatcher) Batcher(r Request) (to routing.Ref, model string, b *service.Batcher) {
	v, p, t, err := d.route(&r)
	if err != nil {
		return routing.Ref{}, "", nil
	}
	if b = p.config.Load().Batcher; b == nil || t.Handling != nil {
		return p.ref, "", nil
	}
	if model = cmp.Or(t.Model, r.Model); t.Named {
		model = p.ref.Key.Name
	}
	own, err := v.within(r.Namespaces, d.cfg.Domain).ResolveIn(p.ref, route.Query{Model: model}, d.random)
	if err != nil || own.Pool != p.ref || own.Named != t.Named || cmp.Or(own.Model, model) != model || own.Adapter != t.Adapter ||
		own.Priority != t.Priority || own.Latency != t.Latency || own.Handling != nil {
		return p.ref, "", nil
	}
	return p.ref, model, b
}

// Domain is what the hosts of services end in.
func (d *Dispatcher) Domain() string { return cmp.Or(d.cfg.Domain, route.DefaultDomain) }

// Random is a number in [0, n).
func (d *Dispatcher) Random(n int) int { return d.random(n) }

// Served is how a service is asked: its protocol. It is false where there is no such
// service.
func (d *Dispatcher) Served(k service.Key) (service.Protocol, bool) {
	p := d.view.Load().pools[routing.Service(k)]
	if p == nil {
		return "", false
	}
	return p.config.Load().Protocol, true
}

// KnowsHost reports whether a host, with or without a port, is one that a
// service, a pool or an HTTPRoute names.
func (d *Dispatcher) KnowsHost(hostport string) bool {
	return d.view.Load().table().KnowsHost(hostport)
}

// Key is the service or shared pool a request is for. Errors are those of
// package route.
func (d *Dispatcher) Key(r Request) (service.Key, error) {
	_, _, t, err := d.route(&r)
	return t.Pool.Key, err
}

// Leads calls yield with every service and shared pool that a request may go to,
// whatever is drawn among weighted targets, until yield returns false. It calls it
// with none where Resolve fails.
func (d *Dispatcher) Leads(r *Request, yield func(service.Key) bool) {
	if r.To.Name != "" {
		yield(r.To.Key)
		return
	}
	d.view.Load().within(r.Namespaces, d.cfg.Domain).Leads(r.where(), func(ref routing.Ref) bool { return yield(ref.Key) })
}

// Admit finds the pool a request is for and reserves a place on one of its
// replicas, waiting for one if need be. The caller must call Done on the grant
// exactly once. The error is one of package route, the context's, an
// *Error, a *ProtocolError, or Request.May's.
func (d *Dispatcher) Admit(ctx context.Context, r Request) (*Grant, error) {
	v, p, t, err := d.route(&r)
	if err != nil {
		return nil, err
	}
	if r.May != nil {
		if err := r.May(p.ref.Key.Stable()); err != nil {
			return nil, err
		}
	}
	if r.Explain && !p.ref.Pool {
		if e := v.pools[routing.RolePool(p.ref.Key, service.RoleExplainer)]; e != nil {
			p = e
		}
	}
	if d.cfg.Asked != nil {
		d.cfg.Asked(p.ref)
	}
	g := p.grant(&r, t)
	if r.Asker != nil && p.config.Load().External.Name != "" {
		err = p.askExternal(ctx, g, r.Asker)
	} else {
		err = p.admit(ctx, g)
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// Sleep asks for a service's replicas to end until the next request.
func (d *Dispatcher) Sleep(ctx context.Context, service string) error {
	return d.demand.Sleep(ctx, service)
}

// Demand is what is asked of a service, through its own pool and shared ones.
func (d *Dispatcher) Demand(k service.Key) autoscale.Demand {
	d.accounts.Lock()
	a := d.accounts.byKey[k]
	d.accounts.Unlock()
	if a == nil {
		return autoscale.Demand{}
	}
	return a.demand(d.clock.Now())
}

// Load returns what a replica has last said of itself, of all its ranks together; nil
// where that is not known.
func (d *Dispatcher) Load(replicaID string) *replica.Load {
	var loads []*replica.Load
	for _, e := range d.endpoints.of(replicaID) {
		if r := e.report.Load(); r != nil {
			loads = append(loads, r.load)
		}
	}
	return replica.Sum(loads)
}

// SetLoad notes what an endpoint, a replica or a rank of one, has said of itself; nil
// forgets it. An endpoint that no pool has is ignored.
func (d *Dispatcher) SetLoad(id string, l *replica.Load) {
	e := d.endpoints.get(id)
	if e == nil {
		return
	}
	e.report.Store(&loadReport{load: l, inFlight: int(e.inFlight.Load())})
	e.notifyPools()
}

// InFlight is how many requests a replica works on.
func (d *Dispatcher) InFlight(replicaID string) (n int) {
	for _, e := range d.endpoints.of(replicaID) {
		n += int(e.inFlight.Load())
	}
	return n
}

// Drain gives a replica no more requests, from this moment on until Resume, and
// waits until those it has are settled. An unknown replica is idle. The
// error is the context's.
func (d *Dispatcher) Drain(ctx context.Context, replicaID string) error {
	ranks := d.endpoints.of(replicaID)
	idle := make([]<-chan struct{}, len(ranks))
	for i, e := range ranks {
		idle[i] = e.drain()
	}
	for _, e := range ranks {
		for _, p := range e.listedBy() {
			p.recount()
		}
	}
	for _, one := range idle {
		select {
		case <-one:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Resume gives a replica requests again, after a Drain.
func (d *Dispatcher) Resume(replicaID string) {
	for _, e := range d.endpoints.of(replicaID) {
		e.draining.Store(false)
		for _, p := range e.listedBy() {
			p.recount()
		}
		e.notifyPools()
	}
}

// sorted lists the pools by kind, namespace and name.
func (v *view) sorted() []*pool {
	return slices.SortedFunc(maps.Values(v.pools), func(a, b *pool) int { return compareRefs(a.ref, b.ref) })
}

// maxScopes is how many sets of namespaces have their table kept. Beyond that
// each request of another set has one built for it.
const maxScopes = 1000

// scopes are the tables of a view for requests that may know some namespaces
// only: in each there is nothing else, so that names, hosts and suggestions
// cannot tell of others. They are built when first asked for.
type scopes struct {
	entries []route.Entry

	mu     sync.Mutex
	tables map[string]*route.Table
}

// within is the table of some namespaces; none means all.
func (v *view) within(namespaces []string, domain string) *route.Table {
	if len(namespaces) == 0 || v.scopes == nil {
		return v.table()
	}
	s, id := v.scopes, strings.Join(namespaces, ",")
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[id]; t != nil {
		return t
	}
	var entries []route.Entry
	for _, e := range s.entries {
		if among(namespaces, e.Key.Namespace) {
			entries = append(entries, e)
		}
	}
	var objects []routing.Object
	for _, o := range v.objects {
		if among(namespaces, o.Common().Namespace) {
			objects = append(objects, o)
		}
	}
	t := route.NewTable(entries, domain, objects...)
	if s.tables == nil {
		s.tables = map[string]*route.Table{}
	}
	if len(s.tables) < maxScopes {
		s.tables[id] = t
	}
	return t
}

// among reports whether a namespace is one of these; none means all.
func among(namespaces []string, namespace string) bool {
	return len(namespaces) == 0 || slices.Contains(namespaces, namespace)
}
