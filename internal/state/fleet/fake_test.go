package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/metering"
)

// platform is a fleet.Platform whose replicas are ready as soon as they are
// wanted. Most tests call the fleet from one goroutine; mu is for those that let
// it run.
type platform struct {
	mu        sync.Mutex // of what Apply and Scale touch
	programs  []string
	lacks     string // the answer to every check
	gpus      []selection.GPU
	cluster   bool
	fail      error // of Apply and Scale
	revisions map[service.Key]workload.Revision
	counts    map[workload.Ref]int
	replicas  map[service.Key][]replica.Replica // set to override
	calls     []string
	applying  func() // called once, by the next Apply; nil for nothing
}

func (p *platform) Host(_ context.Context, checks ...selection.Check) (selection.Host, error) {
	h := selection.Host{Programs: map[string]bool{"roundhouse": true}, GPUs: p.gpus, Accelerators: len(p.gpus), Cluster: p.cluster}
	for _, name := range p.programs {
		h.Programs[name] = true
	}
	h.Answers = map[selection.Check]selection.Answer{}
	for _, c := range checks {
		h.Answers[c] = selection.Answer{Program: "python3", Lacks: p.lacks}
	}
	return h, nil
}

func (p *platform) Apply(_ context.Context, r workload.Revision) error {
	if f := p.applying; f != nil {
		p.applying = nil
		f()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, "apply "+r.Service.String()+" "+r.Runtime.Name)
	if p.fail == nil {
		p.revisions[r.Service] = r
	}
	return p.fail
}

func (p *platform) Scale(_ context.Context, ref workload.Ref, n int, _ []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, fmt.Sprintf("scale %s %d", ref, n))
	if p.fail == nil {
		p.counts[ref] = n
	}
	return p.fail
}

func (p *platform) Remove(_ context.Context, k service.Key) error {
	p.calls = append(p.calls, "remove "+k.String())
	if p.fail == nil {
		delete(p.revisions, k)
		maps.DeleteFunc(p.counts, func(r workload.Ref, _ int) bool { return r.Service == k })
	}
	return p.fail
}

func (p *platform) Observe(_ context.Context, k service.Key) (out []replica.Replica, _ error) {
	if rs, ok := p.replicas[k]; ok {
		return rs, nil
	}
	for ref, n := range p.counts {
		for i := range n {
			if ref.Service == k {
				out = append(out, replica.Replica{ID: fmt.Sprintf("%s-%d", k.WorkloadName(), i), Service: k, Role: ref.Role,
					Revision: p.revisions[k].Hash, Phase: replica.Ready, Started: epoch, ReadyAt: epoch.Add(time.Second), PID: 100 + i})
			}
		}
	}
	return out, nil
}

func (p *platform) Services(context.Context) ([]service.Key, error) {
	return slices.Collect(maps.Keys(p.revisions)), nil
}

func (p *platform) Logs(context.Context, string, fleet.LogOptions) (io.ReadCloser, error) {
	return nil, errors.ErrUnsupported
}

func (p *platform) Changed() <-chan service.Key { return nil }

// store is a fleet.Store in memory that counts writes.
type store struct {
	fail    error
	writes  int
	objects map[fleet.ID]fleet.Object
	records map[service.Key]fleet.Record
}

func (s *store) write(f func()) error {
	if s.fail == nil {
		s.writes++
		f()
	}
	return s.fail
}

func (s *store) PutObject(o fleet.Object) error {
	return s.write(func() { s.objects[o.ID()] = o })
}
func (s *store) DeleteObject(id fleet.ID) error { return s.write(func() { delete(s.objects, id) }) }
func (s *store) PutRecord(r fleet.Record) error { return s.write(func() { s.records[r.Service] = r }) }
func (s *store) DeleteRecord(k service.Key) error {
	return s.write(func() { delete(s.records, k) })
}
func (s *store) Load() ([]fleet.Object, []fleet.Record, error) {
	return slices.Collect(maps.Values(s.objects)), slices.Collect(maps.Values(s.records)), nil
}

// models finds nothing in any model, or an error, where it is not told of a URI.
type models struct {
	fail   error
	asked  int
	ranks  map[string]int // of adapters
	brings string         // the environment of every model
	fails  map[string]error
}

func (m *models) Inspect(_ context.Context, files service.Files) (service.Attributes, error) {
	uri := files.URI
	m.asked++
	if err := m.fails[uri]; err != nil {
		return service.Attributes{}, err
	}
	return service.Attributes{AdapterRank: m.ranks[uri], Environment: m.brings}, m.fail
}

// traffic keeps what was published last.
type traffic struct {
	views     map[service.Key]fleet.View
	withdrawn []service.Key
	demand    autoscale.Demand
	routed    fleet.RoutingView
	inFlight  map[string]int // by replica
}

func (t *traffic) Route(v fleet.RoutingView) { t.routed = v }

func (t *traffic) Publish(v fleet.View) { t.views[v.Key] = v }
func (t *traffic) Withdraw(k service.Key) {
	delete(t.views, k)
	t.withdrawn = append(t.withdrawn, k)
}
func (t *traffic) Demand(service.Key) autoscale.Demand { return t.demand }
func (t *traffic) InFlight(id string) int              { return t.inFlight[id] }

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// rig is a fleet with everything around it in the test's hand.
type rig struct {
	applied  []fleet.Change // to runtimes and models
	routed   int            // how often routes were told
	t        *testing.T
	platform *platform
	store    *store
	models   *models
	traffic  *traffic
	catalog  []service.Runtime
	now      time.Time
	cluster  bool // from the next restart on
	reports  []fleet.ServiceState
	retell   time.Duration // what Report returns
	meter    *usageStore   // of what is used; nil for none
	measures *metering.Meter
	*fleet.Fleet
}

// newRig has a catalog of two runtimes for the format "tree": "oak", of
// priority 2, which needs the program oak, and "elm", of priority 1.
func newRig(t *testing.T) *rig {
	r := &rig{t: t, now: epoch, models: &models{},
		platform: &platform{programs: []string{"oak", "elm"}, revisions: map[service.Key]workload.Revision{}, counts: map[workload.Ref]int{},
			replicas: map[service.Key][]replica.Replica{}},
		store:   &store{objects: map[fleet.ID]fleet.Object{}, records: map[service.Key]fleet.Record{}},
		traffic: &traffic{views: map[service.Key]fleet.View{}, inFlight: map[string]int{}}}
	for _, o := range parse(t, runtimeYAML("oak", 2)+"---\n"+runtimeYAML("elm", 1)) {
		o.Runtime.Scope = service.ScopeCatalog
		r.catalog = append(r.catalog, *o.Runtime)
	}
	r.restart()
	return r
}

// restart is a new fleet over the same store and platform, restored.
func (r *rig) restart() {
	r.t.Helper()
	f, err := fleet.New(fleet.Config{Platform: r.platform, Store: r.store, Models: r.models, Traffic: r.traffic, Routing: r.traffic, Catalog: r.catalog, Usage: r.measured(),
		Jitter: func(d time.Duration) time.Duration { return d },
		Now:    func() time.Time { return r.now }, Cluster: r.cluster,
		Applied: func(all []fleet.Change) { r.applied = append(r.applied, all...) },
		Routed:  func([]fleet.RoutingState) { r.routed++ },
		Report: func(_ context.Context, st fleet.ServiceState) (time.Duration, error) {
			r.reports = append(r.reports, st)
			return r.retell, nil
		}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.Fleet = f
	if err := f.Restore(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

func runtimeYAML(name string, priority int) string {
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: %[1]s}
spec:
  supportedModelFormats: [{name: tree, version: "1", autoSelect: true, priority: %[2]d}]
  protocolVersions: [v2]
  local: {command: [%[1]s, "--port={{.Port}}"], install: grow %[1]s}
`, name, priority)
}

func serviceYAML(name, rest string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: ` + name + `}
spec: {model: {uri: "file:///m", format: {name: tree}}, ` + rest + "}\n"
}

func parse(t *testing.T, manifest string) (out []fleet.Object) {
	t.Helper()
	read := dialect.Read("test.yaml", []byte(manifest))
	if bad := read.Errors(dialect.Process); len(bad) > 0 {
		t.Fatal(bad)
	}
	for _, o := range read.Objects {
		out = append(out, fleet.Object{Object: o})
	}
	return out
}

// follower is a fleet.Follower over the platform and traffic of a rig of its own.
type follower struct {
	*rig
	*fleet.Follower
}

// newFollower makes a follower of these manifests.
func newFollower(t *testing.T, manifest string) *follower {
	r := newRig(t)
	f, err := fleet.NewFollower(fleet.FollowerConfig{Replicas: r.platform, Traffic: r.traffic, Routing: r.traffic,
		URL: func(service.Key) string { return "" }, Now: func() time.Time { return r.now }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Apply(t.Context(), parse(t, manifest), fleet.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return &follower{rig: r, Follower: f}
}

func (f *follower) reconcile(name string) time.Duration {
	f.t.Helper()
	again, err := f.Follower.Reconcile(f.t.Context(), key(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return again
}

// settle reconciles a service and its canary until neither changes the other.
func (f *follower) settle(name string) {
	f.t.Helper()
	for range 3 {
		f.reconcile(name)
		if _, err := f.Follower.Reconcile(f.t.Context(), key(name).Canary()); err != nil {
			f.t.Fatal(err)
		}
	}
	f.reconcile(name)
}

// apply applies a manifest and returns the actions.
func (r *rig) apply(manifest string) (actions []string) {
	r.t.Helper()
	changes, err := r.Apply(r.t.Context(), parse(r.t, manifest), fleet.ApplyOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range changes {
		actions = append(actions, c.Action)
	}
	return actions
}

func (r *rig) reconcile(name string) time.Duration {
	r.t.Helper()
	again, err := r.Reconcile(r.t.Context(), key(name))
	if err != nil {
		r.t.Fatal(err)
	}
	return again
}

// ready is a service's Ready condition.
func (r *rig) ready(name string) service.Condition {
	r.t.Helper()
	st, err := r.Get(r.t.Context(), key(name))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, c := range st.Status.Conditions {
		if c.Type == service.ConditionReady {
			return c
		}
	}
	return service.Condition{}
}

// runs is the runtime a service's revision is of.
func (r *rig) runs(name string) string { return r.platform.revisions[key(name)].Runtime.Name }

// took returns the platform's calls since the last time.
func (r *rig) took() []string {
	r.platform.mu.Lock()
	defer r.platform.mu.Unlock()
	calls := r.platform.calls
	r.platform.calls = nil
	return calls
}

func key(name string) service.Key { return service.ParseKey(name) }

func engine(name string) workload.Ref {
	return workload.Ref{Service: key(name), Role: service.RoleEngine}
}
