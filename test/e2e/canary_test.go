package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// canaryEngine is a simulated engine whose revision shows in the adapter that
// it has.
func canaryEngine(adapter, percent, extra string) string {
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: llama}
spec:
  protocol: openAI
  %s
  scaling: {minReplicas: 1, maxReplicas: 1}
  engine:
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --speed, "200", --model, llama, --max-loras, "1", --lora, %q%s]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`, percent, adapter, extra)
}

// answered counts which revision answers: the one that has the adapter, or the
// other, which does not know it.
func (n *node) answered(adapter string, requests int) (has int) {
	n.t.Helper()
	for range requests {
		switch a, _ := n.completion(adapter, "Host", "llama.default.localhost"); a.status {
		case 200:
			has++
		case 404:
		default:
			n.t.Fatal(a)
		}
	}
	return has
}

// TestCanary changes a service whose manifest asks for a canary: the new
// revision takes its share once it is ready, has none
// while it fails, and at last is the service's.
func TestCanary(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	percent := "canaryTrafficPercent: 40"
	apply := func(manifest string) { n.do("apply", "-f", write(t, dir, "llama.yaml", manifest)) }
	until := func(what ...string) {
		t.Helper()
		eventually(t, strings.Join(what, ", "), func() (bool, string) {
			out := n.do("describe", "llama")
			for _, w := range what {
				if !strings.Contains(out, w) {
					return false, out
				}
			}
			return true, out
		})
	}
	n.do("apply", "--wait", "-f", write(t, dir, "llama.yaml", canaryEngine("one", percent, "")))
	if got := n.answered("one", 20); got != 20 {
		t.Fatalf("the first revision answers %d of 20", got)
	}

	apply(canaryEngine("two", percent, ""))
	until("takes 40 % of the requests; 1 replica ready")
	// 40 of 100; fewer than 20 or more than 60 is off by four deviations.
	if got := n.answered("two", 100); got < 20 || got > 60 {
		t.Errorf("the canary answers %d of 100", got)
	}
	contains(t, n.do("get", "llama", "-o", "yaml"), "canary:", "wantedPercent: 40")
	if out := n.do("get", "-A"); strings.Contains(out, "~canary") {
		t.Errorf("the canary is listed as a service:\n%s", out)
	}

	apply(canaryEngine("three", percent, ", --no-such-flag"))
	until("takes 0 % of the requests, 40 % wanted; 0 replicas ready: the canary is not ready (", "Serving  ", "the previous revision answers all requests")
	if got := n.answered("one", 20); got != 20 {
		t.Errorf("beside a failing canary the service answers %d of 20", got)
	}

	apply(canaryEngine("two", percent, ""))
	until("40 % of the requests")
	apply(canaryEngine("two", "", ""))
	eventually(t, "the promoted revision alone", func() (bool, string) {
		out := n.do("describe", "llama")
		return !strings.Contains(out, "Canary:") && n.answered("two", 10) == 10, out
	})
	if got := n.answered("two", 30); got != 30 {
		t.Errorf("promoted, it answers %d of 30", got)
	}
	n.do("delete", "service", "llama")
}
