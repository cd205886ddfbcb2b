package incluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/cmd/internal/picking"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// PickerOptions are what the endpoint picker of a cluster is told by flags.
type PickerOptions struct {
	picking.Options
	Kubeconfig string
	// Service is the picker's own, which the InferencePools it serves name.
	Service    string
	Namespaces []string
	Secure     bool
	Version    string
	Out, Logs  io.Writer

	transform toolscache.TransformFunc // see Options
}

// Flags adds the options' flags.
func (o *PickerOptions) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "file that says how to reach the API server; default: the pod's own account")
	f.StringVar(&o.Pool, "pool", "", "NAMESPACE/NAME of the one InferencePool to pick for")
	f.StringVar(&o.Service, "service", "", "name of the picker's own Service: it picks for every InferencePool whose endpointPickerRef names that")
	f.StringSliceVar(&o.Namespaces, "namespace", nil, "namespace whose InferencePools are picked for, with --service; may be repeated; default: the pod's own")
	f.BoolVar(&o.Secure, "secure-serving", true, "serve gateways over TLS, with a certificate signed by itself unless --tls-cert names another")
	o.Options.Flags(f, ":9002", ":9003", ":9090")
}

func (o *PickerOptions) settle() error {
	switch {
	case (o.Pool == "") == (o.Service == ""):
		return command.Usagef("name either the InferencePool with --pool NAMESPACE/NAME, or the picker's own Service with --service")
	case o.Pool != "" && len(o.Namespaces) > 0:
		return command.Usagef("--namespace goes with --service: --pool names its own")
	case !o.Secure && o.TLSCert != "":
		return command.Usagef("--tls-cert has no effect without --secure-serving")
	}
	if o.Pool != "" {
		o.Namespaces = []string{service.ParseKey(o.Pool).Namespace}
	}
	if len(o.Namespaces) == 0 {
		o.Namespaces = []string{ownNamespace()}
	}
	return nil
}

// wants reports whether a pool's endpoints are picked.
func (o *PickerOptions) wants(p *routing.Pool) bool {
	if o.Pool != "" {
		return p.Key.String() == o.Pool
	}
	return p.Extension.Name == o.Service
}

// RunPicker picks endpoints until ctx ends.
func RunPicker(ctx context.Context, o PickerOptions) (err error) {
	log, err := o.Log.New(o.Logs)
	if err != nil {
		return err
	}
	server, err := o.Server(log)
	if err = errors.Join(err, o.settle()); err != nil {
		return err
	}
	if o.Secure && server.TLS == nil {
		if server.TLS, err = selfSigned(time.Now()); err != nil {
			return fmt.Errorf("TLS certificate: %w", err)
		}
	}
	scheduling, err := o.Scheduling(log)
	if err != nil {
		return err
	}
	p := &pickerPools{o: &o, all: map[fleet.ID]fleet.Object{}}
	if p.traffic, err = front.NewTraffic(front.TrafficConfig{PublicOnly: true, Scheduling: scheduling, Log: log}); err != nil {
		return err
	}
	defer p.traffic.Close()
	c, source, err := p.follow(log)
	if err != nil {
		return err
	}
	defer p.pods.Close()
	var attached atomic.Bool
	server.Ready = attached.Load
	run := func(part string, f func(context.Context) error) func(context.Context) {
		return func(ctx context.Context) {
			if err := f(ctx); err != nil && ctx.Err() == nil {
				log.Error("stopped", "part", part, "error", err)
			}
		}
	}
	metrics := prometheus.NewRegistry()
	if err := front.Measured(metrics); err != nil {
		return err
	}
	picker, err := picking.New(picking.Config{Server: server, Fallbacks: o.Fallbacks, Traffic: p.traffic, Metrics: metrics, Pool: p.meant,
		Keep: []func(context.Context){run("cache", c.Start), run("manifests", source.Start)}})
	if err != nil {
		return err
	}
	return picker.Run(ctx, o.Metrics, o.Out, func(ctx context.Context) {
		run("pools", func(ctx context.Context) error {
			if err := source.Attach(ctx, p, func(context.Context) error { p.restore(source.Objects()); return nil }); err != nil {
				return err
			}
			if err := p.pods.Listed(ctx); err != nil {
				return err
			}
			attached.Store(true)
			log.Info("ready")
			return nil
		})(ctx)
	})
}

// follow makes what reads the pools, and what reads their pods.
func (p *pickerPools) follow(log *slog.Logger) (cache.Cache, *objects.Source, error) {
	cfg := kube.DefaultConfig()
	cfg.Kubeconfig = p.o.Kubeconfig
	api, err := kube.Connect(cfg, "roundhouse-endpoint-picker/"+p.o.Version)
	if err != nil {
		return nil, nil, err
	}
	direct, err := client.New(api, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		return nil, nil, fmt.Errorf("API server: %w", err)
	}
	opts := kube.CacheOptions(p.o.Namespaces)
	opts.Scheme, opts.Mapper = kube.Scheme(), direct.RESTMapper()
	c, err := cache.New(api, opts)
	if err != nil {
		return nil, nil, fmt.Errorf("API server: %w", err)
	}
	source, err := objects.New(objects.Config{Cache: c, Mapper: direct.RESTMapper(), Records: noRecords{}, Adopt: []service.Dialect{service.DialectGateway},
		Namespaces: p.o.Namespaces, Log: log, Only: picked})
	if err != nil {
		return nil, nil, err
	}
	pods := pools.DefaultPodsConfig()
	pods.REST, pods.Mapper, pods.Namespaces, pods.Changed, pods.Transform, pods.Log = api, direct.RESTMapper(), p.o.Namespaces, p.traffic.Pods, p.o.transform, log
	p.pods, err = pools.NewPods(pods)
	return c, source, err
}

// picked reports whether a kind is an InferencePool, or belongs to one: a picker may read
// no others, and waits for all that it reads. Of another cluster's pool the endpoints are
// picked there.
func picked(k *objects.Kind) bool {
	return (strings.HasPrefix(k.Group, "inference.") || k.Group == "llm-d.ai") && k.Dialect() == service.DialectGateway && k.Kind != "InferencePoolImport"
}

// pickerPools are the InferencePools that are picked for, and what belongs to
// them. It is an objects.Sink.
type pickerPools struct {
	o       *PickerOptions
	traffic *front.Traffic
	pods    *pools.Pods

	mu     sync.Mutex
	all    map[fleet.ID]fleet.Object
	wanted map[service.Key]bool
	only   service.Key // of the one pool there is; zero: of none or several
}

// meant is the pool that a stream means: the one there is, where it names none
// or only the picker's own Service, whose name may end as those that stand for
// a pool do.
func (p *pickerPools) meant(named service.Key) service.Key {
	if named.Name != "" && named.Name+"-epp" != p.o.Service {
		return named
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.wanted[named]; there {
		return named
	}
	return p.only
}

func (p *pickerPools) restore(all []fleet.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range all {
		p.all[o.ID()] = o
	}
	p.publish()
}

// Apply implements objects.Sink.
func (p *pickerPools) Apply(_ context.Context, all []fleet.Object, _ fleet.ApplyOptions) ([]fleet.Change, error) {
	p.restore(all)
	return nil, nil
}

// Delete implements objects.Sink.
func (p *pickerPools) Delete(_ context.Context, id fleet.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, id)
	p.publish()
	return nil
}

// Demanded implements objects.Sink: there are no services.
func (*pickerPools) Demanded(service.Key) {}

// publish is called with mu held.
func (p *pickerPools) publish() {
	var pools []*routing.Pool
	wanted := map[service.Key]bool{}
	for _, o := range p.all {
		if pool, ok := o.Routing.(*routing.Pool); ok && p.o.wants(pool) {
			pools, wanted[pool.Key] = append(pools, pool), true
		}
	}
	var out []routing.Object
	for _, o := range p.all {
		of := service.Key{}
		switch o := o.Routing.(type) {
		case *routing.Pool:
			of = o.Key
		case *routing.Model:
			of = o.Pool
		case *routing.Objective:
			of = o.Pool
		case *routing.Rewrite:
			of = o.Pool
		}
		if wanted[of] {
			out = append(out, o.Routing)
		}
	}
	slices.SortFunc(out, func(a, b routing.Object) int {
		x, y := a.Common(), b.Common()
		if c := x.Created.Compare(y.Created); c != 0 {
			return c
		}
		return strings.Compare(x.Key.String()+string(a.RoutingKind()), y.Key.String()+string(b.RoutingKind()))
	})
	p.wanted, p.only = wanted, service.Key{}
	if len(pools) == 1 {
		p.only = pools[0].Key
	}
	p.traffic.Route(fleet.RoutingView{Objects: out})
	p.pods.Set(pools)
}

// noRecords: nothing was decided of a pool.
type noRecords struct{}

func (noRecords) Manifest(service.Key) []byte { return nil }
func (noRecords) Services() []service.Key     { return nil }

// selfSignedLife is longer than any process runs; who asks does not verify the
// certificate.
const selfSignedLife = 10 * 365 * 24 * time.Hour

// selfSigned is a certificate of this process alone.
func selfSigned(now time.Time) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "roundhouse-endpoint-picker"}, DNSNames: []string{"roundhouse-endpoint-picker"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLife), KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	raw, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}}}, nil
}
