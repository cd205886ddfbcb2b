package incluster

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	judge "roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// attached tells the request path of routing objects: of HTTPRoutes those
// alone that are attached to a Gateway of ours, under the hosts that its
// listeners leave to them; and which pods are looked for. It is a fleet.Routing.
type attached struct {
	to      fleet.Routing
	watch   *gatewayapi.Watch
	pods    *pools.Pods
	pickers *asked        // nil: those that pools name are ignored
	changed chan struct{} // capacity 1
	log     *slog.Logger

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
	var pools []*routing.Pool
	var routes []judge.Route
	for _, o := range a.last.Objects {
		switch o := o.(type) {
		case *routing.HTTPRoute:
			routes = append(routes, judge.Route{Key: o.Key, Parents: o.Parents, Object: o})
		case *routing.Pool:
			pools = append(pools, o)
		}
	}
	verdict := a.judge(routes)
	for _, o := range a.last.Objects {
		if r, ok := o.(*routing.HTTPRoute); ok {
			if r = verdict.Routes[r.Key].Served; r == nil {
				continue
			}
			o = r
		}
		v.Objects = append(v.Objects, o)
	}
	a.to.Route(v)
	a.pods.Set(pools)
	if a.pickers != nil {
		a.pickers.set(pools)
	}
}

func (a *attached) judge(routes []judge.Route) *judge.Verdict {
	select {
	case <-a.watch.Synced():
	default:
		return &judge.Verdict{}
	}
	if len(routes) == 0 {
		return &judge.Verdict{}
	}
	w, err := a.watch.World(context.Background()) // from memory
	if err != nil {
		a.log.Warn("the Gateway API's objects cannot be read", "error", err)
	}
	w.Routes = routes
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
	if err != nil && ctx.Err() == nil {
		a.log.Warn("not all routes, pods or endpoint pickers of pools are known yet: check that this account may list and watch them")
	}
	return ctx.Err()
}
