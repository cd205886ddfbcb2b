package main

import (
	"cmp"
	"os"

	"github.com/spf13/cobra"
	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/cmd/internal/backend"
	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
)

// remote is the server or cluster that the flags of a command name.
type remote struct {
	backend.Target
	cmd *cobra.Command // whose flags these are
}

func (r *remote) flags(cmd *cobra.Command) {
	r.clusterFlags(cmd)
	cmd.Flags().StringVar(&r.Server, "server", cmp.Or(os.Getenv("ROUNDHOUSE_SERVER"), "http://"+app.DefaultAdmin), "admin address of the running roundhouse up")
	cmd.Flags().StringVar(&r.DataDir, "data-dir", datadir.Default(), "data directory of the running roundhouse up, which holds the admin token")
}

// clusterFlags adds the flags that name a cluster.
func (r *remote) clusterFlags(cmd *cobra.Command) {
	r.cmd, r.Version, r.Token, r.APIKey = cmd, version, os.Getenv("ROUNDHOUSE_TOKEN"), os.Getenv("ROUNDHOUSE_API_KEY")
	cmd.Flags().StringVar(&r.Context, "context", os.Getenv("ROUNDHOUSE_CONTEXT"), "kubeconfig context: work in its cluster instead of at a running roundhouse up; in-cluster is the cluster of the pod that this runs in")
	cmd.Flags().StringVar(&r.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: those in KUBECONFIG, else ~/.kube/config)")
}

func (r *remote) gatewayFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.Gateway, "gateway", os.Getenv("ROUNDHOUSE_GATEWAY"), "inference address of the running roundhouse up (default: the one that --server reports, else http://"+app.DefaultListen+")")
	r.gatewayServiceFlag(cmd)
}

func (r *remote) gatewayServiceFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.GatewayService, "gateway-service", os.Getenv("ROUNDHOUSE_GATEWAY_SERVICE"), "NAMESPACE/NAME of the gateway's Service in a cluster, reached through the API server (default: the only one)")
}

// meansCluster reports whether the flags name a cluster, not a running up.
func (r *remote) meansCluster() bool {
	given := r.cmd.Flags().Changed
	return given("context") || given("kubeconfig") || r.Context != "" && !given("server")
}

// settle reads the kubeconfig if the flags name a cluster. n, which may be nil, is
// then the namespace of the context, unless --namespace is given.
func (r *remote) settle(n *namespaced) error {
	if r.InCluster = r.meansCluster(); !r.InCluster {
		return nil
	}
	named := ""
	if n != nil && r.cmd.Flags().Changed("namespace") {
		named = n.namespace
	}
	found, err := r.Connect(named)
	if n != nil {
		n.namespace = found
	}
	return err
}

// open returns where the work of the command is done.
func (r *remote) open(cmd *cobra.Command, n *namespaced) (backend.Backend, error) {
	err := r.settle(n)
	switch {
	case !r.InCluster:
		return r.Up()
	case r.cmd.Flags().Changed("server"):
		return nil, command.Usagef("--server names a running roundhouse up, --context and --kubeconfig name a cluster: give one of them")
	case err != nil:
		return nil, err
	}
	return r.Cluster(cmd.ErrOrStderr()), nil
}

// namespaced adds the namespace flag and reads "name" or "namespace/name".
type namespaced struct {
	namespace string
	cmd       *cobra.Command
}

func (n *namespaced) flags(cmd *cobra.Command) {
	n.cmd = cmd
	cmd.Flags().StringVarP(&n.namespace, "namespace", "n", service.DefaultNamespace, "namespace of names given without one")
}

// selection reads the arguments "[KIND] [NAME…]".
func (n *namespaced) selection(args []string) backend.Selection {
	return backend.Select(args, n.namespace, n.cmd.Flags().Changed("namespace"))
}

func (n *namespaced) key(name string) service.Key { return n.selection(nil).Key(name) }
