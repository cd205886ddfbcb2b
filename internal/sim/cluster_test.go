package sim

import (
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/demand"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// cluster is several gateways that follow a controller, and a second controller
// that leads when the first does not. The API server and its watches are simulated:
// what changes reaches each gateway after a while, or much later. The reports of
// demand are the product's, over a simulated network.
type cluster struct {
	world       *world
	rng         *rand.Rand // of the loop
	controllers [2]*controller
	leader      int
	lives       uint64
	token       string

	mu        sync.Mutex
	objects   map[fleet.ID]fleet.Object
	records   map[service.Key]*fleet.Record
	states    map[service.Key]fleet.Decision // but for the record
	partition map[string]bool                // gateway and controller
	calm      time.Time                      // until then something may be late
}

// controller is one life of a controller pod.
type controller struct {
	server  *demand.Server
	handler http.Handler
	cancel  context.CancelFunc
	fleet   *fleet.Fleet // while it leads
}

const reporter = "system:serviceaccount:roundhouse:gateway"

// anybody takes every token for a gateway's.
type anybody struct{}

func (anybody) Review(context.Context, string) (demand.Identity, error) {
	return demand.Identity{User: reporter}, nil
}

func newCluster(w *world) (*cluster, error) {
	c := &cluster{world: w, rng: rand.New(rand.NewPCG(w.plan.Seed, 0x636c7573)), token: filepath.Join(w.disk.root, "token"), objects: map[fleet.ID]fleet.Object{},
		records: map[service.Key]*fleet.Record{}, states: map[service.Key]fleet.Decision{}, partition: map[string]bool{}}
	if err := os.WriteFile(c.token, []byte("token"), 0o600); err != nil {
		return nil, err
	}
	w.cluster = c
	w.machine.changed = func(k service.Key) {
		for _, g := range w.gateways {
			g.tell("pods "+k.String(), func() { g.sees(k) })
		}
	}
	for i := range c.controllers {
		pause(0, ofServers+int64(i))
		if err := c.start(i); err != nil {
			return nil, err
		}
	}
	for i := range w.plan.Gateways {
		g, err := c.gateway(i)
		if err != nil {
			return nil, err
		}
		w.gateways = append(w.gateways, g)
	}
	c.alive()
	return c, nil
}

// start begins a life of a controller pod.
func (c *cluster) start(i int) (err error) {
	n := &controller{}
	cfg := demand.DefaultConfig()
	cfg.Reviewer, cfg.Accounts, cfg.Now = anybody{}, []string{reporter}, c.world.now
	cfg.Demanded = func(k service.Key) {
		c.world.loop.post(1<<50+uint64(slices.Index(c.world.watch.keys, k.Stable())), func() {
			if n.fleet != nil && c.controllers[i] == n {
				n.fleet.Demanded(k)
			}
		})
	}
	if n.server, err = demand.NewServer(cfg); err != nil {
		return err
	}
	n.handler = n.server.Handler()
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	go n.server.Run(ctx)
	c.controllers[i] = n
	return nil
}

// configure has a fleet decide for the cluster.
func (c *cluster) configure(cfg *fleet.Config, p *process) {
	n := c.controllers[c.leader]
	cfg.Platform, cfg.Cluster, cfg.Traffic = pods{cfg.Platform}, true, n.server
	cfg.Store = announcing{p.store, c}
	cfg.Report = func(_ context.Context, st fleet.ServiceState) (time.Duration, error) {
		c.decided(st)
		return 0, nil
	}
	c.world.machine.raised = func(k service.Key) { _ = p.fleet.Wake(context.Background(), k, 1) }
	c.world.loop.after(0, func() { n.fleet = p.fleet })
}

// failover has the controller that led begin anew, and mostly the other lead.
func (c *cluster) failover() {
	old := c.controllers[c.leader]
	old.cancel()
	if err := c.start(c.leader); err != nil {
		c.world.violate("records survive", service.Key{}, err.Error())
	}
	if c.rng.IntN(3) > 0 {
		c.leader = 1 - c.leader
	}
	c.alive()
}

// alive tells the controllers which gateways take requests.
func (c *cluster) alive() {
	var names []string
	for _, g := range c.world.gateways {
		if !g.dead.Load() {
			names = append(names, g.name)
		}
	}
	for _, n := range c.controllers {
		c.world.loop.after(c.lag(), func() { n.server.SetLive(names) })
	}
}

func (c *cluster) lag() time.Duration { return time.Duration(1+c.rng.IntN(100)) * time.Millisecond }

func (c *cluster) close() {
	for _, n := range c.controllers {
		n.cancel()
	}
	for _, g := range c.world.gateways {
		if !g.dead.Load() {
			g.crash()
		}
	}
}

// pods are the machine as a cluster's platform: nobody shares it.
type pods struct{ fleet.Platform }

// announcing is a store whose records gateways watch.
type announcing struct {
	fleet.Store
	c *cluster
}

func (s announcing) PutRecord(r fleet.Record) (err error) {
	s.c.world.machine.locked(func() { err = s.c.world.machine.refused() })
	if err == nil {
		err = s.Store.PutRecord(r)
	}
	if err == nil {
		s.c.note(r.Service, func() { s.c.records[r.Service] = &r })
	}
	return err
}

func (s announcing) DeleteRecord(k service.Key) error {
	err := s.Store.DeleteRecord(k)
	if err == nil {
		s.c.note(k, func() { delete(s.c.records, k); delete(s.c.states, k) })
	}
	return err
}

// note takes in a decision, and has gateways hear of it.
func (c *cluster) note(k service.Key, change func()) {
	c.mu.Lock()
	change()
	c.mu.Unlock()
	c.world.loop.post(1<<51+uint64(slices.Index(c.world.watch.keys, k.Stable())), func() {
		for _, g := range c.world.gateways {
			g.tell("record "+k.String(), func() { g.hears(c, k) })
		}
	})
}

// decided notes a status, as gateways read it.
func (c *cluster) decided(st fleet.ServiceState) {
	k := st.Object.Key
	d := fleet.Decision{Canary: st.Status.Canary}
	for _, x := range st.Status.Conditions {
		switch {
		case x.Type != service.ConditionReady || x.Status != "False":
		case x.Reason == "Starting" || x.Reason == "Fetching":
			d.Starting = "starting"
		case !slices.Contains([]string{"", "Asleep", "Serving", "NoRevision", "Stopped"}, x.Reason):
			d.Failure = &service.Failure{Reason: x.Reason, Message: x.Message}
		}
	}
	c.note(k, func() { c.states[k] = d })
}

// applied and deleted have gateways hear of manifests.
func (c *cluster) applied(objects []fleet.Object) {
	for _, o := range objects {
		c.mu.Lock()
		c.objects[o.ID()] = o
		c.mu.Unlock()
		c.told(o.ID())
	}
}

func (c *cluster) deleted(id fleet.ID) {
	c.mu.Lock()
	delete(c.objects, id)
	c.mu.Unlock()
	c.told(id)
}

func (c *cluster) told(id fleet.ID) {
	for _, g := range c.world.gateways {
		g.tell("object "+id.String(), func() { g.takes(c, id) })
	}
}

// uncalm notes that something is late, and may be for a while after it is over.
func (c *cluster) uncalm(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until := time.Now().Add(d + 90*time.Second); until.After(c.calm) {
		c.calm = until
	}
}
