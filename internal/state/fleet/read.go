package fleet

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/guests"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// ServiceState is a service as it is now.
type ServiceState struct {
	Object Object
	Status service.Status
	// Generation counts changes of the manifest, and of what it may be resolved with;
	// Status.Generation is the one the status speaks of. Manifests counts the first alone.
	Generation, Manifests int64
	Revision              *workload.Revision // nil before the first
	// Replicas are the service's, then its canary's.
	Replicas []replica.Replica
	// InFlight is how many requests each of them has, by id, and LastDone when the
	// service's last request finished; zero where none has.
	InFlight map[string]int
	LastDone time.Time
	// LastReplica is the newest replica there has been, whose logs may remain.
	LastReplica string
	// Scaling is, by role, why the count is what it is.
	Scaling map[service.Role]string
}

// Get returns a service as it is now.
func (f *Fleet) Get(ctx context.Context, k service.Key) (ServiceState, error) {
	f.services.mu.Lock()
	e := f.services.presentLocked(k)
	if e == nil {
		f.services.mu.Unlock()
		return ServiceState{}, errNotFound("service", k)
	}
	st, host := e.state(&f.cfg), f.services.hostOfLocked(k)
	f.services.mu.Unlock()
	var err error
	if st.Replicas, err = f.cfg.Platform.Observe(ctx, host); err != nil {
		return st, err
	}
	if host != k {
		st.Replicas = guests.Replicas(st.Replicas, k.Name)
	}
	if st.Status.Canary != nil {
		var canary []replica.Replica
		canary, err = f.cfg.Platform.Observe(ctx, k.Canary())
		st.Replicas = append(st.Replicas, canary...)
	}
	st.InFlight, st.LastDone = map[string]int{}, f.cfg.Traffic.Demand(k).LastDone
	for i := range st.Replicas {
		for _, id := range append(st.Replicas[i].Ranks(), st.Replicas[i].ID) {
			if n := f.cfg.Traffic.InFlight(id); n > 0 {
				st.InFlight[id] = n
			}
		}
	}
	return st, err
}

// state is what people are told of a service; the lock of services is held.
func (e *entry) state(cfg *Config) ServiceState {
	now := cfg.Now()
	st := ServiceState{Object: e.object, Generation: e.generation, Manifests: e.manifests, LastReplica: e.lastReplica, Status: e.measured(cfg.Usage), Scaling: map[service.Role]string{}}
	if e.record != nil {
		rev := e.record.Revision
		st.Revision = &rev
	}
	for r, s := range e.roles {
		st.Scaling[r] = s.decision.Reason(now)
		if st.Revision == nil {
			continue
		}
		if c := st.Revision.Component(r); c != nil && s.external != nil && *s.external > 0 {
			st.Scaling[r] = counter(c.Limits)
		}
	}
	return st
}

// List returns every service, by namespace and name. Replicas are left out,
// and canaries, which are part of their services.
func (f *Fleet) List() []ServiceState {
	var out []ServiceState
	f.services.mu.Lock()
	f.services.eachLocked(func(e *entry) { out = append(out, e.state(&f.cfg)) })
	f.services.mu.Unlock()
	slices.SortFunc(out, func(a, b ServiceState) int { return strings.Compare(a.Object.Key.String(), b.Object.Key.String()) })
	return out
}

// Objects lists the applied objects of one kind other than services.
func (f *Fleet) Objects(kind string) []Object {
	return f.resolver.objects(func(id ID, _ Object) bool { return id.Kind == kind })
}

// Catalog are the runtimes shipped with the product.
func (f *Fleet) Catalog() []service.Runtime { return f.cfg.Catalog }

// Explanation is why a service runs on what it does.
type Explanation struct {
	Result     selection.Result   `json:"result"`
	Attributes service.Attributes `json:"attributes"`
	URI        string             `json:"uri,omitempty"`
	Adapters   []workload.Adapter `json:"adapters,omitempty"`
	// Placed is where the model of a service that names a parent is served, and why; ""
	// for other services. Where the parent's replicas load it, Result is the parent's.
	Placed string `json:"placed,omitempty"`
	// Problem is what keeps the model from being known; the result then goes
	// by what the manifest says alone.
	Problem string                `json:"problem,omitempty"`
	Pinned  service.RuntimeChoice `json:"pinned,omitzero"` // what runs, when it was chosen before
}

// Explain selects as a reconcile would, without pinning anything. With an
// object given, it explains that one as if it were applied, next to what is.
func (f *Fleet) Explain(ctx context.Context, o Object) (Explanation, error) {
	host, err := f.cfg.Platform.Host(ctx)
	if err != nil {
		return Explanation{}, err
	}
	o = f.resolver.laid(o)
	m, err := f.resolver.model(ctx, o)
	ex := Explanation{Attributes: m.attributes, URI: m.uri, Adapters: m.adapters}
	if err != nil {
		ex.Problem = err.Error()
	}
	if o.Flaw != "" {
		ex.Problem = o.Flaw
	}
	f.services.mu.Lock()
	if e := f.services.mu.entries[o.Key]; e != nil && e.record != nil {
		ex.Pinned = e.record.Revision.Runtime
	}
	f.services.mu.Unlock()
	if o.Service.Parent != "" {
		place, parent, why := f.explainPlace(ctx, o)
		if ex.Placed = why; place == guests.Guest {
			by, err := f.Explain(ctx, parent)
			ex.Result, ex.Pinned = by.Result, by.Pinned
			return ex, err
		}
	}
	asked := f.resolver.asks(*o.Service)
	req, runtimes := selection.Request{Service: &asked, Attributes: m.attributes, Classes: f.resolver.classes()}, f.resolver.runtimesFor(o.Key.Namespace, host)
	if o.Service.Custom && !f.cfg.Cluster {
		local := workload.LocalizeService(*o.Service, f.cfg.Catalog, host)
		req.Service = &local
	}
	if host, err = f.resolver.ask(ctx, host, &req, runtimes, m); err != nil {
		return Explanation{}, err
	}
	ex.Result = selection.Choose(req, runtimes, host)
	if ex.Result.Chosen == nil && ex.Problem != "" && m.attributes.Format.Name == "" {
		// The format is not known because the files were not read.
		ex.Result.Reason, ex.Result.Message = reasonModelLoadFailed, ex.Problem
	}
	return ex, nil
}

// Usage returns what was used each day since one, by the accounts that match.
func (f *Fleet) Usage(since usage.Day, match func(usage.Account) bool) ([]usage.Row, error) {
	return f.cfg.Usage.Report(since, match)
}

// UsageTotals returns what components have used since this process started, and
// the sum of all.
func (f *Fleet) UsageTotals() ([]usage.Row, usage.Use) { return f.cfg.Usage.Totals() }

// Logs opens a replica's output; the caller closes it.
func (f *Fleet) Logs(ctx context.Context, id string, o LogOptions) (io.ReadCloser, error) {
	return f.cfg.Platform.Logs(ctx, id, o)
}

// Draft is a copy of what is desired with objects applied to it, to explain
// them by. It stores nothing and must not be run.
func (f *Fleet) Draft(ctx context.Context, objects []Object) (*Fleet, error) {
	cfg := f.cfg
	cfg.Store, cfg.Traffic, cfg.Routing, cfg.Routed, cfg.Applied = discard{}, nowhere{}, nil, nil, nil
	d, err := New(cfg)
	if err != nil {
		return nil, err
	}
	d.over = f
	for _, o := range f.resolver.objects(func(ID, Object) bool { return true }) {
		d.resolver.put(o)
	}
	_, err = d.Apply(ctx, objects, ApplyOptions{})
	return d, err
}

// nowhere is the traffic of drafts.
type nowhere struct{}

func (nowhere) Publish(View)                        {}
func (nowhere) Withdraw(service.Key)                {}
func (nowhere) Demand(service.Key) autoscale.Demand { return autoscale.Demand{} }
func (nowhere) InFlight(string) int                 { return 0 }

// discard is a store for drafts.
type discard struct{}

func (discard) PutObject(Object) error            { return nil }
func (discard) DeleteObject(ID) error             { return nil }
func (discard) PutRecord(Record) error            { return nil }
func (discard) DeleteRecord(service.Key) error    { return nil }
func (discard) Load() ([]Object, []Record, error) { return nil, nil, nil }
