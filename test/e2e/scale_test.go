package e2e

import (
	"testing"
	"time"
)

// TestScaleToZero leaves a model alone: its process goes, and the next request
// has it started again and gets the answer.
func TestScaleToZero(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "-f", write(t, t.TempDir(), "iris.yaml", irisManifest("iris", "{minReplicas: 0, scaleToZeroAfter: 1s}")))
	for range 2 {
		asked := time.Now()
		n.infer("/v2/models/iris/infer", irisTensor)
		t.Logf("from no process to the answer: %s", time.Since(asked).Round(time.Millisecond))
		s := n.service("default/iris")
		if len(s.Replicas) != 1 {
			t.Fatalf("want one replica after a request, got %v", s.Replicas)
		}
		gone(t, s.Replicas[0].PID)
		if idle := time.Since(asked); idle < time.Second {
			t.Errorf("it stopped after %s, want a second without requests", idle)
		}
	}
	eventually(t, "the table says it sleeps", func() (bool, string) {
		s := n.status("iris")
		return s != "" && len(n.processes()) == 1, s
	})
	wide := n.do("get", "-o", "wide")
	contains(t, wide, "REPLICA-S", "IDLE-S", "STARTUP-S", "Asleep")
	matches(t, wide, `xgboost +v1 +- +[1-9]\d* +\d+ +\d+\.\d\d +http`)
	matches(t, n.do("logs", "iris"), "model loaded") // of the replica that is gone
}
