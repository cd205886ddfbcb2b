package sim

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/endpoints"
	"roundhouse.dev/roundhouse/internal/edge/scrape"
	"roundhouse.dev/roundhouse/internal/edge/simulate"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// This file has routes with weights, pools that several services share, and pools of
// servers that others run, by name.

// RoutePlan is a Route whose requests several targets share.
type RoutePlan struct {
	Name    string
	Targets []TargetPlan
}

// TargetPlan is a service or a pool, and its weight.
type TargetPlan struct {
	Service, Pool string
	Weight        int
}

// PoolPlan is a Pool of the services whose PoolPlan it is, and of a host.
type PoolPlan struct {
	Name string
	Host string // of servers that others run; "" for none
}

// routing is the manifests of a plan's pools and routes.
func (p *Plan) routing() string {
	var b strings.Builder
	for _, x := range p.Pools {
		fmt.Fprintf(&b, "---\napiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: %s}\nspec:\n  protocol: openAI\n", x.Name)
		if x.Host == "" {
			fmt.Fprintf(&b, "  selector: {pool: %s}\n", x.Name)
		} else {
			fmt.Fprintf(&b, "  addresses: [\"%s:8000\"]\n", x.Host)
		}
	}
	for _, x := range p.Routes {
		fmt.Fprintf(&b, "---\napiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: %s}\nspec:\n  targets:\n", x.Name)
		for _, t := range x.Targets {
			kind, name := "service", t.Service
			if t.Pool != "" {
				kind, name = "pool", t.Pool
			}
			fmt.Fprintf(&b, "  - {%s: %s, weight: %d}\n", kind, name, t.Weight)
		}
	}
	return b.String()
}

// pools puts the pools of a gateway together of the services that they select and the
// servers of their hosts, as cmd/internal/front does. Servers' health is not asked.
type pools struct {
	mu       sync.Mutex
	services map[service.Key]dispatch.PoolConfig
	pools    map[service.Key]*routing.Pool
	members  map[service.Key][]service.Key
	found    map[service.Key][]string
	lookups  *endpoints.Lookups
	end      context.CancelFunc
	asked    map[string]time.Time // when each host was, last
	answered map[string]lookup    // what was last found
}

// lookup is an answer to a look-up.
type lookup struct {
	at        time.Time
	addresses []string
}

// newPools begins to look names up, for as long as the gateway lives.
func newPools(g *gateway) (*pools, error) {
	p := &pools{services: map[service.Key]dispatch.PoolConfig{}, found: map[service.Key][]string{}, asked: map[string]time.Time{}, answered: map[string]lookup{}}
	cfg := endpoints.DefaultConfig()
	cfg.Resolver, cfg.Random = resolver{g, p}, func() float64 { return 0 }
	var err error
	if p.lookups, err = endpoints.New(cfg, sink{g}); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.end = cancel
	go p.lookups.Run(ctx)
	return p, nil
}

// publish sets the pools that match. The lock is held.
func (p *pools) publish(g *gateway, match func(k service.Key) bool) {
	for _, k := range slices.SortedFunc(maps.Keys(p.pools), func(a, b service.Key) int { return strings.Compare(a.Name, b.Name) }) {
		if !match(k) {
			continue
		}
		x := p.pools[k]
		var targets []scrape.Target
		out := dispatch.PoolConfig{Key: k, Shared: true, Protocol: x.Protocol, Created: x.Created, Picker: x.Picker, Bounds: x.Bounds}
		for _, m := range p.members[k] {
			if f, there := p.services[m]; there {
				out.Members = append(out.Members, f)
			}
		}
		for _, a := range p.found[k] {
			out.Replicas = append(out.Replicas, replica.Replica{ID: "address-" + a, Role: service.RoleEngine, Phase: replica.Ready, HTTP: a, Created: x.Created})
			targets = append(targets, scrape.Target{ID: "address-" + a, URL: "http://" + a, Engine: "vllm"})
		}
		g.dispatcher.SetPool(out)
		if err := g.scraper.SetPool(out.Ref().String(), targets); err != nil {
			g.world.violate("scrape", k, err.Error())
		}
	}
}

func (p *pools) set(g *gateway, f dispatch.PoolConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.services[f.Key] = f
	g.dispatcher.SetPool(f)
	p.publish(g, func(k service.Key) bool { return slices.Contains(p.members[k], f.Key) })
}

func (p *pools) route(g *gateway, v fleet.RoutingView) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools, p.members = map[service.Key]*routing.Pool{}, v.Members
	var looked []*routing.Pool
	for _, o := range v.Objects {
		if x, ok := o.(*routing.Pool); ok {
			if p.pools[x.Key] = x; len(x.Addresses) > 0 {
				looked = append(looked, x)
			}
		}
	}
	p.publish(g, func(service.Key) bool { return true })
	g.dispatcher.SetObjects(v.Objects)
	p.lookups.Set(looked)
}

// sink is told of the addresses of pools.
type sink struct{ g *gateway }

func (s sink) Endpoints(pool service.Key, addresses []string, _ string) {
	p := s.g.pools
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pools[pool] != nil && !s.g.dead.Load() {
		p.found[pool] = addresses
		p.publish(s.g, func(k service.Key) bool { return k == pool })
	}
}

// names are the hosts of a world, and what is wrong with each.
type names struct {
	mu    sync.Mutex
	hosts map[string]*host
}

type host struct {
	addresses []string
	trouble   string // "", "fails", "nothing" or "hangs"
	rng       *rand.Rand
}

// resolver is the endpoints.Resolver of a gateway.
type resolver struct {
	g *gateway
	p *pools
}

func (r resolver) LookupNetIP(ctx context.Context, _, name string) (out []netip.Addr, err error) {
	n := &r.g.world.names
	n.mu.Lock()
	h := n.hosts[name]
	takes := time.Duration(1_000_000 + h.rng.IntN(20_000_000))
	n.mu.Unlock()
	r.p.mu.Lock()
	r.p.asked[name] = time.Now()
	r.p.mu.Unlock()
	pause(takes, ofPools+r.g.place)
	n.mu.Lock()
	trouble, addresses := h.trouble, slices.Clone(h.addresses)
	n.mu.Unlock()
	switch trouble {
	case "fails":
		return nil, &net.DNSError{Err: "server misbehaving", Name: name, IsTemporary: true}
	case "nothing":
		return nil, nil
	case "hangs":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, a := range addresses {
		out = append(out, netip.MustParseAddr(a))
	}
	r.p.mu.Lock()
	r.p.answered[name] = lookup{time.Now(), addresses}
	r.p.mu.Unlock()
	return out, nil
}

// serve has servers that others run behind the hosts of a plan: two more of each than
// it answers with at first.
func (w *world) serve() {
	w.names.hosts = map[string]*host{}
	for i, x := range w.plan.Pools {
		if x.Host == "" {
			continue
		}
		h := &host{rng: rand.New(rand.NewPCG(w.plan.Seed, 0x646e7300+uint64(i)))}
		for j := range 4 {
			ip := fmt.Sprintf("10.9.%d.%d", i, 1+j)
			if w.outside = append(w.outside, w.machine.outside(ip)); j < 2 {
				h.addresses = append(h.addresses, ip)
			}
		}
		w.names.hosts[x.Host] = h
	}
}

// outside is a server that others run, at an address.
func (m *machine) outside(ip string) (id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.number++
	u := &unit{machine: m, owner: &owner{}, number: m.number, calls: map[uint64]*call{}, begun: time.Now(), engine: simulate.NewScheduler(physics()),
		view: replica.Replica{ID: "address-" + ip + ":8000", Phase: replica.Ready, HTTP: ip + ":8000"}}
	m.units[u.view.ID] = u
	return u.view.ID
}

// away has a server of a host refuse connections for a while.
func (f *FaultPlan) away(w *world, rng *rand.Rand) {
	id := w.outside[rng.IntN(len(w.outside))]
	f.lasting(w, func(on bool) {
		w.machine.locked(func() {
			u := w.machine.units[id]
			if u.stopEngine(); !on {
				u.begun, u.engine = time.Now(), simulate.NewScheduler(physics())
			}
		})
	})
}

// flap has a name fail for a while, answer nothing, or take long, and then perhaps
// stand for other servers.
func (f *FaultPlan) flap(w *world, rng *rand.Rand) {
	var hosts []string
	for _, x := range w.plan.Pools {
		if x.Host != "" {
			hosts = append(hosts, x.Host)
		}
	}
	h := w.names.hosts[hosts[rng.IntN(len(hosts))]]
	trouble := []string{"", "fails", "nothing", "hangs"}[rng.IntN(4)]
	w.names.mu.Lock()
	defer w.names.mu.Unlock()
	h.trouble = trouble
	prefix := h.addresses[0][:strings.LastIndexByte(h.addresses[0], '.')+1]
	from, n := rng.IntN(4), 1+rng.IntN(3)
	w.loop.after(f.For, func() {
		w.names.mu.Lock()
		defer w.names.mu.Unlock()
		h.trouble, h.addresses = "", nil
		for i := range n {
			h.addresses = append(h.addresses, fmt.Sprintf("%s%d", prefix, 1+(from+i)%4))
		}
		w.trace("a name stands for %v", h.addresses)
	})
}

// led counts the requests of each route by where they went.
func (w *watch) led(c *call) {
	if w.shares[c.user.Route] == nil {
		w.shares[c.user.Route] = map[string]int{}
	}
	w.shares[c.user.Route][c.pool.Name]++
}

// routes looks at what the targets of routes got, and at the servers of pools.
func (w *watch) routes(now time.Time, on map[string]int) {
	for _, r := range w.world.plan.Routes {
		n, total := 0, 0
		for _, got := range w.shares[r.Name] {
			n += got
		}
		for _, t := range r.Targets {
			total += t.Weight
		}
		for _, t := range r.Targets {
			p := float64(t.Weight) / float64(total)
			got := w.shares[r.Name][t.Service+t.Pool]
			if math.Abs(float64(got)-float64(n)*p) > 6*math.Sqrt(float64(n)*p*(1-p))+1 {
				w.violate("a route splits by weight", service.Key{Namespace: "default", Name: r.Name}, "%s got %d of %d requests, and has %d of %d of the weight", t.Service+t.Pool, got, n, t.Weight, total)
			}
		}
	}
	for _, id := range w.world.outside {
		if n := w.world.inFlight(id); n != on[id] {
			w.violate("reservations add up", service.Key{}, "server %s has %d requests, and the dispatcher counts %d", id, on[id], n)
		}
	}
	for _, g := range w.world.gateways {
		if g.dead.Load() || g.pools == nil {
			continue
		}
		for _, x := range w.world.plan.Pools {
			w.shared(g, service.Key{Namespace: "default", Name: x.Name}, now)
			if x.Host != "" && now.Sub(w.world.begun) > time.Minute {
				w.named(g, x, now)
			}
		}
	}
}

// shared looks for requests that wait for a pool of which a replica does nothing.
func (w *watch) shared(g *gateway, k service.Key, now time.Time) {
	waiting, idle := 0, ""
	for _, c := range w.world.calls.asking {
		if c.over == "" && c.gateway == g && c.pool == k {
			waiting++
		}
	}
	if waiting > 0 {
		for _, e := range g.dispatcher.Endpoints(routing.PoolRef(k)) {
			if e.Phase == replica.Ready && e.Open && e.Ejected == "" && g.dispatcher.InFlight(e.ID) == 0 {
				idle = e.ID
			}
		}
	}
	at := g.name + k.Name
	switch since := w.idles[at]; {
	case idle == "":
		delete(w.idles, at)
	case since.IsZero():
		w.idles[at] = now
	case now.Sub(since) > settled:
		w.violate("no waiter starves", k, "%d requests wait for a pool beside %s, which has none, for %v", waiting, idle, now.Sub(since))
	}
}

// named looks at the servers that a name stands for.
func (w *watch) named(g *gateway, x PoolPlan, now time.Time) {
	k := service.Key{Namespace: "default", Name: x.Name}
	g.pools.mu.Lock()
	asked, last := g.pools.asked[x.Host], g.pools.answered[x.Host]
	g.pools.mu.Unlock()
	if d := now.Sub(asked); d > 40*time.Second && now.Sub(w.restart) > time.Minute {
		w.violate("names keep their servers", k, "%s was last asked for %v ago", x.Host, d)
	}
	if last.at.IsZero() || now.Sub(last.at) < settled || now.Sub(w.restart) < settled {
		return
	}
	var has []string
	for _, e := range g.dispatcher.Endpoints(routing.PoolRef(k)) {
		has = append(has, strings.TrimSuffix(e.Address, ":8000"))
	}
	slices.Sort(has)
	if want := slices.Sorted(slices.Values(last.addresses)); !slices.Equal(has, want) {
		w.violate("names keep their servers", k, "%s stood for %v %v ago, and the pool has %v", x.Host, want, now.Sub(last.at), has)
	}
}

// attribute has each service of a plan with routes count the requests that the
// dispatcher counts for it: those that wait for a pool may be any member's. In all
// they are those that wait.
func (w *watch) attribute(now time.Time) {
	waiting, queued := 0, 0
	for _, c := range w.world.calls.open {
		if !c.gateway.dead.Load() && c.grant == nil {
			waiting++
		}
	}
	for _, g := range w.world.gateways {
		if g.dead.Load() {
			continue
		}
		for _, s := range g.dispatcher.Pools() {
			for _, b := range s.Queue {
				queued += b.Queued
			}
		}
	}
	if waiting != queued {
		w.violate("reservations add up", service.Key{}, "%d requests wait, and %d in the queues of pools", waiting, queued)
	}
	for _, k := range w.keys {
		s := w.services[k]
		if s == nil || s.plan == nil {
			continue
		}
		d, canary := w.world.demand(k), w.world.demand(k.Canary())
		d.Queued, d.Running, d.Arrived = d.Queued+canary.Queued, d.Running+canary.Running, d.Arrived+canary.Arrived
		s.waiting, s.free = d.Queued, d.Queued
		if n := d.Queued + d.Running; n != s.open || d.Arrived != s.arrived {
			s.open, s.arrived, s.lastUse = n, d.Arrived, now
			s.touched.Store(true)
			s.peaks = append(slices.DeleteFunc(s.peaks, func(p peak) bool { return p.open <= n }), peak{now, n})
		}
	}
}
