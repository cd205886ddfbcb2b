package pools

import (
	"context"
	"sync"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/gatewayapi"
)

// Ports are ports of Kubernetes Services that manifests name, and what is known of them.
// Each is a pool (routing.ServicePool) of the pods behind it. They are safe for concurrent
// use.
type Ports struct {
	watch   *Services
	changed func(pool service.Key, before, now ServiceState)

	mu     sync.Mutex
	states map[service.Key]ServiceState
}

// NewPorts returns a watch of no ports; Close ends it. changed receives, as Changed of the
// configuration would, what is known of those that are named; nil is nobody.
func NewPorts(cfg ServicesConfig, changed func(pool service.Key, before, now ServiceState)) (p *Ports, err error) {
	p = &Ports{changed: changed, states: map[service.Key]ServiceState{}}
	cfg.Changed = p.put
	p.watch, err = NewServices(cfg)
	return p, err
}

// Close ends all watches and waits for them.
func (p *Ports) Close() { p.watch.Close() }

// Set replaces the ports. What is known of them already is reported before it returns.
func (p *Ports) Set(all []gatewayapi.ServicePort) {
	p.mu.Lock()
	before := p.states
	p.states = make(map[service.Key]ServiceState, len(all))
	named := make([]*routing.Pool, len(all))
	for i, at := range all {
		k := routing.ServicePool(at.Key, at.Port).Key
		p.states[k] = before[k]
		named[i] = &routing.Pool{Meta: service.Meta{Key: k}, Extension: routing.Extension{Name: at.Name, Port: at.Port}}
	}
	p.mu.Unlock()
	p.watch.Set(named)
}

// Listed waits until each of them is known.
func (p *Ports) Listed(ctx context.Context) error { return p.watch.Listed(ctx) }

// State is what is known of a port; the zero state while nothing is.
func (p *Ports) State(at gatewayapi.ServicePort) ServiceState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.states[routing.ServicePool(at.Key, at.Port).Key]
}

// Judged is what routes are judged by.
func (p *Ports) Judged(at gatewayapi.ServicePort) gatewayapi.Service { return p.State(at).Judged() }

// Judged is what routes to the Service are judged by.
func (s ServiceState) Judged() gatewayapi.Service {
	return gatewayapi.Service{Problem: s.Problem, AppProtocol: s.AppProtocol}
}

// put takes what is known of a port.
func (p *Ports) put(pool service.Key, now ServiceState) {
	p.mu.Lock()
	before, named := p.states[pool]
	if named {
		p.states[pool] = now
	}
	p.mu.Unlock()
	if named && p.changed != nil {
		p.changed(pool, before, now)
	}
}
