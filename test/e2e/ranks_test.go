package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// ranked is a service whose engine has two data-parallel ranks behind one port.
const ranked = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  protocol: openAI
  scaling: {minReplicas: 1, maxReplicas: 1}
  engine:
    local:
      command: [roundhouse, simulate, engine, --data-parallel-size, "2", --port, "{{.Port}}", --model, chat, --speed, "1000"]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`

// TestDataParallelRanks: each rank of an engine is an endpoint, the rank that is picked
// is the one that serves, whatever the client names, and the turns of a conversation
// stay at the rank that holds it.
func TestDataParallelRanks(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", ranked))
	replicas := n.replicas("chat")
	if len(replicas) != 1 {
		t.Fatalf("%d replicas, want 1: ranks are none", len(replicas))
	}
	served := map[string]int{}
	for c := range 12 {
		conversation := fmt.Sprintf("conversation %d: %s", c, strings.Repeat(fmt.Sprintf("%08d", c), 256))
		at := ""
		for turn := range 3 {
			conversation += fmt.Sprintf(" turn %d %s", turn, strings.Repeat("x", 300))
			a := n.post("/v1/completions", fmt.Sprintf(`{"model":"chat","max_tokens":3,"prompt":%q}`, conversation), "X-Data-Parallel-Rank", "7")
			rank := a.header.Get("X-Roundhouse-Simulated-Rank")
			if a.status != 200 || rank == "" {
				t.Fatalf("no rank answered: %s", a)
			}
			if at != "" && rank != at {
				t.Errorf("conversation %d: turn %d went to rank %s, the one before to %s", c, turn, rank, at)
			}
			at = rank
			served[rank]++
		}
	}
	if served["0"] == 0 || served["1"] == 0 {
		t.Errorf("ranks served %v: want both to", served)
	}
	// The engine's own count of each rank agrees with the gateway's.
	engine := "http://" + replicas[0].HTTP + "/metrics"
	for rank, want := range served {
		if got := n.figure(engine, "vllm:request_success_total", `engine="`+rank+`"`); got != float64(want) {
			t.Errorf("rank %s counts %v requests, want %d", rank, got, want)
		}
	}
	if out := n.run("describe", "chat").out; !regexp.MustCompile(`@0 +0 +(\d+|-) +(\d+ %|-)`).MatchString(out) || !regexp.MustCompile(`@1 +0 +(\d+|-) +(\d+ %|-)`).MatchString(out) {
		t.Errorf("describe does not list the ranks:\n%s", out)
	}
	if out := n.run("explain", "request", write(t, t.TempDir(), "request.json", `{"model":"chat","prompt":"hello"}`)).out; !strings.Contains(out, replicas[0].HTTP+"@0") || !strings.Contains(out, replicas[0].HTTP+"@1") {
		t.Errorf("explain does not list the ranks:\n%s", out)
	}
}
