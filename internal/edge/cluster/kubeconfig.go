// Package cluster speaks to a Kubernetes API server for the command line: it
// reads kubeconfig files as kubectl does, and shows the manifests, replicas and
// events of a cluster as a fleet shows those of one machine.
package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // logins by OpenID Connect, as in kubectl
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Options select the cluster.
type Options struct {
	// Kubeconfig is a file; "" means those in KUBECONFIG, or ~/.kube/config, or
	// in a pod its own account.
	Kubeconfig string
	// Context is one of its contexts; "" means the current one.
	Context string
	// Namespace stands in for that of the context; "" leaves it.
	Namespace string
}

// InCluster as a Context means the account of the pod that this runs in.
const InCluster = "in-cluster"

// maxKubeconfigs is how many kubeconfig files may be merged.
const maxKubeconfigs = 64

// Access is one context: where the API server is, and who asks.
type Access struct {
	// Context is the context's name, "" in a pod.
	Context string
	// Origin is the user's working directory, for messages.
	Origin    string
	Namespace string
	Config    *rest.Config
}

func (o Options) rules() *clientcmd.ClientConfigLoadingRules {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath, rules.WarnIfAllMissing = o.Kubeconfig, false
	return rules
}

// Known reports whether there is a kubeconfig file to read.
func (o Options) Known() bool {
	return slices.ContainsFunc(o.rules().GetLoadingPrecedence(), func(f string) bool {
		_, err := os.Stat(f)
		return err == nil
	})
}

// Load reads which API server is meant, and who asks. It sends nothing.
func Load(o Options) (*Access, error) {
	rules := o.rules()
	files := rules.GetLoadingPrecedence()
	if len(files) > maxKubeconfigs {
		return nil, fmt.Errorf("KUBECONFIG names %d files; at most %d are read", len(files), maxKubeconfigs)
	}
	k, err := rules.Load()
	if err != nil {
		return nil, err
	}
	empty := clientcmdapi.IsConfigEmpty(k)
	if empty || o.Context == InCluster && k.Contexts[InCluster] == nil {
		if a, err := inPod(o); a != nil || err != nil {
			return a, err
		}
	}
	if empty {
		return nil, fmt.Errorf("no cluster to speak to: no kubeconfig in %s: name a file with --kubeconfig", strings.Join(files, ", "))
	}
	return settle(k, o, strings.Join(files, ", "))
}

// settle reads the context that is meant. What clientcmd would take for nobody,
// or find out from the API server, is named here.
func settle(k *clientcmdapi.Config, o Options, where string) (*Access, error) {
	name := o.Context
	if name == "" {
		name = k.CurrentContext
	}
	c := k.Contexts[name]
	switch {
	case name == "":
		return nil, fmt.Errorf("%s: no current-context: name one with --context: %s", where, contexts(k))
	case c == nil:
		return nil, fmt.Errorf("%s: no context %q: there is %s", where, name, contexts(k))
	}
	at := fmt.Sprintf("%s: contexts[%s].context", c.LocationOfOrigin, name)
	user := k.AuthInfos[c.AuthInfo]
	switch {
	case k.Clusters[c.Cluster] == nil:
		return nil, fmt.Errorf("%s.cluster: no cluster %q in %s", at, c.Cluster, where)
	case k.Clusters[c.Cluster].Server == "":
		return nil, fmt.Errorf("%s: clusters[%s].cluster.server: is missing: write https://HOST:PORT", k.Clusters[c.Cluster].LocationOfOrigin, c.Cluster)
	case user == nil:
		return nil, fmt.Errorf("%s.user: no user %q in %s", at, c.AuthInfo, where)
	case c.Namespace != "" && len(validation.IsDNS1123Label(c.Namespace)) > 0:
		return nil, fmt.Errorf("%s.namespace: %q is no name of a namespace", at, c.Namespace)
	}
	theirs := clientcmd.NewNonInteractiveClientConfig(*k, name, &clientcmd.ConfigOverrides{Context: clientcmdapi.Context{Namespace: o.Namespace}}, nil)
	a := &Access{Context: name, Origin: fmt.Sprintf("%s: users[%s].user", user.LocationOfOrigin, c.AuthInfo)}
	var err error
	if a.Config, err = theirs.ClientConfig(); err == nil {
		a.Namespace, _, err = theirs.Namespace()
	}
	if err == nil {
		_, err = rest.TLSConfigFor(a.Config) // what New would refuse, while its file is known
	}
	if err == nil {
		_, _, err = rest.DefaultServerUrlFor(a.Config)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: context %s: %w", where, name, err)
	}
	return a, nil
}

func contexts(k *clientcmdapi.Config) string {
	if len(k.Contexts) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(k.Contexts)), ", ")
}

// account is where a pod finds its own account.
var account = "/var/run/secrets/kubernetes.io/serviceaccount"

// inPod is the account of the pod this runs in, nil elsewhere.
func inPod(o Options) (*Access, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" || o.Context != "" && o.Context != InCluster {
		return nil, nil
	}
	token := filepath.Join(account, "token")
	if _, err := os.Stat(token); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	a := &Access{Origin: token, Namespace: o.Namespace, Config: &rest.Config{Host: "https://" + net.JoinHostPort(host, port), BearerTokenFile: token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(account, "ca.crt")}}}
	if a.Namespace == "" {
		raw, err := os.ReadFile(filepath.Join(account, "namespace"))
		if err != nil {
			return nil, err
		}
		a.Namespace = strings.TrimSpace(string(raw))
	}
	return a, nil
}
