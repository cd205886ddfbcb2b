package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// adapted is a service of two replicas with LoRA adapters, each "name uri".
func adapted(scaling string, adapters ...string) string {
	var b strings.Builder
	for _, a := range adapters {
		name, uri, _ := strings.Cut(a, " ")
		fmt.Fprintf(&b, "\n      - {name: %s, uri: %q}", name, uri)
	}
	if b.Len() == 0 {
		b.WriteString(" []")
	}
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: llama}
spec:
  model:
    format: {name: simulator}
    adapters:%s
  scaling: {%s}
  engine:
    args: [--speed, "200"]
`, b.String(), scaling)
}

// card is what /v1/models says of one model.
type card struct {
	ID, Root, Parent string
}

func (n *node) cards() map[string]card {
	n.t.Helper()
	var list struct{ Data []card }
	if err := json.Unmarshal([]byte(n.get(n.gateway+"/v1/models").body), &list); err != nil {
		n.t.Fatal(err)
	}
	out := map[string]card{}
	for _, c := range list.Data {
		out[c.ID] = c
	}
	return out
}

// adapterFiles writes an adapter as PEFT does, and returns its folder's name.
func adapterFiles(t *testing.T, dir, name string, rank int) string {
	t.Helper()
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, at, "adapter_config.json", fmt.Sprintf(`{"peft_type":"LORA","r":%d,"base_model_name_or_path":"llama"}`, rank))
	write(t, at, "adapter_model.safetensors", "\x02\x00\x00\x00\x00\x00\x00\x00{}") // no tensors
	return name
}

// loads are how many adapters each replica of a service has loaded.
func (n *node) loads(service string) map[string]int {
	n.t.Helper()
	out := map[string]int{}
	for _, line := range strings.Split(n.do("describe", service), "\n") {
		at := regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).FindString(line)
		if at == "" || !strings.Contains(line, "engine") {
			continue
		}
		var state struct {
			Loads int `json:"lora_loads"`
		}
		if err := json.Unmarshal([]byte(n.get("http://"+at+"/simulate/state").body), &state); err != nil {
			n.t.Fatal(err)
		}
		out[at] = state.Loads
	}
	return out
}

// readyEngine matches the line of a ready replica that describe prints.
var readyEngine = regexp.MustCompile(`engine +llama-\S+ +Ready`)

// TestAdapters serves two LoRA adapters beside their model, from folders: each
// stays on the replica that has it loaded. Then one goes.
func TestAdapters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	sql, chat := "sql file://"+adapterFiles(t, dir, "sql-lora", 16), "chat file://"+adapterFiles(t, dir, "chat-lora", 20)
	apply := func(adapters ...string) string {
		return n.do("apply", "--wait", "-f", write(t, dir, "llama.yaml", adapted("minReplicas: 2, maxReplicas: 2", adapters...)))
	}
	apply(sql, chat)
	for range 20 {
		for _, name := range []string{"sql", "chat"} {
			if a, model := n.completion(name); a.status != 200 || model != name {
				t.Fatalf("%s: a replica was asked for %q: %s", name, model, a)
			}
		}
	}
	loads := n.loads("llama")
	total := 0
	for _, l := range loads {
		total += l
	}
	if len(loads) != 2 || total != 2 {
		t.Errorf("of two adapters the replicas have loaded %v", loads)
	}
	for name, host := range map[string]string{"llama": "", "default/sql": "", "default/chat": "llama.default.localhost"} {
		a, model := n.completion(name, "Host", host)
		if want := strings.TrimPrefix(name, "default/"); a.status != 200 || model != want {
			t.Errorf("%s: a replica was asked for %q: %s", name, model, a)
		}
	}
	cards := n.cards()
	if c := cards["sql"]; c.Parent != "llama" || c.Root != "sql" || cards["llama"].Parent != "" || cards["chat"].Parent != "llama" {
		t.Errorf("models are %+v", cards)
	}
	if a, _ := n.completion("sqll"); a.status != 404 || !strings.Contains(a.body, "did you mean sql?") {
		t.Errorf("a misspelt adapter: %s", a)
	}
	contains(t, n.do("describe", "llama"), "Adapter:", "sql at file://"+dir+"/sql-lora, rank 16", "chat at file://"+dir+"/chat-lora, rank 20")
	contains(t, n.do("get", "-o", "wide"), "ADAPTERS", "sql,chat")
	contains(t, n.do("explain", "llama", "--all"), "adapter        chat at file://", "takes LoRA adapters, the service has 2: sql, chat")

	// What stays is answered all along.
	stop, asked := make(chan struct{}), make(chan []string)
	go func() {
		var failed []string
		for count := 0; ; count++ {
			select {
			case <-stop:
				if count < 10 {
					failed = append(failed, fmt.Sprintf("only %d requests", count))
				}
				asked <- failed
				return
			default:
			}
			a, err := try(http.MethodPost, n.gateway+"/v1/completions", `{"model":"sql","prompt":"hello","max_tokens":2}`)
			if err != nil || a.status != 200 {
				failed = append(failed, fmt.Sprint(a, err))
			}
		}
	}()
	apply(sql)
	eventually(t, "chat is gone", func() (bool, string) {
		a, _ := n.completion("chat")
		return a.status == 404 && strings.Contains(a.body, "is not served here"), a.String()
	})
	eventually(t, "the revision before has gone", func() (bool, string) {
		out := n.do("describe", "llama")
		return len(readyEngine.FindAllString(out, -1)) == 2 && !strings.Contains(out, "Draining"), out
	})
	close(stop)
	if failed := <-asked; len(failed) > 0 {
		t.Errorf("while replicas were replaced %d requests for the adapter that stays failed: %s", len(failed), failed[0])
	}
	apply()
	if _, there := n.cards()["sql"]; there {
		t.Error("the models still have sql")
	}
}

// likeSGLang is a runtime whose engine knows adapters by two names, as SGLang's
// does, and answers any name it does not know without an adapter.
const likeSGLang = `apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: like-sglang}
spec:
  supportedModelFormats: [{name: simulator, version: "1"}]
  protocolVersions: [openAI]
  adapters:
    args: [--max-loras, "{{.Adapters}}"]
    each: [--lora, "{{.Adapter}}"]
    model: "{{.Name}}:{{.Adapter}}"
  local:
    command: [roundhouse, simulate, engine, --api, sglang, --model, "{{.Name}}", --host, 127.0.0.1, --port, "{{.Port}}", --speed, "200"]
    readinessProbe:
      httpGet: {path: /health, port: "{{.Port}}"}
---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: llama}
spec:
  model:
    format: {name: simulator}
    adapters: [{name: sql, uri: %q}]
  runtime: {name: like-sglang}
`

// TestAdapterIsAskedForAsTheEngineKnowsIt: whatever leads to the adapter, the
// replica that answers has laid it over the model.
func TestAdapterIsAskedForAsTheEngineKnowsIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	manifest := fmt.Sprintf(likeSGLang, "file://"+adapterFiles(t, dir, "sql-lora", 8))
	n.do("apply", "--wait", "-f", write(t, dir, "llama.yaml", manifest))
	for _, c := range []struct {
		model, host string
		adapter     bool
	}{
		{"sql", "", true}, {"default/sql", "", true}, {"sql", "llama.default.localhost", true}, {"llama:sql", "llama.default.localhost", true},
		{"llama", "", false}, {"default/llama", "", false},
	} {
		a, err := try(http.MethodPost, n.gateway+"/v1/completions", `{"model":"`+c.model+`","prompt":"hello","max_tokens":64}`, "Host", c.host)
		if err != nil || a.status != 200 || strings.Contains(a.body, `with the adapter \"sql\"`) != c.adapter {
			t.Errorf("%s at %q: %v %s", c.model, c.host, err, a)
		}
	}
}

// TestAdapterWakes has a service that sleeps woken by its adapter's name.
func TestAdapterWakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, dir, "llama.yaml", adapted("minReplicas: 0, maxReplicas: 1, scaleToZeroAfter: 1s", "sql file://"+adapterFiles(t, dir, "sql-lora", 8))))
	eventually(t, "asleep", func() (bool, string) {
		out := n.do("get")
		return strings.Contains(out, "0/0"), out
	})
	if a, model := n.completion("sql"); a.status != 200 || model != "sql" {
		t.Errorf("asked for %q: %s", model, a)
	}
}

// TestAdapterTroubles says in words what keeps adapters from being served.
func TestAdapterTroubles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	status := func(what ...string) {
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
	n.do("apply", "-f", write(t, dir, "llama.yaml", adapted("minReplicas: 1", "sql file:///nowhere/sql")))
	status(`ModelLoadFailed`, `adapter "sql"`, "/nowhere/sql")

	// A server that has it not: what is fetched is said to be the adapter.
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	n.do("apply", "-f", write(t, dir, "llama.yaml", adapted("minReplicas: 1", "sql "+server.URL+"/sql.tar.gz")))
	status(`ModelLoadFailed`, `adapter "sql"`, "404")

	// A runtime that takes none, and arguments that name adapters themselves.
	n.do("apply", "-f", write(t, dir, "runtime.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: plain}
spec:
  supportedModelFormats: [{name: plain, autoSelect: true}]
  protocolVersions: [openAI]
  local: {command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, "{{.Name}}"]}
`))
	sql := "sql file://" + adapterFiles(t, dir, "sql-lora", 8)
	n.do("apply", "-f", write(t, dir, "llama.yaml", strings.Replace(adapted("minReplicas: 1", sql), "simulator", "plain", 1)))
	contains(t, n.do("explain", "llama", "--all"), "takes no LoRA adapters, the service has 1: sql", "spec.adapters")
	status("NoSupportingRuntime", "plain could serve it, but takes no LoRA adapters")
	n.do("apply", "-f", write(t, dir, "llama.yaml", strings.Replace(adapted("minReplicas: 1", sql), `"200"]`, `"200", --lora, mine]`, 1)))
	status("InvalidPredictorSpec", "--lora is how the service's adapters are given")

	n.do("apply", "--wait", "-f", write(t, dir, "llama.yaml", adapted("minReplicas: 1", sql)))
	if a, _ := n.completion("sql"); a.status != 200 {
		t.Errorf("mended: %s", a)
	}
}

// TestFineTunedWeights serves OME's kind of adapters.
func TestFineTunedWeights(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := startNode(t)
	base := func(name string) string {
		return "apiVersion: ome.io/v1beta1\nkind: ClusterBaseModel\nmetadata: {name: " + name + "}\nspec:\n  modelFormat: {name: simulator}\n" +
			"  storage: {storageUri: \"file://" + adapterFiles(t, dir, name, 1) + "\"}\n---\n"
	}
	weight := func(name, base, more string) string {
		return fmt.Sprintf("apiVersion: ome.io/v1beta1\nkind: FineTunedWeight\nmetadata: {name: %s}\nspec:\n  baseModelRef: {name: %s}\n  modelType: LoRA\n"+
			"  hyperParameters: {strategy: lora, lora_rank: 8}\n  configuration: {%s}\n  storage: {storageUri: \"file://%s\"}\n---\n", name, base, more, adapterFiles(t, dir, "files-"+name, 8))
	}
	const svc = "apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {name: chat}\nspec:\n  model: {name: llama, fineTunedWeights: [finance]}\n  engine: {minReplicas: 1, maxReplicas: 1}\n"
	status := func(what string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			out := n.do("describe", "chat")
			return strings.Contains(out, what), out
		})
	}
	n.do("apply", "-f", write(t, dir, "ome.yaml", base("llama")+base("mistral")+svc))
	status(`spec.model.fineTunedWeights[0]: no FineTunedWeight named "finance": apply it`)
	n.do("apply", "-f", write(t, dir, "weight.yaml", weight("finance", "mistral", "")))
	status(`FineTunedWeight "finance" is of base model "mistral", and the service serves "llama"`)
	n.do("apply", "-f", write(t, dir, "weight.yaml", weight("finance", "llama", "merged_weights: true")))
	status("holds merged weights")
	n.do("apply", "-f", write(t, dir, "weight.yaml", weight("finance", "llama", "")))
	eventually(t, "finance answers", func() (bool, string) {
		a, model := n.completion("finance")
		return a.status == 200 && model == "finance", a.String()
	})
	if c := n.cards()["finance"]; c.Parent != "chat" {
		t.Errorf("its card is %+v", c)
	}
	contains(t, n.do("get", "finetunedweights"), "NAME", "finance", "LoRA", "llama")
	contains(t, n.do("get", "weights", "finance", "-o", "yaml"), "lora_rank: 8")
	contains(t, n.do("describe", "chat"), "finance at file://"+dir+"/files-finance, rank 8")
	// After a crash the replica is adopted, with its adapter.
	n.signal(syscall.SIGKILL)
	n.up()
	if a, model := n.completion("finance"); a.status != 200 || model != "finance" {
		t.Errorf("adopted: %s", a)
	}
	contains(t, n.do("get", "weights"), "finance")
	n.do("delete", "-f", filepath.Join(dir, "weight.yaml"))
	contains(t, n.do("get", "weights"), "No weights found")
	if a, _ := n.completion("finance"); a.status != 200 {
		t.Errorf("a revision that stands has lost its adapter: %s", a)
	}
}
