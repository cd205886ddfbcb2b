package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// onDemand is a service of simulated engines that sleeps until it is asked, and
// takes a GPU; more are lines of its spec, and flags those of its engine.
func onDemand(name, more, flags string) string {
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: %[1]s}
spec:
  protocol: openAI
  scaling: {minReplicas: 0, maxReplicas: 1, targetConcurrency: 8, scaleToZeroAfter: 10m, startupTimeout: 60s}
%[2]s
  engine:
    containers:
      - name: engine
        resources: {limits: {nvidia.com/gpu: 1}}
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, %[1]s%[3]s]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`, name, more, flags)
}

func (n *node) complete(model string, tokens int) answer {
	n.t.Helper()
	return n.post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":%d}`, model, tokens))
}

// onOneGPU starts a node whose machine has one GPU.
func onOneGPU(t *testing.T, services ...string) *node {
	t.Helper()
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_GPUS=1", "ROUNDHOUSE_GPU_MEMORY=24Gi"}
	n.up()
	n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", strings.Join(services, "---\n")))
	return n
}

// TestOneGPUSwaps: the request for a service that does not fit has an idle one
// stopped, and back; one that answers a request is not cut: the other waits.
func TestOneGPUSwaps(t *testing.T) {
	t.Parallel()
	n := onOneGPU(t, onDemand("a", "", ""), onDemand("b", "", ""))
	for _, model := range []string{"a", "b", "a", "b"} {
		began := time.Now()
		if a := n.complete(model, 4); a.status != 200 {
			t.Fatalf("%s: %s", model, a)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s took %s", model, took)
		}
	}
	contains(t, n.logs.String(), "an idle service makes room", "default/b needs 1 GPU; default/a is idle and the least valuable")
	long, err := http.Post(n.gateway+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"b","prompt":"hello","max_tokens":240,"stream":true,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = long.Body.Close() }()
	lines := bufio.NewReader(long.Body)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var short answer
	var shortEnded time.Time
	wg.Go(func() { short = n.complete("a", 4); shortEnded = time.Now() })
	eventually(t, "a hears who holds the GPU", func() (bool, string) {
		out := n.run("describe", "a").out
		return strings.Contains(out, "default/b (busy: 1 running, 0 waiting)"), out
	})
	rest, err := io.ReadAll(lines)
	longEnded := time.Now()
	wg.Wait()
	if err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("b's answer was cut (%v): %.300s", err, rest)
	}
	if short.status != 200 || !longEnded.Before(shortEnded) {
		t.Errorf("b's answer ended at %s; a answered %s at %s", longEnded, short, shortEnded)
	}
}
