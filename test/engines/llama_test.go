package engines

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// gguf makes a model of llama.cpp: for text, or with "mean" for embeddings and
// with "rank" for reranking.
func gguf(t *testing.T, bin string, kind ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "tiny.gguf")
	python(t, bin, "gguf_model.py", append([]string{file}, kind...)...)
	return file
}

// llamaService is a service of a GGUF file, whose runtime is the catalog's.
func llamaService(name, file, scaling, more string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: ` + name + `}
spec:
  model: {uri: "file://` + file + `"}
  scaling: ` + scaling + more + "\n"
}

// TestLlamaSDKs wakes llama-server from zero by the first request and asks it
// with the SDKs of OpenAI and Anthropic.
func TestLlamaSDKs(t *testing.T) {
	t.Parallel()
	bin := small.needs(t, "llama-server", "python")
	n := startNode(t, bin)
	n.apply(llamaService("tiny", gguf(t, bin), "{minReplicas: 0, maxReplicas: 1}", "") + "---\n" +
		llamaService("embed", gguf(t, bin, "mean"), "{minReplicas: 0, maxReplicas: 1}", "\n  engine: {args: [--embeddings]}") + "---\n" +
		llamaService("rank", gguf(t, bin, "rank"), "{minReplicas: 0, maxReplicas: 1}", "\n  engine: {args: [--rerank]}"))
	if got := n.service("tiny").Status.Runtime.Name; got != "llama-cpp" {
		t.Fatalf("the runtime is %q, want the catalog's llama-cpp", got)
	}
	t.Log(python(t, bin, "sdks.py", n.gateway, "llama"))
}

// llamaLong asks for a stream of 2,000 tokens and some 30 MB, which no socket on the
// way holds: it lasts until the client has read it. The engine makes its tokens ahead
// of that, in two seconds or twenty.
const llamaLong = `{"model":"tiny","prompt":"hello","stream":true,"max_tokens":2000,"n_probs":200}`

const llamaTokens = 2000

// startLlama is a node with the service tiny.
func startLlama(t *testing.T, scaling, more string) (n *node, file string) {
	t.Helper()
	bin := small.needs(t, "llama-server", "python")
	n, file = startNode(t, bin), gguf(t, bin)
	n.apply(llamaService("tiny", file, scaling, more))
	return n, file
}

// TestLlamaLeft: when a client leaves its stream, the engine stops working on it.
func TestLlamaLeft(t *testing.T) {
	t.Parallel()
	n, _ := startLlama(t, "{minReplicas: 1, maxReplicas: 1}", "")
	page := n.ready("tiny", 1)[0].metrics()
	s := n.stream("/v1/completions", llamaLong)
	n.figure(page, "llamacpp:requests_processing", 1)
	n.scraped()
	n.reads("llamacpp", page)
	s.cancel()
	n.figure(page, "llamacpp:requests_processing", 0)
	if made := n.figures(page)["llamacpp:tokens_predicted_total"]; made >= llamaTokens {
		t.Errorf("the engine made all %v tokens of a stream that its client left", made)
	}
}

// TestLlamaDrains: streams go on to their end while the service is edited, and
// while the replica that sends them is one too many.
func TestLlamaDrains(t *testing.T) {
	t.Parallel()
	n, file := startLlama(t, "{minReplicas: 1, maxReplicas: 1}", "")
	old := n.ready("tiny", 1)[0]
	s := n.stream("/v1/completions", llamaLong)
	const edited = "\n  engine: {args: [--ctx-size, \"4096\"]}"
	n.apply(llamaService("tiny", file, "{minReplicas: 1, maxReplicas: 1}", edited))
	n.replaced("tiny", old)
	select { // longer than a replica of another model has
	case <-time.After(35 * time.Second):
	case <-t.Context().Done():
	}
	s.whole(llamaTokens)

	n.apply(llamaService("tiny", file, "{minReplicas: 2, maxReplicas: 2}", edited))
	parts := n.ready("tiny", 2)
	both := []*stream{n.stream("/v1/completions", llamaLong), n.stream("/v1/completions", llamaLong)}
	for _, p := range parts {
		n.figure(p.metrics(), "llamacpp:requests_processing", 1)
	}
	n.apply(llamaService("tiny", file, "{minReplicas: 1, maxReplicas: 1}", edited))
	n.eventually("one of two drains", func() (bool, string) {
		draining := 0
		for _, p := range n.service("tiny").Replicas {
			if p.Phase == "Draining" {
				draining++
			}
		}
		return draining == 1, strconv.Itoa(draining)
	})
	for _, s := range both {
		s.whole(llamaTokens)
	}
	n.ready("tiny", 1)
}

// TestLlamaGoes: the hook of the catalog's pods waits for a stream, and for nothing else.
func TestLlamaGoes(t *testing.T) {
	t.Parallel()
	n, _ := startLlama(t, "{minReplicas: 1, maxReplicas: 1}", "")
	p := n.ready("tiny", 1)[0]
	<-n.hook("llama-cpp", p)
	s := n.stream("/v1/completions", llamaLong)
	n.figure(p.metrics(), "llamacpp:requests_processing", 1)
	<-n.hook("llama-cpp", p)
	// The engine counts a request's tokens when it has made them all, be they read or not.
	if made := n.figures(p.metrics())["llamacpp:tokens_predicted_total"]; made < llamaTokens {
		t.Errorf("the hook ended when %v of the %d tokens of a stream were counted", made, llamaTokens)
	}
	s.whole(llamaTokens)
}

// TestLlamaPredicts: what answers of a real engine take is learned and predicted, and told
// beside what they took. How well is logged: the machine does other work.
func TestLlamaPredicts(t *testing.T) {
	t.Parallel()
	bin := small.needs(t, "llama-server", "python")
	n := startNode(t, bin)
	service := strings.Replace(llamaService("tiny", gguf(t, bin), "{minReplicas: 2, maxReplicas: 2}", ""), "{name: tiny}", "{name: tiny, labels: {app: tiny}}", 1)
	n.apply(service + `---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: engines}
spec: {selector: {app: tiny}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: predicted}
spec: {targets: [{pool: engines, model: tiny}]}
`)
	n.ready("tiny", 2)
	ask := func(i int, header ...string) {
		t.Helper()
		prompt := strings.Repeat("word"+strconv.Itoa(i)+" ", 1+i*37%100)
		if a := n.post("/v1/completions", fmt.Sprintf(`{"model":"predicted","stream":true,"max_tokens":64,"prompt":%q}`, prompt), header...); a.status != 200 {
			t.Fatalf("request %d: %s", i, a)
		}
	}
	const learned = 100
	for i := range learned {
		ask(i)
	}
	ask(learned, "X-Request-Id", "seen")
	said := n.do("explain", "request", "--id", "seen")
	contains(t, said, "first token: predicted ", "each further token: predicted ", "; took ")
	t.Log(said)
	page := n.admin + "/metrics"
	for _, quantity := range []string{"ttft", "tpot"} {
		label := fmt.Sprintf("quantity=%q", quantity)
		if answers := n.series(page, "roundhouse_gateway_latency_predictions_total", label); answers < learned/2 {
			t.Errorf("%s: %v of %d answers had been predicted", quantity, answers, learned)
		}
		t.Logf("%s: medians off by %.2f of what answers took; the 90th percentile is off by %.2f", quantity,
			n.series(page, "roundhouse_gateway_latency_prediction_error_ratio", label), n.series(page, "roundhouse_gateway_latency_calibration_error_ratio", label))
	}
}

// TestLlamaKilled kills the only replica within a stream, and before it answers.
func TestLlamaKilled(t *testing.T) {
	t.Parallel()
	n, _ := startLlama(t, "{minReplicas: 1, maxReplicas: 1}", "\n  engine: {args: [--parallel, \"1\"]}")
	was := n.ready("tiny", 1)[0]
	s := n.stream("/v1/completions", llamaLong)
	waiting := make(chan answer)
	go func() { waiting <- n.post("/v1/completions", `{"model":"tiny","prompt":"hello","max_tokens":4}`) }()
	n.figure(was.metrics(), "llamacpp:requests_deferred", 1)
	kill(t, was.PID)
	s.broken()
	if a := <-waiting; a.status != 200 || !strings.Contains(a.body, `"completion_tokens":4`) {
		t.Errorf("the request that waited in the engine is not sent to the next one: %s", a)
	}
	n.restarted("tiny", was.PID)
	contains(t, n.logs.String(), "signal 9")
	if r := n.service("tiny").Replicas[0].Restarts; r != 1 {
		t.Errorf("the replica counts %d restarts, want 1", r)
	}
}

// TestLlamaCannotStart: get names the cause that the engine printed.
func TestLlamaCannotStart(t *testing.T) {
	t.Parallel()
	n, file := startLlama(t, "{minReplicas: 1, maxReplicas: 1}", "\n  engine: {args: [--no-such-flag]}")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	short := filepath.Join(t.TempDir(), "short.gguf")
	if err := os.WriteFile(short, raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	n.apply(llamaService("short", short, "{minReplicas: 1}", "") + "---\n" +
		llamaService("template", file, "{minReplicas: 1}", "\n  engine: {args: [--chat-template-file, /no/such.jinja]}") + "---\n" +
		llamaService("absent", "/no/such.gguf", "{minReplicas: 1}", ""))
	for name, cause := range map[string]string{
		"tiny":     "invalid argument: --no-such-flag",
		"short":    "failed to load model",
		"template": "/no/such.jinja",
		"absent":   "/no/such.gguf",
	} {
		n.eventually("get names the cause for "+name, func() (bool, string) {
			out := n.do("get", name)
			return strings.Contains(out, cause), out
		})
		t.Log(n.do("get", name))
	}
}
