package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/test/loopback"
)

// apart is a service whose engine computes prompts for its decoder.
const apart = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  protocol: openAI
  disaggregation: vllm
  engine:
    local:
      command: [roundhouse, simulate, engine, --role, prefill, --port, "{{.Port}}", --model, chat, --speed, "1000"]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
  decoder:
    local:
      command: [roundhouse, simulate, engine, --role, decode, --port, "{{.Port}}", --model, chat, --speed, "1000"]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`

// part is one replica of a service of several roles.
type part struct {
	Role, Phase, HTTP string
	PID               int
}

// replicas are a service's, of all roles.
func (n *node) replicas(service string) []part {
	n.t.Helper()
	raw := n.get(n.admin+"/api/v1/services/default/"+service, "Authorization", "Bearer "+n.token())
	var all struct{ Replicas []part }
	if err := json.Unmarshal([]byte(raw.body), &all); err != nil {
		n.t.Fatalf("%v in %s", err, raw)
	}
	return all.Replicas
}

// part waits until the service's one replica of a role is ready.
func (n *node) part(service, role string, not int) (found part) {
	n.t.Helper()
	eventually(n.t, service+" has a ready "+role, func() (bool, string) {
		for _, p := range n.replicas(service) {
			if p.Role == role && p.Phase == "Ready" && p.PID != not {
				found = p
				return true, ""
			}
		}
		return false, n.run("describe", service).out
	})
	return found
}

// figure is the sum of a metric's series that have all the texts in their
// line, 0 without any.
func (n *node) figure(url, metric string, having ...string) (sum float64) {
	n.t.Helper()
	m := n.get(url)
	if m.status != 200 {
		n.t.Fatalf("%s: %s", url, m)
	}
	for _, line := range regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(metric)+`(\{.*\})? \S+$`).FindAllString(m.body, -1) {
		all := true
		for _, h := range having {
			all = all && strings.Contains(line, h)
		}
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil && all {
			sum += v
		}
	}
	return sum
}

// prompts counts those made by fresh.
var prompts atomic.Int64

// fresh is a completion with a prompt of that many bytes that nobody has seen.
func fresh(bytes int) string {
	text := fmt.Sprintf("%08d", prompts.Add(1))
	return fmt.Sprintf(`{"model":"chat","max_tokens":3,"prompt":%q}`, strings.Repeat(text, bytes/len(text)))
}

// TestPrefillAndDecodeApart: long prompts are computed by the engine for the
// decoder, short ones are not; with the engine killed the decoder does it all,
// with the decoder killed its restart is waited for; and no token of a prefill
// is counted as the client's.
func TestPrefillAndDecodeApart(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", apart))
	prefill, decode := n.part("chat", "engine", 0), n.part("chat", "decoder", 0)
	requests := func(p part) float64 {
		return n.figure("http://"+p.HTTP+"/metrics", "vllm:request_success_total")
	}
	outcomes := func(o string) float64 {
		return n.figure(n.admin+"/metrics", "roundhouse_gateway_prefills_total", `"`+o+`"`)
	}
	ask := func(body string) {
		t.Helper()
		a := n.post("/v1/completions", body)
		if a.status != 200 || !strings.Contains(a.body, `"completion_tokens":3`) {
			t.Fatalf("asked for 3 tokens: %s", a)
		}
	}
	ask(fresh(4000))
	if p, d := requests(prefill), requests(decode); p != 1 || d != 1 {
		t.Errorf("a long prompt: the engine has answered %v requests and the decoder %v, want 1 and 1", p, d)
	}
	for range 3 {
		ask(fresh(400))
	}
	if p, d := requests(prefill), requests(decode); p != 1 || d != 4 {
		t.Errorf("short prompts: the engine has answered %v requests and the decoder %v, want 1 and 4", p, d)
	}
	stream := n.post("/v1/chat/completions", `{"model":"chat","max_tokens":5,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"`+strings.Repeat("long ", 1000)+`"}]}`)
	contains(t, stream.body, "data: [DONE]", `"completion_tokens":5`)
	if p := requests(prefill); p != 2 {
		t.Errorf("a long chat, streamed: the engine has answered %v requests, want 2", p)
	}
	out := n.do("explain", "request", write(t, t.TempDir(), "ask.json", fresh(4000)))
	contains(t, out, "replica: ", decode.HTTP, "prefill: ", prefill.HTTP)
	eventually(t, "the tokens are counted", func() (bool, string) {
		got := n.figure(n.admin+"/metrics", "roundhouse_gateway_tokens_total", `type="completion"`)
		return got == 17, fmt.Sprintf("%v tokens, want 17: those of 4 completions and a chat", got)
	})
	if c := outcomes("computed"); c != 2 {
		t.Errorf("%v prefills counted, want 2", c)
	}

	if err := syscall.Kill(prefill.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	before := requests(decode)
	for range 4 {
		ask(fresh(4000)) // the first may find out, the others may meet its next process
	}
	if d := requests(decode); d != before+4 {
		t.Errorf("with the engine killed the decoder answered %v of 4", d-before)
	}
	prefill = n.part("chat", "engine", prefill.PID)
	eventually(t, "the engine's next process computes prompts", func() (bool, string) {
		ask(fresh(4000))
		return requests(prefill) > 0, "none"
	})

	if err := syscall.Kill(decode.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ask(fresh(4000)) // it waits for the restart
	if next := n.part("chat", "decoder", decode.PID); requests(next) != 1 {
		t.Errorf("the decoder's next process has answered %v requests, want 1", requests(next))
	}
	t.Logf("prefills: %v computed, %v failed", outcomes("computed"), outcomes("failed"))
}

// TestRouterOfAService: a service with a router of its own. It runs beside the
// engine and the decoder, and requests enter through it, even after it died.
// Here it is another gateway, which is told of the decoder once that is there.
func TestRouterOfAService(t *testing.T) {
	t.Parallel()
	routes := t.TempDir()
	lead := func(to string) {
		write(t, routes, "routes.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: decoders}
spec: {addresses: ["`+to+`"]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: chat}
spec: {targets: [{pool: decoders}]}
`)
	}
	lead(loopback.Reserve(t))
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", apart+`  router:
    local:
      command: [roundhouse, gateway, -f, "`+routes+`", --watch, --listen, "127.0.0.1:{{.Port}}", --grpc-listen, "", --metrics-listen, ""]
      readinessProbe: {httpGet: {path: /healthz, port: 8080}}
`))
	prefill, decode, router := n.part("chat", "engine", 0), n.part("chat", "decoder", 0), n.part("chat", "router", 0)
	lead(decode.HTTP)
	eventually(t, "the router knows the decoder", func() (bool, string) {
		a := n.send("POST", "http://"+router.HTTP+"/v1/completions", shortAsk)
		return ok(a), a.String()
	})
	requests := func(p part) float64 {
		return n.figure("http://"+p.HTTP+"/metrics", "vllm:request_success_total")
	}
	ask := write(t, t.TempDir(), "ask.json", fresh(4000))
	out := n.do("explain", "request", ask)
	contains(t, out, "replica: ", router.HTTP)
	if strings.Contains(out, "prefill: ") || strings.Contains(out, decode.HTTP) {
		t.Errorf("the gateway picks past the router:\n%s", out)
	}
	before := requests(decode)
	for range 3 {
		if a := n.post("/v1/completions", fresh(4000)); !ok(a) {
			t.Errorf("through the router: %s", a)
		}
	}
	if p, d := requests(prefill), requests(decode)-before; p != 0 || d != 3 {
		t.Errorf("of 3 requests the decoder has answered %v and the engine %v: who computes a prompt is the router's to say", d, p)
	}
	if err := syscall.Kill(router.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if a := n.post("/v1/completions", fresh(64)); !ok(a) { // it waits for the restart
		t.Errorf("with the router killed: %s", a)
	}
	if next := n.part("chat", "router", router.PID); next.HTTP == "" {
		t.Error("the router's next process has no address")
	}
	if now := n.part("chat", "decoder", 0); now.PID != decode.PID {
		t.Error("the decoder was restarted with the router")
	}
}
