package dispatch

import (
	"math"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// PoolConfig is what is known of one pool, as the owner of the services, the
// platform and the routing objects tell it, replaced as a whole by SetPool. A
// service is a pool of its own replicas. A shared pool is made of Members, and
// of servers that no service owns.
type PoolConfig struct {
	Key      service.Key
	Protocol service.Protocol
	// Protocols are all that a service's replicas speak: requests of others
	// wake nobody. None where that is not known, and of shared pools.
	Protocols []service.Protocol
	Created   time.Time
	// Host is the host of the service's URL; "" means route.Host.
	Host string
	// ServedName is the model's name at the replicas; "" means Key.Name for a
	// service, and for a shared pool the name in the request.
	ServedName string
	// OpenAIPrefix goes before "/v1" in the paths of the replicas' OpenAI
	// surface ("/openai" for KServe's own servers).
	OpenAIPrefix string
	// Entry is the role that takes requests; "" means the engine.
	Entry service.Role
	// Prefill is the role that computes prompts for Entry; "" when Entry does
	// that itself, and for decoders the engine.
	Prefill service.Role
	// Disaggregation is how Prefill's replicas and Entry's are brought
	// together; "" means by header. With SGLang's no replica answers without
	// the other kind.
	Disaggregation service.Disaggregation
	// Needs are the roles that Entry's replicas call by themselves, as a
	// transformer does its predictor. Without a ready replica of each, Entry's
	// are starting; without any, they are as good as none, and a request wakes
	// the service.
	Needs []service.Role
	// Parent is the service at whose host requests may name this one; "" for none.
	Parent string
	// Lender is the service whose Replicas a service has: demand for it is demand for
	// that. It is the zero key of a service with replicas of its own.
	Lender service.Key
	// Repository: the service has no model of its own, but those whose Parent it is.
	Repository bool
	// Limits are the entry role's.
	Limits service.Limits
	// Replicas are the service's, of every role. Those of a shared pool are
	// servers that run already, by their addresses: of the entry role, unless theirs
	// is to compute prompts or pictures for those.
	// SetPool keeps the slice: the caller must not change it any more.
	Replicas []replica.Replica
	// Adapters are the LoRA adapters that a service's replicas have, which
	// requests can name as they do models.
	Adapters []Adapter
	// Access is how requests reach a service, besides by its name and its host.
	Access service.Access
	// CanaryPercent of the requests for a service go to the pool of its canary,
	// Key.Canary(), if there is one.
	CanaryPercent int
	// Cause is what is wrong with the service as a whole.
	Cause Cause
	// Starting is how far a replica is that is not seen from here yet, as a pod
	// that has no address; "" for none.
	Starting string
	// Startup is how long a start of an entry replica usually takes, from its
	// process's start to ready; 0 where no start has been seen.
	Startup time.Duration

	// KeepBodies is how much of the bodies of requests and answers may be kept; 0 for
	// nothing. Logger and Batcher are what the gateway does with them; nil for nothing.
	KeepBodies int
	Logger     *Logger
	Batcher    *service.Batcher

	// Shared reports that this is no service. Its Members are the configurations of the
	// services whose replicas it takes, each with those replicas it takes.
	// What is in flight on a replica counts in every pool that has it, and the
	// demand is its service's; while nothing is ready the first member that
	// can start is woken.
	Shared  bool
	Members []PoolConfig
	// Restarted reports that somebody starts the Replicas of a shared pool again when
	// they end, so that requests wait for them.
	Restarted bool
	// Picker is how an endpoint is chosen, Bounds what replaces the
	// Config's; zero values leave the defaults.
	Picker routing.Picker
	Bounds routing.Bounds
	// External is asked where requests go, by those that can ask
	// (Request.Asker); its zero value is nobody.
	External External
}

// Logger is where copies of a pool's requests and answers go, and what they say of
// themselves.
type Logger struct {
	service.Logger
	Service   service.Key
	Component service.Role
	// Annotated are the service's annotations that go along.
	Annotated map[string]string
}

// Ref is what the pool is routed to by.
func (f *PoolConfig) Ref() routing.Ref { return routing.Ref{Pool: f.Shared, Key: f.Key} }

// owner is the service whose the replicas are, and which is woken for more.
func (f *PoolConfig) owner() service.Key {
	if f.Lender != (service.Key{}) {
		return f.Lender
	}
	return f.Key
}

// id names the pool: "namespace/name" of a service, "pool namespace/name" of a
// shared one.
func id(r routing.Ref) string {
	if r.Pool {
		return r.String()
	}
	return r.Key.String()
}

// setDefaults puts what unset fields mean in their place.
func (f *PoolConfig) setDefaults() {
	if f.Entry == "" {
		f.Entry = service.RoleEngine
	}
	if f.Entry == service.RoleDecoder && f.Prefill == "" {
		f.Prefill = service.RoleEngine
	}
	if f.Prefill == "" {
		f.Disaggregation = "" // a router brings the replicas together
	}
	if f.Shared {
		if slices.ContainsFunc(f.Replicas, func(r replica.Replica) bool { return r.Role == service.RolePrefill }) {
			f.Prefill = service.RolePrefill
		}
		f.Members = slices.Clone(f.Members)
		for i := range f.Members {
			f.Members[i].Shared = false
			f.Members[i].setDefaults()
		}
		return
	}
	if f.ServedName == "" {
		f.ServedName = f.Key.Name
	}
	f.waitForPrefill()
	f.waitForNeeds()
}

// waitForPrefill has replicas that cannot answer alone wait for one that computes
// prompts: they are still starting until one is ready.
func (f *PoolConfig) waitForPrefill() {
	if f.Disaggregation != service.DisaggregationSGLang || f.Prefill == "" ||
		slices.ContainsFunc(f.Replicas, func(r replica.Replica) bool { return r.Role == f.Prefill && r.Serving() }) {
		return
	}
	f.Replicas = slices.Clone(f.Replicas)
	for i := range f.Replicas {
		if r := &f.Replicas[i]; r.Role == f.Entry && r.Serving() {
			r.Phase, r.Message = replica.Starting, "no replica that computes prompts is ready"
		}
	}
}

// waitForNeeds has replicas that only pass requests on wait for those they pass them
// to: nothing wakes those for a call that does not come through here.
func (f *PoolConfig) waitForNeeds() {
	phase, message := replica.Ready, ""
	for _, role := range f.Needs {
		alive, serving := false, false
		for i := range f.Replicas {
			if r := &f.Replicas[i]; r.Role == role {
				alive, serving = alive || r.Alive(), serving || r.Serving()
			}
		}
		switch {
		case !alive:
			phase, message = replica.Draining, "there is no "+string(role)
		case !serving && phase == replica.Ready:
			phase, message = replica.Starting, "no "+string(role)+" is ready"
		}
	}
	if phase == replica.Ready {
		return
	}
	f.Replicas = slices.Clone(f.Replicas)
	for i := range f.Replicas {
		if r := &f.Replicas[i]; r.Role == f.Entry && (r.Serving() || r.Alive() && phase == replica.Draining) {
			r.Phase, r.Message = phase, message
		}
	}
}

// configs iterates over the configurations that the pool's replicas belong to: a
// service's own, a shared pool's members and itself.
func (f *PoolConfig) configs(yield func(*PoolConfig) bool) {
	for i := range f.Members {
		if f.Shared && !yield(&f.Members[i]) {
			return
		}
	}
	yield(f)
}

// refusal is the error of a request that the pool neither serves nor queues, with
// the earliest time at which one of its services is started again.
func (f *PoolConfig) refusal(pool, why string) *Error {
	err := unavailable(pool, why, nil)
	for m := range f.configs {
		if after := m.Cause.RetryAfter; after > 0 && (err.RetryAfter == 0 || after < err.RetryAfter) {
			err.RetryAfter = after
		}
	}
	return err
}

// scalable is the service that more replicas are asked of: the pool's own, or
// the first member that can start and has fewer than it may, or else the first
// that can start; nil when none can.
func (f *PoolConfig) scalable() (first *PoolConfig) {
	for m := range f.configs {
		if m.Shared || m.Cause.Permanent {
			continue
		}
		if !f.Shared || m.replicaCount() < max(1, m.Limits.Max) {
			return m
		}
		if first == nil {
			first = m
		}
	}
	return first
}

// replicasFor is how many replicas so many waiting requests call for, at least 1.
func (f *PoolConfig) replicasFor(waiting int) int {
	n := 1
	if t := f.Limits.Target; t > 0 {
		n = int(math.Ceil(float64(waiting) / t))
	}
	return max(1, min(n, f.Limits.Max))
}

// replicaCount is how many replicas serve or will, of the entry role.
func (f *PoolConfig) replicaCount() (n int) {
	for i := range f.Replicas {
		if r := &f.Replicas[i]; f.roleOf(r) == f.Entry && r.Alive() {
			n++
		}
	}
	return n
}

// roleOf is a replica's in the pool.
func (f *PoolConfig) roleOf(r *replica.Replica) service.Role {
	if f.Shared && r.Role != service.RolePrefill && r.Role != service.RoleEncode {
		return f.Entry
	}
	return r.Role
}

// unavailableReason returns why waiting makes no sense while nothing is ready.
func (f *PoolConfig) unavailableReason() string {
	for m := range f.configs {
		if !m.Shared && m.Cause.Permanent {
			return m.Cause.text()
		}
	}
	if text := f.Cause.text(); text != "" {
		return text
	}
	for i := range f.Replicas {
		if r := &f.Replicas[i]; f.Shared && r.Phase == replica.Failed && r.Message != "" {
			return "no server is healthy: " + r.Message
		}
	}
	return "the pool has no endpoint, and no service that can start one"
}

// Cause is why a service does not serve.
type Cause struct {
	Reason  string // one CamelCase word
	Message string // one line a person can act on
	// Permanent: nothing will change unless a person acts, so nobody waits.
	Permanent bool
	// RetryAfter is when it may be worth to ask again all the same; 0 where
	// nothing is known of that.
	RetryAfter time.Duration
}

// EntryRole is the role that takes a service's requests: the router of a
// disaggregated service, else the transformer, else the decoder, else the
// engine.
func EntryRole(c service.Components) service.Role {
	for _, r := range []service.Role{service.RoleRouter, service.RoleTransformer, service.RoleDecoder} {
		if c.Get(r) != nil {
			return r
		}
	}
	return service.RoleEngine
}

// State is a pool's condition in one word.
type State string

// The states of a pool.
const (
	StateReady   State = "Ready"   // a replica is ready
	StateLoading State = "Loading" // a replica is on its way
	StateAsleep  State = "Asleep"  // no replica; a request starts one
	StateFailed  State = "Failed"  // no replica is ready and something is wrong
)

// state derives the pool's state and what to say about it.
func (f *PoolConfig) state() (State, string) {
	var starting, failed *replica.Replica
	for m := range f.configs {
		for i := range m.Replicas {
			r := &m.Replicas[i]
			switch {
			case m.roleOf(r) != m.Entry || !r.Alive():
			case r.Serving():
				return StateReady, ""
			case r.Phase == replica.Failed:
				failed = r
			case starting == nil:
				starting = r
			}
		}
	}
	start := f.scalable()
	switch {
	case start == nil && (starting == nil || !f.Shared):
		return StateFailed, f.unavailableReason()
	case starting != nil:
		text := phaseText(starting)
		if start != nil && start.Cause.Message != "" && !strings.Contains(text, start.Cause.Message) {
			text += "; " + start.Cause.text() // in a cluster a replica does not say itself
		}
		return StateLoading, text
	case failed != nil:
		return StateFailed, phaseText(failed)
	case start.Cause.Message != "":
		return StateFailed, start.Cause.text()
	case start.Starting != "":
		return StateLoading, start.Starting
	default:
		return StateAsleep, "asleep: the next request starts it"
	}
}

func (c Cause) text() string {
	switch {
	case c.Message == "":
		return c.Reason
	case c.Reason == "":
		return c.Message
	default:
		return c.Reason + ": " + c.Message
	}
}

func phaseText(r *replica.Replica) string {
	s := string(r.Phase)
	if r.Message != "" {
		return s + ": " + r.Message
	}
	if r.Reason != "" {
		return s + ": " + r.Reason
	}
	return s
}

// Adapter is a LoRA adapter of a service.
type Adapter struct {
	Name string // of the model in requests
	URI  string
	// ServedName is the model's name at the replicas; "" means Name.
	ServedName string
}

// adapterNames are the names of the adapters.
func (f *PoolConfig) adapterNames() []string {
	var out []string
	for _, a := range f.Adapters {
		out = append(out, a.Name)
	}
	return out
}

// served are the replicas' own names of the model and its adapters, where they
// answer every other name by the model without an adapter: that an adapter has
// another name there is the sign of it.
func (f *PoolConfig) served() (names []string) {
	for _, a := range f.Adapters {
		if a.ServedName != "" && a.ServedName != a.Name {
			names = append(names, a.ServedName)
		}
	}
	if len(names) > 0 {
		names = append(names, f.ServedName)
	}
	return names
}

// adapter is the one of a name, nil for none.
func (f *PoolConfig) adapter(name string) *Adapter {
	for i := range f.Adapters {
		if f.Adapters[i].Name == name {
			return &f.Adapters[i]
		}
	}
	return nil
}
