package fleet_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// machine is a platform of GPUs whose replicas take their time: to ask for a GPU, to
// become ready, and to be seen. All of it is by chance.
type machine struct {
	*platform
	rng     *rand.Rand
	gpus    int
	slow    time.Duration
	changes *fleet.Changes

	mu    sync.Mutex // of what follows
	units map[service.Key]*replica.Replica
	fails map[service.Key]int // starts that are still to fail
	plan  residency.Plan
}

func (m *machine) pause() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.rng.Int64N(int64(m.slow)))
}

func (m *machine) Machine() residency.Machine { return residency.Machine{GPUs: make([]int64, m.gpus)} }
func (m *machine) Reserve(p residency.Plan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plan = p
}
func (m *machine) Changed() <-chan service.Key { return m.changes.Changed() }

func (m *machine) Host(ctx context.Context, checks ...selection.Check) (selection.Host, error) {
	h, err := m.platform.Host(ctx, checks...)
	h.Accelerators = m.gpus
	return h, err
}

func (m *machine) Apply(ctx context.Context, r workload.Revision) error {
	time.Sleep(m.pause())
	return m.platform.Apply(ctx, r)
}

func (m *machine) Observe(_ context.Context, k service.Key) (out []replica.Replica, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if u := m.units[k]; u != nil {
		out = append(out, *u)
	}
	return out, nil
}

func (m *machine) Scale(_ context.Context, ref workload.Ref, n int, _ []string) error {
	time.Sleep(m.pause())
	m.platform.mu.Lock()
	hash := m.platform.revisions[ref.Service].Hash
	m.platform.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	u := m.units[ref.Service]
	switch {
	case n > 0 && u == nil:
		u = &replica.Replica{ID: ref.Service.Name + "-0", Service: ref.Service, Role: ref.Role, Revision: hash, Phase: replica.Pending}
		m.units[ref.Service] = u
		go m.live(ref.Service)
	case n == 0 && u != nil && u.Phase != replica.Draining:
		v := *u
		v.Phase = replica.Draining
		m.units[ref.Service] = &v
		go func() {
			time.Sleep(m.pause())
			m.mu.Lock()
			delete(m.units, ref.Service)
			m.mu.Unlock()
			m.changes.Add(ref.Service)
		}()
	}
	return nil
}

// change publishes what f makes of a replica; false once that is ending.
func (m *machine) change(k service.Key, f func(v *replica.Replica)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.units[k]
	if now == nil || now.Phase == replica.Draining {
		return false
	}
	v := *now
	f(&v)
	m.units[k] = &v
	m.changes.Add(k)
	return true
}

// free is a GPU that nobody holds and a service may have; -1 for none. The lock is
// held.
func (m *machine) free(k service.Key) int {
	used := map[int]bool{}
	for _, o := range m.units {
		for _, i := range o.GPUs {
			used[i] = true
		}
	}
	for i := range m.gpus {
		if only := m.plan.Reserved; !used[i] && (i >= len(only) || len(only[i]) == 0 || slices.Contains(only[i], k.String())) {
			return i
		}
	}
	return -1
}

// live takes a replica from its creation until it is ready.
func (m *machine) live(k service.Key) {
	got, done := false, false
	takes := func(v *replica.Replica) {
		v.Phase, v.Reason = replica.Pending, replica.ReasonInsufficientGPUs
		if i := m.free(k); i >= 0 {
			v.GPUs, v.Reason, got = []int{i}, "", true
		}
	}
	starts := func(v *replica.Replica) { v.Phase, v.PID, v.Started = replica.Starting, 7, time.Now() }
	ends := func(v *replica.Replica) {
		if done = m.fails[k] == 0; done {
			v.Phase, v.ReadyAt = replica.Ready, time.Now()
			return
		}
		m.fails[k]--
		v.Phase, v.PID, v.GPUs, v.Restarts = replica.Failed, 0, nil, v.Restarts+1
	}
	for !done {
		time.Sleep(m.pause())
		if got = false; !m.change(k, takes) {
			return
		}
		if !got {
			continue
		}
		time.Sleep(m.pause())
		if !m.change(k, starts) {
			return
		}
		time.Sleep(m.pause())
		if !m.change(k, ends) {
			return
		}
	}
}

// slowStore takes its time, and bears several workers.
type slowStore struct {
	*store
	m *machine
}

func (s slowStore) PutRecord(r fleet.Record) error {
	time.Sleep(s.m.pause())
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	return s.store.PutRecord(r)
}

// noTraffic has no requests.
type noTraffic struct{}

func (noTraffic) Publish(fleet.View)                  {}
func (noTraffic) Withdraw(service.Key)                {}
func (noTraffic) Demand(service.Key) autoscale.Demand { return autoscale.Demand{} }
func (noTraffic) InFlight(string) int                 { return 0 }

// slowModels take their time to be inspected.
type slowModels struct{ m *machine }

func (s slowModels) Inspect(context.Context, service.Files) (service.Attributes, error) {
	time.Sleep(s.m.pause())
	return service.Attributes{}, nil
}

// TestPreloadOrder: of three services that are to be preloaded on two GPUs the one
// of the lowest priority is not, however long each of them takes to be resolved, to
// get a GPU and to start, in whatever order, and although a start fails.
func TestPreloadOrder(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) { preloadOrder(t, seed) })
	}
}

// preloadOrder is one such case, in virtual time.
func preloadOrder(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t)
	m := &machine{platform: r.platform, rng: rng, gpus: 2, slow: time.Duration(1 + rng.Int64N(int64(5*time.Second))), changes: fleet.NewChanges(), units: map[service.Key]*replica.Replica{}, fails: map[service.Key]int{}}
	defer m.changes.Close()
	if rng.IntN(2) == 0 {
		m.fails[key([]string{"low", "middle", "high"}[rng.IntN(3)])] = 1
	}
	var log strings.Builder
	f, err := fleet.New(fleet.Config{Platform: m, Store: slowStore{r.store, m}, Models: slowModels{m}, Traffic: noTraffic{}, Catalog: r.catalog,
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	var manifests []string
	for i, name := range []string{"low", "middle", "high"} {
		manifests = append(manifests, serviceYAML(name, fmt.Sprintf("residency: {preload: true, priority: %d}, scaling: {minReplicas: 0, maxReplicas: 1, scaleToZeroAfter: 10m}, engine: {resources: {limits: {nvidia.com/gpu: 1}}}", i+1)))
	}
	rng.Shuffle(3, func(i, j int) { manifests[i], manifests[j] = manifests[j], manifests[i] })
	workers := 1 + rng.IntN(4)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f.Run(ctx, workers) })
	if _, err := f.Apply(ctx, parse(t, strings.Join(manifests, "---\n")), fleet.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Minute)
	stop()
	wg.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	got := map[string]replica.Phase{}
	for k, u := range m.units {
		got[k.Name] = u.Phase
	}
	if want := map[string]replica.Phase{"middle": replica.Ready, "high": replica.Ready}; !maps.Equal(got, want) {
		t.Errorf("seed %d: %v\n%s", seed, got, &log)
	}
}
