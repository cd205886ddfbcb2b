package incluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/demand"
	"roundhouse.dev/roundhouse/internal/edge/kube/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/live"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Gateway is one gateway of a cluster.
type Gateway struct {
	Listeners front.Listeners

	o        Options
	log      *slog.Logger
	access   *front.Access
	traffic  *front.Traffic
	server   *front.Server
	follower *fleet.Follower
	cache    cache.Cache
	api      *rest.Config
	mapper   meta.RESTMapper
	view     *live.View
	waker    *live.Waker
	source   *objects.Source
	reporter *demand.Client
	targeted chan struct{} // closed when reporter knows the controller pods
	scaled   scaledByEngines
	routes   *attached
	servers  *servers // nil: everything is reached
}

// followers is how many services are looked at at once.
const followers = 4

// New puts a gateway together. It listens, and answers nobody before Run,
// which closes what New opened.
func New(ctx context.Context, o Options) (g *Gateway, err error) {
	front.MakeHeadroom()
	if err := o.settle(); err != nil {
		return nil, err
	}
	g = &Gateway{o: o, targeted: make(chan struct{})}
	if g.log, err = o.Log.New(o.Logs); err != nil {
		return nil, err
	}
	cfg := kube.DefaultConfig()
	cfg.Kubeconfig = o.Kubeconfig
	api, err := kube.Connect(cfg, "roundhouse-gateway/"+o.Version)
	if err != nil {
		return nil, err
	}
	if g.Listeners, err = front.OpenListeners(o.Listen, o.GRPC, o.Metrics, o.Health); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	if o.HTTPS != "" {
		if g.Listeners.HTTPS, err = front.Listen(o.HTTPS, "--https-listen"); err != nil {
			return nil, err
		}
	}
	g.o.Front.AllowAnyHost()
	if g.access, err = g.o.Front.Open(ctx, datadir.KeyFile{}, o.Version, o.Logs, g.log); err != nil {
		return nil, err
	}
	g.access.Warn(g.log, g.Listeners.Inference, g.Listeners.GRPC)
	return g, g.build(api)
}

// build puts the parts together. It asks the API server which kinds there are.
func (g *Gateway) build(api *rest.Config) (err error) {
	calls := kube.NewCalls()
	calls.Of(api)
	direct, err := client.New(api, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	opts := kube.CacheOptions(g.o.Namespaces)
	g.api, g.mapper = api, direct.RESTMapper()
	opts.Scheme, opts.Mapper = kube.Scheme(), g.mapper
	for kind, by := range opts.ByObject {
		if _, ok := kind.(*discoveryv1.EndpointSlice); ok && g.o.transform != nil {
			by.Transform = g.o.transform
			opts.ByObject[kind] = by
		}
	}
	if g.cache, err = cache.New(api, opts); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	view := live.DefaultConfig()
	view.Cache, view.Log = g.cache, g.log
	view.AgentPort = cmp.Or(g.o.agentPort, view.AgentPort)
	if g.view, err = live.New(view); err != nil {
		return err
	}
	g.waker = live.NewWaker(direct, g.view.Revision, g.log)
	g.source, err = objects.New(objects.Config{Cache: g.cache, Mapper: g.mapper, Records: g.view.Records(), Adopt: g.o.adopt, Namespaces: g.o.Namespaces,
		Only: (*objects.Kind).Requests, Log: g.log})
	if err != nil {
		return err
	}
	if err := g.demand(direct); err != nil {
		return err
	}
	if g.traffic, err = front.NewTraffic(front.TrafficConfig{Demand: asking{g.waker, g.reporter}, Domain: g.o.domain(), PublicOnly: !g.o.Internal,
		External: g.external, Sent: g.reporter.Sent, Queue: g.access.Queue, Log: g.log}); err != nil {
		return err
	}
	g.scaled.revision = g.view.Revision
	if !g.o.Internal {
		if g.servers, err = g.newServers(); err != nil {
			return err
		}
	}
	publisher := following{g.traffic, g.reporter, &g.scaled, g.servers}
	metrics := prometheus.NewRegistry()
	if err := g.route(metrics); err != nil {
		return err
	}
	g.follower, err = fleet.NewFollower(fleet.FollowerConfig{Replicas: g.view, Traffic: publisher, Routing: g.routes, URL: g.o.address, Log: g.log})
	if err != nil {
		return err
	}
	g.traffic.Attach(g.follower)
	g.view.Follow(g.follower)
	if err := errors.Join(front.Measured(metrics), metrics.Register(calls)); err != nil {
		return err
	}
	server := front.ServerConfig{Traffic: g.traffic, Access: g.access, Listeners: g.Listeners, HTTPS: g.routes.certificates.Config(), Metrics: metrics, Version: g.o.Version, Leave: g.o.Leave, Log: g.log}
	if g.routes.pickers != nil {
		server.Picker = g.routes.pickers
	}
	if g.servers != nil {
		server.Reach = g.servers.reach
	}
	g.server, err = front.NewServer(server)
	return err
}

// route makes what knows which routes, pods and endpoint pickers there are.
func (g *Gateway) route(metrics prometheus.Registerer) (err error) {
	g.routes = &attached{to: g.traffic, servers: g.servers, changed: make(chan struct{}, 1), log: g.log}
	at := service.Key{Namespace: g.o.System, Name: g.o.GatewayService}
	certificate := service.Key{}
	if g.o.GatewaySecret != "" {
		certificate = service.Key{Namespace: g.o.System, Name: g.o.GatewaySecret}
	}
	if g.routes.watch, err = gatewayapi.New(gatewayapi.Config{REST: g.api, Mapper: g.mapper, Shared: g.cache, Namespaces: g.o.Namespaces,
		Service: at, Certificate: certificate, Secrets: g.o.HTTPS != "", Domain: g.o.domain(), Changed: g.routes.dirty, Log: g.log}); err != nil {
		return err
	}
	pods := pools.DefaultPodsConfig()
	pods.REST, pods.Mapper, pods.Namespaces, pods.Changed, pods.Transform, pods.Log = g.api, g.mapper, g.o.Namespaces, g.traffic.Pods, g.o.transform, g.log
	if g.routes.pods, err = pools.NewPods(pods); err != nil {
		return err
	}
	if g.routes.plain, err = g.watchedPorts(g.plainChanged); err != nil || g.o.Pickers == PickersIgnore {
		return err
	}
	g.routes.pickers, err = g.newAsked(metrics)
	return err
}

func (g *Gateway) demand(direct client.Client) (err error) {
	cfg := demand.DefaultClientConfig()
	cfg.Pod, cfg.Token, cfg.Log = g.o.Pod, g.o.ControllerToken, g.log
	cfg.Roots = demand.NewAuthorities(direct, client.ObjectKey{Namespace: g.o.System, Name: demand.Authority}).Pool
	cfg.InFlight = func(name string) map[string]int {
		out := map[string]int{}
		for _, e := range g.traffic.Dispatcher.Endpoints(routing.Service(service.ParseKey(name))) {
			if e.InFlight > 0 {
				out[live.PodName(e.Replica)] += e.InFlight
			}
		}
		return out
	}
	cfg.Engines = g.engines
	cfg.Hosts = func(now time.Time) (out []demand.Host) {
		for _, a := range g.view.Agents() {
			if h, ok := demand.HostOf(a.Service, a.Pod, a.Models, a.At, now); ok {
				out = append(out, h)
			}
		}
		return out
	}
	cfg.Heard = func(endpoint string, blocks []uint64) { g.traffic.Dispatcher.Heard(endpoint, blocks) }
	g.reporter, err = demand.NewClient(cfg)
	return err
}

// engines are what the engines last told of the services that scale by it. It has
// them read on, also where this gateway sends no requests.
func (g *Gateway) engines(now time.Time) (out []demand.Engine) {
	for _, k := range g.scaled.list() {
		last := "" // of a replica's ranks, which come one after the other
		for _, e := range g.traffic.Dispatcher.Endpoints(routing.Service(k)) {
			if e.Replica == last {
				continue
			}
			last = e.Replica
			if l := g.traffic.EngineLoad(k, e.Replica); l != nil {
				if told, ok := demand.EngineOf(k, live.PodName(e.Replica), l, now); ok {
					out = append(out, told)
				}
			}
		}
	}
	return out
}

// scaledByEngines are the services a component of which scales by what its engine
// tells.
type scaledByEngines struct {
	revision func(service.Key) *workload.Revision
	mu       sync.Mutex
	services map[service.Key]bool
}

func (s *scaledByEngines) list() []service.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.services))
}

// note takes in a service that was published, or is gone.
func (s *scaledByEngines) note(k service.Key, there bool) {
	scaled := false
	if r := s.revision(k); there && r != nil {
		scaled = slices.ContainsFunc(r.Components, func(c workload.Component) bool {
			return slices.ContainsFunc(c.Limits.Measured(), func(m service.MetricTarget) bool { return m.Metric.Engine() })
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !scaled {
		delete(s.services, k)
		return
	}
	if s.services == nil {
		s.services = map[service.Key]bool{}
	}
	s.services[k] = true
}

// watchControllers keeps the reporter's targets: the pods of the controller.
func (g *Gateway) watchControllers(ctx context.Context) error {
	first := sync.OnceFunc(func() { close(g.targeted) })
	of := client.ObjectKey{Namespace: g.o.System, Name: g.o.ControllerService}
	return kube.WatchSlices(ctx, g.api, g.mapper, of, g.o.transform, func(all []*discoveryv1.EndpointSlice) {
		g.reporter.SetTargets(controllerAddresses(all))
		first()
	})
}

// portReports is the name of the port of the controller's Service that takes
// reports.
const portReports = "reports"

// controllerAddresses returns the addresses of all controller pods that take
// reports, ready or not: those that do not lead need the reports as well.
func controllerAddresses(all []*discoveryv1.EndpointSlice) (out []string) {
	for _, es := range all {
		port := int32(0)
		for _, p := range es.Ports {
			if p.Name != nil && *p.Name == portReports && p.Port != nil {
				port = *p.Port
			}
		}
		for _, e := range es.Endpoints {
			if port > 0 && len(e.Addresses) > 0 && (e.Conditions.Terminating == nil || !*e.Conditions.Terminating) {
				out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(port))))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (g *Gateway) close() {
	g.Listeners.Close()
	if g.traffic != nil {
		g.traffic.Close()
	}
	if g.routes != nil && g.routes.pods != nil {
		g.routes.pods.Close()
	}
	if g.routes != nil && g.routes.plain != nil {
		g.routes.plain.Close()
	}
	if g.routes != nil && g.routes.pickers != nil {
		g.routes.pickers.close()
	}
	if g.servers != nil {
		g.servers.ports.Close()
	}
	if g.view != nil {
		g.view.Close()
	}
	if g.access != nil {
		_ = g.access.Close() // it has served nobody
	}
}

// Run serves until ctx ends, and lets the requests in flight finish. It is
// ready once it knows what there is; without an API server it goes on with
// what it knows.
func (g *Gateway) Run(ctx context.Context) error {
	defer g.close()
	return g.server.Run(ctx, func(ctx context.Context) {
		g.server.Greet(g.o.Out)
		if err := g.attach(ctx); err != nil {
			if ctx.Err() == nil {
				g.log.Error("the cluster's objects cannot be followed", "error", err)
			}
			return
		}
		g.server.SetReady()
		g.log.Info("ready")
	}, func(ctx context.Context) { g.keep(ctx) })
}

// keep runs what must go on until the last request has its answer.
func (g *Gateway) keep(ctx context.Context) {
	var all sync.WaitGroup
	run := func(name string, f func(context.Context) error) {
		all.Go(func() {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				g.log.Error("stopped", "part", name, "error", err)
			}
		})
	}
	run("cache", g.cache.Start)
	run("manifests", g.source.Start)
	run("routes", g.routes.Run)
	run("controllers", g.watchControllers)
	run("services", func(ctx context.Context) error { g.follower.Run(ctx, followers); return nil })
	run("agents", func(ctx context.Context) error { g.view.AskAgents(ctx); return nil })
	run("demand", func(ctx context.Context) error { g.reporter.Run(ctx); return nil })
	all.Wait()
}

// attach follows what there is, and returns when all of it is known.
func (g *Gateway) attach(ctx context.Context) error {
	if err := g.view.Start(ctx); err != nil {
		return err
	}
	restore := func(context.Context) error { g.follower.Restore(g.source.Objects()); return nil }
	if err := g.source.Attach(ctx, g.view.Sink(), restore); err != nil {
		return err
	}
	if err := g.routes.listed(ctx); err != nil {
		return err
	}
	return g.awaitReports(ctx)
}

// reportTimeout is for how long being ready waits until the controller knows of
// this gateway. One that is not known when it takes requests stops the idle
// clocks until it is, which costs something and breaks nothing.
const reportTimeout = 2 * time.Second

func (g *Gateway) awaitReports(ctx context.Context) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	limit := time.After(reportTimeout)
	select {
	case <-g.targeted:
	case <-limit:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	for !g.reporter.Reported() {
		select {
		case <-t.C:
		case <-limit:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// asking is whom the request path asks for replicas.
type asking struct {
	waker    *live.Waker
	reporter *demand.Client
}

// Wake implements dispatch.Demand: 0→1 at once. More replicas come of what is
// reported.
func (a asking) Wake(ctx context.Context, name string, _ int) error {
	return a.waker.Wake(ctx, service.ParseKey(name))
}

// Sleep implements dispatch.Demand.
func (asking) Sleep(context.Context, string) error { return errFollows }

// Report implements dispatch.Demand.
func (a asking) Report(name string, d autoscale.Demand) { a.reporter.Report(name, d) }

// following tells the request path which services there are, and the controller
// which are gone.
type following struct {
	*front.Traffic
	reporter *demand.Client
	scaled   *scaledByEngines
	servers  *servers // may be nil
}

// Publish implements fleet.Publisher.
func (f following) Publish(v fleet.View) {
	f.Traffic.Publish(v)
	f.servers.note(v.Key.String(), ofLoggers(v))
	f.scaled.note(v.Key, true)
}

// Withdraw implements fleet.Publisher.
func (f following) Withdraw(k service.Key) {
	f.Traffic.Withdraw(k)
	f.servers.note(k.String(), nil)
	f.scaled.note(k, false)
	f.reporter.Forget(k.String())
}

var errFollows = errors.New("a gateway in a cluster decides nothing: the controller does")
