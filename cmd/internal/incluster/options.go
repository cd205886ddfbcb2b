// Package incluster puts the gateway of a cluster together: the servers and
// the request path every gateway has, over a fleet that follows what the
// controller decided.
package incluster

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	toolscache "k8s.io/client-go/tools/cache"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/epp"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// Options are what the gateway of a cluster is told by flags.
type Options struct {
	Kubeconfig        string
	System            string // namespace of the controller and its gateways
	ControllerService string
	ControllerToken   string
	Adopt, Namespaces []string
	// GatewayService is the gateway's own Service in the system namespace, whose
	// ports the listeners of Gateways have; GatewaySecret is the Secret that its
	// certificate is of, which they may name.
	GatewayService, GatewaySecret string
	Listen, GRPC                  string
	HTTPS                         string // "": none
	Metrics, Health               string
	URL                           string
	Pod                           string
	Leave                         time.Duration
	Internal                      bool // pools may name internal addresses
	// Pickers is what to do with the endpoint pickers that pools name:
	// PickersAsk or PickersIgnore; PickerTimeout is how long one may take.
	Pickers       string
	PickerTimeout time.Duration
	Log           command.LogOptions
	Front         front.Options
	Version       string
	Out, Logs     io.Writer

	adopt []service.Dialect
	// transform changes EndpointSlices on their way in. The API server takes
	// none with loopback addresses, which tests have.
	transform toolscache.TransformFunc
	// agentPort is where tests have the agents of pods; 0 is where pods have them.
	agentPort int
}

// Flags adds the options' flags.
func (o *Options) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "file that says how to reach the API server; default: the pod's own account")
	f.StringVar(&o.System, "system-namespace", "", "namespace of the controller and its gateways (default: the pod's own, else roundhouse-system)")
	f.StringVar(&o.ControllerService, "controller-service", "roundhouse-controller", "headless Service in the system namespace whose pods hear what is asked of services")
	f.StringVar(&o.ControllerToken, "controller-token", "/var/run/secrets/roundhouse/token", "file of the ServiceAccount's token, of audience roundhouse-controller")
	f.StringSliceVar(&o.Adopt, "adopt", nil, "foreign dialects whose manifests are read in every namespace, as the controller's: kserve, ome, seldon, gateway")
	f.StringSliceVar(&o.Namespaces, "namespace", nil, "namespace to serve; may be repeated; default: all")
	f.StringVar(&o.Listen, "listen", ":8080", "address for inference over HTTP")
	f.StringVar(&o.HTTPS, "https-listen", "", "address for inference over HTTPS with the certificates that listeners of Gateways name: the port https of the gateway's Service; empty for none")
	f.StringVar(&o.GRPC, "grpc-listen", ":8081", "address for inference over gRPC; empty for none")
	f.StringVar(&o.Metrics, "metrics-listen", ":8090", "address of /metrics; empty for none")
	f.StringVar(&o.Health, "health-listen", ":8091", "address of /healthz and /readyz; empty for none")
	f.StringVar(&o.URL, "gateway-url", DefaultURL, "where people reach a service, as the controller is told: the gateway answers for its host")
	f.StringVar(&o.GatewayService, "gateway-service", "roundhouse-gateway", "Service in the system namespace that stands before the gateways: the listeners of Gateways have its ports")
	f.StringVar(&o.GatewaySecret, "gateway-tls-secret", "", "Secret in the system namespace that --tls-cert is of, which listeners of Gateways may name")
	f.StringVar(&o.Pod, "pod", "", "name of this pod; default: POD_NAME, or else the host's name")
	f.DurationVar(&o.Leave, "leave", 3*time.Second, "for how long requests are still taken after the gateway was asked to stop, so that others hear of it")
	f.BoolVar(&o.Internal, "allow-internal-addresses", false, "let the addresses of pools be internal ones: loopback, link-local, private")
	f.StringVar(&o.Pickers, "endpoint-pickers", PickersAsk, "the endpoint pickers that InferencePools name: ask, or ignore and pick here")
	f.DurationVar(&o.PickerTimeout, "endpoint-picker-timeout", epp.DefaultConfig().Timeout, "how long an endpoint picker may take to say where a request goes")
	o.Log.Flags(f)
	o.Front.Flags(f)
}

// What is done with the endpoint pickers that InferencePools name.
const (
	PickersAsk    = "ask"
	PickersIgnore = "ignore"
)

// maxLeave keeps the whole stop within what pods are usually given.
const maxLeave = 5 * time.Minute

// settle checks the options and fills in what follows from others.
func (o *Options) settle() error {
	if o.System == "" {
		o.System = ownNamespace()
	}
	if o.ControllerService == "" || o.ControllerToken == "" {
		return command.Usagef("--controller-service and --controller-token are needed to tell the controller what is asked")
	}
	o.GatewayService = cmp.Or(o.GatewayService, "roundhouse-gateway")
	if o.Pickers = cmp.Or(o.Pickers, PickersAsk); o.Pickers != PickersAsk && o.Pickers != PickersIgnore {
		return command.Usagef("--endpoint-pickers %s: write %s or %s", o.Pickers, PickersAsk, PickersIgnore)
	}
	if o.PickerTimeout < 0 {
		return command.Usagef("--endpoint-picker-timeout is %s: must be more than 0", o.PickerTimeout)
	}
	if o.Leave < 0 || o.Leave > maxLeave {
		return command.Usagef("--leave is %s: must be 0 to %s", o.Leave, maxLeave)
	}
	for _, d := range o.Adopt {
		if !slices.Contains(objects.Foreign, service.Dialect(d)) {
			return command.Usagef("--adopt %s: not a dialect: write some of %v", d, objects.Foreign)
		}
		o.adopt = append(o.adopt, service.Dialect(d))
	}
	if u, err := url.Parse(o.address(service.Key{Namespace: "namespace", Name: "name"})); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return command.Usagef("--gateway-url %s: write a URL, with {name} and {namespace} in their places", o.URL)
	}
	if o.Pod == "" {
		o.Pod = os.Getenv("POD_NAME")
	}
	if o.Pod == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--pod: %w", err)
		}
		o.Pod = name
	}
	return nil
}

// DefaultURL is where people reach a service by default.
const DefaultURL = "http://{name}.{namespace}.example.com"

// address is where people reach a service.
func (o *Options) address(k service.Key) string {
	return strings.NewReplacer("{name}", k.WorkloadName(), "{namespace}", k.Namespace).Replace(o.URL)
}

// domain is what the hosts of services end in; "" where the URL is not of that
// form, and for that of one machine.
func (o *Options) domain() string { return Domain(o.address) }

// Domain ends the hosts of services whose addresses are these; "" where they
// are not name.namespace.DOMAIN.
func Domain(address func(service.Key) string) string {
	u, err := url.Parse(address(service.Key{Namespace: "namespace", Name: "name"})) // braces are no host's
	if err != nil {
		return ""
	}
	rest, ok := strings.CutPrefix(u.Hostname(), "name.namespace.")
	if !ok {
		return ""
	}
	return rest
}

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
