package platform_test

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/kube/platform/clustertest"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

func TestConformance(t *testing.T) {
	platformtest.Run(t, clustertest.Harness(clustertest.Options{REST: cluster(t), Image: "test",
		Can: platformtest.Capabilities{Runs: true, Fails: true}}))
}
