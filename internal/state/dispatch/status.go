package dispatch

import (
	"cmp"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// Status is a pool at one moment.
type Status struct {
	Pool  *PoolConfig // not to be changed
	Name  string      // the shortest name that routes to it
	State State
	// Adapter is the adapter that Name means, nil where it means the model.
	Adapter *Adapter
	// Message is what a pool that is not ready waits for.
	Message string
	// Fault is what is wrong with the pool's own policy or bounds, so that the
	// defaults hold; "" when nothing is.
	Fault string
	// Demand is the service's, through all pools; a shared pool's is its own.
	Demand   autoscale.Demand
	InFlight map[string]int // by replica ID, entry role only
	// Queue is what waits, by priority, the highest first.
	Queue []admission.Band
	// Saturation is that of the endpoint that has the most capacity; from 1 on
	// requests are held, and those that can be shed are.
	Saturation float64
	// Admission counts requests by what became of them, Counts other events.
	Admission admission.Counts
	Counts    Counts
}

// Answers reports whether a request will be answered, at once or after a wake.
func (s Status) Answers() bool { return s.State == StateReady || s.State == StateAsleep }

// Endpoint is a replica, or a server by its address, at one moment.
type Endpoint struct {
	ID       string           `json:"id"`
	Service  service.Key      `json:"service,omitzero"` // whose it is; zero when no service's
	Role     service.Role     `json:"role"`
	Phase    replica.Phase    `json:"phase"`
	Address  string           `json:"address,omitempty"`     // "host:port" of its HTTP surface
	GRPC     string           `json:"grpcAddress,omitempty"` // of its gRPC surface
	Protocol service.Protocol `json:"protocol,omitempty"`
	InFlight int              `json:"inFlight"`
	Limit    int              `json:"limit,omitempty"` // of InFlight; 0 for none
	// Tokens are the uncached prompt tokens it has yet to compute.
	Tokens int64 `json:"tokens"`
	// Open reports that a request may be sent there now, Ejected why its circuit
	// breaker lets none, or one, pass; "" when it lets all.
	Open    bool   `json:"open"`
	Ejected string `json:"ejected,omitempty"`
	// Message is what an endpoint that is not ready waits for.
	Message string `json:"message,omitempty"`
	// Load is what it last said of itself; nil when it never did.
	Load *replica.Load `json:"load,omitempty"`
	// Blocks are those of prompts that it is taken to hold.
	Blocks int `json:"blocks"`
}

// Snapshot is the state of one service's pool, named "namespace/name", now.
func (d *Dispatcher) Snapshot(name string) (Status, bool) {
	return d.Status(routing.Service(service.ParseKey(name)))
}

// Status is the state of one pool now.
func (d *Dispatcher) Status(r routing.Ref) (Status, bool) {
	v := d.view.Load()
	p := v.pools[r]
	if p == nil {
		return Status{}, false
	}
	return p.status(v.table()), true
}

// Pools is the state of every pool: services by namespace and name, then
// shared pools likewise.
func (d *Dispatcher) Pools() []Status {
	v := d.view.Load()
	out := make([]Status, 0, len(v.pools))
	for _, p := range v.sorted() {
		out = append(out, p.status(v.table()))
	}
	return out
}

// Endpoints are a pool's, of both roles.
func (d *Dispatcher) Endpoints(r routing.Ref) []Endpoint {
	p := d.view.Load().pools[r]
	if p == nil {
		return nil
	}
	return p.list(nil, map[string]bool{})
}

// AllEndpoints are those of all pools, each once.
func (d *Dispatcher) AllEndpoints() []Endpoint {
	var out []Endpoint
	seen := map[string]bool{}
	for _, p := range d.view.Load().sorted() {
		out = p.list(out, seen)
	}
	return out
}

func compareRefs(a, b routing.Ref) int {
	if a.Pool != b.Pool {
		if b.Pool {
			return -1
		}
		return 1
	}
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.WorkloadName(), b.WorkloadName()))
}

func (p *pool) status(t *route.Table) Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.d.clock.Now()
	s := Status{Pool: p.config, Demand: p.demand.demand(now), InFlight: make(map[string]int, len(p.entry.byID)),
		Fault: strings.Trim(p.badPolicy+"; "+p.badBounds, "; "), Queue: p.queue.Bands(), Saturation: p.saturation(nil, now), Admission: p.queue.Counts(), Counts: p.counts}
	if s.Name = t.Name(p.config.Key); p.ref.Pool {
		s.Name = p.config.Key.String()
	}
	s.State, s.Message = p.config.state()
	if s.State == StateAsleep && p.queue.Len() > 0 {
		s.State, s.Message = StateLoading, p.waitReason()
	}
	for _, x := range p.entry.slots {
		if x != nil {
			s.InFlight[x.endpoint.id] = int(x.endpoint.inFlight.Load())
		}
	}
	return s
}

// list appends the pool's endpoints that are not among seen.
func (p *pool) list(out []Endpoint, seen map[string]bool) []Endpoint {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range []*endpointSet{&p.entry, &p.prefill} {
		for n, x := range s.slots {
			if x == nil || seen[x.endpoint.id] {
				continue
			}
			seen[x.endpoint.id] = true
			s.refresh(x)
			ep := &s.input.Endpoints[n]
			e := Endpoint{ID: x.endpoint.id, Role: x.config.Entry, Phase: x.phase, Address: x.address, GRPC: x.grpc, Protocol: x.config.Protocol,
				InFlight: ep.InFlight, Limit: x.limit, Tokens: ep.Tokens, Open: ep.Open, Ejected: x.endpoint.breaker.ejected(), Message: x.message, Load: ep.Load}
			if !x.config.Shared {
				e.Service = x.config.Key
			}
			if s == &p.prefill {
				e.Role = x.config.Prefill
			}
			if s.index != nil {
				e.Blocks = s.index.Blocks(n)
			}
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Models is what requests can name, by name: services and their adapters, and
// the names that routing objects give, each with the state of the pool that most of its
// requests go to. A name that a routing object takes from a service is listed
// once, as the object's.
func (d *Dispatcher) Models() []Status { return d.ModelsWithin(nil) }

// ModelsWithin is what requests of some namespaces can name; none means all.
func (d *Dispatcher) ModelsWithin(namespaces []string) []Status {
	v := d.view.Load()
	table := v.within(namespaces, d.cfg.Domain)
	seen := map[string]bool{}
	var out []Status
	for _, n := range table.Names() {
		p := v.pools[n.Pool]
		if p == nil {
			continue
		}
		s := p.status(table)
		s.Name = n.Model
		seen[s.Name] = true
		out = append(out, s)
	}
	for _, p := range v.pools {
		if p.ref.Pool || !among(namespaces, p.ref.Key.Namespace) {
			continue
		}
		if s := p.status(table); !seen[s.Name] {
			out = append(out, s)
		}
	}
	for _, a := range table.Adapters() {
		p := v.pools[routing.Service(a.Service)]
		if p == nil || seen[a.Model] {
			continue
		}
		s := p.status(table)
		if s.Adapter = s.Pool.adapter(a.Name); s.Adapter != nil {
			s.Name = a.Model
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return out
}
