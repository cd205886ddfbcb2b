package main

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// proxied says whether requests go to a cluster's gateway through its API
// server.
func (r *remote) proxied() bool {
	return r.inCluster() && r.gateway == ""
}

// gate is where requests go, and what sends them there.
func (r *remote) gate(ctx context.Context) (base string, client *http.Client, err error) {
	if !r.proxied() {
		base, err = baseURL("--gateway", r.gatewayAddress(ctx))
		return base, http.DefaultClient, err
	}
	if r.cluster == nil {
		if err := r.settle(nil); err != nil {
			return "", nil, err
		}
	}
	if base, err = r.cluster.Gateway(ctx, r.gatewayService); err != nil {
		return "", nil, err
	}
	return base, &http.Client{Transport: r.cluster.Transport()}, nil
}

// aboutTimeout is how long the server may take to say where its gateway is.
const aboutTimeout = 2 * time.Second

// gatewayAddress is the gateway that was named, else the one of the server,
// else the default.
func (r *remote) gatewayAddress(ctx context.Context) string {
	if r.gateway != "" {
		return r.gateway
	}
	ctx, cancel := context.WithTimeout(ctx, aboutTimeout)
	defer cancel()
	if c, err := r.client(); err == nil {
		if about, err := c.About(ctx); err == nil && about.Gateway != "" {
			return about.Gateway
		}
	}
	return "http://" + defaultListen
}

// apiServers says whether an error is the API server's own, and not the
// gateway's.
func apiServers(raw []byte) bool {
	var status struct {
		Kind   string `json:"kind"`
		Status string `json:"status"`
	}
	return json.Unmarshal(raw, &status) == nil && status.Kind == "Status" && status.Status == "Failure"
}

// through is command, by way of the API server where that is meant.
func (b *batchInfer) through(cmd *cobra.Command, k service.Key, r *remote, timeout time.Duration) error {
	if !r.proxied() {
		return b.command(cmd, k, r.gatewayAddress(cmd.Context()), timeout)
	}
	base, client, err := r.gate(cmd.Context())
	if err != nil {
		return err
	}
	b.via = client.Transport
	return b.command(cmd, k, base, timeout)
}
