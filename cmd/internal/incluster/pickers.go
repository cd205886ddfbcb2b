package incluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/epp"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// asked are the endpoint pickers that pools name. It is a gateway.Picker.
type asked struct {
	client  *epp.Client
	watch   *pools.Services
	traffic *front.Traffic

	mu    sync.Mutex
	pools map[service.Key]bool // that name one
	own   map[service.Key]bool // whose is Roundhouse's own
}

func (g *Gateway) newAsked(metrics prometheus.Registerer) (a *asked, err error) {
	a = &asked{traffic: g.traffic, pools: map[service.Key]bool{}, own: map[service.Key]bool{}}
	cfg := epp.DefaultConfig()
	cfg.Log = g.log
	if g.o.PickerTimeout > 0 {
		cfg.Timeout = g.o.PickerTimeout
	}
	if a.client, err = epp.New(cfg, metrics); err != nil {
		return nil, err
	}
	w := pools.DefaultServicesConfig()
	w.REST, w.Mapper, w.Namespaces, w.Addresses, w.Transform, w.Changed, w.Log = g.api, g.mapper, g.o.Namespaces, true, g.o.transform, a.changed, g.log
	if a.watch, err = pools.NewServices(w); err != nil {
		return nil, err
	}
	return a, nil
}

// external returns the endpoint picker of a pool's requests.
func (g *Gateway) external(p *routing.Pool) dispatch.External {
	if g.routes.pickers == nil {
		return dispatch.External{}
	}
	return g.routes.pickers.external(p)
}

func (a *asked) close() {
	a.watch.Close()
	a.client.Close()
}

// external is the picker to ask about a pool's requests. While nothing is known
// of one that is named, nothing else may stand in for it.
func (a *asked) external(p *routing.Pool) dispatch.External {
	e := p.Extension
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.Name == "" || a.own[p.Key] {
		return dispatch.External{}
	}
	return dispatch.External{Name: e.Name, FailOpen: e.FailureMode == routing.FailOpen}
}

// set replaces the pools.
func (a *asked) set(all []*routing.Pool) {
	named := map[service.Key]bool{}
	for _, p := range all {
		e := p.Extension
		switch {
		case pools.NamesService(p):
			named[p.Key] = true
		case e.Name != "":
			named[p.Key] = true
			_ = a.client.Set(p.Key, &epp.Target{Name: p.Namespace + "/" + e.Name, // the name is all that is used of it
				Problem: fmt.Sprintf("the pool's endpoint picker is a %s %s: only Services can be asked", e.Group+" "+e.Kind, e.Name)})
		}
	}
	a.mu.Lock()
	before := a.pools
	a.pools = named
	for k := range before {
		if !named[k] {
			delete(a.own, k)
		}
	}
	a.mu.Unlock()
	for k := range before {
		if !named[k] {
			_ = a.client.Set(k, nil)
		}
	}
	a.watch.Set(all)
}

// changed takes what is known of a pool's picker.
func (a *asked) changed(pool service.Key, s pools.ServiceState) {
	a.mu.Lock()
	there := a.pools[pool]
	if a.own[pool] = s.Own; !s.Own || !there {
		delete(a.own, pool)
	}
	a.mu.Unlock()
	if !there {
		return
	}
	var t *epp.Target
	if !s.Own {
		t = &epp.Target{Name: s.Name, Authority: s.Authority, Addresses: s.Addresses, Plain: s.Plain, Problem: s.Problem}
	}
	if err := a.client.Set(pool, t); err != nil {
		// A name that gRPC cannot take is a picker that cannot be asked.
		_ = a.client.Set(pool, nil)
	}
	a.traffic.PickerChanged(pool)
}

// Ask implements gateway.Picker.
func (a *asked) Ask(ctx context.Context, pool service.Key, r gateway.PickerRequest) (gateway.Picked, error) {
	v, err := a.client.Ask(ctx, pool, epp.Request{Method: r.Method, Scheme: r.Scheme, Authority: r.Host, Path: r.Target,
		Header: r.Header, Body: r.Body, Within: r.Within, Hold: r.Hold})
	var own *epp.Immediate
	if errors.As(err, &own) {
		return nil, &gateway.PickerRefusal{Status: own.Status, Header: own.Header, Body: own.Body}
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}
