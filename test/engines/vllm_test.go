package engines

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// tiny is the folder that hf_model.py has written.
var tiny struct {
	once   sync.Once
	folder string
}

// tinyLlama is a folder with a model, and with adapters of it, which all tests of a
// run share: Python takes its time to load what writes it.
func tinyLlama(t *testing.T, bin string) (folder string) {
	t.Helper()
	tiny.once.Do(func() {
		made, err := os.MkdirTemp("", "roundhouse-tiny-")
		if err != nil {
			t.Fatal(err)
		}
		tiny.folder = made
		python(t, bin, "hf_model.py", made)
	})
	return tiny.folder
}

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

// vllmCompact has vLLM keep the blanks out of JSON: a random model writes nothing
// else where its grammar takes any number of them. And it lets models call tools.
const vllmCompact = `, args: [--structured-outputs-config, '{"backend": "xgrammar", "disable_any_whitespace": true}', --enable-auto-tool-choice, --tool-call-parser, hermes]`

// TestVLLM starts vLLM once, by the catalog's entry: SDKs, adapters, metrics, a
// client that leaves, and the end of its EngineCore.
func TestVLLM(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	vllm.takes(t, "vllm", "vllm", "serve", "--help=all")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(vllmService(folder, vllmCompact), "--wait", "--timeout", "20m")
	was := n.ready("tiny", 1)[0]
	t.Log(python(t, bin, "sdks.py", n.gateway, "vllm"))

	n.differ("tiny", "sql", "chat")

	s := n.stream("/v1/completions", vllmLong)
	n.figure(was.metrics(), "vllm:num_requests_running", 1)
	n.scraped()
	n.reads("vllm", was.metrics())
	s.cancel()
	n.figure(was.metrics(), "vllm:num_requests_running", 0)
	<-n.hook("vllm", was)
	s = n.stream("/v1/completions", vllmLong)
	n.figure(was.metrics(), "vllm:num_requests_running", 1)
	gone := n.hook("vllm", was)
	stays(t, gone)
	s.cancel()
	<-gone
	n.left(was.metrics(), vllmLong, "vllm:generation_tokens_total", func(want int) {
		n.figure(was.metrics(), "vllm:num_requests_running", float64(want))
	})

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

// TestVLLMKilled kills each of vLLM's processes.
func TestVLLMKilled(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(alone(folder, "minReplicas: 1, maxReplicas: 1", ""))
	const running = "vllm:num_requests_running"
	n.killed("tiny", running, func(p part) []int { return children(t, p.PID, "VLLM::EngineCor") })
	n.killed("tiny", running, func(p part) []int { return []int{p.PID} })
}

// killed kills processes of a service's only replica while it answers a stream and
// another request: the stream ends with an error, the other request is answered by
// the next process, because nothing of its answer had come.
func (n *node) killed(name, running string, victims func(part) []int) {
	n.t.Helper()
	was := n.ready(name, 1)[0]
	s := n.stream("/v1/completions", long(name))
	waiting := make(chan answer)
	go func() {
		waiting <- n.post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":%d}`, name, longTokens))
	}()
	n.figure(was.metrics(), running, 2)
	begun := time.Now()
	for _, pid := range victims(was) {
		kill(n.t, pid)
	}
	s.ends()
	n.t.Logf("the stream ended after %s", time.Since(begun).Round(time.Millisecond))
	if a := <-waiting; a.status != http.StatusOK || !strings.Contains(a.body, fmt.Sprintf(`"completion_tokens":%d`, longTokens)) {
		n.t.Errorf("the request that had no answer yet is not sent to the next process: %.500s", a)
	}
	n.t.Logf("the other request was answered after %s", time.Since(begun).Round(time.Second))
	n.restarted(name, was.PID)
}

// longTokens are nearly as many as the context holds.
const longTokens = 1900

// long asks a service for a stream of so many.
func long(name string) string {
	return fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}`, name, longTokens)
}

// vllmLong asks for a stream of as many tokens as the context holds.
const vllmLong = `{"model":"tiny","prompt":"hello","stream":true,"max_tokens":2000,"logprobs":5}`

// ends fails unless the stream ends with an error event, the engine's own or that
// of the gateway, or as one that the engine gave up.
func (s *stream) ends() {
	s.t.Helper()
	events := s.rest()
	last := events[len(events)-1]
	if last == "data: [DONE]" && len(events) > 1 {
		last = events[len(events)-2]
	}
	if !strings.Contains(last, `"error":`) && !strings.Contains(last, `"finish_reason":"abort"`) {
		s.t.Errorf("want the engine's error, or its abort, in %.300q", last)
	}
	s.t.Logf("the stream ends with %.300q", events[len(events)-1])
}

// TestVLLMCannotStart: get names the cause that the engine printed.
func TestVLLMCannotStart(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(vllmService(folder, ", args: [--no-such-flag]"))
	n.eventually("get names the flag", func() (bool, string) {
		out := n.do("get", "tiny")
		return strings.Contains(out, "unrecognized arguments: --no-such-flag"), out
	})
	n.apply(strings.Replace(vllmService(folder, ", args: [--chat-template, /no/such.jinja]"), "name: tiny", "name: template", 1) + "---\n" +
		strings.Replace(alone("/no/such", "minReplicas: 1, maxReplicas: 1", ""), "name: tiny", "name: absent", 1))
	for name, cause := range map[string]string{"template": "/no/such.jinja", "absent": "/no/such/model"} {
		n.eventually("get names the missing file of "+name, func() (bool, string) {
			out := n.do("get", name)
			return strings.Contains(out, cause), out
		})
		t.Log(n.do("get", name))
	}
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
