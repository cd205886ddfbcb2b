package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/picker"
	"roundhouse.dev/roundhouse/internal/edge/endpoints"
	"roundhouse.dev/roundhouse/internal/edge/kvevents"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Traffic carries the fleet's facts to the request path: services as they
// come, and pools put together from the services they select and the servers
// at their addresses. The fleet calls it with its lock held, so it calls the
// fleet back only from Endpoints.
type Traffic struct {
	*dispatch.Dispatcher
	lookups *endpoints.Lookups
	// health checks the servers at the addresses of pools; nil: they are not
	// checked.
	health *endpoints.Health
	// scraping reads the endpoints' metrics; nil: they are not read.
	scraping  *scraping
	poolRoles bool // see TrafficConfig
	// degraded reports what is wrong with a pool's addresses. reporting is locked
	// meanwhile, so that reports arrive in the order of what they report.
	degraded  func(pool service.Key, now routing.Degradation)
	reporting sync.Mutex

	mu struct {
		sync.Mutex
		facts
		roles map[service.Key][]service.Role // that are pools of their own
	}
}

// facts are what is known of services and pools, of which the dispatcher's pools
// are put together. The lock is the Traffic's.
type facts struct {
	services map[service.Key]dispatch.PoolConfig
	pools    map[service.Key]*routing.Pool
	members  map[service.Key][]service.Key
	found    map[service.Key][]string          // endpoints of addresses, by pool
	health   map[service.Key]map[string]string // why each is not healthy, "" if it is; those not checked yet are left out
	lost     map[service.Key]string            // what is wrong with looking them up
	pods     map[service.Key][]replica.Replica
	public   bool                                  // see TrafficConfig.PublicOnly
	external func(*routing.Pool) dispatch.External // see TrafficConfig
	// scheduling is TrafficConfig's.
	scheduling service.Scheduling
}

// TrafficConfig is how a Traffic picks and whom it tells.
type TrafficConfig struct {
	// Demand starts and stops replicas; nil: all servers are started by others.
	Demand dispatch.Demand
	// Domain is what the hosts of services end in; "": the domain of this machine.
	Domain string
	// PublicOnly refuses the internal addresses that a pool names, whoever wrote
	// it: in a cluster, who writes manifests may not reach what the gateway can.
	PublicOnly bool
	// PoolRoles makes each role that another calls a pool of its own, so that those
	// requests are picked for and counted as others are.
	PoolRoles bool
	// External returns the endpoint picker that chooses for a pool's requests; nil:
	// none. It is called with a lock held, and must not call the Traffic.
	External func(*routing.Pool) dispatch.External
	// Lost is called with the id of each replica that could not be reached; nil:
	// nothing is.
	Lost func(id string)
	// Queue bounds what waits in each pool that has no bounds of its own; what is 0
	// is the dispatcher's default.
	Queue service.QueueBounds
	// Scheduling holds for each pool that does not state otherwise.
	Scheduling service.Scheduling
	// Sent is told which blocks of a prompt an endpoint began to answer; nil: nothing
	// is. It must neither block nor keep blocks.
	Sent func(endpoint string, blocks []uint64)
	Log  *slog.Logger
}

// NewTraffic makes the request path. Attach it before anything runs; the caller
// closes it.
func NewTraffic(cfg TrafficConfig) (*Traffic, error) {
	if cfg.Demand == nil {
		cfg.Demand = unscaled{}
	}
	of := dispatch.DefaultConfig()
	of.Domain, of.Lost, of.Sent = cfg.Domain, cfg.Lost, cfg.Sent
	of.MaxQueue, of.MaxWait = cmp.Or(cfg.Queue.MaxRequests, of.MaxQueue), cmp.Or(cfg.Queue.MaxWait, of.MaxWait)
	of.MaxQueueBytes = cmp.Or(cfg.Queue.MaxBytes, of.MaxQueueBytes)
	var t *Traffic // set before the first request
	of.Asked = func(r routing.Ref) { t.scraping.wake(r) }
	tokenizer := kvevents.NewTokenizer()
	of.Tokenize = tokenizer.Tokenize
	d, err := dispatch.New(of, cfg.Demand, dispatch.SystemClock{}, rand.IntN)
	if err != nil {
		return nil, err
	}
	t = newTraffic(d)
	t.poolRoles, t.mu.public, t.mu.external, t.mu.scheduling = cfg.PoolRoles, cfg.PublicOnly, cfg.External, cfg.Scheduling
	if t.scraping, err = newScraping(d, tokenizer, cfg.Log); err != nil {
		return nil, err
	}
	health := endpoints.DefaultHealthConfig()
	health.Changed = t.healthChanged
	if t.health, err = endpoints.NewHealth(health); err != nil {
		return nil, err
	}
	lookups := endpoints.DefaultConfig()
	lookups.Log, lookups.Refuse = cfg.Log, func(a netip.Addr) string { return t.mu.refuses(a) }
	if t.lookups, err = endpoints.New(lookups, t); err != nil {
		return nil, err
	}
	return t, nil
}

// unscaled is the demand of pools whose servers others start and stop.
type unscaled struct{}

var errUnscaled = errors.New("nothing can be started or stopped here: others run the servers of these pools")

func (unscaled) Wake(context.Context, string, int) error { return errUnscaled }
func (unscaled) Sleep(context.Context, string) error     { return errUnscaled }
func (unscaled) Report(string, autoscale.Demand)         {}

// PickerChanged asks TrafficConfig.External about a pool again.
func (t *Traffic) PickerChanged(pool service.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shared(func(k service.Key) bool { return k == pool })
}

// publishRoles publishes the pools of the roles that others of a service call, and of
// its explainer, and removes those of others; t.mu is held. f is the service's own.
func (t *Traffic) publishRoles(v *fleet.View, f *dispatch.PoolConfig) {
	var roles []service.Role
	if t.poolRoles {
		roles = slices.Clone(v.Called)
	}
	if v.Explainer != nil {
		roles = append(roles, service.RoleExplainer)
	}
	for _, role := range t.mu.roles[v.Key] {
		if !slices.Contains(roles, role) {
			t.Remove(routing.RolePool(v.Key, role))
		}
	}
	if t.mu.roles[v.Key] = roles; len(roles) == 0 {
		delete(t.mu.roles, v.Key)
	}
	for _, role := range roles {
		if role == service.RoleExplainer {
			t.SetPool(t.explainer(v, *f))
			continue
		}
		p := dispatch.PoolConfig{Key: routing.RolePool(v.Key, role).Key, Shared: true, Restarted: true, Protocol: v.Protocol, Created: v.Service.Created,
			Limits: service.Limits{AnswerTimeout: v.Limits.AnswerTimeout}}
		t.payloads(&p, v, role)
		for _, r := range v.Replicas {
			if r.Role == role {
				p.Replicas = append(p.Replicas, r)
			}
		}
		t.SetPool(p)
	}
}

// bounds are those of the queue of what has these limits.
func bounds(l service.Limits) routing.Bounds {
	return routing.Bounds{MaxQueue: l.Queue.MaxRequests, MaxQueueBytes: l.Queue.MaxBytes, MaxWait: l.Queue.MaxWait, Fairness: l.Queue.Fairness}
}

// schedule lays a pool's own settings over those of a scheduling.
func schedule(f *dispatch.PoolConfig, c *service.Scheduling) {
	if f.Picker.IsZero() {
		f.Picker = c.Picker
	}
	b := &f.Bounds
	b.MaxQueue, b.MaxQueueBytes = cmp.Or(b.MaxQueue, c.Queue.MaxRequests), cmp.Or(b.MaxQueueBytes, c.Queue.MaxBytes)
	b.MaxWait, b.MaxConcurrency = cmp.Or(b.MaxWait, c.Queue.MaxWait), cmp.Or(b.MaxConcurrency, c.MaxConcurrency)
	b.Saturation, b.PrefillTokens = cmp.Or(b.Saturation, c.Saturation), cmp.Or(b.PrefillTokens, c.PrefillTokens)
}

// explainer is the pool of a service's explainer: requests to it are the service's
// demand, and start it.
func (t *Traffic) explainer(v *fleet.View, of dispatch.PoolConfig) dispatch.PoolConfig {
	of.Entry, of.Needs, of.Protocols, of.Disaggregation, of.Limits = service.RoleExplainer, nil, nil, "", *v.Explainer
	p := dispatch.PoolConfig{Key: routing.RolePool(v.Key, service.RoleExplainer).Key, Shared: true, Protocol: v.Protocol, Created: v.Service.Created,
		ServedName: v.Key.Name, Limits: *v.Explainer, Bounds: bounds(*v.Explainer), Members: []dispatch.PoolConfig{of}}
	t.payloads(&p, v, service.RoleExplainer)
	return p
}

// payloads are what the gateway does with the payloads of a role's requests.
func (t *Traffic) payloads(p *dispatch.PoolConfig, v *fleet.View, role service.Role) {
	p.KeepBodies = v.Service.KeepBodies
	c := v.Service.Components.Get(role)
	if c == nil {
		return
	}
	p.Batcher = c.Batcher
	if c.Logger == nil {
		return
	}
	p.Logger = &dispatch.Logger{Logger: *c.Logger, Service: v.Key, Component: role}
	for _, name := range c.Logger.Annotations {
		if value, stated := v.Service.Annotations[name]; stated {
			if p.Logger.Annotated == nil {
				p.Logger.Annotated = map[string]string{}
			}
			p.Logger.Annotated[name] = value
		}
	}
}

// refuses returns why nothing is sent to an address; "" if something may be.
func (f *facts) refuses(a netip.Addr) string {
	if f.public && network.Internal(a) {
		return Refusal(a)
	}
	return ""
}

// PoolStatus keeps what is wrong with the addresses of a pool.
type PoolStatus interface {
	SetDegradation(pool service.Key, now routing.Degradation)
}

// Attach sets the keeper of the pools' status.
func (t *Traffic) Attach(s PoolStatus) { t.degraded = s.SetDegradation }

// Run keeps the addresses of pools up to date until ctx ends.
func (t *Traffic) Run(ctx context.Context) { t.lookups.Run(ctx) }

// Close ends what waits and what is scraped.
func (t *Traffic) Close() {
	t.Dispatcher.Close()
	t.health.Close()
	t.scraping.Close()
}

// Register registers what t counts.
func (t *Traffic) Register(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{t.scraping, t.scraping.events, t.scraping.tokenizer} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

func newTraffic(d *dispatch.Dispatcher) *Traffic {
	t := &Traffic{Dispatcher: d}
	t.mu.services, t.mu.pools = map[service.Key]dispatch.PoolConfig{}, map[service.Key]*routing.Pool{}
	t.mu.health, t.mu.lost = map[service.Key]map[string]string{}, map[service.Key]string{}
	t.mu.found, t.mu.pods = map[service.Key][]string{}, map[service.Key][]replica.Replica{}
	t.mu.roles = map[service.Key][]service.Role{}
	return t
}

// Publish implements fleet.Traffic.
func (t *Traffic) Publish(v fleet.View) {
	_, host, _ := strings.Cut(v.URL, "://")
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	f := dispatch.PoolConfig{Key: v.Key, CanaryPercent: v.CanaryPercent, Protocol: v.Protocol, Protocols: v.Protocols, Created: v.Service.Created, Host: host, Parent: v.Service.Parent, Lender: v.Host, Repository: v.Repository, Entry: v.Role,
		Needs: v.Needs, Disaggregation: v.Disaggregation, Limits: v.Limits,
		Bounds:   bounds(v.Limits),
		Adapters: adapters(v), Access: v.Access, Replicas: v.Replicas, Starting: v.Starting, Startup: v.Startup,
		Cause: dispatch.Cause{Reason: v.Reason, Message: v.Cause, Permanent: v.Blocked, RetryAfter: v.RetryAfter}}
	if len(v.Access.Names) > 0 {
		f.ServedName = v.Access.Names[0]
	}
	if c := v.Scheduling; c != nil {
		schedule(&f, c)
	}
	if v.Service.SharesPrefixes() && f.Picker.IsZero() {
		f.Picker.Preset = picker.SharedPrefixes
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.payloads(&f, &v, v.Role)
	t.mu.services[f.Key] = f
	t.SetPool(f)
	t.publishRoles(&v, &f)
	t.shared(func(k service.Key) bool { return slices.Contains(t.mu.members[k], f.Key) })
}

// Withdraw implements fleet.Traffic.
func (t *Traffic) Withdraw(k service.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.services, k)
	t.shared(func(pool service.Key) bool { return slices.Contains(t.mu.members[pool], k) })
	t.publishRoles(&fleet.View{Key: k}, nil)
	t.RemovePool(k)
}

// Route implements fleet.Routing.
func (t *Traffic) Route(v fleet.RoutingView) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.mu.pools
	t.mu.pools, t.mu.members = map[service.Key]*routing.Pool{}, v.Members
	var looked []*routing.Pool
	for _, o := range v.Objects {
		p, ok := o.(*routing.Pool)
		if !ok {
			continue
		}
		t.mu.pools[p.Key] = p
		if len(p.Addresses) > 0 {
			looked = append(looked, p)
		}
		if old := before[p.Key]; old == nil || !slices.Equal(old.Addresses, p.Addresses) {
			delete(t.mu.found, p.Key)
		}
	}
	// A pool is there before anything leads to it, and until nothing does.
	t.shared(func(service.Key) bool { return true })
	t.SetObjects(v.Objects)
	for k := range before {
		if t.mu.pools[k] == nil {
			t.ask(&routing.Pool{Meta: service.Meta{Key: k}}, nil)
			delete(t.mu.found, k)
			delete(t.mu.lost, k)
			delete(t.mu.pods, k)
			t.Remove(routing.PoolRef(k))
		}
	}
	t.lookups.Set(looked)
}

// Endpoints implements endpoints.Sink.
func (t *Traffic) Endpoints(pool service.Key, addresses []string, problem string) {
	t.mu.Lock()
	if t.mu.pools[pool] != nil {
		t.mu.found[pool], t.mu.lost[pool] = addresses, problem
		t.shared(func(k service.Key) bool { return k == pool })
	}
	t.mu.Unlock()
	t.report(pool)
}

// healthChanged records a result of the checks of a server: why it is not
// healthy, "" if it is.
func (t *Traffic) healthChanged(pool service.Key, address, why string) {
	t.mu.Lock()
	if t.mu.pools[pool] != nil {
		before := t.mu.health[pool][address]
		if t.mu.health[pool] == nil {
			t.mu.health[pool] = map[string]string{}
		}
		if t.mu.health[pool][address] = why; why != before { // the first good result changes no endpoint
			t.shared(func(k service.Key) bool { return k == pool })
		}
	}
	t.mu.Unlock()
	t.report(pool)
}

// report reports what is wrong with the addresses of a pool. t.mu is not held.
func (t *Traffic) report(pool service.Key) {
	t.reporting.Lock()
	defer t.reporting.Unlock()
	t.mu.Lock()
	now := t.mu.degradation(pool)
	t.mu.Unlock()
	t.degraded(pool, now)
}

// degradation returns what is wrong with the addresses of a pool: which cannot be
// looked up, which lead to servers that are not healthy, and whether that is not
// known yet.
func (f *facts) degradation(pool service.Key) routing.Degradation {
	p := f.pools[pool]
	out := routing.Degradation{Message: f.lost[pool]}
	found := f.found[pool]
	if p == nil || len(found) == 0 {
		out.Down = out.Message != ""
		out.Unchecked = p != nil && !out.Down
		return out
	}
	if p.Health.Disabled {
		return out
	}
	healthy, unchecked := 0, 0
	var ill []string
	for _, a := range found {
		switch why, checked := f.health[pool][a]; {
		case !checked:
			unchecked++
		case why == "":
			healthy++
		default:
			ill = append(ill, a+": "+why)
		}
	}
	out.Unchecked = healthy == 0 && unchecked > 0
	out.Down = healthy+unchecked == 0
	if len(ill) == 0 {
		return out
	}
	text := "no server is healthy"
	if !out.Down {
		are := "are"
		if len(ill) == 1 {
			are = "is"
		}
		text = fmt.Sprintf("%d of %d servers %s not healthy", len(ill), len(found), are)
	}
	if out.Message != "" {
		out.Message += "; "
	}
	out.Message += text + ": " + ill[0]
	return out
}

// ask has these servers of a pool checked, and forgets the results of others and
// of those that are checked in another way now; t.mu is held.
func (t *Traffic) ask(p *routing.Pool, addresses []string) {
	if t.health == nil {
		return
	}
	results := t.mu.health[p.Key]
	for _, a := range t.health.Set(p, addresses) {
		delete(results, a)
	}
	for a := range results {
		if p.Health.Disabled || !slices.Contains(addresses, a) {
			delete(results, a)
		}
	}
	if len(results) == 0 {
		delete(t.mu.health, p.Key)
	}
}

// Pods are the replicas of a pool that it has by the labels of pods, whoever
// started them: "namespace/pod:port".
func (t *Traffic) Pods(pool service.Key, replicas []replica.Replica) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.pools[pool] != nil {
		t.mu.pods[pool] = replicas
		t.shared(func(k service.Key) bool { return k == pool })
	}
}

// shared publishes the pools that match; t.mu is held.
func (t *Traffic) shared(match func(service.Key) bool) {
	for k, p := range maps.All(t.mu.pools) {
		if match(k) {
			t.ask(p, t.mu.addresses(p))
			t.SetPool(t.mu.compose(p))
		}
	}
}

// compose puts a pool together.
func (f *facts) compose(p *routing.Pool) dispatch.PoolConfig {
	out := dispatch.PoolConfig{Key: p.Key, Shared: true, Protocol: p.Protocol, Created: p.Created, Picker: p.Picker, Bounds: p.Bounds,
		Limits: service.Limits{AnswerTimeout: p.Bounds.AnswerTimeout}}
	schedule(&out, &f.scheduling)
	if p.Import && len(p.Addresses) == 0 {
		out.Cause = dispatch.Cause{Message: routing.ImportLacks}
	}
	if f.external != nil {
		out.External = f.external(p)
	}
	for _, k := range f.members[p.Key] {
		if m, ok := f.services[k]; ok {
			m.Limits.AnswerTimeout = cmp.Or(p.Bounds.AnswerTimeout, m.Limits.AnswerTimeout)
			out.Members = append(out.Members, m)
			if out.Protocol == "" {
				out.Protocol = m.Protocol
			}
		}
	}
	out.Replicas = append(out.Replicas, others(f.pods[p.Key], out.Members)...)
	ranks := service.DataParallel{Size: p.DataParallelSize, Local: p.DataParallelSize}
	for i := range out.Replicas {
		if r := &out.Replicas[i]; ranks.Size > 0 {
			r.DataParallel = ranks
		}
	}
	for _, a := range f.addresses(p) {
		// One server is one endpoint in all pools that have it.
		r := replica.Replica{ID: "address-" + a, Role: service.RoleEngine, Phase: replica.Ready, HTTP: a, DataParallel: ranks, Created: p.Created}
		if p.Protocol == service.ProtocolGRPCV2 {
			r.GRPC = a
		}
		if slices.Contains(p.Prefill, a) {
			r.Role = service.RolePrefill
		} else if slices.Contains(p.Encode, a) {
			r.Role = service.RoleEncode
		}
		if why := f.health[p.Key][a]; why != "" {
			r.Phase, r.Message = replica.Failed, a+": "+why
		}
		out.Replicas = append(out.Replicas, r)
	}
	return out
}

// addresses are the "ip:port" that a pool's addresses stand for, as far as is
// known.
func (f *facts) addresses(p *routing.Pool) []string {
	addresses, ok := f.found[p.Key]
	if !ok {
		for _, a := range endpoints.Literals(p.Addresses) { // names come as they are found
			if at, err := netip.ParseAddrPort(a); err == nil && f.refuses(at.Addr()) == "" {
				addresses = append(addresses, a)
			}
		}
	}
	return addresses
}

// others are the replicas by pods that no member has: a pod of a service of
// ours is its replica.
func others(pods []replica.Replica, members []dispatch.PoolConfig) (out []replica.Replica) {
	taken := map[string]bool{}
	for _, m := range members {
		for _, r := range m.Replicas {
			taken[r.ID] = true
		}
	}
	for _, r := range pods {
		if pod, _, _ := strings.Cut(r.ID, ":"); !taken[pod] {
			out = append(out, r)
		}
	}
	return out
}

func adapters(v fleet.View) []dispatch.Adapter {
	var out []dispatch.Adapter
	for _, a := range v.Adapters {
		out = append(out, dispatch.Adapter{Name: a.Name, URI: a.URI, ServedName: a.ServedName})
	}
	return out
}
