package dispatch

import (
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// Pool is what is known of one service: facts that the owner of the services
// and the platform tell, replaced as a whole by SetPool.
type Pool struct {
	Key      service.Key
	Protocol service.Protocol
	Created  time.Time
	// Host is the host of the service's URL; "" means route.Host.
	Host string
	// ServedName is the model's name at the replicas; "" means Key.Name.
	ServedName string
	// OpenAIPrefix goes before "/v1" in the paths of the replicas' OpenAI
	// surface ("/openai" for KServe's own servers).
	OpenAIPrefix string
	// Entry is the role that takes requests; "" means the engine.
	Entry service.Role
	// Limits are the entry role's.
	Limits service.Limits
	// Replicas are the service's, of every role. SetPool keeps the slice: the
	// caller must not change it any more.
	Replicas []replica.Replica
	// Cause says what is wrong with the service as a whole.
	Cause Cause
}

// Cause is why a service does not serve.
type Cause struct {
	Reason  string // one CamelCase word
	Message string // one line a person can act on
	// Permanent: nothing will change unless a person acts, so nobody waits.
	Permanent bool
}

// EntryRole is the role that takes a service's requests: the router of a
// disaggregated service, else the transformer, else the engine.
func EntryRole(c service.Components) service.Role {
	for _, r := range []service.Role{service.RoleRouter, service.RoleTransformer} {
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

// Status is a pool at one moment.
type Status struct {
	Pool  *Pool  // not to be changed
	Name  string // the shortest name that routes to it
	State State
	// Message says what a pool that is not ready waits for.
	Message  string
	Demand   autoscale.Demand
	InFlight map[string]int // by replica ID, entry role only
}

// Answers says whether a request will be answered, at once or after a wake.
func (s Status) Answers() bool { return s.State == StateReady || s.State == StateAsleep }

// state derives the pool's state and what to say about it.
func (f *Pool) state() (State, string) {
	var starting, failed *replica.Replica
	for i := range f.Replicas {
		r := &f.Replicas[i]
		switch {
		case r.Role != f.Entry || !r.Alive():
		case r.Serving():
			return StateReady, ""
		case r.Phase == replica.Failed:
			failed = r
		case starting == nil:
			starting = r
		}
	}
	switch {
	case f.Cause.Permanent:
		return StateFailed, f.Cause.text()
	case starting != nil:
		return StateLoading, phaseText(starting)
	case failed != nil:
		return StateFailed, phaseText(failed)
	case f.Cause.Message != "":
		return StateFailed, f.Cause.text()
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
