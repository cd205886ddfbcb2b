// Package controller is `roundhouse controller`: the controller of a cluster put
// together, and the commands of the gateways and endpoint pickers that follow it.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/cmd/internal/incluster"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// controllerOptions are what `roundhouse controller` is told.
type controllerOptions struct {
	kubeconfig        string
	adopt             []string
	install           []string
	namespaces        []string
	system            string
	image             string
	onnxImage         string
	gatewayURL        string
	gatewayService    string
	gatewayPort       int
	gatewayAccount    string
	gatewaySecret     string
	gatewayHTTPS      bool
	metrics           string
	health            string
	report            string
	elect             bool
	lease             time.Duration
	internalModels    bool
	internalAddresses bool
	pickers           string
	priorityClass     string
	benchmarks        bool
	hubCache          string
	delivery          workload.Delivery
	models            string
	scaler            front.ScalerOptions
	replicaMetrics    int
	metricsServers    []string
	log               command.LogOptions
	version           string
}

// defaultLease is longer than the usual 15 seconds, so that a controller
// outlives an API server that is away for a minute. One that stops gives its
// lease back at once; only one that is cut off keeps another waiting, and
// meanwhile requests and wakes go on.
const defaultLease = 90 * time.Second

// NewCommand makes `roundhouse controller` and the commands below it.
func NewCommand(version string) *cobra.Command {
	o := controllerOptions{version: version}
	cmd := &cobra.Command{
		Use:   "controller",
		Short: "Run the controller: it makes the cluster match its manifests",
		Long: `Make the cluster agree with the manifests in it: choose a runtime for each
model, keep the choice, start and scale pods, and write what is known back to
the manifests. Several run at once; one of them leads.

Manifests of other projects are read where a namespace asks for it with the
label roundhouse.dev/adopt (kserve, ome, seldon, gateway, with a dot between
several), or everywhere with --adopt.

Its gateways and endpoint pickers, which follow what it decides, are commands
below it.`,
		Example: `  roundhouse controller --image registry.example/roundhouse:1 --adopt kserve
  roundhouse controller --image roundhouse --kubeconfig ~/.kube/config --leader-elect=false`,
		Args: command.CommandsOnly,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			log, err := o.log.New(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return control(cmd.Context(), o, log)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server; in a cluster the pod's account does")
	f.StringSliceVar(&o.adopt, "adopt", nil, "dialects of other projects to read in every namespace: "+dialects())
	f.StringSliceVar(&o.install, "install-crds", nil, "CRDs to install where they are missing: roundhouse, "+strings.Join(crds.Projects(), ", "))
	f.StringSliceVar(&o.namespaces, "namespace", nil, "watch only this namespace; may be repeated")
	f.StringVar(&o.system, "system-namespace", "", "namespace of the controller and its gateways (default: the pod's own, else roundhouse-system)")
	f.StringVar(&o.image, "image", os.Getenv("ROUNDHOUSE_IMAGE"), "image of this release, for the runtimes that come with it")
	f.StringVar(&o.onnxImage, "onnx-image", "", "image of this release with ONNX Runtime, for ONNX models; none leaves them to other runtimes (default: --image, its name with "+onnxSuffix+" at the end; none where that is a digest)")
	f.StringVar(&o.gatewayURL, "gateway-url", "http://{name}.{namespace}.example.com", "where people reach a service, for its status")
	f.StringVar(&o.gatewayService, "gateway-service", "roundhouse-gateway", "Service in the system namespace whose pods are the gateways")
	f.IntVar(&o.gatewayPort, "gateway-port", defaultGatewayPort, "port of HTTP of that Service, which the pods of BenchmarkJobs send their load to")
	f.StringVar(&o.gatewayAccount, "gateway-account", "roundhouse-gateway", "service account in the system namespace that may report demand")
	f.BoolVar(&o.gatewayHTTPS, "gateway-https", false, "the gateways serve HTTPS, at the port https of their Service, with the Secrets that listeners of Gateways name: read these")
	f.StringVar(&o.gatewaySecret, "gateway-tls-secret", "", "Secret in the system namespace that the gateways serve HTTPS with, which listeners of Gateways may name")
	f.StringVar(&o.metrics, "metrics-listen", ":8090", "address of the metrics; empty for none")
	f.StringVar(&o.health, "health-listen", ":8091", "address of /healthz and /readyz; empty for none")
	f.StringVar(&o.report, "report-listen", ":8443", "address that gateways report demand to")
	f.BoolVar(&o.elect, "leader-elect", true, "have one of several controllers lead")
	f.DurationVar(&o.lease, "lease-duration", defaultLease, "how long a leader that has gone silent leads; it exits after five sixths of it without an API server")
	f.BoolVar(&o.internalModels, "allow-internal-models", false, "let the URIs of models lead to internal addresses (loopback, link-local, private), for the controller, which looks at models, and for pods, which fetch them")
	f.BoolVar(&o.internalAddresses, "allow-internal-addresses", false, "say nothing of internal addresses that pools name: the gateways are started with the same flag, and use them")
	f.StringVar(&o.pickers, "endpoint-pickers", incluster.PickersAsk, "what the gateways are told to do with the endpoint pickers that InferencePools name, for their status: ask or ignore")
	f.StringVar(&o.priorityClass, "reserve-priority-class", "", "PriorityClass of the placeholders of Reserves; without one no Reserve is served")
	f.BoolVar(&o.benchmarks, "benchmarks", true, "run OME's BenchmarkJobs as Jobs; without it their status says that none is run")
	f.StringVar(&o.hubCache, "hub-cache", "", "URL of the cache of the Hugging Face Hub that new pods ask: their HF_ENDPOINT, unless they set it (default: none)")
	f.StringVar(&o.delivery.Store, "model-store", "", "folder of each node in which the pods of a namespace share the files of models, such as /var/lib/roundhouse/models (default: each pod has a copy); the namespaces must admit hostPath volumes")
	f.StringVar(&o.delivery.StoreSize, "model-store-max-bytes", defaultStoreSize, "with a model store: most that a namespace's models may take on a node, as a size or a share of the disk")
	o.scaler.Flags(f)
	f.IntVar(&o.replicaMetrics, "replica-metrics", 0, "of how many services at most, by name, the metrics roundhouse_desired_replicas, roundhouse_ready_replicas, roundhouse_replica_seconds_total and roundhouse_gpu_seconds_total are exported; 0 for none")
	f.StringSliceVar(&o.metricsServers, "metrics-server", nil, "Prometheus server that scaleMetric external of manifests may ask, such as http://prometheus.monitoring:9090; may be repeated. Without one no query is asked")
	f.StringVar(&o.models, "models-dir", "", "folder for what is read of models (default: a temporary one)")
	o.log.Flags(f)
	cmd.AddCommand(newClusterGateway(version), newClusterPicker(version))
	return cmd
}

func dialects() string {
	out := make([]string, len(objects.Foreign))
	for i, d := range objects.Foreign {
		out[i] = string(d)
	}
	return strings.Join(out, ", ")
}

// minLease leaves room for a few tries at renewal.
const minLease = 6 * time.Second

// complete fills what is not stated and refuses what cannot be used.
func (o *controllerOptions) complete() error {
	if o.image == "" {
		return command.Usagef("--image is missing: name the image this controller runs, or set ROUNDHOUSE_IMAGE")
	}
	switch o.onnxImage {
	case "":
		o.onnxImage = onnxImage(o.image)
	case noImage:
		o.onnxImage = ""
	}
	for _, d := range o.adopt {
		if !slices.Contains(objects.Foreign, service.Dialect(d)) {
			return command.Usagef("--adopt %s: not a dialect: write some of %s", d, dialects())
		}
	}
	for _, p := range o.install {
		if p != ownCRDs && !slices.Contains(crds.Projects(), p) {
			return command.Usagef("--install-crds %s: write some of %s, %s", p, ownCRDs, strings.Join(crds.Projects(), ", "))
		}
	}
	if err := o.completeGateway(); err != nil {
		return err
	}
	if o.pickers = cmp.Or(o.pickers, incluster.PickersAsk); o.pickers != incluster.PickersAsk && o.pickers != incluster.PickersIgnore {
		return command.Usagef("--endpoint-pickers %s: write %s or %s", o.pickers, incluster.PickersAsk, incluster.PickersIgnore)
	}
	if o.hubCache != "" && !webURL(o.hubCache) {
		return command.Usagef("--hub-cache %s: write a URL, such as http://hub-cache.models.svc:8083", o.hubCache)
	}
	if err := o.completeDelivery(); err != nil {
		return err
	}
	if o.lease < minLease {
		return command.Usagef("--lease-duration %v: write %v or more", o.lease, minLease)
	}
	if o.system == "" {
		o.system = ownNamespace()
	}
	return o.checkMetrics()
}

// completeGateway checks where the gateway is reached.
func (o *controllerOptions) completeGateway() error {
	if !webURL(o.address(service.Key{Namespace: "namespace", Name: "name"})) {
		return command.Usagef("--gateway-url %s: write a URL, with {name} and {namespace} in their places", o.gatewayURL)
	}
	if o.gatewayPort = cmp.Or(o.gatewayPort, defaultGatewayPort); o.gatewayPort < 1 || o.gatewayPort > 65535 {
		return command.Usagef("--gateway-port %d: write a port, 1 to 65535", o.gatewayPort)
	}
	return nil
}

// checkMetrics refuses what metrics cannot be read from, or told of.
func (o *controllerOptions) checkMetrics() error {
	if o.replicaMetrics < 0 {
		return command.Usagef("--replica-metrics %d: write 0 or more", o.replicaMetrics)
	}
	for _, s := range o.metricsServers {
		if u, err := url.Parse(s); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return command.Usagef("--metrics-server %s: write a URL such as http://prometheus.monitoring:9090", artifact.Redact(s))
		}
	}
	return nil
}

// webURL reports whether a text is a URL of HTTP with a host.
func webURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

// ownCRDs is how --install-crds spells those of Roundhouse.
const ownCRDs = "roundhouse"

// ownNamespace is the pod's, as the cluster tells it.
func ownNamespace() string {
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if ns := strings.TrimSpace(string(text)); err == nil && ns != "" {
		return ns
	}
	return "roundhouse-system"
}

// address is where people reach a service.
func (o *controllerOptions) address(k service.Key) string {
	return strings.NewReplacer("{name}", k.WorkloadName(), "{namespace}", k.Namespace).Replace(o.gatewayURL)
}

// control runs the controller until ctx ends, or it can lead no longer.
func control(ctx context.Context, o controllerOptions, log logger) (err error) {
	cfg := kube.DefaultConfig()
	cfg.Kubeconfig = o.kubeconfig
	rest, err := kube.Connect(cfg, "roundhouse-controller/"+o.version)
	if err != nil {
		return err
	}
	logLibraries(log.Handler())
	op, err := newOperator(ctx, o, rest, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, op.close()) }()
	if err := op.Run(ctx); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	return nil
}

func newClusterGateway(version string) *cobra.Command {
	var o incluster.Options
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Answer requests for the services of the cluster",
		Long: `Answer requests for the services of the cluster. The gateway watches where
replicas are, starts a service that is at zero by itself, asks starting pods
whether they are ready, and tells every controller what is asked. Without a
controller, or an API server, it goes on with what it knows.

Several run at once. One that is asked to stop says at /readyz that it is not
ready, goes on for --leave, and lets the requests in flight finish.`,
		Example: `  roundhouse controller gateway --gateway-url 'https://{name}.{namespace}.models.example.com' --api-keys /etc/roundhouse/keys.yaml
  roundhouse controller gateway --kubeconfig ~/.kube/config --namespace team-a --listen 127.0.0.1:8080`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Version, o.Out, o.Logs = version, cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := logLibrariesTo(o.Logs, o.Log); err != nil {
				return err
			}
			g, err := incluster.New(cmd.Context(), o)
			if err != nil {
				return err
			}
			return g.Run(cmd.Context())
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}

func newClusterPicker(version string) *cobra.Command {
	var o incluster.PickerOptions
	cmd := &cobra.Command{
		Use:   "endpoint-picker (--pool NAMESPACE/NAME | --service NAME)",
		Short: "Pick endpoints of InferencePools for other gateways",
		Long: `Pick endpoints of InferencePools for other gateways: the Service that their
endpointPickerRef names. For each request that a gateway asks about, over Envoy's
external processing protocol, it says which pod of a pool answers it first. It
forwards nothing, starts nothing and writes nothing.

Members are the pods with the labels of a pool's selector, at each of its target
ports. InferenceObjectives, InferenceModels and InferenceModelRewrites of its
pools count.`,
		Example: `  roundhouse controller endpoint-picker --pool prod/llama
  roundhouse controller endpoint-picker --service roundhouse-endpoint-picker --namespace prod`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Version, o.Out, o.Logs = version, cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := logLibrariesTo(o.Logs, o.Log); err != nil {
				return err
			}
			return incluster.RunPicker(cmd.Context(), o)
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}

var libraries sync.Once

// logLibraries has the Kubernetes libraries log to where the program does. Both
// log to one place for a whole process: the first that is named.
func logLibraries(h slog.Handler) {
	libraries.Do(func() {
		l := logr.FromSlogHandler(h)
		ctrllog.SetLogger(l)
		klog.SetLogger(l)
	})
}

// logLibrariesTo is logLibraries for a process that opens its log itself.
func logLibrariesTo(w io.Writer, o command.LogOptions) error {
	log, err := o.New(w)
	if err == nil {
		logLibraries(log.Handler())
	}
	return err
}

// defaultStoreSize is how much of a node's disk the models of a namespace may take.
const defaultStoreSize = "80%"

// completeDelivery checks how pods get their models.
func (o *controllerOptions) completeDelivery() error {
	d := &o.delivery
	d.Beside = true
	if bad := service.ModelStoreError(d.Store); d.Store != "" && bad != "" {
		return command.Usagef("--model-store %s: %s", d.Store, bad)
	}
	if d.Store == service.NoModelStore {
		d.Store = ""
	}
	d.StoreSize = cmp.Or(d.StoreSize, defaultStoreSize)
	_, err := command.ParseShare("--model-store-max-bytes", d.StoreSize, "/")
	return err
}
