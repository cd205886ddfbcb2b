package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
)

// slowly is a service whose engine takes seconds to compute a long prompt, and whose
// decoder takes seconds to write an answer; with a router before both if it has one.
func slowly(disaggregation, router string) string {
	api := "vllm"
	if disaggregation == "sglang" {
		api = "sglang"
	}
	component := func(role, more string) string {
		return `    local:
      command: [roundhouse, simulate, engine, --api, ` + api + `, --role, ` + role + `, --port, "{{.Port}}", --model, chat` + more + `]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`
	}
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  protocol: openAI
  disaggregation: ` + disaggregation + `
  engine:
` + component("prefill", `, --prefill-tokens-per-second, "400"`) + `  decoder:
` + component("decode", "") + router
}

// writing is a request for an answer of so many tokens, at 60 a second, with a prompt of
// 1,000 tokens that nobody has seen.
func writing(tokens int, stream bool) string {
	return fmt.Sprintf(`{"model":"chat","max_tokens":%d,"ignore_eos":true,"stream":%t,"stream_options":{"include_usage":true},"prompt":%q}`, tokens, stream, unseen(4000))
}

// killed kills a replica's process.
func (p part) kill(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// runs waits until so many requests are being computed at a replica.
func (n *node) runs(p part, api string, want float64) {
	n.t.Helper()
	name := map[string]string{"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}[api]
	eventually(n.t, fmt.Sprintf("%s runs %v requests", p.Role, want), func() (bool, string) {
		got := n.figure("http://"+p.HTTP+"/metrics", name)
		return got == want, fmt.Sprint(got)
	})
}

// begun asks for a stream and reads its first event. rest reads the others.
func (n *node) begun(body string) (rest func() string) {
	n.t.Helper()
	resp, err := client.Post(n.gateway+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = resp.Body.Close() })
	from := bufio.NewReader(resp.Body)
	if first, err := from.ReadString('\n'); err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(first, "data: {") {
		n.t.Fatalf("the stream begins with %d %q (%v)", resp.StatusCode, first, err)
	}
	return func() string {
		n.t.Helper()
		raw, err := io.ReadAll(from)
		if err != nil {
			n.t.Errorf("the stream is cut: %v after %q", err, raw[max(0, len(raw)-200):])
		}
		return string(raw)
	}
}

// later asks for an answer, which comes some time.
func (n *node) later(body string) (answered <-chan answer) {
	c := make(chan answer, 1)
	go func() {
		a, err := try("POST", n.gateway+"/v1/completions", body)
		if err != nil {
			a.body = err.Error()
		}
		c <- a
	}()
	return c
}

// TestPrefillKilledAtWork: the engine is killed while it computes a prompt, and while the
// decoder writes what follows. Neither request notices.
func TestPrefillKilledAtWork(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"vllm", "sglang"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			n := startNode(t)
			n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", slowly(how, "")))
			prefill, decode := n.part("chat", "engine", 0), n.part("chat", "decoder", 0)
			whole := n.later(writing(5, false))
			n.runs(prefill, how, 1)
			prefill.kill(t)
			if a := <-whole; !ok(a) || !strings.Contains(a.body, `"completion_tokens":5`) {
				t.Errorf("killed before the first byte: %s", a)
			}
			prefill = n.part("chat", "engine", prefill.PID)
			streamed := n.later(writing(5, true))
			n.runs(prefill, how, 1)
			prefill.kill(t)
			if a := <-streamed; !ok(a) || !strings.Contains(a.body, `"completion_tokens":5`) || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
				t.Errorf("killed before the first event: %s", a)
			}

			prefill = n.part("chat", "engine", prefill.PID)
			n.runs(prefill, how, 0) // SGLang's goes on after the simulated decoder, which does not wait for it
			rest := n.begun(writing(240, true))
			n.runs(decode, how, 1)
			prefill.kill(t)
			if got := rest(); !strings.Contains(got, `"completion_tokens":240`) || !strings.HasSuffix(got, "data: [DONE]\n\n") {
				t.Errorf("killed within the stream, which ends with %q", got[max(0, len(got)-300):])
			}
			if now := n.part("chat", "decoder", 0); now.PID != decode.PID {
				t.Error("the decoder was restarted with the engine")
			}
			n.part("chat", "engine", prefill.PID)
		})
	}
}

// TestRouterKilledAtWork: the router of a service whose prompts are computed apart is
// killed before the first byte of an answer, which its next process then gives, and
// within a stream, which ends with an error; and the decoder has nothing left to do.
func TestRouterKilledAtWork(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", slowly("vllm", fmt.Sprintf(`  router:
    local:
      command: [%q, router, "127.0.0.1:{{.Port}}", "$(ROUNDHOUSE_DECODER_ADDRESS)"]
      readinessProbe: {tcpSocket: {port: 8080}}
`, self))))
	decode, router := n.part("chat", "decoder", 0), n.part("chat", "router", 0)
	whole := n.later(writing(60, false))
	n.runs(decode, "vllm", 1)
	router.kill(t)
	if a := <-whole; !ok(a) || !strings.Contains(a.body, `"completion_tokens":60`) {
		t.Errorf("killed before the first byte: %s", a)
	}
	router = n.part("chat", "router", router.PID)
	rest := n.begun(writing(4000, true))
	n.runs(decode, "vllm", 1)
	router.kill(t)
	got := rest()
	events := strings.Split(strings.TrimSuffix(got, "\n\n"), "\n\n")
	contains(t, events[len(events)-1], "event: error\ndata: {\"error\":{", `"code":"replica_failed"`)
	n.runs(decode, "vllm", 0)
	if a := n.post("/v1/completions", writing(5, false)); !ok(a) {
		t.Errorf("after that: %s", a)
	}
	if now := n.part("chat", "decoder", 0); now.PID != decode.PID {
		t.Error("the decoder was restarted with the router")
	}
	n.part("chat", "router", router.PID)
}
