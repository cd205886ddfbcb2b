package main

import (
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/cluster"
	"roundhouse.dev/roundhouse/internal/edge/datadir"
)

// The addresses `up` listens on unless told otherwise.
const (
	defaultListen     = "127.0.0.1:8080"
	defaultGRPCListen = "127.0.0.1:8081"
	defaultAdmin      = "127.0.0.1:8090"
)

// remote is where the server is that a command talks to.
type remote struct {
	server, gateway, dataDir string

	// Of a cluster instead.
	context, kubeconfig, gatewayService string

	cmd     *cobra.Command // whose flags these are
	cluster *cluster.Client
}

func (r *remote) flags(cmd *cobra.Command) {
	r.clusterFlags(cmd)
	cmd.Flags().StringVar(&r.server, "server", envOr("ROUNDHOUSE_SERVER", "http://"+defaultAdmin), "admin address of the running roundhouse up")
	cmd.Flags().StringVar(&r.dataDir, "data-dir", datadir.Default(), "its data directory, which holds the admin token")
}

func (r *remote) gatewayFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.gateway, "gateway", os.Getenv("ROUNDHOUSE_GATEWAY"), "inference address of the running roundhouse up (default: what the server at --server says, else http://"+defaultListen+")")
	cmd.Flags().StringVar(&r.gatewayService, "gateway-service", os.Getenv("ROUNDHOUSE_GATEWAY_SERVICE"), "NAMESPACE/NAME of a cluster's gateway, which the API server passes requests on to (default: the one there is)")
}

func envOr(name, value string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return value
}

// authorize sends the API key in ROUNDHOUSE_API_KEY along, if there is one.
func authorize(h http.Header) {
	if key := os.Getenv("ROUNDHOUSE_API_KEY"); key != "" {
		h.Set("Authorization", "Bearer "+key)
	}
}

// client opens the admin API with the token of the data directory, or the one
// in ROUNDHOUSE_TOKEN.
func (r *remote) client() (*admin.Client, error) {
	token := os.Getenv("ROUNDHOUSE_TOKEN")
	if token == "" {
		var err error
		if token, err = datadir.ReadToken(r.dataDir); os.IsNotExist(err) || isNotExist(err) {
			// Without a token the server will say what is needed; without a
			// server the client will.
			token = ""
		} else if err != nil {
			return nil, err
		}
	}
	base, err := baseURL("--server", r.server)
	c := &admin.Client{Base: base, Token: token}
	if (cluster.Options{Kubeconfig: r.kubeconfig}).Known() {
		c.Hint = ", or name a cluster with --context"
	}
	return c, err
}

// baseURL reads an address given to flag: a URL, or HOST:PORT of one.
func baseURL(flag, address string) (string, error) {
	base := address
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", command.Usagef("%s is %q: want http://HOST:PORT", flag, address)
	}
	return strings.TrimSuffix(base, "/"), nil
}

// namespaced adds the namespace flag and reads "name" or "namespace/name".
type namespaced struct{ namespace string }

func (n *namespaced) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&n.namespace, "namespace", "n", service.DefaultNamespace, "namespace of names given without one")
}

func (n *namespaced) key(name string) service.Key {
	k := service.ParseKey(name)
	if k.Name == name {
		k.Namespace = n.namespace
	}
	return k
}

// age is how long ago t was, as kubectl prints it.
func age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := now.Sub(t)
	switch {
	case d < time.Minute:
		return itoa(max(0, int(d.Seconds()))) + "s"
	case d < 10*time.Minute && d%time.Minute >= time.Second:
		return itoa(int(d.Minutes())) + "m" + itoa(int((d % time.Minute).Seconds())) + "s"
	case d < time.Hour:
		return itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return itoa(int(d.Hours())) + "h"
	default:
		return itoa(int(d.Hours())/24) + "d"
	}
}
