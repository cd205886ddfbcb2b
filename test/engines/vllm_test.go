package engines

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vllmService is a service of vLLM with two adapters, on CPUs, which the entry's
// GPU has to be taken from.
func vllmService(folder, more string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: tiny}
spec:
  model:
    uri: "file://` + folder + `/model"
    adapters:
      - {name: sql, uri: "file://` + folder + `/sql"}
      - {name: chat, uri: "file://` + folder + `/chat"}
  runtime: {name: vllm}
  scaling: {minReplicas: 1, maxReplicas: 1, startupTimeout: 20m}
  engine: {resources: {limits: {nvidia.com/gpu: 0}}` + more + `}
`
}

// TestVLLM starts vLLM once, by the catalog's entry: SDKs, adapters, metrics, a
// client that leaves, and the end of each of its processes.
func TestVLLM(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	vllm.takes(t, "vllm", "vllm", "serve", "--help=all")
	n, folder := startNode(t, bin), t.TempDir()
	python(t, bin, "hf_model.py", folder)
	n.apply(vllmService(folder, ""), "--wait", "--timeout", "20m")
	was := n.ready("tiny", 1)[0]
	t.Log(python(t, bin, "sdks.py", n.gateway, "vllm"))

	n.differ("tiny", "sql", "chat")

	s := n.stream("/v1/completions", vllmLong)
	n.figure(was.metrics(), "vllm:num_requests_running", 1)
	n.scraped()
	n.reads("vllm", was.metrics())
	s.cancel()
	n.figure(was.metrics(), "vllm:num_requests_running", 0)

	s = n.stream("/v1/completions", vllmLong)
	for _, engine := range children(t, was.PID, "VLLM::EngineCor") {
		kill(t, engine)
	}
	s.ends()
	n.restarted("tiny", was.PID)
	if a := n.post("/v1/completions", `{"model":"tiny","prompt":"hello","max_tokens":4}`); a.status != http.StatusOK {
		t.Errorf("after the restart: %s", a)
	}
}

// vllmLong asks for a stream of as many tokens as the context holds.
const vllmLong = `{"model":"tiny","prompt":"hello","stream":true,"max_tokens":2000,"logprobs":5}`

// ends fails unless the stream ends with an error event: the engine's own, or
// that of the gateway.
func (s *stream) ends() {
	s.t.Helper()
	events := s.rest()
	last := events[len(events)-1]
	if last == "data: [DONE]" && len(events) > 1 {
		last = events[len(events)-2]
	}
	contains(s.t, last, `"error":`)
	s.t.Logf("the stream ends with %.300q", events[len(events)-1])
}

// TestVLLMCannotStart: get names the cause that the engine printed.
func TestVLLMCannotStart(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), t.TempDir()
	python(t, bin, "hf_model.py", folder)
	n.apply(vllmService(folder, ", args: [--no-such-flag]"))
	n.eventually("get names the flag", func() (bool, string) {
		out := n.do("get", "tiny")
		return strings.Contains(out, "unrecognized arguments: --no-such-flag"), out
	})
	weights := filepath.Join(folder, "model", "model.safetensors")
	raw, err := os.ReadFile(weights)
	if err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()
	for _, part := range []string{"model", "sql", "chat"} {
		if err := os.CopyFS(filepath.Join(broken, part), os.DirFS(filepath.Join(folder, part))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(broken, "model", "model.safetensors"), raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	n.apply(strings.Replace(vllmService(broken, ""), "name: tiny", "name: broken", 1))
	n.eventually("get names the weights, for which no engine is started", func() (bool, string) {
		out := n.do("get", "broken")
		return strings.Contains(out, "model.safetensors: ") && strings.Contains(out, "the file is cut"), out
	})
}

// differ fails unless the names are answered, each by another text.
func (n *node) differ(names ...string) {
	n.t.Helper()
	said := map[string]string{}
	for _, name := range names {
		a := n.post("/v1/completions", `{"model":"`+name+`","prompt":"hello there","max_tokens":16,"temperature":0}`)
		if a.status != http.StatusOK {
			n.t.Fatalf("%s: %s", name, a)
		}
		_, text, _ := strings.Cut(a.body, `"text":"`)
		text, _, _ = strings.Cut(text, `"`)
		if other := said[text]; other != "" {
			n.t.Errorf("%s and %s both answer %q", other, name, text)
		}
		said[text] = name
	}
}
