// Package fleet owns what is desired: the services, runtimes and models people
// applied, the revision pinned for each service, and the reconciler that makes
// a platform agree with them.
package fleet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/rollout"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Config is what a fleet needs to know. Platform, Store, Models and Traffic
// are required.
type Config struct {
	Platform Platform
	Store    Store
	Models   Models
	Traffic  Traffic
	// Routing is told of routing objects; nil tells nobody.
	Routing Routing
	// Catalog are the runtimes shipped with the product.
	Catalog []service.Runtime
	// URL is the address people reach a service at.
	URL func(service.Key) string
	// Fingerprint tells the files of a model from those that take their place
	// later; "" where they are not known, or never change. nil knows none.
	Fingerprint func(ctx context.Context, uri string) string
	// Cluster: replicas are pods.
	Cluster bool
	// Image is this program's own, for pods; see workload.Input.
	Image string
	// Report is told of a service after each reconcile, also one that the
	// platform refused something: the status says what. An error has the service
	// reconciled again, and so has a time after which it wants to be told again.
	// nil tells nobody.
	Report func(context.Context, ServiceState) (again time.Duration, err error)
	// Reconciled is told how long each reconcile of Run took and what it failed
	// with; nil tells nobody.
	Reconciled func(took time.Duration, err error)
	// Jitter is how long a try that is due after d waits; nil is up to a fifth
	// more, at random.
	Jitter func(d time.Duration) time.Duration
	Now    func() time.Time
	Log    *slog.Logger
}

// Validate names what is missing.
func (c Config) Validate() error {
	if c.Platform == nil || c.Store == nil || c.Models == nil || c.Traffic == nil {
		return errors.New("fleet: Platform, Store, Models and Traffic are required")
	}
	return nil
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
	// MadeFrom says whether a service's record was made from this document.
	MadeFrom(k service.Key, document []byte) bool
}

// Models reads what a model's files say of themselves.
type Models interface {
	// Inspect returns the attributes found at uri, with where each was found,
	// without fetching weights. An error says that the model is not there or
	// cannot be read; one with a method Busy() bool that says true, that too many
	// are looked at now.
	Inspect(ctx context.Context, uri string) (service.Attributes, error)
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
	// Disaggregation is how its prefill and decode replicas are brought
	// together.
	Disaggregation service.Disaggregation
	// Replicas are the service's, of every role.
	Replicas []replica.Replica
	// Adapters are the LoRA adapters that the replicas have.
	Adapters []workload.Adapter
	// CanaryPercent is how much of the traffic goes to the service's canary,
	// which is published by itself under Key.Canary().
	CanaryPercent int
	// Reason and Cause say why nothing is ready, in a word and in words for
	// the caller of a request.
	Reason, Cause string
	// Blocked: waiting will not help until somebody changes something.
	Blocked bool
	// RetryAfter is when it may be worth to ask again although Blocked; 0 where
	// nothing is known of that.
	RetryAfter time.Duration
	// Starting is how far a replica is that Replicas does not have yet.
	Starting string
}

// Record is the durable decision about one service.
type Record struct {
	Service service.Key `json:"service"`
	// Selection hashes what the runtime was chosen for; while it stays, so
	// does the choice.
	Selection string            `json:"selection"`
	Revision  workload.Revision `json:"revision"`
	// Proven says that a canary's replica has been ready once.
	Proven bool `json:"proven,omitempty"`
	// Inputs hashes the objects that the revision was made from, by ID; nil in
	// records of versions that did not note them.
	Inputs map[string]string `json:"inputs,omitempty"`
}

// Fleet is safe for concurrent use.
type Fleet struct {
	cfg      Config
	queue    *queue
	routes   *Routes
	resolver *resolver

	mu struct {
		sync.Mutex
		services map[service.Key]*entry
	}
}

// entry is all that is known of one service. Fleet.mu guards it; a reconcile
// works on a copy and stores what it found.
type entry struct {
	object     Object
	generation int64
	record     *Record
	// stale: the inputs changed since the record was made.
	stale, reselect bool
	// applied: the platform has the record's revision. drifted: somebody else
	// changed what it made of it.
	applied, drifted bool
	// failure is why the present inputs cannot be run, nil when they can.
	failure *service.Failure
	roles   map[service.Role]*roleState
	wake    int
	asleep  bool // put to sleep by hand until the next request
	deleted bool
	status  service.Status
	usage   map[service.Role]*usage
	retry   retry
	canary  rollout.Canary // how far it has come, if it is one
	files   string         // fingerprint of its model's as first seen, or as its replicas serve them
	// unplaced is since when no place takes its replicas; zero while one does.
	unplaced time.Time
	// lastReplica is the newest there has been, for its logs.
	lastReplica string
}

// retry is when inputs that could not be resolved are looked at again unless
// they change.
type retry struct {
	at    time.Time
	tries int // in a row that failed
}

// roleState carries the autoscaler from step to step.
type roleState struct {
	state    autoscale.State
	decision autoscale.Decision
	scaled   int // last count given to the platform; -1 before the first
	// external is the count where somebody else sets it; nil where the fleet does.
	external *int
}

// New makes a fleet. Call Restore before Run.
func New(cfg Config) (*Fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Reconciled == nil {
		cfg.Reconciled = func(time.Duration, error) {}
	}
	if cfg.Jitter == nil {
		cfg.Jitter = spread
	}
	if cfg.URL == nil {
		cfg.URL = func(service.Key) string { return "" }
	}
	f := &Fleet{cfg: cfg, queue: newQueue(), routes: NewRoutes(cfg.Routing, cfg.Now), resolver: newResolver(&cfg)}
	f.mu.services = map[service.Key]*entry{}
	return f, nil
}

// Restore loads what the store holds and hands every pinned revision back to
// the platform, which adopts the replicas that still match. It stores nothing.
// What the platform holds and nobody wants any more is removed. Unreadable
// objects are reported in the error; everything else is restored all the same.
func (f *Fleet) Restore(ctx context.Context) error {
	objects, records, err := f.cfg.Store.Load()
	errs := []error{err}
	pinned := map[service.Key]*Record{}
	for i := range records {
		pinned[records[i].Service] = &records[i]
	}
	f.mu.Lock()
	for _, o := range objects {
		switch {
		case o.Service != nil:
			e := newEntry(o)
			e.record = pinned[o.Key]
			f.mu.services[o.Key] = e
		case o.Runtime != nil, o.Model != nil:
			f.resolver.put(o)
		case o.Routing != nil:
			f.routes.put(o)
		}
	}
	forgotten := f.restoreCanaries(pinned)
	for _, k := range slices.SortedFunc(maps.Keys(f.mu.services), func(a, b service.Key) int { return strings.Compare(a.String(), b.String()) }) {
		e := f.mu.services[k]
		e.stale = f.outdated(ctx, k, e)
		if e.record != nil {
			err := f.cfg.Platform.Apply(ctx, e.record.Revision)
			e.applied = err == nil
			errs = append(errs, err)
		}
		f.cfg.Traffic.Publish(f.view(f.workOn(k, e))) // requests wait from now on
		f.queue.add(k)
	}
	f.publishRoutes()
	f.mu.Unlock()
	for _, k := range forgotten {
		errs = append(errs, f.cfg.Store.DeleteRecord(k))
	}
	held, err := f.cfg.Platform.Services(ctx)
	errs = append(errs, err)
	for _, k := range held {
		if f.entry(k) == nil {
			errs = append(errs, f.cfg.Platform.Remove(ctx, k))
		}
	}
	return errors.Join(errs...)
}

func newEntry(o Object) *entry {
	return &entry{object: o, generation: 1, stale: true,
		roles: map[service.Role]*roleState{}, usage: map[service.Role]*usage{}}
}

func (f *Fleet) entry(k service.Key) *entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.services[k]
}

// Wake asks for at least n replicas of a service; it is remembered, so it may
// come before the service's first reconcile. The gateway calls it.
func (f *Fleet) Wake(_ context.Context, k service.Key, n int) error {
	f.mu.Lock()
	e := f.mu.services[k]
	if e != nil {
		e.wake, e.asleep = max(e.wake, n), false
	}
	f.mu.Unlock()
	if e == nil {
		return errNotFound("service", k)
	}
	f.queue.add(k)
	return nil
}

// Sleep ends a service's replicas until the next request or Wake.
func (f *Fleet) Sleep(_ context.Context, k service.Key) error {
	f.mu.Lock()
	e := f.mu.services[k]
	for _, k := range []service.Key{k, k.Canary()} {
		if e := f.mu.services[k]; e != nil {
			e.wake, e.asleep = 0, true
			f.queue.add(k)
		}
	}
	f.mu.Unlock()
	if e == nil {
		return errNotFound("service", k)
	}
	return nil
}

// Demanded says that a service's demand grew; it is looked at again at once.
func (f *Fleet) Demanded(k service.Key) { f.queue.add(k) }

// Run reconciles until ctx ends: what is queued, what the platform says has
// changed, and what asked to be looked at again. workers run at once; one
// service is never reconciled twice at a time.
func (f *Fleet) Run(ctx context.Context, workers int) {
	loop{queue: f.queue, changed: f.cfg.Platform.Changed(), jitter: f.cfg.Jitter, log: f.cfg.Log,
		reconcile: func(ctx context.Context, k service.Key) (time.Duration, error) {
			began := time.Now()
			again, err := f.Reconcile(ctx, k)
			if ctx.Err() == nil {
				f.cfg.Reconciled(time.Since(began), err)
			}
			return again, err
		}}.run(ctx, workers)
}

// busyAfter is when a model is asked for again that could not be for others.
const busyAfter = time.Second

// maxRetryAfter is how far retryAfter grows for inputs that cannot be resolved:
// looking at them may itself take long.
const maxRetryAfter = time.Minute
