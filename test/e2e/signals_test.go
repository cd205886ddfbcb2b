package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// measured is a service of simulated engines that scales on what scaling says, with
// a decoder where one is given.
func measured(name, scaling, more string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: ` + name + `}
spec:
  protocol: openAI
  scaling: ` + scaling + `
  engine:
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, ` + name + `]
` + more
}

// pin has the engines of a component tell what load says.
func (n *node) pin(name, role, load string) {
	n.t.Helper()
	for _, r := range n.replicas(name) {
		if r.Role != role || r.HTTP == "" {
			continue
		}
		if a := n.send("POST", "http://"+r.HTTP+"/simulate/pin", load); a.status != 200 {
			n.t.Fatalf("pin %s: %s", r.HTTP, a)
		}
	}
}

// count waits until a component has so many ready replicas.
func (n *node) count(name, role string, want int) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%s has %d of %s", name, want, role), func() (bool, string) {
		ready := 0
		for _, r := range n.replicas(name) {
			if r.Role == role && r.Phase == "Ready" {
				ready++
			}
		}
		return ready == want, n.run("explain", "scale", name).out
	})
}

// TestScaleByQueue: engines tell of a queue that came past the gateway, and the
// count grows, for the decoder apart from the prefill, in the ratio that is stated.
func TestScaleByQueue(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", measured("chat", "{minReplicas: 1, maxReplicas: 6, scaleMetric: queue, scaleTarget: 2}", `  decoder:
    scaling: {minReplicas: 1, maxReplicas: 6, scaleMetric: kv, ratio: {component: engine, replicas: 2}}
    local:
      command: [roundhouse, simulate, engine, --role, decode, --port, "{{.Port}}", --model, chat]
`)))
	n.count("chat", "engine", 1)
	n.count("chat", "decoder", 2)
	n.pin("chat", "engine", `{"waiting":4,"running":4,"kv_usage":0.1}`)
	n.count("chat", "engine", 2) // 8 requests, of which a replica has 4 and 2 may wait
	n.count("chat", "decoder", 4)
	n.pin("chat", "decoder", `{"waiting":0,"running":4,"kv_usage":0.99}`)
	n.count("chat", "decoder", 5)
	n.count("chat", "engine", 3)
	table := n.do("explain", "scale", "chat")
	matches(t, table, `queue \d+(\.\d+)? of 2`)
	matches(t, table, `kv \d+(\.\d+)? % of 80 %`)
	contains(t, n.do("describe", "chat"), "2 queue", "80 % kv")
}

// TestScaleByExternal: a Prometheus server's answers wake a service, and neither an
// error nor a number that is none takes its replicas away.
func TestScaleByExternal(t *testing.T) {
	t.Parallel()
	var answer atomic.Value
	var asked atomic.Value
	answer.Store(`{"status":"success","data":{"resultType":"vector","result":[]}}`)
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.Path + " " + r.FormValue("query"))
		if s := answer.Load().(string); strings.HasPrefix(s, "{") {
			_, _ = w.Write([]byte(s))
		} else {
			http.Error(w, s, http.StatusInternalServerError)
		}
	}))
	defer prometheus.Close()
	n := startNode(t)
	n.do("apply", "-f", write(t, t.TempDir(), "jobs.yaml", measured("jobs", fmt.Sprintf(
		`{minReplicas: 0, maxReplicas: 5, scaleToZeroAfter: 1s, scaleMetric: external, scaleTarget: 10, external: {url: %q, query: 'sum(jobs)'}}`, prometheus.URL+"/prom"), "")))
	eventually(t, "the answer without a result is explained", func() (bool, string) {
		out := n.run("explain", "scale", "jobs").out
		return strings.Contains(out, "the query has no result"), out
	})
	if got := asked.Load(); got != "/prom/api/v1/query sum(jobs)" {
		t.Errorf("asked %q", got)
	}
	answer.Store(`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"17"]}]}}`)
	n.count("jobs", "engine", 2)
	contains(t, n.do("explain", "scale", "jobs"), "external sum(jobs) 17 of 10")
	answer.Store(`{"status":"success","data":{"resultType":"scalar","result":[1,"NaN"]}}`)
	eventually(t, "a number that is none is explained", func() (bool, string) {
		out := n.run("explain", "scale", "jobs").out
		return strings.Contains(out, "not a number; the count stays"), out
	})
	n.count("jobs", "engine", 2)
	refused := n.run("validate", "-f", write(t, t.TempDir(), "bad.yaml", measured("bad", `{scaleMetric: external, external: {url: "http://u:p@h", query: q}}`, "")))
	contains(t, refused.err, "spec.scaling.external.url: must have no user and no password", "spec.scaling.scaleTarget: is missing", "2 problems")
}

// TestScaleByCPU: a replica that computes more than its limit gets another one.
func TestScaleByCPU(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "hot.yaml", strings.Replace(measured("hot", "{minReplicas: 1, maxReplicas: 2, scaleMetric: cpu, scaleTarget: 50}", `    resources: {limits: {cpu: 100m}}
`), "[roundhouse, simulate, engine", `[sh, -c, 'while kill -0 $PPID; do :; done & exec "$@"', sh, `+binary+`, simulate, engine, --speed, "0.1"`, 1)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = try("POST", n.gateway+"/v1/completions", `{"model":"hot","prompt":"hello","max_tokens":2000}`)
	}()
	n.count("hot", "engine", 2)
	matches(t, n.do("explain", "scale", "hot"), `cpu \d+ % of 50 %`)
	n.do("delete", "hot")
	<-done
}
