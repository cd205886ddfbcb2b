package fleet

import (
	"context"
	"io"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Platform runs replicas: processes on one machine, pods on a cluster. One
// conformance suite (package platformtest) holds every implementation to this
// contract. Every method is safe for concurrent use.
type Platform interface {
	// Host tells what can run here, and answers what it is asked. Without
	// questions it is cheap enough to call per selection; with some it may run
	// programs, within a bounded time.
	Host(ctx context.Context, ask ...selection.Check) (selection.Host, error)
	// Apply makes r the revision of its service. It starts nothing by itself
	// and never writes a count: a role new to the platform has count 0, a
	// known one keeps its count, and replicas of an older revision are
	// replaced (new ones ready first, where resources allow). Applying the
	// same revision again changes nothing. Roles that r no longer has go. While
	// none of r has become ready, replicas of r.Before are started again where
	// they ended, a returning owner's too.
	Apply(ctx context.Context, r workload.Revision) error
	// Scale sets the wanted count of one role. When replicas must go, victims
	// go first. It returns when the change is under way, not when it is done.
	Scale(ctx context.Context, ref workload.Ref, n int, victims []string) error
	// Remove ends everything of a service and forgets it. Removing what is
	// not there is no error.
	Remove(ctx context.Context, k service.Key) error
	// Observe returns the service's replicas from a cache, oldest first.
	Observe(ctx context.Context, k service.Key) ([]replica.Replica, error)
	// Services lists what the platform holds, so that a returning owner can
	// remove what is no longer wanted.
	Services(ctx context.Context) ([]service.Key, error)
	// Logs opens a replica's output. The caller closes it.
	Logs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error)
	// Changed carries the key of a service whose replicas changed. Keys are
	// coalesced: a slow reader loses repetitions, never the last change.
	Changed() <-chan service.Key
}

// Sleeper is a Platform whose replicas can be put to sleep: they run on, hold no
// accelerator, and take no requests.
type Sleeper interface {
	// Sleep is Scale to zero, but ready replicas of the present revision whose
	// engines can are put to sleep at a level. Those that sleep already stay so.
	// Scale wakes them before it starts others, and ends those that are too many.
	Sleep(ctx context.Context, ref workload.Ref, level int) error
	// Memory is main memory in bytes; 0 where it is not known.
	Memory() (available, total int64)
	// Swap is swap in bytes, and why processes cannot be moved there; "" where they
	// can.
	Swap() (free, total int64, why string)
}

// LogOptions select the part of a replica's output.
type LogOptions struct {
	Follow   bool
	Tail     int  // last lines; 0 means all that is kept
	Previous bool // of the process before the present one
}

// Changes hands out the keys of changed services, as Platform.Changed wants
// them: each at most once while it waits, so that its queue is bounded by the
// number of services and a slow reader delays nobody. It is safe for concurrent
// use.
type Changes struct {
	out  chan service.Key
	stop chan struct{}
	wake chan struct{} // capacity 1
	once sync.Once

	mu struct {
		sync.Mutex
		waiting map[service.Key]bool
		order   []service.Key
	}
}

// NewChanges makes one that must be closed.
func NewChanges() *Changes {
	c := &Changes{out: make(chan service.Key), stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	c.mu.waiting = map[service.Key]bool{}
	go c.run()
	return c
}

// Add notes that a service changed. It never blocks.
func (c *Changes) Add(k service.Key) {
	c.mu.Lock()
	if !c.mu.waiting[k] {
		c.mu.waiting[k] = true
		c.mu.order = append(c.mu.order, k)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Changed carries the keys.
func (c *Changes) Changed() <-chan service.Key { return c.out }

// Close ends the handing out. Calls after the first do nothing.
func (c *Changes) Close() { c.once.Do(func() { close(c.stop) }) }

func (c *Changes) next() (service.Key, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.order) == 0 {
		return service.Key{}, false
	}
	k := c.mu.order[0]
	c.mu.order = c.mu.order[1:]
	// Forgotten before it is read: a change from now on is another one.
	delete(c.mu.waiting, k)
	return k, true
}

func (c *Changes) run() {
	for {
		k, ok := c.next()
		if !ok {
			select {
			case <-c.wake:
				continue
			case <-c.stop:
				return
			}
		}
		select {
		case c.out <- k:
		case <-c.stop:
			return
		}
	}
}

// Store keeps what must survive a restart. Writes are atomic: a crash leaves
// the old or the new value.
type Store interface {
	PutObject(Object) error
	DeleteObject(ID) error
	PutRecord(Record) error
	DeleteRecord(service.Key) error
	// Load returns all of both. An object that cannot be read any more is
	// reported in the error and left out; the rest is still returned.
	Load() ([]Object, []Record, error)
}

// Made is a Store that knows what its records were made from.
type Made interface {
	// MadeFrom reports whether a service's record was made from this document.
	MadeFrom(k service.Key, document []byte) bool
}

// Models reads models' attributes from their files.
type Models interface {
	// Inspect returns the attributes of files, with where each was found,
	// without fetching weights. It returns an error if the model is not there
	// or cannot be read; the error has a method Busy() bool that returns true
	// if too many are inspected now.
	Inspect(ctx context.Context, f service.Files) (service.Attributes, error)
}

// Publisher is told where requests may go.
type Publisher interface {
	Publish(View)
	Withdraw(service.Key)
}

// Traffic is the live side: it is told where requests may go and tells what
// is asked for.
// The fleet may hold its lock while it calls Publish: a Traffic does not call
// back from there.
type Traffic interface {
	Publisher
	Demand(service.Key) autoscale.Demand
	InFlight(replicaID string) int
}

// Signals measure what components scale on besides requests. They answer at once,
// with what was read last, and keep reading for as long as they are asked.
type Signals interface {
	// Load is what a replica's engine last told; nil where nothing is known.
	Load(k service.Key, replicaID string) *replica.Load
	// Use is what a replica takes of its limits; nil where nothing is known.
	Use(k service.Key, replicaID string) *replica.Use
	// External is the last answer to a query for a service.
	External(service.Key, service.ExternalMetric) autoscale.Reading
}

// View is what the request path needs to know of one service.
type View struct {
	// Key is the service's, or its canary's.
	Key      service.Key
	Service  *service.Service
	Protocol service.Protocol
	// Protocols are all that its replicas speak; none where that is not known.
	Protocols []service.Protocol
	URL       string
	Limits    service.Limits
	// Role is the one that traffic enters through.
	Role service.Role
	// Needs are the roles that replicas of Role call by themselves.
	Needs []service.Role
	// Called are all roles that others of the service call.
	Called []service.Role
	// Explainer has the limits of the role that answers calls for explanations; nil
	// where Role does.
	Explainer *service.Limits
	// Disaggregation is how its prefill and decode replicas are brought
	// together.
	Disaggregation service.Disaggregation
	// Replicas are the service's, of every role.
	Replicas []replica.Replica
	// Host is the service whose replicas they are, where those load the model beside
	// others; zero for none. What is asked of the service is asked of its host.
	Host service.Key
	// Repository: the replicas have no model of the service's own, and load those of
	// other services.
	Repository bool
	// Adapters are the LoRA adapters that the replicas have.
	Adapters []workload.Adapter
	// Access is how requests reach the service, besides by its name and its URL.
	Access service.Access
	// Scheduling is how requests find a replica; nil leaves it to the gateway.
	Scheduling *service.Scheduling
	// CanaryPercent is how much of the traffic goes to the service's canary,
	// which is published by itself under Key.Canary().
	CanaryPercent int
	// Reason and Cause are why nothing is ready, in a word and as a message for
	// the caller of a request.
	Reason, Cause string
	// Blocked: waiting will not help until somebody changes something.
	Blocked bool
	// RetryAfter is when it may be worth to ask again although Blocked; 0 where
	// nothing is known of that.
	RetryAfter time.Duration
	// Starting is how far a replica is that Replicas does not have yet.
	Starting string
	// Startup is how long a start of Role usually takes; 0 where none was seen.
	Startup time.Duration
}

// Measured is the most memory that a replica was seen to use, in bytes.
type Measured struct {
	Revision  string `json:"revision"` // its hash
	Memory    int64  `json:"memory"`
	GPUMemory int64  `json:"gpuMemory,omitempty"`
}

// Record is the durable decision about one service.
type Record struct {
	Service service.Key `json:"service"`
	// Selection hashes what the runtime was chosen for; while it stays, so
	// does the choice.
	Selection string            `json:"selection"`
	Revision  workload.Revision `json:"revision"`
	// WasReady reports whether a canary's replica has been ready once.
	WasReady bool `json:"proven,omitempty"`
	// Inputs hashes the objects that the revision was made from, by ID; nil in
	// records of versions that did not note them.
	Inputs map[string]string `json:"inputs,omitempty"`
	// Learned is what each role has shown of its startup and service times.
	Learned map[service.Role]autoscale.Learned `json:"learned,omitempty"`
	// Measured is what a replica of each role was seen to use, on one machine.
	Measured map[service.Role]Measured `json:"measured,omitempty"`
}
