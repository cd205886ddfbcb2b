package controller

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/cmd/internal/incluster"
	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	judge "roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/edge/endpoints"
	"roundhouse.dev/roundhouse/internal/edge/kube/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
	"roundhouse.dev/roundhouse/internal/edge/kube/status"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// routeStatus writes the status of routing objects: pools, routes and Gateways.
// It is a fleet.Routing.
type routeStatus struct {
	fleet    *fleet.Fleet
	writer   *status.Writer
	source   *objects.Source
	client   client.Client
	gateways *gatewayapi.Watch
	pickers  *namedPickers
	plain    *pools.Ports // of the Kubernetes Services that HTTPRoutes lead to
	pools    *addresses
	changed  chan struct{} // capacity 1
	log      logger
}

// newRouteStatus makes the watches. The caller sets fleet, writer and source.
func newRouteStatus(o controllerOptions, cfg *rest.Config, m manager.Manager, degraded func(service.Key, routing.Degradation), log logger) (r *routeStatus, err error) {
	r = &routeStatus{client: m.GetClient(), pickers: &namedPickers{states: map[service.Key]judge.Picker{}}, changed: make(chan struct{}, 1), log: log}
	if r.pools, err = newAddresses(o.internalAddresses, degraded, r.rewrite, log); err != nil {
		return nil, err
	}
	gateways := gatewayapi.Config{REST: cfg, Mapper: m.GetRESTMapper(), Shared: m.GetCache(), Namespaces: o.namespaces,
		Secrets: o.gatewayHTTPS, Service: service.Key{Namespace: o.system, Name: o.gatewayService}, Domain: incluster.Domain(o.address), Changed: r.rewrite, Write: true, Log: log}
	if o.gatewaySecret != "" {
		gateways.Certificate = service.Key{Namespace: o.system, Name: o.gatewaySecret}
	}
	if r.gateways, err = gatewayapi.New(gateways); err != nil {
		return nil, err
	}
	w := pools.DefaultServicesConfig()
	w.REST, w.Mapper, w.Namespaces, w.Log = cfg, m.GetRESTMapper(), o.namespaces, log
	r.plain, err = pools.NewPorts(w, func(_ service.Key, before, now pools.ServiceState) {
		if before.Judged() != now.Judged() {
			r.rewrite()
		}
	})
	if err != nil || o.pickers == incluster.PickersIgnore {
		return r, err
	}
	w.Changed = func(pool service.Key, s pools.ServiceState) {
		if r.pickers.put(pool, judge.Picker{Known: true, Own: s.Own, Problem: s.Problem}) {
			r.rewrite()
		}
	}
	r.pickers.watch, err = pools.NewServices(w)
	return r, err
}

// Route implements fleet.Routing: routing objects changed.
func (r *routeStatus) Route(v fleet.RoutingView) {
	r.pools.set(v.Objects)
	r.rewrite()
}

// rewrite has the status of all routing objects written again. It does not wait.
func (r *routeStatus) rewrite() {
	select {
	case r.changed <- struct{}{}:
	default: // it will be
	}
}

const (
	// routesRetry is the wait before a status that could not be written is written
	// again.
	routesRetry = 5 * time.Second
	// gatewaysWait is how long the first status waits for the Gateways, which an
	// account that may not read them never knows.
	gatewaysWait = 30 * time.Second
)

// run watches, and writes the status of routing objects when it changes, until
// ctx ends.
func (r *routeStatus) run(ctx context.Context) {
	defer r.pickers.close()
	defer r.plain.Close()
	var watches sync.WaitGroup
	defer watches.Wait()
	watches.Go(func() { r.pools.run(ctx) })
	watches.Go(func() {
		if err := r.gateways.Run(ctx); err != nil && ctx.Err() == nil {
			r.log.Error("Gateways are no longer watched, and their status is no longer written", "error", err)
		}
	})
	select {
	case <-r.gateways.Synced():
	case <-time.After(gatewaysWait):
		r.log.Warn("not all Gateways are known: check that this account may list and watch them")
	case <-ctx.Done():
		return
	}
	w := &gatewayapi.Writer{Watch: r.gateways, Client: r.client, Now: time.Now, Adopted: func(ctx context.Context, ns string) bool {
		return r.source.Adopted(ctx, service.DialectGateway, ns)
	}}
	var retry <-chan time.Time
	for {
		select {
		case <-r.changed:
		case <-retry:
		case <-ctx.Done():
			return
		}
		retry = nil
		if err := r.write(ctx, w); err != nil && ctx.Err() == nil {
			r.log.Warn("the status of routes could not be written, retrying", "error", err)
			retry = time.After(routesRetry)
		}
	}
}

// write writes the status of all routing objects once.
func (r *routeStatus) write(ctx context.Context, w *gatewayapi.Writer) error {
	states := r.fleet.RoutingObjects()
	verdict := &judge.Verdict{}
	var failed error
	select {
	case <-r.gateways.Synced():
		var pools []*routing.Pool
		for _, st := range states {
			if p, ok := st.Object.Routing.(*routing.Pool); ok {
				pools = append(pools, p)
			}
		}
		services := r.services()
		v, err := w.Write(ctx, gatewayapi.Facts{Pools: pools, Missing: r.missing(pools, services), Picker: r.pickers.of(ctx, pools),
			Ours: func(k service.Key) bool { return slices.Contains(services(), k) }, Services: r.plainServices})
		if failed = err; v != nil {
			verdict = v
		}
	default:
	}
	if err := r.writer.Routing(ctx, ofOurs(r.pools.lookedUp(states), verdict)); err != nil {
		return err
	}
	return failed
}

// missing returns a function that returns why a backend does not exist.
func (r *routeStatus) missing(pools []*routing.Pool, services func() []service.Key) func(routing.Ref) string {
	keys := make([]service.Key, len(pools))
	for i, p := range pools {
		keys[i] = p.Key
	}
	return func(ref routing.Ref) string { return route.Missing(ref, services(), keys) }
}

// services returns a function that lists our services. It is called when there is a
// route.
func (r *routeStatus) services() func() []service.Key {
	return sync.OnceValue(func() (out []service.Key) {
		for _, st := range r.fleet.List() {
			out = append(out, st.Object.Key)
		}
		return out
	})
}

// servicesWait is how long the status of routes waits until the Kubernetes Services that
// they lead to are known.
const servicesWait = 5 * time.Second

// plainServices returns a function that returns what is known of a Kubernetes Service that
// a route leads to. It waits for those not known yet, so that no status is written twice.
func (r *routeStatus) plainServices(ctx context.Context, all []judge.ServicePort) func(judge.ServicePort) judge.Service {
	r.plain.Set(all)
	bound, cancel := context.WithTimeout(ctx, servicesWait)
	defer cancel()
	_ = r.plain.Listed(bound) // what is not known then is taken to be there
	return r.plain.Judged
}

// ofOurs limits the status of pools to our own Gateways.
func ofOurs(states []fleet.RoutingState, v *judge.Verdict) []fleet.RoutingState {
	for i := range states {
		st := &states[i]
		if st.Object.Routing.RoutingKind() != routing.KindPool {
			continue
		}
		st.Status.Parents = nil
		at := slices.Clone(st.Status.Conditions)
		for _, p := range v.Pools[st.Object.Key] {
			st.Status.Parents = append(st.Status.Parents, p.Ref)
		}
		for k := range at {
			for _, p := range v.Pools[st.Object.Key] { // all parents have the same condition of the endpoint picker
				if i := slices.IndexFunc(p.Conditions, func(c service.Condition) bool { return c.Type == routing.ConditionResolvedRefs }); i >= 0 && at[k].Type == routing.ConditionResolvedRefs {
					at[k].Status, at[k].Reason, at[k].Message = p.Conditions[i].Status, p.Conditions[i].Reason, p.Conditions[i].Message
				}
			}
			if at[k].Type == routing.ConditionAccepted && len(st.Status.Parents) == 0 {
				at[k].Status, at[k].Reason, at[k].Message = "Unknown", routing.ReasonPending, "no HTTPRoute or GRPCRoute of a Roundhouse Gateway refers to it; requests reach it by its host and by its models' names"
			}
		}
		st.Status.Conditions = at
	}
	return states
}

// pickersWait is how long the status of pools waits until their endpoint pickers
// are known.
const pickersWait = 5 * time.Second

// namedPickers are the endpoint pickers that pools name, as far as their status
// tells.
type namedPickers struct {
	watch *pools.Services // nil: --endpoint-pickers=ignore

	mu     sync.Mutex
	states map[service.Key]judge.Picker
}

// put notes the state of a pool's picker, and reports whether it changed.
func (n *namedPickers) put(pool service.Key, p judge.Picker) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.states[pool] == p {
		return false
	}
	n.states[pool] = p
	return true
}

// of returns a function that returns what is known of a pool's picker; nil
// where pickers are ignored. It waits for those not known yet, so that no
// status is written twice.
func (n *namedPickers) of(ctx context.Context, all []*routing.Pool) func(service.Key) judge.Picker {
	if n.watch == nil {
		return nil
	}
	n.forget(all)
	n.watch.Set(all)
	bound, cancel := context.WithTimeout(ctx, pickersWait)
	defer cancel()
	_ = n.watch.Listed(bound) // what is not known then is reported as unknown
	return func(pool service.Key) judge.Picker {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.states[pool]
	}
}

// forget removes the pools that no longer exist.
func (n *namedPickers) forget(all []*routing.Pool) {
	there := make(map[service.Key]bool, len(all))
	for _, p := range all {
		there[p.Key] = true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for k := range n.states {
		if !there[k] {
			delete(n.states, k)
		}
	}
}

func (n *namedPickers) close() {
	if n.watch != nil {
		n.watch.Close()
	}
}

// addresses looks the addresses of pools up as every gateway does, so that the
// status names those that gateways refuse or do not find. It sends no request
// there.
type addresses struct {
	lookups *endpoints.Lookups
	// degraded receives what is wrong with the addresses of a pool, changed that
	// the status of pools must be written again.
	degraded func(pool service.Key, now routing.Degradation)
	changed  func()

	mu      sync.Mutex
	pending map[service.Key]bool // not looked up yet
}

func newAddresses(internal bool, degraded func(service.Key, routing.Degradation), changed func(), log logger) (*addresses, error) {
	a := &addresses{degraded: degraded, changed: changed, pending: map[service.Key]bool{}}
	cfg := endpoints.DefaultConfig()
	cfg.Log = log
	if !internal {
		cfg.Refuse = func(at netip.Addr) string {
			if network.Internal(at) {
				return front.Refusal(at)
			}
			return ""
		}
	}
	var err error
	a.lookups, err = endpoints.New(cfg, a)
	return a, err
}

// set replaces the pools.
func (a *addresses) set(objects []routing.Object) {
	var all []*routing.Pool
	a.mu.Lock()
	before := a.pending
	a.pending = map[service.Key]bool{}
	for _, o := range objects {
		if p, ok := o.(*routing.Pool); ok && len(p.Addresses) > 0 {
			all = append(all, p)
			known, asked := before[p.Key]
			a.pending[p.Key] = known || !asked
		}
	}
	a.mu.Unlock()
	a.lookups.Set(all)
}

// Endpoints implements endpoints.Sink.
func (a *addresses) Endpoints(pool service.Key, found []string, problem string) {
	if len(found) == 0 && problem == "" {
		return // names are still being looked up
	}
	a.mu.Lock()
	if _, there := a.pending[pool]; there {
		a.pending[pool] = false
	}
	a.mu.Unlock()
	a.degraded(pool, routing.Degradation{Message: problem, Down: len(found) == 0})
	a.changed()
}

// lookedUp leaves out the pools whose addresses have not been looked up yet, so
// that a controller that starts does not first overwrite their status.
func (a *addresses) lookedUp(states []fleet.RoutingState) []fleet.RoutingState {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := states[:0]
	for _, st := range states {
		if st.Object.Routing.RoutingKind() != routing.KindPool || !a.pending[st.Object.Key] {
			out = append(out, st)
		}
	}
	return out
}

// run looks names up until ctx ends.
func (a *addresses) run(ctx context.Context) { a.lookups.Run(ctx) }
