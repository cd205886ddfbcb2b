package controller

import (
	"context"
	"net/netip"
	"sync"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/endpoints"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// addresses looks at those of pools as every gateway does, to say in their
// status what gateways refuse or do not find. It sends nothing there.
type addresses struct {
	lookups *endpoints.Lookups
	// tell is told what is wrong with a pool's, "" for nothing; changed, that
	// the status of pools may be another.
	tell    func(pool service.Key, now routing.Degradation)
	changed func()

	mu      sync.Mutex
	pending map[service.Key]bool // not looked at yet
}

func newAddresses(internal bool, tell func(service.Key, routing.Degradation), changed func(), log logger) (*addresses, error) {
	a := &addresses{tell: tell, changed: changed, pending: map[service.Key]bool{}}
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

// set names the pools there are.
func (a *addresses) set(objects []routing.Object) {
	all := map[service.Key][]string{}
	a.mu.Lock()
	before := a.pending
	a.pending = map[service.Key]bool{}
	for _, o := range objects {
		if p, ok := o.(*routing.Pool); ok && len(p.Addresses) > 0 {
			all[p.Key] = p.Addresses
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
	a.tell(pool, routing.Degradation{Message: problem, Down: len(found) == 0})
	a.changed()
}

// looked leaves out the pools whose addresses have not been looked at yet, so
// that a controller that starts does not first take back what stands there.
func (a *addresses) looked(states []fleet.RoutingState) []fleet.RoutingState {
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

// run looks until ctx ends.
func (a *addresses) run(ctx context.Context) { a.lookups.Run(ctx) }
