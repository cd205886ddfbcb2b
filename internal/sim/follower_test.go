package sim

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/edge/kube/demand"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// This file is a gateway of a cluster, and its way to the controllers.

// follower is what a gateway of a cluster has besides its request path.
type follower struct {
	number  int
	lane    lane
	fleet   *fleet.Follower
	client  *demand.Client
	changes *fleet.Changes
	end     context.CancelFunc
	cut     bool          // its watches bring nothing
	lag     time.Duration // by which they are late at most, each change by another time
	lie     *int          // what it reports of all that wait and run, whatever there is; nil for the truth

	mu    sync.Mutex
	rng   *rand.Rand
	seen  map[service.Key][]replica.Replica
	known map[service.Key]*fleet.Record
	due   map[string]bool // on its way
}

// gateway begins a life of a gateway pod. Its container has started again, or
// another pod has taken its place.
func (c *cluster) gateway(i int) (*gateway, error) {
	w := c.world
	c.lives++
	g, err := newGateway(w, fmt.Sprintf("gateway-%d", i), int64(i), 1000+c.lives, [2]uint64{uint64(10 + 2*i), uint64(11 + 2*i)})
	if err != nil {
		return nil, err
	}
	if c.rng.IntN(2) == 0 {
		g.name += fmt.Sprintf("-%d", c.lives)
	}
	f := &follower{number: i, lane: w.loop.lane(uint64(20 + i)), rng: rand.New(rand.NewPCG(w.plan.Seed, 0x666f6c6c+c.lives)), changes: fleet.NewChanges(), seen: map[service.Key][]replica.Replica{},
		known: map[service.Key]*fleet.Record{}, due: map[string]bool{}}
	g.follower = f
	if f.fleet, err = fleet.NewFollower(fleet.FollowerConfig{Replicas: endpointsOf{g}, Traffic: traffic{g}, Routing: traffic{g}, URL: func(service.Key) string { return "" }, Now: w.now}); err != nil {
		return nil, err
	}
	cfg := demand.DefaultClientConfig()
	cfg.Pod, cfg.Token, cfg.Transport = g.name, c.token, &network{c, g, [2]*rand.Rand{rand.New(rand.NewPCG(w.plan.Seed, 0x6e657430+2*c.lives)), rand.New(rand.NewPCG(w.plan.Seed, 0x6e657431+2*c.lives))}}
	cfg.Roots = func(context.Context) (*x509.CertPool, error) { return nil, errors.New("there are none") }
	cfg.InFlight = func(name string) map[string]int {
		out := map[string]int{}
		for _, e := range g.dispatcher.Endpoints(routing.Service(service.ParseKey(name))) {
			if e.InFlight > 0 {
				out[e.ID] += e.InFlight
			}
		}
		return out
	}
	if f.client, err = demand.NewClient(cfg); err != nil {
		return nil, err
	}
	c.mu.Lock()
	objects := slices.Collect(maps.Values(c.objects))
	slices.SortFunc(objects, func(a, b fleet.Object) int { return strings.Compare(a.ID().String(), b.ID().String()) })
	c.mu.Unlock()
	for _, k := range w.watch.keys {
		for _, k := range []service.Key{k, k.Canary()} {
			g.sees(k)
			g.hears(c, k)
		}
	}
	f.fleet.Restore(objects)
	ctx, cancel := context.WithCancel(context.Background())
	f.end = cancel
	go f.fleet.Run(ctx, 1)
	pause(0, ofClients+int64(i))
	f.client.SetTargets([]string{"controller-0", "controller-1"})
	go f.client.Run(ctx)
	return g, nil
}

// replace puts a new gateway in the place of a dead one.
func (c *cluster) replace(w *world, i int) {
	g, err := c.gateway(i)
	if err != nil {
		w.violate("records survive", service.Key{}, err.Error())
		return
	}
	w.gateways[i] = g
	c.alive()
}

func (f *follower) stop() {
	f.end()
	f.changes.Close()
}

// tell has f called when a gateway's watch brings a change; once for all until
// then.
func (g *gateway) tell(what string, f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.due[what] || g.dead.Load() {
		return
	}
	g.due[what] = true
	late := time.Duration(1+g.rng.IntN(60)) * time.Millisecond
	if g.lag > 0 {
		late += time.Duration(g.rng.Int64N(int64(g.lag)))
	}
	g.lane.after(late, func() {
		g.mu.Lock()
		delete(g.due, what)
		g.mu.Unlock()
		if !g.dead.Load() && !g.cut {
			f()
		}
	})
}

// sees takes in the pods of a service as they are now.
func (g *gateway) sees(k service.Key) {
	var now []replica.Replica
	g.world.machine.locked(func() {
		if o := g.world.machine.owners[k]; o != nil {
			for _, u := range o.units {
				if u.view.HTTP != "" {
					now = append(now, u.view)
				}
			}
		}
	})
	g.mu.Lock()
	g.seen[k] = now
	g.mu.Unlock()
	g.changes.Add(k)
}

// hears takes in what is decided of a service.
func (g *gateway) hears(c *cluster, k service.Key) {
	c.mu.Lock()
	d := c.states[k]
	d.Record = c.records[k]
	c.mu.Unlock()
	d.Blocked = d.Failure != nil && d.Record == nil
	g.mu.Lock()
	g.known[k] = d.Record
	g.mu.Unlock()
	g.fleet.SetDecision(k, d)
}

// endpointsOf is the fleet.Replicas of a gateway.
type endpointsOf struct{ g *gateway }

func (o endpointsOf) Changed() <-chan service.Key { return o.g.changes.Changed() }

func (o endpointsOf) Observe(_ context.Context, k service.Key) ([]replica.Replica, error) {
	o.g.mu.Lock()
	defer o.g.mu.Unlock()
	out := slices.Clone(o.g.seen[k])
	for i := range out {
		if r := o.g.known[k]; r != nil {
			out[i].Revision = r.Revision.Hash // slices do not say
		}
	}
	return out, nil
}

// reports hands the demand of a service to the client, when nothing else happens:
// else the scheduler would decide which reports it is in.
func (g *gateway) reports(pool string, d autoscale.Demand) {
	at := slices.Index(g.world.watch.keys, service.ParseKey(pool).Stable())
	g.world.loop.post(1<<49+uint64(g.number)<<20+uint64(at), func() {
		g.client.Report(pool, d)
		synctest.Wait()
	})
}

// wake raises the count of a service at zero.
func (g *gateway) wake(k service.Key) error {
	g.mu.Lock()
	r, cut := g.known[k], g.cut
	g.mu.Unlock()
	if r == nil || cut {
		return errors.New("the API server does not answer, or the controller has not decided yet")
	}
	return g.world.machine.raise(k)
}

func (g *gateway) takes(c *cluster, id fleet.ID) {
	c.mu.Lock()
	o, there := c.objects[id]
	c.mu.Unlock()
	if there {
		if _, err := g.fleet.Apply(context.Background(), []fleet.Object{o}, fleet.ApplyOptions{}); err != nil {
			c.world.violate("records survive", id.Key, "a gateway refuses a manifest: "+err.Error())
		}
		return
	}
	_ = g.fleet.Delete(context.Background(), id) // it may never have known it
}

// restore is the watch of a gateway that brings changes again.
func (g *gateway) restore(c *cluster) {
	c.mu.Lock()
	ids := map[fleet.ID]bool{}
	for id := range c.objects {
		ids[id] = true
	}
	c.mu.Unlock()
	for _, k := range c.world.watch.keys {
		ids[fleet.ID{Kind: "service", Key: k}] = true
	}
	for _, id := range slices.SortedFunc(maps.Keys(ids), func(a, b fleet.ID) int { return strings.Compare(a.String(), b.String()) }) {
		g.takes(c, id)
	}
	for _, k := range c.world.watch.keys {
		for _, k := range []service.Key{k, k.Canary()} {
			g.sees(k)
			g.hears(c, k)
		}
	}
}

// network carries reports from a gateway to the controllers.
type network struct {
	c   *cluster
	g   *gateway
	rng [2]*rand.Rand // of the reports to each controller, of which there is one at a time
}

func (n *network) pause(to int) {
	pause(time.Duration(100_000+n.rng[to].IntN(3_000_000)), ofNetworks+int64(2*n.g.number+to))
}

func (n *network) separated(controller string) bool {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	return n.c.partition[fmt.Sprint(n.g.number)+controller]
}

func (n *network) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var report demand.Report
	if err := json.Unmarshal(body, &report); err != nil {
		return nil, err
	}
	n.g.mu.Lock()
	if lie := n.g.lie; lie != nil {
		for i := range report.Services {
			report.Services[i].Queued, report.Services[i].Running, report.Services[i].InFlight = *lie, *lie, nil
		}
	}
	n.g.mu.Unlock()
	slices.SortFunc(report.Services, func(a, b demand.Line) int { return strings.Compare(a.Service, b.Service) }) // else map order would order what follows
	if body, err = json.Marshal(report); err != nil {
		return nil, err
	}
	number := int(strings.TrimPrefix(r.URL.Host, "controller-")[0] - '0')
	n.pause(number)
	to := n.c.controllers[number]
	answer := httptest.NewRecorder()
	if !n.separated(r.URL.Host) && !n.g.dead.Load() {
		in := r.Clone(r.Context())
		in.Body, in.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		to.handler.ServeHTTP(answer, in)
		n.pause(number)
	}
	if n.separated(r.URL.Host) || n.g.dead.Load() { // the answer may be lost as well
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return answer.Result(), nil
}
