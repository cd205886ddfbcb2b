//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/kube/platform/clustertest"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// TestPlatform holds the platform of a cluster to the whole contract of
// fleet.Platform, with pods that really run.
func TestPlatform(t *testing.T) {
	c := node.Get(t)
	const image = "roundhouse.local/server:e2e"
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.ImportProgram(ctx, "server", image); err != nil {
		t.Fatal(err)
	}
	platformtest.Run(t, clustertest.Harness(clustertest.Options{
		REST: c.Config, Image: image, Command: []string{"/server"},
		Can: platformtest.Capabilities{Runs: true, Reached: true, Logs: true, Fails: true},
	}))
}
