package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/scrape"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/keys"
)

// This file puts the product's parts together, as cmd/roundhouse does for `up`.
// It is the only one that knows their seams.

// process is one life of `roundhouse up`, or of the controller that leads: from its
// start to its crash.
type process struct {
	world  *world
	number uint64
	fleet  *fleet.Fleet
	store  *datadir.Dir
	disk   *mount
	cancel context.CancelFunc
	dead   atomic.Bool // also read by its goroutines, after the loop ended it
}

// newProcess starts over what the disk and the machine hold.
func newProcess(w *world, number uint64) (*process, error) {
	p := &process{world: w, number: number}
	p.disk = w.disk.opened()
	var err error
	if p.store, err = datadir.OpenOn(p.disk, w.disk.root); err != nil {
		return nil, err
	}
	cfg := fleet.Config{Platform: w.machine, Store: p.store, Models: noModels{}, Jitter: (&source{rng: rand.New(rand.NewPCG(w.plan.Seed, 0x6a697474+number))}).jitter,
		Now: w.now, Log: slog.New(slog.DiscardHandler)}
	if w.cluster != nil {
		w.machine.adopted()
		w.cluster.configure(&cfg, p)
	} else {
		g, err := newGateway(w, "up", 0, number, [2]uint64{3, 4})
		if err != nil {
			return nil, err
		}
		g.process, w.gateways = p, []*gateway{g}
		w.machine.adopted()
		cfg.Traffic, cfg.Routing, w.machine.drain = traffic{g}, traffic{g}, g.dispatcher.Drain
		w.machine.resume = g.dispatcher.Resume
	}
	if p.fleet, err = fleet.New(cfg); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	if err := p.fleet.Restore(ctx); err != nil && !errors.Is(err, errRefused) { // which it tries again
		cancel()
		return nil, fmt.Errorf("restore: %w", err)
	}
	go p.fleet.Run(ctx, 1)
	return p, nil
}

// crash ends the process at once: nothing that it does from now on happens.
func (p *process) crash() {
	p.dead.Store(true)
	p.disk.crash()
	p.world.machine.crash()
	p.cancel()
	_ = p.store.Close() // its lock goes with it
	if p.world.cluster == nil {
		p.world.gateways[0].crash()
	}
}

// gateway is the request path of one life of a process: of `up`, or of one of a
// cluster's gateways.
type gateway struct {
	world      *world
	name       string
	place      int64    // among them
	process    *process // of which it is a part; nil in a cluster
	dispatcher *dispatch.Dispatcher
	scraper    *scrape.Scraper
	late       *source
	keys       *keys.Ring // nil where none are needed
	pools      *pools     // nil where there are none but those of services
	dead       atomic.Bool
	*follower
}

func newGateway(w *world, name string, place int64, number uint64, lanes [2]uint64) (g *gateway, err error) {
	g = &gateway{world: w, name: name, place: place, late: &source{rng: rand.New(rand.NewPCG(w.plan.Seed, 0x6c617465+number))}}
	random := &source{rng: rand.New(rand.NewPCG(w.plan.Seed, 0x70726f63+number))}
	cfg := w.plan.bounded()
	cfg.Lost = func(string) {}
	if g.dispatcher, err = dispatch.New(cfg, demands{g}, clock{w.loop.lane(lanes[0]), w.now}, random.IntN); err != nil {
		return nil, err
	}
	readingsRandom := &source{rng: rand.New(rand.NewPCG(w.plan.Seed, 0x72656164+number))}
	readings := scrape.DefaultConfig()
	readings.Sink, readings.Traffic, readings.Clock, readings.Random = g.dispatcher, g.dispatcher, clock{w.loop.lane(lanes[1]), w.now}, readingsRandom.Float64
	readings.Transport, readings.Workers = metricsOf{w, place, rand.New(rand.NewPCG(w.plan.Seed, 0x73637261+number))}, 1
	if g.scraper, err = scrape.New(readings); err == nil && w.plan.Keys {
		cfg := keys.DefaultConfig()
		cfg.Now = w.now
		g.keys, err = keys.Open(cfg, datadir.KeyFile{Path: filepath.Join(w.disk.root, "keys")})
		clear(w.watch.allowed)
	}
	if err == nil && len(w.plan.Pools) > 0 {
		g.pools, err = newPools(g)
	}
	return g, err
}

func (g *gateway) crash() {
	g.dead.Store(true)
	if g.follower != nil {
		g.stop()
	}
	if g.pools != nil {
		g.pools.end()
	}
	g.scraper.Close()
	g.dispatcher.Close()
}

// apply applies a manifest, as `roundhouse apply` does.
func (p *process) apply(manifest string) error {
	read := dialect.Read("sim.yaml", []byte(manifest))
	if bad := read.Errors(dialect.Process); len(bad) > 0 {
		return fmt.Errorf("the manifest is wrong: %v", bad)
	}
	var objects []fleet.Object
	for _, o := range read.Objects {
		objects = append(objects, fleet.Object{Object: o})
	}
	_, err := p.fleet.Apply(context.Background(), objects, fleet.ApplyOptions{})
	if err == nil && p.world.cluster != nil && !p.dead.Load() {
		p.world.cluster.applied(objects)
	}
	return err
}

func (p *process) remove(k service.Key) error {
	id := fleet.ID{Kind: "service", Key: k}
	err := p.fleet.Delete(context.Background(), id)
	if err == nil && p.world.cluster != nil {
		p.world.cluster.deleted(id)
	}
	return err
}

// demands carries what the dispatcher asks for to who decides.
type demands struct{ g *gateway }

func (d demands) Wake(ctx context.Context, pool string, n int) error {
	k := service.ParseKey(pool)
	if d.g.dead.Load() {
		return errDead
	}
	d.g.world.trace("wake %s %d", pool, n)
	if d.g.process == nil {
		return d.g.wake(k)
	}
	return d.g.process.fleet.Wake(ctx, k, n)
}

func (d demands) Sleep(ctx context.Context, pool string) error {
	return d.g.process.fleet.Sleep(ctx, service.ParseKey(pool))
}

func (d demands) Report(pool string, demand autoscale.Demand) {
	switch {
	case d.g.dead.Load():
	case d.g.process == nil:
		d.g.reports(pool, demand)
	default:
		d.g.process.fleet.Demanded(service.ParseKey(pool))
	}
}

// traffic tells the dispatcher and the scraper of services.
type traffic struct{ g *gateway }

func (t traffic) Publish(v fleet.View) {
	if t.g.dead.Load() {
		return
	}
	f := dispatch.PoolConfig{Key: v.Key, Protocol: v.Protocol, Protocols: v.Protocols, Created: v.Service.Created, Entry: v.Role, Needs: v.Needs,
		Limits: v.Limits, Bounds: routing.Bounds{Fairness: v.Limits.Queue.Fairness}, CanaryPercent: v.CanaryPercent, Replicas: v.Replicas, Starting: v.Starting,
		Cause: dispatch.Cause{Reason: v.Reason, Message: v.Cause, Permanent: v.Blocked, RetryAfter: v.RetryAfter}}
	if t.g.pools != nil {
		t.g.pools.set(t.g, f)
	} else {
		t.g.dispatcher.SetPool(f)
	}
	var targets []scrape.Target
	for _, r := range v.Replicas {
		if r.Serving() {
			targets = append(targets, scrape.Target{ID: r.ID, URL: "http://" + r.HTTP, Engine: "vllm"})
		}
	}
	if err := t.g.scraper.SetPool(f.Ref().String(), targets); err != nil {
		t.g.world.violate("scrape", v.Key, err.Error())
	}
}

func (t traffic) Route(v fleet.RoutingView) {
	if t.g.pools != nil {
		t.g.pools.route(t.g, v)
		return
	}
	t.g.dispatcher.SetObjects(v.Objects)
}

func (t traffic) Withdraw(k service.Key) {
	t.g.dispatcher.Remove(routing.Service(k))
	_ = t.g.scraper.SetPool(k.String(), nil)
	if t.g.process == nil {
		t.g.client.Forget(k.String())
	}
}

// Demand is read a moment before the fleet looks at its clock, and now and then
// some milliseconds: whoever runs it was made to wait. The watch waits for nothing.
func (t traffic) Demand(k service.Key) autoscale.Demand {
	d := t.g.dispatcher.Demand(k)
	if !t.g.world.machine.watched.Load() && t.g.late.IntN(4) == 0 {
		pause(time.Duration(t.g.late.IntN(5_000_000)), ofFleet)
	}
	return d
}

func (t traffic) InFlight(id string) int { return t.g.dispatcher.InFlight(id) }

// noModels knows nothing of any model but what its manifest says.
type noModels struct{}

func (noModels) Inspect(context.Context, service.Files) (service.Attributes, error) {
	return service.Attributes{}, nil
}

// metricsOf answers readings of metrics with those of the engines.
type metricsOf struct {
	world   *world
	gateway int64
	rng     *rand.Rand
}

func (t metricsOf) RoundTrip(r *http.Request) (*http.Response, error) {
	m := t.world.machine
	m.pause(t.rng, ofScrapers+t.gateway)
	u := m.at(r.URL.Host)
	if u == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	var text string
	var mood mood
	m.locked(func() {
		mood = u.mood
		if u.engine == nil {
			return
		}
		s := u.engine.Stats()
		if mood.lying {
			s.Waiting, s.Running, s.BlocksUsed = 0, 0, 0
		}
		text = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running " + strconv.Itoa(s.Running) + "\nvllm:num_requests_waiting " + strconv.Itoa(s.Waiting) +
			"\nvllm:kv_cache_usage_perc " + strconv.FormatFloat(float64(s.BlocksUsed)/float64(s.BlocksTotal), 'g', 4, 64) +
			"\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"" + strconv.Itoa(s.BlocksTotal) + "\"} 1\n"
	})
	if mood.silent || text == "" {
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}
	}
	return &http.Response{StatusCode: http.StatusOK, Status: "200 OK", Header: http.Header{"Content-Type": {"text/plain"}},
		Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
}

// address is where a replica is.
func (m *machine) address(id string) (at string) {
	m.locked(func() {
		if u := m.units[id]; u != nil {
			at = u.view.HTTP
		}
	})
	return at
}

// at is the replica at an address.
func (m *machine) at(address string) (found *unit) {
	m.locked(func() {
		for _, u := range m.units {
			if u.view.HTTP == address && u.engine != nil {
				found = u
			}
		}
	})
	return found
}

// source is randomness that several goroutines draw from, one at a time.
type source struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (s *source) IntN(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.IntN(n)
}

func (s *source) Float64() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Float64()
}

// jitter adds up to a fifth.
func (s *source) jitter(d time.Duration) time.Duration {
	return d + time.Duration(s.IntN(int(d)/5+1))
}
