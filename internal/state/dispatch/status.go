package dispatch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/admission"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
	"roundhouse.dev/roundhouse/internal/decide/picker"
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
	// Latency is how well predictions of latency have held.
	Latency Latency
}

// Answers reports whether a request will be answered, at once or after a wake.
func (s Status) Answers() bool { return s.State == StateReady || s.State == StateAsleep }

// Endpoint is a replica, or a server by its address, at one moment.
type Endpoint struct {
	ID string `json:"id"`
	// Replica is the ID of the replica that it is, or whose data-parallel rank it is.
	Replica  string           `json:"replica"`
	Service  service.Key      `json:"service,omitzero"` // whose it is; zero when no service's
	Role     service.Role     `json:"role"`
	Phase    replica.Phase    `json:"phase"`
	Address  string           `json:"address,omitempty"`     // "host:port" of its HTTP surface
	GRPC     string           `json:"grpcAddress,omitempty"` // of its gRPC surface
	Rank     string           `json:"rank,omitempty"`        // that requests name at Address; "" for none
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
	// Record is what became of the requests that this process sent there.
	Record Record `json:"record,omitzero"`
}

// Record is what became of the requests that were sent to an endpoint.
type Record struct {
	// Results count them: answered, and refused, busy, failed, lost and silent as the
	// circuit breaker calls them. An answer that was broken off counts as answered and
	// as lost.
	Results map[string]uint64 `json:"results,omitempty"`
	// FirstBytes is how many answers began, and Seconds the sum of how long each took
	// to.
	FirstBytes uint64  `json:"firstBytes,omitempty"`
	Seconds    float64 `json:"seconds,omitempty"`
}

// Latency is the mean time to the beginning of an answer; 0 without one.
func (r Record) Latency() time.Duration {
	if r.FirstBytes == 0 {
		return 0
	}
	return time.Duration(r.Seconds / float64(r.FirstBytes) * float64(time.Second))
}

// Failures is how many requests it did not answer, or not to the end.
func (r Record) Failures() (n uint64) {
	for result, of := range r.Results {
		if result != breaker.Answered.String() && result != breaker.Refused.String() {
			n += of
		}
	}
	return n
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
	return listEndpoints(p)
}

// AllEndpoints are those of all pools, each once.
func (d *Dispatcher) AllEndpoints() []Endpoint {
	return listEndpoints(d.view.Load().sorted()...)
}

// listEndpoints lists the pools' endpoints by ID, each once.
func listEndpoints(pools ...*pool) (out []Endpoint) {
	seen := map[string]bool{}
	for _, p := range pools {
		p.mu.Lock()
		out = p.list(out, seen)
		p.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b Endpoint) int { return strings.Compare(a.ID, b.ID) })
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

// Explanation is what would become of a request now, and why.
type Explanation struct {
	// Route is which objects lead to Pool.
	Route string `json:"route"`
	Pool  string `json:"pool"`
	State State  `json:"state"` // the pool's
	// External is which endpoint picker is asked about such a request: Pick is
	// then what the dispatcher would do by itself; "" for none.
	External string `json:"external,omitempty"`
	// Model is the name the replica would be given; "" leaves the request's.
	Model    string `json:"model,omitempty"`
	Priority int32  `json:"priority"`
	// Handling is what the route does with the request besides, a line each.
	Handling []string `json:"handling,omitempty"`
	// Decision and Because are admission's; Refused is why a request would be
	// refused before admission.
	Decision admission.Decision `json:"decision"`
	Because  admission.Reason   `json:"because,omitempty"`
	Refused  string             `json:"refused,omitempty"`
	// Queued requests wait; at a Saturation of 1 those that can be shed are.
	Queued     int     `json:"queued"`
	Saturation float64 `json:"saturation"`
	// Pick is the choice of an endpoint, Prefill that of one to compute the
	// prompt; nil when it does not come to that.
	Pick    *Pick `json:"pick,omitempty"`
	Prefill *Pick `json:"prefill,omitempty"`
	// Encoders are the addresses of those that would compute the request's pictures,
	// sounds and videos, in the order of these; none where nobody else does.
	Encoders []string `json:"encoders,omitempty"`
}

// Pick is one choice of an endpoint.
type Pick struct {
	Replica string `json:"replica,omitempty"` // "" when none was chosen
	Address string `json:"address,omitempty"`
	Reason  string `json:"reason"`
	// Uncached is how many of the prompt's tokens are new to it, estimated.
	Uncached int64 `json:"uncached"`
	// Table is what filters and scorers say of the endpoints, a line each.
	Table []string `json:"table"`
}

// Explain returns what Admit would do with the request now. Nothing is reserved,
// nobody woken. Where weights decide, it draws anew like any request. Errors
// are those of package route, or an *Error.
func (d *Dispatcher) Explain(r Request) (Explanation, error) {
	_, p, t, err := d.route(&r)
	if err != nil {
		return Explanation{}, err
	}
	g := p.grant(&r, t)
	defer func() { scratch.Put(g.hash) }()
	x := Explanation{Route: t.Why(), Pool: p.id, Priority: t.Priority, Model: t.Model, Handling: append(g.explainHandling(), explainTarget(&r, t.Latency)...)}

	p.mu.Lock()
	defer p.mu.Unlock()
	now := d.clock.Now()
	c := p.config.Load()
	if t.Named {
		x.Model = c.ServedName
	}
	x.State, _ = c.state()
	x.External = c.External.String()
	x.Queued, x.Saturation = p.queue.Len(), p.entry.saturation(p.queue.Config(), nil, now)
	if err := p.checkAdmissible(g); err != nil {
		x.Decision, x.Refused = admission.Shed, err.Error()
		return x, nil
	}
	g.waiter.Deadline, g.pace.arrived = r.Deadline, now
	s := p.queue.state(g, now)
	s.Available = true
	x.Decision, x.Because = p.queue.Judge(&g.waiter, s, now)
	if x.Decision != admission.Admit {
		return x, nil
	}
	p.entry.prepare(g, nil, now)
	var choice picker.Choice
	x.Pick = p.entry.explain(&choice)
	if choice.Outcome == picker.Dropped {
		x.Decision, x.Because = admission.Shed, admission.Saturated
		return x, nil
	}
	s.Late = choice.Late
	if s.Available = choice.Outcome == picker.Picked; !s.Available || s.Late {
		x.Decision, x.Because = p.queue.Judge(&g.waiter, s, now)
		return x, nil
	}
	part := p.entry.slots[choice.Slot].config
	if p.wantPrefill(part, choice.Uncached) {
		g.subset = nil
		p.prefill.prepare(g, nil, now)
		x.Prefill = p.prefill.explain(&picker.Choice{})
	}
	for _, e := range p.chooseEncoders(g, part) {
		x.Encoders = append(x.Encoders, e.address)
	}
	return x, nil
}

// String is the explanation in lines for people.
func (x Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "route: %s\npool: %s (%s)\n", x.Route, x.Pool, x.State)
	if x.External != "" {
		fmt.Fprintf(&b, "endpoint picker: %s is asked, and not for this explanation; what the gateway would do by itself:\n", x.External)
	}
	if x.Model != "" {
		fmt.Fprintf(&b, "model for the replica: %s\n", x.Model)
	}
	for _, line := range x.Handling {
		fmt.Fprintln(&b, line)
	}
	fmt.Fprintf(&b, "admission: %s", x.Decision)
	if x.Because != "" {
		fmt.Fprintf(&b, ", %s", x.Because)
	}
	fmt.Fprintf(&b, "; priority %d, %d waiting, saturation %.2f\n", x.Priority, x.Queued, x.Saturation)
	if x.Refused != "" {
		fmt.Fprintf(&b, "refused: %s\n", x.Refused)
	}
	x.Pick.write(&b, "replica")
	x.Prefill.write(&b, "prefill")
	if len(x.Encoders) > 0 {
		fmt.Fprintf(&b, "encoders: %s\n", strings.Join(x.Encoders, ", "))
	}
	return b.String()
}

func (p *Pick) write(b *strings.Builder, what string) {
	if p == nil {
		return
	}
	chosen := "none"
	if p.Replica != "" {
		chosen = p.Replica + " " + p.Address
	}
	fmt.Fprintf(b, "%s: %s (%s)\n", what, chosen, p.Reason)
	for _, line := range p.Table {
		fmt.Fprintf(b, "  %s\n", line)
	}
}
