package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/cmd/internal/inference"
	"roundhouse.dev/roundhouse/cmd/internal/jsonschema"
	"roundhouse.dev/roundhouse/cmd/internal/printer"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/admin/console"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/edge/process"
	"roundhouse.dev/roundhouse/internal/edge/process/brought"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
	"roundhouse.dev/roundhouse/internal/edge/promquery"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/journal"
	"roundhouse.dev/roundhouse/internal/state/metering"
)

// node is an `up`, put together.
type node struct {
	cfg       nodeConfig
	log       *slog.Logger
	platform  *process.Platform
	fleet     *fleet.Fleet
	traffic   *front.Traffic
	server    *front.Server
	inner     *gateway.Gateway // for roles that call others: it forwards to those
	admin     *admin.Server
	live      *admin.Live
	store     *artifact.Store
	queries   *promquery.Reader
	scaler    *front.Scaler // nil for none
	measures  *front.ServiceMetrics
	downloads front.Downloads
	bench     *benchmarks
	caches    *caches
	open      opener
	brought   *brought.Store
}

type nodeConfig struct {
	version    string
	dir        *datadir.Dir
	listeners  front.Listeners
	admin      *net.TCPAddr
	log        *slog.Logger
	access     *front.Access
	hub        *upHub
	events     *journal.Events
	scaler     front.ScalerOptions
	containers string // as --containers
	models     int64  // bytes that the store of models may have; 0: no bound
}

func newNode(cfg nodeConfig) (*node, error) {
	n := &node{cfg: cfg, log: cfg.log, downloads: front.NewDownloads()}
	n.open = func(f service.Files) (credentials.Opened, error) { return n.fleet.Open(f) }
	runtimes, err := Catalog()
	if err != nil {
		return nil, err
	}
	n.store, err = artifact.New(artifact.Config{Dir: cfg.dir.Models(), StoreBytes: cfg.models, InUse: n.modelsInUse, HubEndpoint: cfg.hub.endpoint, Blobs: cfg.hub.blobs()}, nil, cfg.log)
	if err != nil {
		return nil, err
	}
	mode, err := containers.Mode(cfg.containers)
	if err != nil {
		return nil, err
	}
	n.brought = brought.New(brought.Config{Dir: filepath.Join(cfg.dir.Models(), "brought"), Engines: &containers.Finder{Mode: mode}, Log: cfg.log})
	demands := &demands{}
	if n.traffic, err = front.NewTraffic(front.TrafficConfig{Demand: demands, PoolRoles: true, Queue: cfg.access.Queue, Lost: func(id string) { n.platform.Suspect(id) }, Log: cfg.log}); err != nil {
		return nil, err
	}
	n.platform, err = process.New(process.Config{Dir: cfg.dir.Path("processes"), Executable: command.Executable(), Server: command.Beside(command.ServerProgram), ServerEnv: []string{command.ForServer(cfg.version)}, Fetcher: fetcher{n.store, n.downloads, n.open, n.bring}, Fingerprint: n.fingerprint,
		Secret:    func(k service.Key) (*service.Secret, bool) { return n.fleet.Secret(k) },
		ConfigMap: func(k service.Key) (*service.ConfigMap, bool) { return n.fleet.ConfigMap(k) },
		Drain:     n.traffic.Drain, Resume: n.traffic.Resume, Forward: n.forward, Containers: cfg.containers, Env: cfg.hub.environment(), Logger: cfg.log})
	if err != nil {
		return nil, err
	}
	if n.queries, err = promquery.New(promquery.DefaultConfig()); err != nil {
		return nil, err
	}
	n.fleet, err = fleet.New(fleet.Config{Signals: &signals{n.traffic, n.platform, n.queries}, Platform: n.platform, Store: cfg.dir, Models: Inspector{n.store, n.open}, Traffic: n.traffic, Routing: n.traffic,
		Fingerprint: n.fingerprint, Catalog: runtimes, URL: n.url, Report: n.report, Forgot: n.forgot, Routed: n.routed, Applied: n.applied, Usage: metering.New(metering.Config{Store: cfg.dir.Usage(), Log: cfg.log}).Resume(), Log: cfg.log})
	if err != nil {
		return nil, err
	}
	n.bench, n.caches = n.newBenchmarks(), n.newCaches()
	demands.fleet, n.measures = n.fleet, front.NewServiceMetrics(n.fleet)
	n.live, err = admin.NewLive(admin.LiveConfig{Get: n.fleet.Get, Demand: n.traffic.Dispatcher.Demand, Pace: cfg.access.Requests.Pace, Machine: n.machine,
		InFlight: n.traffic.InFlight, Load: n.traffic.Load, Endpoints: n.traffic.Dispatcher.Endpoints, Events: cfg.events})
	if err != nil {
		return nil, err
	}
	n.traffic.Attach(n.fleet)
	if n.scaler, err = cfg.scaler.Open(n.fleet, cfg.log); err != nil {
		return nil, err
	}
	return n, n.servers()
}

// servers makes what listens: the gateways and the admin API.
func (n *node) servers() error {
	metrics := prometheus.NewRegistry()
	n.cfg.hub.start(metrics, n.log)
	err := front.Measured(metrics)
	for _, c := range append(n.downloads.Collectors(), append(front.DiskMetrics(n.cfg.dir.Path()), front.BuildInfo(n.cfg.version), n.measures, front.NewReplicaCounts(n.fleet, 0), front.NewReplicaSeconds(n.fleet, 0))...) {
		err = errors.Join(err, metrics.Register(c))
	}
	if err != nil {
		return err
	}
	n.server, err = front.NewServer(front.ServerConfig{Traffic: n.traffic, Access: n.cfg.access, Listeners: n.cfg.listeners, Metrics: metrics, Version: n.cfg.version, Log: n.log})
	if err != nil {
		return err
	}
	cfg := gateway.DefaultConfig()
	cfg.Version, cfg.DrainTimeout, cfg.Heard = n.cfg.version, time.Second, n.traffic.Heard
	// Its metrics are dropped: the outer gateway counts each request.
	if n.inner, err = gateway.New(cfg, n.traffic.Dispatcher, n.log, prometheus.NewRegistry()); err != nil {
		return err
	}
	token, err := n.cfg.dir.Token()
	if err != nil {
		return err
	}
	viewer, err := n.cfg.dir.ViewerToken()
	if err != nil {
		return err
	}
	n.admin, err = admin.New(admin.Config{Fleet: n.fleet, Token: token, Host: n.cfg.admin.IP.String(), Files: n.store, Version: n.cfg.version, Gateway: n.base(), Keys: n.cfg.access.Keys,
		Models: fetcher{n.store, n.downloads, n.open, n.bring}, Schemas: sync.OnceValues(jsonschema.Kinds),
		ExplainRequest: func(r *http.Request) (fmt.Stringer, error) { return n.server.Gateway.Explain(r) },
		Requests:       n.cfg.access.Requests,
		Events:         n.cfg.events,
		Benchmark:      n.bench.Of,
		ModelCache:     n.caches.Of,
		Live:           n.live,
		Infer:          n.server.Gateway.Handler(),
		ViewerToken:    viewer,
		Sessions:       n.cfg.dir.Sessions(),
		Port:           n.cfg.admin.Port,
		Endpoints:      n.traffic.Dispatcher.Endpoints,
		Metrics:        promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})})
	return err
}

// report has the journal tell what happened to a service.
func (n *node) report(_ context.Context, st fleet.ServiceState) (time.Duration, error) {
	is := history.See(st.Object.Created().String(), st.Manifests, st.Status, st.Replicas)
	defer n.live.Observe(st) // once the journal has what failed
	if was, known := n.cfg.events.Observe(st.Object.Key, is, st.Scaling); known {
		n.measures.Count(st.Object.Key, was, is)
	}
	return 0, nil
}

// forgot has the journal and the metrics forget a deleted service.
func (n *node) forgot(k service.Key) {
	n.cfg.events.Forget(k)
	n.measures.Forget(k)
	n.live.Forget(k)
}

// routed tells the journal and the console of objects of routing.
func (n *node) routed(all []fleet.RoutingState) {
	n.cfg.events.ObserveRoutes(admin.RoutesOf(all))
	n.live.ObserveRoutes(all)
}

// applied tells the journal and the console what was done with runtimes, models and
// benchmarks.
func (n *node) applied(all []fleet.Change) {
	n.live.Changed(admin.Lists)
	for _, c := range all {
		switch c.ID.Kind {
		case fleet.BenchmarkKind:
			n.bench.jobs.Changed()
		case fleet.CacheKind, fleet.NodeGroupKind, fleet.SecretKind, fleet.AccountKind, dialect.ConfigMapID:
			n.caches.fetches.Changed()
		}
		n.cfg.events.Tell(history.Event{Namespace: c.ID.Namespace, Object: c.ID.Kind + " " + c.ID.Name, Reason: history.Done(c.Action), Message: c.Action})
	}
}

// machine measures what the replicas share.
func (n *node) machine(ctx context.Context) admin.Machine {
	out := admin.Machine{GPUs: n.platform.Machine().GPUs, Standings: n.fleet.Standings(ctx)}
	out.MemoryAvailable, out.MemoryTotal = n.platform.Memory()
	var disk syscall.Statfs_t
	if syscall.Statfs(n.cfg.dir.Path(), &disk) == nil { // else the folder is gone: there is no room
		out.DiskFree, out.DiskTotal = int64(disk.Bavail*uint64(disk.Bsize)), int64(disk.Blocks*uint64(disk.Bsize))
	}
	return out
}

// forward sends the requests at the address of a role to its replicas.
func (n *node) forward(ctx context.Context, ref workload.Ref, l net.Listener) {
	if err := n.inner.ServeTo(ctx, l, routing.RolePool(ref.Service, ref.Role)); err != nil && ctx.Err() == nil {
		n.log.Error("the address of a role stopped answering", "role", ref.String(), "error", err)
	}
}

// close ends the replicas. With keep it leaves them to the next `up`.
func (n *node) close(hurry context.Context, keep bool) error {
	ctx, cancel := context.WithTimeout(hurry, front.DrainGrace+10*time.Second)
	defer cancel()
	n.traffic.Close()
	n.queries.Close()
	n.scaler.Close()
	if err := n.platform.Close(ctx, keep); err != nil {
		return fmt.Errorf("stop the replicas: %w", err)
	}
	return nil
}

// base is the URL of the gateway.
func (n *node) base() string { return n.cfg.access.Scheme() + "://" + front.Reachable(n.inference()) }

func (n *node) inference() *net.TCPAddr { return n.cfg.listeners.Inference.Addr().(*net.TCPAddr) }

// url is the URL of one service: its host name has the namespace too.
func (n *node) url(k service.Key) string {
	return fmt.Sprintf("%s://%s.%s.localhost:%d", n.cfg.access.Scheme(), k.WorkloadName(), k.Namespace, n.inference().Port)
}

// greet prints the addresses and a request for each service.
func (n *node) greet(ctx context.Context, w io.Writer) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	say("Roundhouse answers at  %s", n.base())
	if n.cfg.listeners.GRPC != nil {
		say("gRPC                   %s", front.Reachable(n.cfg.listeners.GRPC.Addr().(*net.TCPAddr)))
	}
	say("Admin API and metrics  http://%s", n.cfg.admin)
	say("Console                http://%s%s", n.cfg.admin, n.admin.Link(console.Owner))
	if n.cfg.hub.endpoint != "" {
		say("Hugging Face Hub       %s", artifact.Redact(n.cfg.hub.endpoint))
	}
	for _, st := range n.fleet.List() {
		if st, err := n.resolved(ctx, st.Object.Key); err == nil {
			greetService(say, n.base(), st)
		}
	}
	say("")
}

// resolved waits for a service's first reconcile, which is a moment after the
// start.
func (n *node) resolved(ctx context.Context, k service.Key) (st fleet.ServiceState, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		if st, err = n.fleet.Get(ctx, k); err != nil || len(st.Status.Conditions) > 0 {
			return st, err
		}
		select {
		case <-ctx.Done():
			return st, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func greetService(say func(string, ...any), base string, st fleet.ServiceState) {
	k := st.Object.Key
	say("\n%s: %s", k, printer.ServiceLine(admin.Service{Status: st.Status}))
	for _, line := range inference.Example(base, k, st.Status.Protocol, sampleRequest(st.Object)) {
		say("  %s", line)
	}
}

// sampleRequest is a request kept beside a service's manifest, if any:
// NAME-request.json.
func sampleRequest(o fleet.Object) string {
	if o.Origin.File == "" {
		return ""
	}
	path := filepath.Join(filepath.Dir(o.Origin.File), o.Key.Name+"-request.json")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// demands hands the demand of the request path to the fleet, which is set once,
// before anything runs.
type demands struct{ fleet *fleet.Fleet }

func (d *demands) Wake(ctx context.Context, pool string, atLeast int) error {
	return d.fleet.Wake(ctx, service.ParseKey(pool), atLeast)
}

func (d *demands) Sleep(ctx context.Context, pool string) error {
	return d.fleet.Sleep(ctx, service.ParseKey(pool))
}

func (d *demands) Report(pool string, _ autoscale.Demand) { d.fleet.Demanded(service.ParseKey(pool)) }

// fingerprint tells the files of a model from later ones.
func (n *node) fingerprint(ctx context.Context, f service.Files) string {
	req, err := n.open.request(f)
	if err != nil {
		return ""
	}
	return n.store.Fingerprint(ctx, req)
}

// signals measure what the services of one machine scale on besides requests: the
// engines' own metrics, what processes take, and what Prometheus servers answer.
type signals struct {
	traffic  *front.Traffic
	platform *process.Platform
	queries  *promquery.Reader
}

// Load implements fleet.Signals.
func (s *signals) Load(k service.Key, replicaID string) *replica.Load {
	return s.traffic.EngineLoad(k, replicaID)
}

// Use implements fleet.Signals.
func (s *signals) Use(_ service.Key, replicaID string) *replica.Use {
	return s.platform.Use(replicaID)
}

// External implements fleet.Signals.
func (s *signals) External(_ service.Key, m service.ExternalMetric) autoscale.Reading {
	return s.queries.Read(m)
}
