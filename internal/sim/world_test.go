package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// Plan is all that a run consists of, drawn from a seed. Each part has
// randomness of its own, so that one that is left out changes no other.
type Plan struct {
	Seed     uint64
	GPUs     int
	Gateways int  // of a cluster; 0 is a single machine
	Keys     bool // users need keys
	MaxQueue int  // of each service at a gateway; 0 is the usual bound
	Length   time.Duration
	Services []ServicePlan
	Pools    []PoolPlan
	Routes   []RoutePlan // by which users ask, where there are any
	Users    []UserPlan
	Faults   []FaultPlan
	Traced   bool // the run keeps a log
}

// ServicePlan is a manifest.
type ServicePlan struct {
	Seed           uint64
	Name           string
	Min, Max       int
	Target         float64
	MaxConcurrency int
	ByTokens       bool // its callers share tokens, not requests
	ToZero         time.Duration
	Startup        time.Duration // how long a replica takes
	GPUs           int
	Model          int           // changes with each edit
	Standby        time.Duration // for how long its last replica sleeps before it stops; 0: it stops at once
	Canary         int           // percent of the requests that a changed model gets at first; 0 is none
	Pool           string        // that it belongs to; "" for none
	Left           bool          // out of the plan
}

func (s *ServicePlan) key() service.Key { return service.Key{Namespace: "default", Name: s.Name} }

func (s *ServicePlan) model() string { return fmt.Sprintf("file:///models/%s/%d", s.Name, s.Model) }

func (s *ServicePlan) manifest() string {
	limit := ""
	if s.MaxConcurrency > 0 {
		limit = fmt.Sprintf(", maxConcurrency: %d", s.MaxConcurrency)
	}
	if s.ByTokens {
		limit += ", queue: {fairness: tokens}"
	}
	canary := ""
	if s.Canary > 0 {
		canary = fmt.Sprintf("\n  canaryTrafficPercent: %d", s.Canary)
	}
	if s.Standby > 0 {
		limit += fmt.Sprintf(", standby: auto, standbyFor: %s", s.Standby)
	}
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: %s, labels: {pool: "%s"}}
spec:%s
  model: {uri: "%s", format: {name: sim}}
  runtime: {name: engine-%d}
  scaling: {minReplicas: %d, maxReplicas: %d, targetConcurrency: %g%s, scaleToZeroAfter: %s, startupTimeout: %s, answerTimeout: %s}
`, s.Name, s.Pool, canary, s.model(), s.GPUs, s.Min, s.Max, s.Target, limit, s.ToZero, startupTimeout, answerTimeout)
}

const (
	startupTimeout = 4 * time.Minute
	answerTimeout  = 90 * time.Second
)

// runtimes are those of replicas with so many GPUs.
func runtimes(gpus int) string {
	var b strings.Builder
	for n := range gpus + 1 {
		fmt.Fprintf(&b, `---
apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: engine-%d}
spec:
  supportedModelFormats: [{name: sim, version: "1", autoSelect: false}]
  protocolVersions: [openai]
  engine:
    containers: [{name: main, image: example.com/engine, resources: {limits: {nvidia.com/gpu: "%d"}}}]
  local:
    command: [engine, "--port={{.Port}}"]
    standby: {levels: [{level: 1, sleep: {path: /sleep}, wake: [{path: /wake}]}]}
`, n, n)
	}
	return b.String()
}

// routes give a service's requests a priority.
func (p *Plan) routes() string {
	var b strings.Builder
	for i := range p.Services {
		for _, class := range []string{"vip", "spot"} {
			fmt.Fprintf(&b, `---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: %s-%s}
spec: {priority: %d, targets: [{service: %s}]}
`, p.Services[i].Name, class, priorities[class], p.Services[i].Name)
		}
	}
	return b.String()
}

// world is a run under way.
type world struct {
	plan    *Plan
	loop    lane
	machine *machine
	process *process // that decides
	cluster *cluster // nil on a single machine
	// gateways answer requests: the process itself on a single machine.
	gateways []*gateway
	lives    uint64
	disk     *disk
	clock    atomic.Int64 // how many seconds the wall clock was set by
	begun    time.Time
	calls    callBook
	watch    watch
	secrets  map[*UserPlan]string               // of keys
	moments  map[service.Key]func(from, to int) // are told of changes of a count
	names    names
	outside  []string // servers of others, by ID

	mu         sync.Mutex
	log        []string
	violations []Violation
	wanted     map[service.Key]*ServicePlan // as last applied
	slow       map[service.Key]bool         // starts take ten times as long
	looping    map[service.Key]bool         // replicas end as soon as they are ready
	full       bool                         // the disk is
	emptied    time.Time                    // when it ceased to be
}

// Violation is an invariant that did not hold.
type Violation struct {
	Name    string
	Service service.Key
	At      time.Duration
	What    string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s: %s: %s after %s", v.Name, v.Service, v.What, v.At.Round(time.Millisecond))
}

// demand is that of a service, at all gateways.
func (w *world) demand(k service.Key) (d autoscale.Demand) {
	for _, g := range w.gateways {
		if !g.dead.Load() {
			x := g.dispatcher.Demand(k)
			d.Queued, d.Running, d.Arrived, d.Done = d.Queued+x.Queued, d.Running+x.Running, d.Arrived+x.Arrived, d.Done+x.Done
		}
	}
	return d
}

// inFlight is how many requests gateways have sent to a replica.
func (w *world) inFlight(id string) (n int) {
	for _, g := range w.gateways {
		if !g.dead.Load() {
			n += g.dispatcher.InFlight(id)
		}
	}
	return n
}

// now is the time by the machine's clock.
func (w *world) now() time.Time { return shifted(time.Now(), w.clock.Load()) }

func (w *world) since() time.Duration { return time.Since(w.begun) }

// trace adds a line to the log.
func (w *world) trace(format string, args ...any) {
	if !w.plan.Traced {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf("%14.6f ", w.since().Seconds())+fmt.Sprintf(format, args...))
}

// violate notes that an invariant does not hold; the first ends the run.
func (w *world) violate(name string, k service.Key, what string) {
	if *only != "" && name != *only {
		return
	}
	w.mu.Lock()
	w.violations = append(w.violations, Violation{name, k, w.since(), what})
	w.mu.Unlock()
	w.trace("VIOLATION %s %s: %s", name, k, what)
	w.loop.stopped = true
	w.loop.wake()
}

// result is what is left of a run.
type result struct {
	log        []string
	violations []Violation
	calls      map[string]int // by how they ended
	events     int
	hours      float64 // of services
}

// Run lives through a plan in a bubble of virtual time.
func (p *Plan) run(t *testing.T) (out result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(t, p)
		if err != nil {
			t.Fatal(err)
		}
		w.live()
		out = result{w.log, w.violations, w.calls.ended, w.loop.handled, float64(len(p.Services)) * w.since().Hours()}
	})
	return out
}

// scratch is where data directories are made: in memory where there is such a
// place, since each write waits for the disk.
func scratch(t *testing.T) string {
	if dir, err := os.MkdirTemp("/dev/shm", "roundhouse-sim-"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

func newWorld(t *testing.T, p *Plan) (*world, error) {
	w := &world{plan: p, loop: newLoop().lane(1), disk: newDisk(scratch(t), p.Seed), begun: time.Now(), wanted: map[service.Key]*ServicePlan{}, slow: map[service.Key]bool{}, looping: map[service.Key]bool{}}
	w.secrets, w.moments = map[*UserPlan]string{}, map[service.Key]func(from, to int){}
	w.calls.init(w)
	w.watch.init(w)
	w.machine = newMachine(w.loop.loop, p.GPUs, p.Seed)
	w.machine.trace, w.machine.ended = w.trace, w.calls.lost
	w.machine.now = w.now
	w.machine.told = w.watch.moved
	w.machine.ending, w.machine.loops = w.watch.ending, func(k service.Key) bool { return w.looping[k] }
	w.machine.cuts = func(u *unit, n int) {
		w.violate("a replica that goes finishes", u.owner.key, fmt.Sprintf("replica %s ends %v after it was told to, and has %d requests", u.view.ID, time.Since(u.drained), n))
	}
	w.machine.disturbs = func(u *unit, what string) { w.violate("a sleeper gets no request", u.owner.key, u.view.ID+": "+what) }
	w.machine.scaling = func(k service.Key, from, to int) {
		w.watch.moved(k)
		if f := w.moments[k]; f != nil {
			f(from, to)
		}
	}
	w.machine.spins = func(k service.Key) {
		w.violate("nothing spins", k, fmt.Sprintf("it is looked at %d times within a second", mostTurns))
	}
	starts := map[service.Key]*rand.Rand{}
	for i := range p.Services {
		starts[p.Services[i].key()] = rand.New(rand.NewPCG(p.Services[i].Seed, 0x73746172))
	}
	w.machine.startsIn = func(k service.Key) time.Duration {
		k = k.Stable()
		takes := w.wanted[k].Startup
		if w.slow[k] {
			takes *= 10
		}
		return takes + time.Duration(starts[k].Int64N(int64(takes)))
	}
	w.serve()
	var err error
	if p.Gateways > 0 {
		if w.cluster, err = newCluster(w); err != nil {
			return nil, err
		}
	}
	if w.process, err = newProcess(w, w.lives); err == nil && p.Keys {
		for i := range p.Users {
			if _, w.secrets[&p.Users[i]], err = w.gateways[0].keys.Create(fmt.Sprintf("user-%d", i), p.Users[i].Limits, time.Time{}); err != nil {
				break
			}
		}
	}
	return w, err
}

// live runs the plan, and then on until all is quiet.
func (w *world) live() {
	if err := w.process.apply(runtimes(w.plan.GPUs)); err != nil {
		w.violate("runtimes can be applied", service.Key{}, err.Error())
	}
	for i := range w.plan.Services {
		if w.plan.Services[i].Left {
			continue
		}
		w.loop.after(time.Duration(i)*time.Millisecond, func() { s := w.plan.Services[i]; w.apply(&s) })
	}
	if err := w.process.apply(w.plan.routes() + w.plan.routing()); err != nil {
		w.violate("routes can be applied", service.Key{}, err.Error())
	}
	for i := range w.plan.Users {
		if u := &w.plan.Users[i]; !u.Left {
			w.calls.user(u)
		}
	}
	for i := range w.plan.Faults {
		f := &w.plan.Faults[i]
		if !f.Left {
			w.loop.after(f.At, func() { f.begin(w) })
		}
	}
	end := w.begun.Add(w.plan.Length)
	w.loop.run(end, w.watch.check)
	if !w.loop.stopped {
		w.watch.end()
	}
	w.loop.stopped = true
	w.process.crash()
	if w.cluster != nil {
		w.cluster.close()
	}
	for _, g := range w.gateways {
		w.calls.abandon(g)
	}
	synctest.Wait()
	time.Sleep(time.Hour) // whoever waits for something ends
}

// apply has somebody apply a manifest.
func (w *world) apply(s *ServicePlan) {
	p := w.process
	if err := p.apply(s.manifest()); err != nil || p.dead.Load() { // it may be stored, or not
		if w.watch.attempted(s); !p.dead.Load() {
			w.trace("apply refused: %v", err)
		}
		return
	}
	w.trace("applied %s min %d max %d model %d", s.Name, s.Min, s.Max, s.Model)
	w.machine.locked(func() { w.wanted[s.key()] = s })
	w.watch.applied(s)
}
