// Package incluster puts the gateway of a cluster together: the servers and
// the request path every gateway has, over a fleet that follows what the
// controller decided.
package incluster

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	toolscache "k8s.io/client-go/tools/cache"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// Options are what the gateway of a cluster is told by flags.
type Options struct {
	Kubeconfig            string
	Controller            string
	Adopt, Namespaces     []string
	Listen, GRPC, Metrics string
	Domain                string
	Pod, Token            string
	Leave                 time.Duration
	Verbose               bool
	Front                 front.Options
	Version               string
	Out, Logs             io.Writer

	controller service.Key // of Controller
	adopt      []service.Dialect
	// transform changes EndpointSlices on their way in. The API server takes
	// none with loopback addresses, which tests have.
	transform toolscache.TransformFunc
}

// Flags adds the options' flags.
func (o *Options) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "file that says how to reach the API server; default: the pod's own account")
	f.StringVar(&o.Controller, "controller", "roundhouse-system/roundhouse-controller", "NAMESPACE/NAME of the controller's headless Service, and of the ConfigMap with its authorities")
	f.StringSliceVar(&o.Adopt, "adopt", nil, "foreign dialects whose manifests are read in every namespace, as the controller's: kserve, ome, seldon, gateway")
	f.StringSliceVar(&o.Namespaces, "namespace", nil, "namespace to serve; may be repeated; default: all")
	f.StringVar(&o.Listen, "listen", ":8080", "address for inference over HTTP")
	f.StringVar(&o.GRPC, "grpc-listen", ":8081", "address for inference over gRPC; empty for none")
	f.StringVar(&o.Metrics, "metrics-listen", ":8090", "address of /metrics, /healthz and /readyz; empty for none")
	f.StringVar(&o.Domain, "domain", "localhost", "what the hosts of services end in: NAME.NAMESPACE.DOMAIN")
	f.StringVar(&o.Pod, "pod", "", "name of this pod; default: POD_NAME, or else the host's name")
	f.StringVar(&o.Token, "token", "/var/run/secrets/roundhouse/token", "file of the ServiceAccount's token for the controller")
	f.DurationVar(&o.Leave, "leave", 5*time.Second, "for how long requests are still taken after the gateway was asked to stop, so that others hear of it")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "log more")
	o.Front.Flags(f)
}

// maxLeave keeps the whole stop within what pods are usually given.
const maxLeave = 5 * time.Minute

// settle checks the options and fills in what follows from others.
func (o *Options) settle() error {
	o.controller = service.ParseKey(o.Controller)
	if !strings.Contains(o.Controller, "/") || o.controller.Name == "" || o.controller.Namespace == "" {
		return front.Usagef("--controller is %q: want NAMESPACE/NAME", o.Controller)
	}
	if o.Leave < 0 || o.Leave > maxLeave {
		return front.Usagef("--leave is %s: must be 0 to %s", o.Leave, maxLeave)
	}
	for _, d := range o.Adopt {
		o.adopt = append(o.adopt, service.Dialect(d))
	}
	o.Domain = strings.Trim(o.Domain, ".")
	if o.Domain == "" || strings.ContainsAny(o.Domain, "/: ") {
		return front.Usagef("--domain is %q: want a domain such as models.example.com", o.Domain)
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

// url is where people reach a service.
func (o *Options) url(scheme string, k service.Key) string {
	return scheme + "://" + k.Name + "." + k.Namespace + "." + o.Domain
}
