package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
	"roundhouse.dev/roundhouse/internal/edge/gateway"
	"roundhouse.dev/roundhouse/internal/edge/process"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// node is everything of one machine, put together. The seams between its
// parts are the small adapters below.
type node struct {
	cfg      nodeConfig
	log      *slog.Logger
	platform *process.Platform
	fleet    *fleet.Fleet
	traffic  *front.Traffic
	server   *front.Server
	inner    *gateway.Gateway // for routers, in front of the other roles of their services
	admin    *admin.Server
	store    *artifact.Store
}

type nodeConfig struct {
	dir       *datadir.Dir
	listeners front.Listeners
	admin     *net.TCPAddr
	log       *slog.Logger
	access    *front.Access
	hub       *upHub
	models    int64 // bytes that the store of models may have; 0: no bound
}

func newNode(cfg nodeConfig) (*node, error) {
	n := &node{cfg: cfg, log: cfg.log}
	runtimes, err := catalog.Runtimes()
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	n.store, err = artifact.New(artifact.Config{Dir: cfg.dir.Models(), StoreBytes: cfg.models, InUse: n.modelsInUse, HubEndpoint: cfg.hub.endpoint}, nil, cfg.log)
	if err != nil {
		return nil, err
	}
	demands := &demands{}
	if n.traffic, err = front.NewTraffic(demands, "", cfg.log); err != nil {
		return nil, err
	}
	n.platform, err = process.New(process.Config{Dir: cfg.dir.Path("processes"), Executable: command.Executable(), Server: command.Beside(command.ServerProgram), ServerEnv: []string{command.ForServer(version)}, Fetcher: fetcher{n.store}, Fingerprint: n.fingerprint,
		Drain: n.traffic.Drain, Forward: n.forward, Env: cfg.hub.environment(), Logger: cfg.log})
	if err != nil {
		return nil, err
	}
	n.fleet, err = fleet.New(fleet.Config{Platform: n.platform, Store: cfg.dir, Models: inspector{n.store}, Traffic: n.traffic, Routing: n.traffic,
		Fingerprint: n.fingerprint, Catalog: runtimes, URL: n.url, Log: cfg.log})
	if err != nil {
		return nil, err
	}
	demands.fleet = n.fleet
	n.traffic.PoolRoles()
	n.traffic.OnLost(n.platform.Suspect)
	n.traffic.Attach(n.fleet)
	return n, n.servers()
}

// servers makes what listens: the gateways and the admin API.
func (n *node) servers() error {
	metrics := prometheus.NewRegistry()
	n.cfg.hub.start(metrics, n.log)
	var err error
	n.server, err = front.NewServer(front.ServerConfig{Traffic: n.traffic, Access: n.cfg.access, Listeners: n.cfg.listeners, Metrics: metrics, Version: version, Log: n.log})
	if err != nil {
		return err
	}
	cfg := gateway.DefaultConfig()
	cfg.Version, cfg.DrainTimeout, cfg.Heard = version, time.Second, n.traffic.Heard
	// What it counts stays unread: each request is counted where it came in.
	if n.inner, err = gateway.New(cfg, n.traffic.Dispatcher, n.log, prometheus.NewRegistry()); err != nil {
		return err
	}
	token, err := n.cfg.dir.Token()
	if err != nil {
		return err
	}
	n.admin, err = admin.New(admin.Config{Fleet: n.fleet, Token: token, Host: n.cfg.admin.IP.String(), Files: n.store, Version: version, Gateway: n.base(), Keys: n.cfg.access.Keys,
		ExplainRequest: func(r *http.Request) (fmt.Stringer, error) { return n.server.Gateway.Explain(r) },
		Endpoints:      n.traffic.Dispatcher.Endpoints,
		Metrics:        promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}), Log: n.log})
	return err
}

// forward has the requests at a role's address go to its replicas.
func (n *node) forward(ctx context.Context, ref workload.Ref, l net.Listener) {
	if err := n.inner.ServeTo(ctx, l, front.RolePool(ref.Service, ref.Role)); err != nil && ctx.Err() == nil {
		n.log.Error("a role's address does not answer any more", "role", ref.String(), "error", err)
	}
}

// close ends the replicas, or with keep leaves them to the next owner.
func (n *node) close(hurry context.Context, keep bool) error {
	ctx, cancel := context.WithTimeout(hurry, front.DrainGrace+10*time.Second)
	defer cancel()
	n.traffic.Close()
	if err := n.platform.Close(ctx, keep); err != nil {
		return fmt.Errorf("ending the replicas: %w", err)
	}
	return nil
}

// base is the address people reach the gateway at.
func (n *node) base() string { return n.cfg.access.Scheme() + "://" + front.Reachable(n.inference()) }

func (n *node) inference() *net.TCPAddr { return n.cfg.listeners.Inference.Addr().(*net.TCPAddr) }

// url is a service's own address: its host tells it from namesakes.
func (n *node) url(k service.Key) string {
	return fmt.Sprintf("%s://%s.%s.localhost:%d", n.cfg.access.Scheme(), k.Name, k.Namespace, n.inference().Port)
}

// greet tells on standard output what can be asked and how.
func (n *node) greet(ctx context.Context, w io.Writer) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	say("Roundhouse answers at  %s", n.base())
	if n.cfg.listeners.GRPC != nil {
		say("gRPC                   %s", front.Reachable(n.cfg.listeners.GRPC.Addr().(*net.TCPAddr)))
	}
	say("Admin API and metrics  http://%s", n.cfg.admin)
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
	say("\n%s: %s", k, statusLine(admin.Service{Status: st.Status}))
	switch st.Status.Protocol {
	case service.ProtocolOpenAI:
		say(`  curl -N %s/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"%s","stream":true,"messages":[{"role":"user","content":"Hello"}]}'`, base, modelName(k))
	case service.ProtocolV1, service.ProtocolV2:
		name := strings.ReplaceAll(modelName(k), "/", "%2F")
		switch sample := sampleRequest(st.Object); {
		case sample != "":
			say("  curl %s/v2/models/%s/infer -H 'Content-Type: application/json' -d @%s", base, name, sample)
		case st.Status.Protocol == service.ProtocolV1:
			say("  with the inputs of one instance in place of ROW, such as [5.1, 3.5]:")
			say(`  curl %s/v1/models/%s:predict -H 'Content-Type: application/json' -d '{"instances": [ROW]}'`, base, name)
		default:
			say("  with one row of N numbers in place of ROW, such as 5.1, 3.5; %s/v2/models/%s tells what it takes:", base, name)
			say(`  curl %s/v2/models/%s/infer -H 'Content-Type: application/json' -d '{"inputs": [{"name": "input-0", "shape": [1, N], "datatype": "FP32", "data": [ROW]}]}'`, base, name)
		}
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

// demands carries what the request path asks for to the fleet. Its fleet is
// set once, before anything runs.
type demands struct{ fleet *fleet.Fleet }

func (d *demands) Wake(ctx context.Context, pool string, atLeast int) error {
	return d.fleet.Wake(ctx, service.ParseKey(pool), atLeast)
}

func (d *demands) Sleep(ctx context.Context, pool string) error {
	return d.fleet.Sleep(ctx, service.ParseKey(pool))
}

func (d *demands) Report(pool string, _ autoscale.Demand) { d.fleet.Demanded(service.ParseKey(pool)) }

// fetcher brings models for the platform.
type fetcher struct{ *artifact.Store }

func (f fetcher) Fetch(ctx context.Context, uri string, progress func(done, total int64)) (string, error) {
	// A revision's model was settled when it was made: what is here is not
	// compared with its source again, so a wake waits for nobody.
	if path, ok := f.Lookup(artifact.Request{URI: uri}); ok {
		return path, nil
	}
	return f.Store.Fetch(ctx, artifact.Request{URI: uri}, func(p artifact.Progress) {
		if progress != nil {
			progress(p.Done, p.Total)
		}
	})
}

// fingerprint tells the files of a model from later ones.
func (n *node) fingerprint(ctx context.Context, uri string) string {
	return n.store.Fingerprint(ctx, artifact.Request{URI: uri})
}

// inspector reads models' attributes for the fleet.
type inspector struct{ *artifact.Store }

// inspectTimeout bounds how long a remote model's own files may take to read.
const inspectTimeout = 15 * time.Second

func (i inspector) Inspect(ctx context.Context, uri string) (service.Attributes, error) {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	f, err := i.Peek(ctx, artifact.Request{URI: uri})
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = missing{err}
		}
		return service.Attributes{Environment: f.Environment}, err
	}
	if from, ok := f.From["frameworkversion"]; ok {
		f.From["framework.version"] = from
	}
	return service.Attributes{Format: service.NamedVersion{Name: f.Format}, Framework: service.NamedVersion{Name: f.Framework, Version: f.FrameworkVersion},
		Architecture: f.Architecture, Quantization: f.Quantization, Parameters: f.Parameters, AdapterRank: f.AdapterRank, Environment: f.Environment, From: f.From}, nil
}

// missing says that the model is certainly not there.
type missing struct{ error }

func (missing) NotExist() bool  { return true }
func (m missing) Unwrap() error { return m.error }
