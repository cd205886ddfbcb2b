package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/test/loopback"
)

// publisher is an engine that publishes KV events.
type publisher struct {
	url, address string
}

// publishers are engines at one port of several loopback addresses, as engines of
// several machines are, that publish at one port and replay at another. Each has
// room for 256 blocks of 16 tokens, which have 4 bytes each.
func publishers(t *testing.T, n int) (all []publisher, events, replay string) {
	t.Helper()
	var ports [3]string
	for i := range ports {
		_, ports[i], _ = net.SplitHostPort(loopback.Reserve(t))
	}
	for i := range n {
		host := fmt.Sprintf("127.0.0.%d", i+2)
		at, _, _ := serving(t, `url=http://(\S+)`, "simulate", "engine", "--host", host, "--port", ports[0], "--kv-events-port", ports[1], "--kv-replay-port", ports[2],
			"--model", "llm", "--speed", "1000", "--kv-blocks", "256")
		all = append(all, publisher{"http://" + at, at})
	}
	return all, ports[1], ports[2]
}

// TestKVEventsAreFollowed: what engines computed before a gateway began is replayed to
// it; the replica that holds a prompt is chosen where what was sent says another; and
// the metrics of gateways and endpoint pickers tell of it.
func TestKVEventsAreFollowed(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{
		"/v1/completions":      `{"model":"llm","max_tokens":2,"prompt":%q}`,
		"/v1/chat/completions": `{"model":"llm","max_tokens":2,"messages":[{"role":"user","content":%q}]}`,
		"/v1/responses":        `{"model":"llm","max_output_tokens":2,"instructions":"Answer.","input":%q}`,
		"/v1/messages":         `{"model":"llm","max_tokens":2,"system":"Answer.","messages":[{"role":"user","content":[{"type":"text","text":%q}]}]}`,
	}
	for call, body := range bodies {
		t.Run(strings.Trim(strings.ReplaceAll(call, "/", "-"), "-"), func(t *testing.T) {
			t.Parallel()
			engines, events, replay := publishers(t, 2)
			a, b := engines[0], engines[1]
			ask := func(base, name string, words int) {
				t.Helper()
				text := fmt.Sprintf("%-40s", name) + strings.Repeat("word ", words)
				if got, err := try("POST", base+call, fmt.Sprintf(body, text)); err != nil || got.status != 200 {
					t.Fatalf("%s, %v", got, err)
				}
			}
			const prompts, words = 4, 600 // 47 blocks
			for i := range prompts {
				ask(b.url, fmt.Sprint("prompt ", i), words)
			}
			ask(a.url, "something else", words)

			n := newNode(t)
			file := write(t, t.TempDir(), "pool.yaml", fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: llm}
spec:
  addresses: ["%s", "%s"]
  kvEvents: {port: %s, replayPort: %s}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: llm}
spec:
  targets: [{pool: llm}]
`, a.address, b.address, events, replay))
			metrics := ""
			// kv is a figure of an endpoint, or of all.
			kv := func(name string, of *publisher, having ...string) float64 {
				if of != nil {
					having = append(having, `endpoint="address-`+of.address+`"`)
				}
				return n.figure(metrics, "roundhouse_kv_events_"+name, having...)
			}
			caughtUp := func(what string) {
				t.Helper()
				eventually(t, what+" has read what was published before", func() (bool, string) {
					return kv("exact", nil) == 2 && kv("replays_total", nil, `outcome="complete"`) == 2 && kv("blocks_total", &b, `event="stored"`) >= 47*prompts, n.get(metrics).body
				})
				if kv("failures_total", nil) != 0 || kv("gaps_total", nil) != 0 || kv("replays_total", nil) != 2 {
					t.Errorf("%s counts failures, gaps or other replays:\n%s", what, n.get(metrics).body)
				}
			}
			metrics, _, _ = serving(t, `Metrics +(\S+)`, "endpoint-picker", "-f", file, "--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
			caughtUp("an endpoint picker")
			var out *capture
			metrics, _, out = serving(t, `Metrics +(\S+)`, "gateway", "-f", file, "--listen", "127.0.0.1:0", "--grpc-listen", "", "--metrics-listen", "127.0.0.1:0")
			n.gateway = after(out.String(), "Roundhouse answers at  ")
			caughtUp("a gateway")

			answered := func(p publisher) float64 { return n.figure(p.url+"/metrics", "vllm:request_success_total") }
			var elsewhere []int // prompts that the gateway sent to the engine that did not hold them
			for i := range prompts {
				was := answered(a)
				ask(n.gateway, fmt.Sprint("prompt ", i), words)
				if answered(a) > was {
					elsewhere = append(elsewhere, i)
				}
			}
			if len(elsewhere) == 0 {
				t.Fatal("all prompts that are new to the gateway went to one of two engines")
			}
			eventually(t, "the tokens of the prompts are known", func() (bool, string) {
				return kv("prompts_total", nil, `outcome="tokenized"`) == prompts, n.get(metrics).body
			})
			stored := kv("blocks_total", &a, `event="stored"`)
			for i := range 3 {
				ask(a.url, fmt.Sprint("something else again ", i), 2560) // 200 blocks
			}
			eventually(t, "the gateway has heard that the first engine evicted the prompts", func() (bool, string) {
				return kv("blocks_total", &a, `event="stored"`) >= stored+3*200 && kv("blocks_total", &a, `event="removed"`) > 400, n.get(metrics).body
			})
			was := answered(b)
			for _, i := range elsewhere {
				ask(n.gateway, fmt.Sprint("prompt ", i), words)
			}
			if got := answered(b) - was; got != float64(len(elsewhere)) {
				t.Errorf("of %d prompts that one engine evicted, %v went to the one that holds them", len(elsewhere), got)
			}
		})
	}
}
