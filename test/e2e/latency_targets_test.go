package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// targeted is a service whose answers take at least 0.3 s to the first token of 600, and
// 20 ms for each further one; objectives that state priorities and targets; and a route
// that states a target.
const targeted = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat, labels: {app: chat}}
spec:
  protocol: openAI
  scaling: {minReplicas: 2, maxReplicas: 2}
  engine:
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, chat, --prefill-tokens-per-second, "2000", --decode-tokens-per-second, "50"]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: engines}
spec: {selector: {app: chat}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: llm}
spec: {targets: [{pool: engines, model: chat}]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: strict}
spec: {criticality: Sheddable, latency: {ttft: 5ms}, targets: [{pool: engines, model: chat}]}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: nightly}
spec: {priority: -1, poolRef: {name: engines}}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata:
  name: quick
  annotations: {roundhouse.dev/ttft-target: 5ms}
spec: {priority: -1, poolRef: {name: engines}}
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata:
  name: fluent
  annotations: {roundhouse.dev/tpot-target: 10us}
spec: {priority: -1, poolRef: {name: engines}}
`

// TestLatencyTargets: of requests with a target that nobody is predicted to meet, those
// that can be shed are refused and the others deferred for as long as the target says,
// whoever states it: a header by each of its names, an objective or a route.
func TestLatencyTargets(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", targeted))
	asked := 0
	body := func(model string) string { // a prompt that is new to the engines
		asked++
		return fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":8,"ignore_eos":true,"prompt":%q}`, model, fmt.Sprintf("%04d ", asked)+strings.Repeat("word ", 480))
	}
	const path = "/v1/completions"
	eventually(t, "latencies are predicted", func() (bool, string) {
		if a := n.post(path, body("llm")); a.status != 200 {
			t.Fatal(a)
		}
		out := n.runWith(body("llm"), "explain", "request", "-").out
		return strings.Contains(out, "first token 0.") && strings.Contains(out, "each 0.0"), out
	})

	objective := func(name string, more ...string) []string {
		return append(more, "X-Llm-D-Inference-Objective", name)
	}
	for what, c := range map[string]struct {
		model  string
		header []string
		want   int
		says   string // of explain
	}{
		"no target":                      {"llm", objective("nightly"), 200, "admission: Admit"},
		"a target that is met":           {"llm", objective("nightly", "X-Slo-Ttft-Ms", "60000", "X-Slo-Tpot-Ms", "5000"), 200, "latency target: first token within 1m0s, as the request says; each further token within 5s, as the request says"},
		"x-slo-ttft-ms":                  {"llm", objective("nightly", "X-Slo-Ttft-Ms", "5"), 429, "latency target: first token within 5ms, as the request says"},
		"x-llm-d-slo-ttft-ms":            {"llm", objective("nightly", "X-Llm-D-Slo-Ttft-Ms", "5"), 429, "latency target: first token within 5ms, as the request says"},
		"x-slo-tpot-ms":                  {"llm", objective("nightly", "X-Slo-Tpot-Ms", "0.01"), 429, "latency target: each further token within 10µs, as the request says"},
		"x-llm-d-slo-tpot-ms":            {"llm", objective("nightly", "X-Llm-D-Slo-Tpot-Ms", "0.01"), 429, "latency target: each further token within 10µs, as the request says"},
		"the new name goes first":        {"llm", objective("nightly", "X-Llm-D-Slo-Ttft-Ms", "60000", "X-Slo-Ttft-Ms", "5"), 200, "latency target: first token within 1m0s, as the request says"},
		"no number":                      {"llm", objective("nightly", "X-Slo-Ttft-Ms", "soon"), 200, `the header x-slo-ttft-ms has no effect: "soon" is not a number`},
		"of an objective":                {"llm", objective("quick"), 429, "latency target: first token within 5ms, as its route or objective says"},
		"of an objective, for each":      {"llm", objective("fluent"), 429, "latency target: each further token within 10µs, as its route or objective says"},
		"the request's goes before it":   {"llm", objective("quick", "X-Slo-Ttft-Ms", "60000"), 200, "latency target: first token within 1m0s, as the request says"},
		"of a route":                     {"strict", nil, 429, "latency target: first token within 5ms, as its route or objective says"},
		"the request's before a route's": {"strict", []string{"X-Slo-Ttft-Ms", "60000"}, 200, "latency target: first token within 1m0s, as the request says"},
	} {
		a := n.post(path, body(c.model), c.header...)
		if a.status != c.want {
			t.Errorf("%s: %s, want %d", what, a, c.want)
		}
		if c.want == 429 && (!strings.Contains(a.body, "latency target") || a.header.Get("Retry-After") == "") {
			t.Errorf("%s: the refusal is %s %v", what, a, a.header)
		}
		args := []string{"explain", "request", "-"}
		for i := 0; i < len(c.header); i += 2 {
			args = append(args, "--header", c.header[i]+": "+c.header[i+1])
		}
		out := n.runWith(body(c.model), args...).out
		contains(t, out, c.says, "first token 0.")
		if c.want == 429 {
			contains(t, out, "admission: Shed, Late; priority -1", "none predicted to meet the request's target")
		}
	}

	// What cannot be shed is deferred, for as long as its target, and then answered.
	const target = 150 * time.Millisecond
	const waited, admitted = "roundhouse_gateway_wait_seconds_sum", "roundhouse_gateway_admission_total"
	page := n.admin + "/metrics"
	before, count := n.figure(page, waited), n.figure(page, admitted, `outcome="admitted"`, `service="pool default/engines"`)
	contains(t, n.runWith(body("llm"), "explain", "request", "-", "--header", "X-Slo-Ttft-Ms: 150").out, "admission: Queue, Deferred; priority 0")
	if a := n.post(path, body("llm"), "X-Slo-Ttft-Ms", "150"); a.status != 200 {
		t.Errorf("a request that is deferred: %s", a)
	}
	if got := n.figure(page, waited) - before; got < (target * 9 / 10).Seconds() {
		t.Errorf("a request with a target of %v that cannot be met waited %v s, want that long", target, got)
	}
	if got := n.figure(page, admitted, `outcome="admitted"`, `service="pool default/engines"`); got != count+1 {
		t.Errorf("%v requests were admitted besides it", got-count-1)
	}
	// What was predicted stands beside what came.
	if a := n.post(path, body("llm"), "X-Request-Id", "seen-1", "X-Slo-Ttft-Ms", "60000"); a.status != 200 {
		t.Fatal(a)
	}
	eventually(t, "the request is kept", func() (bool, string) {
		r := n.runWith("", "explain", "request", "--id", "seen-1")
		return r.code == 0, r.String()
	})
	out := n.do("explain", "request", "--id", "seen-1")
	for _, want := range []string{`request: seen-1, POST /v1/completions at .*, model llm\n`, `replica: chat-\S+ of \S+`, `answer: 200 after .*\n`,
		`first token: predicted [\d.]+ m?s, 90 % within [\d.]+ m?s; took [\d.]+ m?s; target 60.00 s, met\n`, `each further token: predicted [\d.]+ ms, 90 % within [\d.]+ ms; took [\d.]+ ms\n`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	var r struct {
		ID      string
		Latency struct {
			TTFT, TPOT struct{ PredictedMs, TookMs, TargetMs float64 }
		}
	}
	if err := json.Unmarshal([]byte(n.do("explain", "request", "--id", "seen-1", "-o", "json")), &r); err != nil || r.ID != "seen-1" ||
		r.Latency.TTFT.TookMs < 300 || r.Latency.TTFT.PredictedMs < 100 || r.Latency.TTFT.TargetMs != 60_000 || r.Latency.TPOT.TookMs < 10 {
		t.Errorf("%v %+v", err, r)
	}
	if r := n.runWith("", "explain", "request", "--id", "nobody"); r.code == 0 || !strings.Contains(r.err, `none of the last requests has the ID "nobody"`) {
		t.Errorf("an ID of no request: %s", r)
	}
	for _, quantity := range []string{"ttft", "tpot"} {
		if got := n.figure(page, "roundhouse_gateway_latency_predictions_total", `quantity="`+quantity+`"`, `service="pool default/engines"`); got < 1 {
			t.Errorf("%v predictions of %s were judged", got, quantity)
		}
	}
}
