// Package fleet owns what is desired: the services, runtimes and models people
// applied, the revision pinned for each service, and the reconciler that makes
// a platform agree with them.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/metering"
)

// Config is what a fleet needs to know. Platform, Store, Models and Traffic
// are required.
type Config struct {
	Platform Platform
	Store    Store
	Models   Models
	Traffic  Traffic
	// Signals measure what components scale on besides requests; nil measures
	// nothing.
	Signals Signals
	// Routing is told of routing objects; nil tells nobody.
	Routing Routing
	// Catalog are the runtimes shipped with the product.
	Catalog []service.Runtime
	// URL is the address people reach a service or an inference graph at.
	URL func(service.Key) string
	// Fingerprint tells the files of a model from those that take their place
	// later; "" where they are not known, or never change. nil knows none.
	Fingerprint func(ctx context.Context, f service.Files) string
	// Cluster: replicas are pods.
	Cluster bool
	// Image is this program's own, for pods; see workload.Input.
	Image string
	// Delivery is how pods get their models; see workload.Input.
	Delivery workload.Delivery
	// Installation is the namespace of a cluster's controller, which tells the copies that
	// it has nodes keep from those of others.
	Installation string
	// Usage measures what replicas use; nil measures it for the status alone.
	Usage *metering.Meter
	// Report is called with a service after each reconcile, also one in which
	// the platform refused something, which is in the status. An error has the
	// service reconciled again; so does a time after which it is to be called
	// again. nil: nothing is called.
	Report func(context.Context, ServiceState) (again time.Duration, err error)
	// Forgot is told of each deleted service after its replicas have ended; nil tells
	// nobody.
	Forgot func(service.Key)
	// Applied is told what Apply and Delete have done with runtimes, models and benchmarks;
	// it does not call back. nil tells nobody.
	Applied func([]Change)
	// Routed is told of all objects of routing whenever one or its status may have
	// changed, in order: it does not call back. nil tells nobody.
	Routed func([]RoutingState)
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

// Fleet keeps what is desired and has it reconciled. It is safe for concurrent
// use.
type Fleet struct {
	cfg        Config
	services   *services
	routes     *Routes
	resolver   *resolver
	reconciler *reconciler
	// over is the fleet that a draft is one of; nil for others.
	over *Fleet
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
	if cfg.Forgot == nil {
		cfg.Forgot = func(service.Key) {}
	}
	if cfg.Applied == nil {
		cfg.Applied = func([]Change) {}
	}
	if cfg.Jitter == nil {
		cfg.Jitter = spread
	}
	if cfg.Usage == nil {
		cfg.Usage = metering.New(metering.Config{Now: cfg.Now, Log: cfg.Log})
	}
	if cfg.URL == nil {
		cfg.URL = func(service.Key) string { return "" }
	}
	f := &Fleet{cfg: cfg, services: newServices(cfg.Now), routes: NewRoutes(cfg.Routing, cfg.Now), resolver: newResolver(&cfg)}
	f.routes.heard, f.routes.url = cfg.Routed, cfg.URL
	f.reconciler = &reconciler{&cfg, f.resolver, f.services, newResidents(&cfg, f.services)}
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
	f.services.mu.Lock()
	for _, o := range objects {
		switch {
		case o.Service != nil:
			e := newEntry(o)
			e.record = pinned[o.Key]
			f.services.mu.entries[o.Key] = e
			f.services.bringUpLocked(o)
		case o.Runtime != nil, o.Model != nil, o.Base != nil, o.Accelerator != nil, o.ConfigMap != nil, o.Benchmark != nil, o.ModelCache != nil, o.NodeGroup != nil, o.StorageContainer != nil, o.Secret != nil, o.Account != nil:
			f.resolver.put(o)
		case o.Routing != nil:
			f.routes.put(o)
		}
	}
	unwanted := f.services.restoreCanariesLocked(pinned)
	for _, k := range slices.SortedFunc(maps.Keys(f.services.mu.entries), func(a, b service.Key) int { return strings.Compare(a.String(), b.String()) }) {
		e := f.services.mu.entries[k]
		e.object = f.resolver.laid(e.object)
		e.stale = f.resolver.outdated(ctx, k, e)
		if e.record != nil {
			err := f.cfg.Platform.Apply(ctx, e.record.Revision)
			e.applied = err == nil
			errs = append(errs, err)
		}
		f.cfg.Traffic.Publish(f.services.workLocked(k, e).view(&f.cfg)) // requests wait from now on
		f.services.queue.add(k)
	}
	f.routes.publish(f.services.membersLocked())
	wanted := maps.Clone(f.services.mu.entries)
	f.services.mu.Unlock()
	for _, k := range unwanted {
		errs = append(errs, f.cfg.Store.DeleteRecord(k))
	}
	present, err := f.cfg.Platform.Services(ctx)
	errs = append(errs, err)
	for _, k := range present {
		if wanted[k] == nil {
			errs = append(errs, f.cfg.Platform.Remove(ctx, k))
		}
	}
	return errors.Join(errs...)
}

// Wake asks for at least n replicas of a service; it is remembered, so it may
// come before the service's first reconcile. The gateway calls it.
func (f *Fleet) Wake(_ context.Context, k service.Key, n int) error {
	k = f.services.hostOf(k)
	if !f.services.change(k, func(e *entry) { e.wake, e.asleep, e.evicted = max(e.wake, n), false, "" }) {
		return errNotFound("service", k)
	}
	return nil
}

// Sleep ends a service's replicas until the next request or Wake.
func (f *Fleet) Sleep(_ context.Context, k service.Key) error {
	if host := f.services.hostOf(k); host != k {
		return fmt.Errorf("%s has no replicas of its own to end: those of %s load it", k, host)
	}
	sleep := func(e *entry) { e.wake, e.asleep = 0, true }
	f.services.change(k.Canary(), sleep)
	if !f.services.change(k, sleep) {
		return errNotFound("service", k)
	}
	return nil
}

// Demanded has a service reconciled at once: its demand grew.
func (f *Fleet) Demanded(k service.Key) { f.services.queue.add(k) }

// Reconcile makes the platform agree with what is desired of one service:
// resolve the revision if its inputs changed, apply it, tell the request path
// where its replicas are, and set their number. It returns when to reconcile
// again; 0 waits for a change. Only one Reconcile of a key may run at a
// time.
func (f *Fleet) Reconcile(ctx context.Context, k service.Key) (time.Duration, error) {
	w := f.services.begin(k)
	if w == nil {
		return 0, f.reconciler.forget(ctx, k)
	}
	again, err := f.reconciler.converge(ctx, w)
	w.platformErr = err
	f.services.finish(w, statusOf(w, f.cfg.URL(k)))
	if err == nil && !w.isGuest() { // whose replicas its host's account has
		f.cfg.Usage.Observe(k, w.samples(f.cfg.Cluster, f.cfg.Traffic.InFlight))
	}
	if f.cfg.Report != nil && !k.IsCanary() {
		later, reportErr := f.report(ctx, k)
		again, err = sooner(again, later), errors.Join(err, reportErr)
	}
	return again, err
}

// report tells Config.Report of a service as it is now, unless it was deleted
// meanwhile.
func (f *Fleet) report(ctx context.Context, k service.Key) (again time.Duration, err error) {
	st, err := f.Get(ctx, k)
	var gone *NotFoundError
	if errors.As(err, &gone) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if again, err = f.cfg.Report(ctx, st); err != nil {
		return 0, fmt.Errorf("report %s: %w", k, err)
	}
	return again, nil
}

// Drifted notes that somebody else changed what the platform made of a service.
// Its revision is applied and its counts are set again.
func (f *Fleet) Drifted(k service.Key) {
	f.services.change(k, func(e *entry) { e.drifted = true })
}

// Backlog reports how far behind the reconciles are.
func (f *Fleet) Backlog() Backlog { return f.services.queue.backlog(time.Now()) }

// Run reconciles until ctx ends: what is queued, what the platform says has
// changed, and what asked to be looked at again. workers run at once; one
// service is never reconciled twice at a time. What replicas use is stored
// meanwhile, and at the end.
func (f *Fleet) Run(ctx context.Context, workers int) {
	metered, stop := context.WithCancel(context.WithoutCancel(ctx))
	var meter sync.WaitGroup
	meter.Go(func() { f.cfg.Usage.Run(metered) })
	defer meter.Wait()
	defer stop()
	loop{queue: f.services.queue, changed: f.cfg.Platform.Changed(), jitter: f.cfg.Jitter, log: f.cfg.Log,
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

// programAfter is when the missing program of a service's own command is looked
// for again. The wait does not grow: the program may be installed at any time,
// and looking costs little.
const programAfter = time.Second

// maxRetryAfter is how far retryAfter grows for inputs that cannot be resolved:
// looking at them may itself take long.
const maxRetryAfter = time.Minute
