package incluster

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	judge "roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// attached tells the request path of routing objects: of HTTPRoutes and GRPCRoutes those
// alone that are attached to a Gateway of ours, under the hosts that its
// listeners leave to them; and which pods are looked for. It is a fleet.Routing.
type attached struct {
	to      fleet.Routing
	watch   *gatewayapi.Watch
	pods    *pools.Pods
	pickers *asked       // nil: those that pools name are ignored
	plain   *pools.Ports // of the Kubernetes Services that HTTPRoutes lead to
	servers *servers     // may be nil
	// certificates are those of listeners for HTTPS.
	certificates gatewayapi.Certificates
	changed      chan struct{} // capacity 1
	log          *slog.Logger

	mu   sync.Mutex
	last *fleet.RoutingView // nil before the first
}

// Route implements fleet.Routing.
func (a *attached) Route(v fleet.RoutingView) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = &v
	a.publish()
}

// dirty has everything judged again. It does not wait.
func (a *attached) dirty() {
	select {
	case a.changed <- struct{}{}:
	default: // it will be
	}
}

// Run judges again when Gateways change, until ctx ends.
func (a *attached) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- a.watch.Run(ctx) }()
	for {
		select {
		case <-a.changed:
			a.again()
		case err := <-ended:
			return err
		}
	}
}

// again judges what is known already.
func (a *attached) again() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != nil {
		a.publish()
	}
}

// publish is called with mu held.
func (a *attached) publish() {
	v := fleet.RoutingView{Members: a.last.Members}
	var shared []*routing.Pool
	var routes []judge.Route
	for _, o := range a.last.Objects {
		switch o := o.(type) {
		case *routing.HTTPRoute:
			routes = append(routes, judge.Route{ID: routing.IDOf(o), Parents: o.Parents, Object: o})
		case *routing.Pool:
			shared = append(shared, o)
		}
	}
	verdict := a.judge(routes, a.last.Services)
	for _, o := range a.last.Objects {
		r, ok := o.(*routing.HTTPRoute)
		if !ok {
			v.Objects = append(v.Objects, o)
			continue
		}
		for _, served := range []*routing.HTTPRoute{verdict.Routes[routing.IDOf(r)].Served, verdict.Routes[routing.IDOf(r)].Secured} {
			if served != nil {
				v.Objects = append(v.Objects, served)
			}
		}
	}
	for _, at := range verdict.Services {
		v.Objects = append(v.Objects, &routing.Pool{Meta: service.Meta{Key: routing.ServicePool(at.Key, at.Port).Key}})
	}
	a.to.Route(v)
	a.pods.Set(shared)
	a.plain.Set(verdict.Services)
	a.servers.note(graphs, ofGraphs(a.last.Objects))
	a.certificates.Set(context.Background(), a.watch, verdict.Certificates) // from memory
	if a.pickers != nil {
		a.pickers.set(shared)
	}
}

func (a *attached) judge(routes []judge.Route, ours []service.Key) *judge.Verdict {
	select {
	case <-a.watch.Synced():
	default:
		return &judge.Verdict{}
	}
	w, err := a.watch.World(context.Background()) // from memory
	if err != nil {
		a.log.Warn("the Gateway API's objects cannot be read", "error", err)
	}
	w.Routes = routes
	w.Ours = func(k service.Key) bool { return slices.Contains(ours, k) }
	w.Service = a.plain.Judged
	return judge.Judge(w)
}

// routesWait is for how long a gateway that starts waits for its Gateways and
// for the pods of its pools. An account that may not read them would never know;
// services are served all the same.
const routesWait = 10 * time.Second

// listed waits until routes and the pods of pools are known.
func (a *attached) listed(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, routesWait)
	defer cancel()
	select {
	case <-a.watch.Synced():
	case <-bound.Done():
	}
	a.again()
	err := a.pods.Listed(bound)
	if err == nil && a.pickers != nil {
		err = a.pickers.watch.Listed(bound)
	}
	if err == nil {
		err = a.plain.Listed(bound)
	}
	if err != nil && ctx.Err() == nil {
		a.log.Warn("not all routes, Services, pods or endpoint pickers of pools are known yet: check that this account may list and watch them")
	}
	return ctx.Err()
}
