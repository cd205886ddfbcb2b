package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/benchmarks"
	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/demand"
	"roundhouse.dev/roundhouse/internal/edge/kube/modelcaches"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform"
	"roundhouse.dev/roundhouse/internal/edge/kube/podmetrics"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
	"roundhouse.dev/roundhouse/internal/edge/kube/reserves"
	"roundhouse.dev/roundhouse/internal/edge/kube/status"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/metering"
)

type logger = *slog.Logger

// operator is the controller's parts together. The fleet, the status of routes
// and the handover run in the controller that leads; the others run in every one.
type operator struct {
	opts       controllerOptions
	log        logger
	manager    manager.Manager
	source     *objects.Source
	records    *records.Store
	platform   *platform.Platform
	traffic    *demand.Server
	writer     *status.Writer
	fleet      *fleet.Fleet
	routes     *routeStatus
	handover   *handover
	signals    *signals
	podUse     *podmetrics.Reader
	meter      *metering.Meter
	reserves   *reserves.Keeper
	caches     *modelcaches.Keeper
	benchmarks *benchmarks.Keeper
	calls      *kube.Calls
	measures   *measures
	registry   *prometheus.Registry
	models     string        // temporary folder, "" for none
	led        chan struct{} // closed once the fleet is restored
}

// Names in the system namespace.
const (
	leaseName       = "roundhouse-controller"
	certificateName = "roundhouse-controller"
)

// leaseRetry is how often a controller tries to take the lease: about as long
// nobody leads after the leader has stopped.
const leaseRetry = 2 * time.Second

// shutdownTimeout bounds how long the parts may take to end.
const shutdownTimeout = 20 * time.Second

func newOperator(ctx context.Context, o controllerOptions, cfg *rest.Config, log logger) (*operator, error) {
	op := &operator{opts: o, log: log, handover: &handover{make(chan service.Key, 1), handoverAfter, log}, led: make(chan struct{}), calls: kube.NewCalls()}
	cfg = rest.CopyConfig(cfg)
	op.calls.Of(cfg)
	op.measures = newMeasures(op)
	if err := op.newManager(cfg); err != nil {
		return nil, err
	}
	if err := op.installCRDs(ctx); err != nil {
		return nil, err
	}
	for _, build := range []func(*rest.Config) error{op.connect, op.newTraffic, op.newFleet, op.newReserves, op.newCaches, op.newBenchmarks} {
		if err := build(cfg); err != nil {
			return nil, errors.Join(err, op.close())
		}
	}
	return op, op.register(ctx)
}

// newManager makes the manager: caches, clients, the lease and the health checks.
func (op *operator) newManager(cfg *rest.Config) error {
	o := op.opts
	caches := kube.CacheOptions(o.namespaces)
	if err := platform.Trimmed(&caches); err != nil {
		return err
	}
	none := func(addr string) string {
		if addr == "" {
			return "0"
		}
		return addr
	}
	grace, renew, retry := shutdownTimeout, o.lease*5/6, leaseRetry
	var err error
	op.manager, err = manager.New(cfg, manager.Options{
		Scheme: kube.Scheme(), Cache: caches, Logger: logr.FromSlogHandler(op.log.Handler()),
		Client:         client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		LeaderElection: o.elect, LeaderElectionID: leaseName, LeaderElectionNamespace: o.system, LeaderElectionReleaseOnCancel: true,
		LeaseDuration: &o.lease, RenewDeadline: &renew, RetryPeriod: &retry,
		Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: none(o.health),
		GracefulShutdownTimeout: &grace,
	})
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	return errors.Join(op.manager.AddHealthzCheck("ping", healthz.Ping), op.manager.AddReadyzCheck("manifests", op.ready))
}

// ready returns an error until this controller leads or could lead at once.
func (op *operator) ready(*http.Request) error {
	if !op.source.Ready() {
		return errors.New("the first list of the manifests is not complete")
	}
	return nil
}

// installCRDs installs the CRDs that --install-crds names.
func (op *operator) installCRDs(ctx context.Context) error {
	var foreign []string
	for _, p := range op.opts.install {
		if p != ownCRDs {
			foreign = append(foreign, p)
		}
	}
	if len(op.opts.install) == 0 {
		return nil
	}
	api, err := client.New(op.manager.GetConfig(), client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return err
	}
	const established = 30 * time.Second
	if _, err := crds.Install(ctx, api, crds.Options{Foreign: foreign, FieldManager: shape.FieldManager, Established: established}); err != nil {
		return fmt.Errorf("install CRDs: %w", err)
	}
	return nil
}

// connect makes the parts that read and write the API.
func (op *operator) connect(cfg *rest.Config) error {
	m, o := op.manager, op.opts
	var err error
	if op.writer, err = status.New(status.Config{Client: m.GetClient(), Events: m.GetEventRecorder("roundhouse-controller"), Log: op.log}); err != nil {
		return err
	}
	op.records = records.New(m.GetClient())
	var adopt []service.Dialect
	for _, d := range o.adopt {
		adopt = append(adopt, service.Dialect(d))
	}
	op.source, err = objects.New(objects.Config{Cache: m.GetCache(), Mapper: m.GetRESTMapper(), Records: op.records, OtherManager: op.otherManager, Reporter: op.writer,
		Adopt: adopt, Namespaces: o.namespaces, ConfigMaps: m.GetAPIReader(), Log: op.log})
	if err != nil {
		return err
	}
	op.records.Use(op.source)
	op.platform, err = platform.New(platform.Config{REST: cfg, Client: m.GetClient(), Reader: m.GetAPIReader(), Namespaces: o.namespaces, Owner: op.owner,
		PublicModels: !o.internalModels, HubEndpoint: o.hubCache,
		Raised:  func(k service.Key, n int) { _ = op.fleet.Wake(context.Background(), k, n) }, // of a service that is gone: nothing to wake
		Drifted: func(k service.Key) { op.fleet.Drifted(k) }, Log: op.log})
	return err
}

func (op *operator) owner(k service.Key) *metav1.OwnerReference {
	if ref, ok := op.source.Owner(k); ok {
		return &ref
	}
	return nil
}

// newTraffic makes the server that gateways report to.
func (op *operator) newTraffic(*rest.Config) error {
	cfg := demand.DefaultConfig()
	cfg.Reviewer = demand.NewReviewer(op.manager.GetClient(), nil)
	cfg.Accounts = []string{"system:serviceaccount:" + op.opts.system + ":" + op.opts.gatewayAccount}
	cfg.Demanded, cfg.Log = func(k service.Key) { op.fleet.Demanded(k) }, op.log
	var err error
	op.traffic, err = demand.NewServer(cfg)
	return err
}

// newFleet makes the fleet.
func (op *operator) newFleet(cfg *rest.Config) error {
	runtimes, err := catalog.Runtimes()
	if err != nil {
		return fmt.Errorf("catalog: %w", err)
	}
	runtimes = catalog.WithImage(runtimes, onnxWord, op.opts.onnxImage)
	dir := op.opts.models
	if dir == "" {
		if dir, err = os.MkdirTemp("", "roundhouse-models-"); err != nil {
			return fmt.Errorf("make a folder for the metadata of models: %w: name one with --models-dir", err)
		}
		op.models = dir
	}
	models, err := newInspector(dir, op.opts.internalModels, op.log)
	if err != nil {
		return err
	}
	degraded := func(k service.Key, now routing.Degradation) { op.fleet.SetDegradation(k, now) }
	if op.routes, err = newRouteStatus(op.opts, cfg, op.manager, degraded, op.log); err != nil {
		return err
	}
	pods := podmetrics.DefaultConfig()
	pods.Client, pods.Log = op.manager.GetAPIReader(), op.log
	if op.podUse, err = podmetrics.New(pods); err != nil {
		return err
	}
	if op.signals, err = newSignals(op.opts.metricsServers, op.traffic, op.podUse); err != nil {
		return err
	}
	direct, err := client.New(cfg, client.Options{Scheme: kube.Scheme(), Mapper: op.manager.GetRESTMapper()})
	if err != nil {
		return err
	}
	op.meter = metering.New(metering.Config{Store: records.NewUsage(direct, op.opts.system), Log: op.log})
	op.fleet, err = fleet.New(fleet.Config{Usage: op.meter, Signals: op.signals, Platform: guarded{op.platform, op.records.OtherInstallation, op.traffic.Guests}, Store: op.records, Models: models, Traffic: op.traffic, Routing: op.routes,
		Catalog: runtimes, URL: op.opts.address, Cluster: true, Image: op.opts.image, Delivery: op.opts.delivery, Installation: op.opts.system, Applied: op.applied, Report: op.report, Reconciled: op.measures.reconciled, Log: op.log})
	op.routes.fleet, op.routes.writer, op.routes.source = op.fleet, op.writer, op.source
	return err
}

// report writes a service's status and then deletes its superseded record. It is
// a fleet.Config.Report.
func (op *operator) report(ctx context.Context, st fleet.ServiceState) (time.Duration, error) {
	retry, err := op.writer.Report(ctx, st)
	op.records.Tidy(ctx, st.Object.Key)
	op.caches.Changed()
	return retry, err
}

// register adds every part to the manager, which runs them.
func (op *operator) register(ctx context.Context) error {
	m := op.manager
	if err := op.registerMetrics(); err != nil {
		return err
	}
	if err := op.platform.Start(ctx, m.GetCache()); err != nil {
		return err
	}
	if err := op.watchRecords(ctx); err != nil {
		return err
	}
	return errors.Join(m.Add(op.source), m.Add(always(op.watchGateways)), m.Add(always(op.serveMetrics)), m.Add(always(op.serveReports)), m.Add(always(func(ctx context.Context) error {
		op.traffic.Run(ctx)
		return nil
	})), m.Add(manager.RunnableFunc(op.lead)), m.Add(manager.RunnableFunc(op.handover.run)))
}

// watchGateways tells op.traffic which gateway pods take requests.
func (op *operator) watchGateways(ctx context.Context) error {
	of := client.ObjectKey{Namespace: op.opts.system, Name: op.opts.gatewayService}
	err := kube.WatchSlices(ctx, op.manager.GetConfig(), op.manager.GetRESTMapper(), of, nil, func(all []*discoveryv1.EndpointSlice) { op.traffic.SetLive(readyPods(all)) })
	if err != nil {
		return fmt.Errorf("watch the gateways: %w", err)
	}
	return nil
}

// readyPods returns the names of the pods that are ready in EndpointSlices.
func readyPods(all []*discoveryv1.EndpointSlice) []string {
	pods := []string{}
	for _, s := range all {
		for _, e := range s.Endpoints {
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				pods = append(pods, e.TargetRef.Name)
			}
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// always runs in every controller, whether it leads or not.
type always func(context.Context) error

func (a always) Start(ctx context.Context) error { return a(ctx) }
func (always) NeedLeaderElection() bool          { return false }

// certificateRetry is the wait before a certificate that could not be made is
// made again.
const certificateRetry = 5 * time.Second

// serveReports takes the reports of gateways.
func (op *operator) serveReports(ctx context.Context) error {
	l, err := net.Listen("tcp", op.opts.report)
	if err != nil {
		return fmt.Errorf("--report-listen %s: %w", op.opts.report, err)
	}
	api, err := client.New(op.manager.GetConfig(), client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return errors.Join(err, l.Close())
	}
	certs := demand.NewCertificates(api, client.ObjectKey{Namespace: op.opts.system, Name: certificateName}, op.log)
	for {
		err := certs.Ensure(ctx)
		if err == nil {
			break
		}
		op.log.Error("gateways cannot report yet: no certificate; retrying", "error", err)
		select {
		case <-time.After(certificateRetry):
		case <-ctx.Done():
			return l.Close()
		}
	}
	go certs.Run(ctx)
	return op.traffic.Serve(ctx, l, certs.Get)
}

// workers is how many services are reconciled at once. Most of a reconcile is
// waiting, for the API server or a model's source.
const workers = 16

// lead reconciles until ctx ends. An error ends the program: another
// controller leads then.
func (op *operator) lead(ctx context.Context) error {
	if err := op.readRecords(ctx); err != nil {
		return err
	}
	op.meter.Resume()
	err := op.source.Attach(ctx, op.fleet, func(ctx context.Context) error {
		if err := op.fleet.Restore(ctx); err != nil {
			op.log.Error("not everything could be restored, retrying", "error", err)
		}
		return ctx.Err()
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	// Those that do not lead know no counts: they do not listen, so that KEDA's calls
	// reach the one that does.
	scaler, err := op.opts.scaler.Open(op.fleet, op.log)
	if err != nil {
		return err
	}
	defer scaler.Close()
	op.log.Info("leading", "services", len(op.fleet.List()))
	close(op.led)
	var others sync.WaitGroup
	others.Go(func() { op.routes.run(ctx) })
	others.Go(func() { op.keep(ctx, op.reserves.Run, "Reserves are not kept; retrying") })
	others.Go(func() { op.keep(ctx, op.caches.Run, "models are not kept on nodes; retrying") })
	others.Go(func() { op.benchmarks.Run(ctx) })
	others.Go(func() { op.podUse.Run(ctx) })
	others.Go(func() {
		if err := scaler.Serve(ctx); err != nil {
			op.log.Error("KEDA gets no more answers", "error", err)
		}
	})
	op.fleet.Run(ctx, workers)
	others.Wait()
	return nil
}

// readRecords reads what earlier controllers decided. It fails if a later
// release wrote a record.
func (op *operator) readRecords(ctx context.Context) error {
	api, err := client.New(op.manager.GetConfig(), client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return err
	}
	if err := op.records.Lead(ctx, api, client.ObjectKey{Namespace: op.opts.system, Name: certificateName}); err != nil && ctx.Err() == nil {
		op.log.Warn("the format of this installation's records could not be noted: a record of a later format stops this controller, whoever wrote it", "error", err)
	}
	_, err = op.records.Read(ctx)
	var newer *records.NewerError
	if errors.As(err, &newer) {
		return err
	}
	return nil // Restore reports other errors
}

// Run runs until ctx ends. It returns an error when the lease is lost: then
// another leads, and the program must end.
func (op *operator) Run(ctx context.Context) error { return op.manager.Start(ctx) }

func (op *operator) close() error {
	op.signals.close()
	if op.models == "" {
		return nil
	}
	return os.RemoveAll(op.models)
}
