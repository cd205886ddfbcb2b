package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// loraEngine is a service that the pools of these tests select: the engine
// simulator with two adapters, two replicas of it.
const loraEngine = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: llama, labels: {app: vllm-llama2-7b}}
spec:
  protocol: openAI
  scaling: {minReplicas: 2, maxReplicas: 2}
  engine:
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --speed, "200", --model, llama, --max-loras, "2",
        --lora, vllm-llama2-7b-2024-11-20, --lora, vllm-llama2-7b-2025-03-24]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`

// completion asks for a completion and returns the model that the replica says
// it was asked for.
func (n *node) completion(model string, header ...string) (answer, string) {
	n.t.Helper()
	a := n.post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":2}`, model), header...)
	var out struct {
		Model string `json:"model"`
	}
	_ = json.Unmarshal([]byte(a.body), &out)
	return a, out.Model
}

// TestInferenceGateway runs the Gateway API Inference Extension's example: a
// logical model whose requests a pool splits over two adapters. Its HTTPRoute
// first names a pool that is not there, as a slip of the pen does.
func TestInferenceGateway(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(root, "examples", "manifests", "inference-gateway.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	manifest := write(t, dir, "gateway.yaml", strings.Replace(string(data), "kind: InferencePool\n      name: vllm-llama2-7b-pool", "kind: InferencePool\n      name: vllm-llama2-7b", 1))
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, dir, "llama.yaml", loraEngine))
	out := n.do("apply", "-f", manifest)
	contains(t, out, "inferencemodel default/inferencemodel-llama2 created: llama2 in pool vllm-llama2-7b-pool",
		"pool default/vllm-llama2-7b-pool created: 1 service: llama",
		"httproute default/llm-route created: not ready: there is no pool default/vllm-llama2-7b; did you mean vllm-llama2-7b-pool?")
	contains(t, n.do("get", "httproutes", "-o", "yaml"), "reason: BackendNotFound", "name: inference-gateway")

	// Names work before any HTTPRoute does.
	counts := map[string]int{}
	for range 60 {
		a, model := n.completion("llama2")
		if a.status != 200 {
			t.Fatalf("a routed name: %s", a)
		}
		counts[model]++
	}
	// 75 to 25: fewer than 30 or more than 58 of 60 would be off by more than
	// four standard deviations.
	if c := counts["vllm-llama2-7b-2024-11-20"]; c < 30 || c > 58 || c+counts["vllm-llama2-7b-2025-03-24"] != 60 {
		t.Errorf("the split of 60 requests is %v, want about 45 to 15", counts)
	}
	if a, model := n.completion("llama"); a.status != 200 || model != "llama" {
		t.Errorf("the service's own name: %s", a)
	}
	a, _ := n.completion("elsewhere")
	if a.status != 500 {
		t.Errorf("a route to nothing: %s", a)
	}
	contains(t, a.body, "HTTPRoute default/llm-route", "did you mean vllm-llama2-7b-pool?")

	n.do("apply", "-f", write(t, dir, "gateway.yaml", string(data)))
	a, _ = n.completion("elsewhere")
	if a.status != 404 {
		t.Errorf("a model the pool has not: %s", a)
	}
	contains(t, a.body, "pool default/vllm-llama2-7b-pool", "the models are llama2")
	contains(t, n.get(n.gateway+"/v1/models").body, `"llama2"`, `"llama"`)
	contains(t, n.do("get", "pools"), "vllm-llama2-7b-pool", "InferencePool", "app=vllm-llama2-7b", "llama")
	contains(t, n.do("describe", "inferencepool", "vllm-llama2-7b-pool"), "Gateway:", "inference-gateway", "1 service: llama")

	// The name of an InferenceModel cannot change.
	r := n.run("apply", "-f", write(t, dir, "other.yaml", strings.Replace(string(data), "modelName: llama2", "modelName: llama3", 1)))
	if r.code == 0 {
		t.Errorf("a changed modelName was applied: %s", r)
	}
	contains(t, r.String(), `spec.modelName: cannot change, from "llama2" to "llama3"`)

	// What is kept routes again after a restart.
	n.end()
	n.up()
	eventually(t, "the pool answers again", func() (bool, string) {
		a, model := n.completion("llama2")
		return a.status == 200 && strings.HasPrefix(model, "vllm-llama2-7b-"), a.String()
	})
	n.do("delete", "-f", manifest)
	if a, _ := n.completion("llama2"); a.status != 404 {
		t.Errorf("a deleted model: %s", a)
	}
	contains(t, n.do("get", "routes"), "No routes found")
}

// external is a server that no service owns. It repeats the request's model.
func external(t *testing.T) (port string, asked func() []string) {
	t.Helper()
	models := make(chan string, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost { // its metrics are looked for
			http.NotFound(w, r)
			return
		}
		var in struct {
			Model string `json:"model"`
		}
		raw, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(raw, &in)
		models <- in.Model
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"object":"text_completion","model":%q,"choices":[]}`, in.Model)
	}))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, func() []string {
		var out []string
		for len(models) > 0 {
			out = append(out, <-models)
		}
		return out
	}
}

// TestPoolOfAddresses: requests go to servers that run already, by address and
// by name, under the names a Route gives, from a file that is watched.
func TestPoolOfAddresses(t *testing.T) {
	t.Parallel()
	port, asked := external(t)
	dir := t.TempDir()
	pool := "apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: outside}\nspec: {addresses: [\"ADDRESS\"]}\n"
	route := `apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: outside}
spec:
  models: [sql-lora, big]
  targets: [{pool: outside, model: upstream}]
`
	write(t, dir, "pool.yaml", strings.Replace(pool, "ADDRESS", "127.0.0.1:"+port, 1))
	write(t, dir, "route.yaml", route)
	n := startNode(t, "--watch", "-f", dir) // requests are sent before the first check
	for _, model := range []string{"sql-lora", "big", "default/big"} {
		a, got := n.completion(model)
		if a.status != 200 || got != "upstream" {
			t.Errorf("%s: %s", model, a)
		}
	}
	if got := asked(); len(got) != 3 {
		t.Errorf("the server was asked for %v", got)
	}
	if out := n.do("apply", "--wait", "-f", dir); !strings.Contains(out, "route default/outside") || strings.Contains(out, "checked") {
		t.Errorf("apply --wait of a pool of one healthy server:\n%s", out)
	}
	// Without a model in its target the name goes as it is.
	write(t, dir, "route.yaml", strings.Replace(route, ", model: upstream", "", 1))
	eventually(t, "adapters' names pass through", func() (bool, string) {
		a, got := n.completion("sql-lora")
		return a.status == 200 && got == "sql-lora", a.String()
	})
	// A name that stands for the same server.
	write(t, dir, "pool.yaml", strings.Replace(pool, "ADDRESS", "localhost:"+port, 1))
	eventually(t, "the name is found", func() (bool, string) {
		text := n.do("get", "pools")
		if !strings.Contains(text, "localhost:"+port) {
			return false, text
		}
		a, _ := n.completion("big")
		return a.status == 200, a.String()
	})
	if err := os.Remove(filepath.Join(dir, "route.yaml")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the route goes with its file", func() (bool, string) {
		a, _ := n.completion("big")
		return a.status == 404, a.String()
	})
}

// TestRouteSplitsServices: a Route gives part of a service's requests to
// another, each under its own name; the service's host still reaches it alone.
func TestRouteSplitsServices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	service := func(name string) string {
		return strings.NewReplacer("{name: llama, labels: {app: vllm-llama2-7b}}", "{name: "+name+"}", "--model, llama,", "--model, \"{{.Name}}\",",
			"minReplicas: 2, maxReplicas: 2", "minReplicas: 1, maxReplicas: 1").Replace(loraEngine)
	}
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, dir, "a.yaml", service("chat")), "-f", write(t, dir, "b.yaml", service("chat-next")))
	n.do("apply", "-f", write(t, dir, "r.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: canary}
spec:
  models: [chat]
  targets: [{service: chat, weight: 1}, {service: chat-next, weight: 1}]
`))
	counts := map[string]int{}
	for range 40 {
		a, model := n.completion("chat")
		if a.status != 200 {
			t.Fatalf("a split name: %s", a)
		}
		counts[model]++
	}
	if counts["chat"] < 7 || counts["chat-next"] < 7 || counts["chat"]+counts["chat-next"] != 40 {
		t.Errorf("the split of 40 requests is %v", counts)
	}
	for range 5 {
		if a, model := n.completion("chat", "Host", "chat.default.localhost"); a.status != 200 || model != "chat" {
			t.Errorf("by its host: %s", a)
		}
	}
	n.do("delete", "route", "canary")
	for range 5 {
		if a, model := n.completion("chat"); a.status != 200 || model != "chat" {
			t.Errorf("after the route: %s", a)
		}
	}
}
