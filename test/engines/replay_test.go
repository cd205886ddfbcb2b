package engines

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// TestVLLMReplays: what replicas computed before a gateway began is replayed to it,
// and no message is refused. Of two replicas that had a prompt the one that still
// holds it is chosen, which the gateway itself never sent it. And calls of other APIs
// are asked for as the chat that vLLM makes of them.
func TestVLLMReplays(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	const blocks = 24
	n.apply(replaying(vllmPair(folder, 2, fmt.Sprintf(", --num-gpu-blocks-override, '%d', --enable-scale-out, --enable-auto-tool-choice, --tool-call-parser, hermes", blocks))))
	n.ready("tiny", 2)
	parts := n.publishing("tiny", 2)
	a, b := n.direct(parts[0].HTTP), n.direct(parts[1].HTTP)
	rendersAlike(t, b)

	const fox = "the quick brown fox jumps over the lazy dog "
	prompt := func(i int) string { return fmt.Sprintf("prompt %d: ", i) + strings.Repeat(fox, 35) }
	held := 0
	for i := range 4 {
		held += b.complete(prompt(i)).Usage.Prompt / block
	}
	a.complete("something else: " + strings.Repeat(fox, 35))
	if held < 8 || held >= blocks {
		t.Fatalf("the prompts are %d blocks, want less than %d and at least two each", held, blocks)
	}

	gateway := startReplayed(t, parts)
	page := gateway.admin + "/metrics"
	gateway.caughtUp(page, len(parts), held)
	answered := func() float64 { return n.each(pagesOf(parts[:1]), "vllm:request_success_total")[0] }
	var elsewhere []int // prompts that went to the replica that did not hold them
	for i := range 4 {
		was := answered()
		gateway.complete(prompt(i))
		if answered() > was {
			elsewhere = append(elsewhere, i)
		}
	}
	if len(elsewhere) == 0 {
		t.Fatal("all prompts that are new to the gateway went to one of two replicas")
	}
	gateway.eventually("the tokens of the prompts are known", func() (bool, string) {
		got := gateway.series(page, "roundhouse_kv_events_prompts_total", `outcome="tokenized"`)
		return got == 4, fmt.Sprint(got)
	})
	first := `endpoint="address-` + relayHost(0) + ":" // parts[0], as the gateway knows it
	stored := gateway.series(page, "roundhouse_kv_events_blocks_total", first, `event="stored"`)
	computed := 0
	for i := 0; computed <= 2*blocks; i++ {
		computed += a.complete(fmt.Sprintf("something else again %d: ", i)+strings.Repeat(fox, 80)).Usage.Prompt / block
	}
	gateway.eventually("the gateway has heard that the first replica evicted the prompts", func() (bool, string) {
		got := gateway.series(page, "roundhouse_kv_events_blocks_total", first, `event="stored"`)
		return got >= stored+float64(computed), fmt.Sprintf("%v of %v", got-stored, computed)
	})
	was := answered()
	for _, i := range elsewhere {
		gateway.complete(prompt(i))
	}
	if got := answered() - was; got != 0 {
		t.Errorf("of %d prompts that one replica evicted, %v went to it and not to the one that holds them:\n%s", len(elsewhere), got, kvFigures(gateway.send("GET", page, "").body))
	}

	// The engines go on while the gateway is started anew.
	again := startReplayed(t, parts)
	again.caughtUp(again.admin+"/metrics", len(parts), held+computed)
}

// replaying is a manifest whose engines replay their events too.
func replaying(manifest string) string {
	return strings.Replace(manifest, `"topic": `, `"replay_endpoint": "tcp://*:{{.KVEventsPort}}", "topic": `, 1)
}

// publisher is a replica with where its events are, as the admin API lists it.
type publisher struct {
	part
	KVEvents struct{ Port, ReplayPort int }
}

// publishing are the replicas of a service, which publish and replay.
func (n *node) publishing(name string, count int) (parts []publisher) {
	n.t.Helper()
	token, err := os.ReadFile(filepath.Join(n.dir, "admin-token"))
	if err != nil {
		n.t.Fatal(err)
	}
	var s struct{ Replicas []publisher }
	a := n.send("GET", n.admin+"/api/v1/services/default/"+name, "", "Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if err := json.Unmarshal([]byte(a.body), &s); err != nil || len(s.Replicas) != count || slices.ContainsFunc(s.Replicas, func(p publisher) bool { return p.KVEvents.Port == 0 || p.KVEvents.ReplayPort == 0 }) {
		n.t.Fatalf("%d replicas that publish and replay are wanted: %s", count, a)
	}
	return s.Replicas
}

func pagesOf(parts []publisher) (out []part) {
	for _, p := range parts {
		out = append(out, p.part)
	}
	return out
}

// direct asks one engine, past every gateway.
func (n *node) direct(address string) *node {
	return &node{t: n.t, gateway: "http://" + address}
}

// startReplayed runs a gateway that follows these replicas' events, as startGateways
// does.
func startReplayed(t *testing.T, parts []publisher) *node {
	t.Helper()
	var addresses, events, replay, at []string
	for _, p := range parts {
		addresses = append(addresses, p.HTTP)
		events = append(events, "127.0.0.1:"+strconv.Itoa(p.KVEvents.Port))
		replay = append(replay, "127.0.0.1:"+strconv.Itoa(p.KVEvents.ReplayPort))
	}
	for i, port := range relayed(t, addresses) {
		at = append(at, fmt.Sprintf("%q", relayHost(i)+":"+port))
	}
	file := filepath.Join(t.TempDir(), "pool.yaml")
	manifest := fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: tiny}
spec:
  addresses: [%s]
  kvEvents: {port: %s, replayPort: %s}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: tiny}
spec:
  targets: [{pool: tiny}]
`, strings.Join(at, ", "), relayed(t, events)[0], relayed(t, replay)[0])
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	return startGateway(t, file)
}

// caughtUp waits until what so many endpoints published before has been read: at
// least so many blocks of them. No message is refused or missed.
func (n *node) caughtUp(page string, endpoints, blocks int) {
	n.t.Helper()
	n.eventually("what was published before is replayed", func() (bool, string) {
		return n.series(page, "roundhouse_kv_events_exact") == float64(endpoints) &&
			n.series(page, "roundhouse_kv_events_replays_total", `outcome="complete"`) == float64(endpoints) &&
			n.series(page, "roundhouse_kv_events_blocks_total", `event="stored"`) >= float64(blocks), kvFigures(n.send("GET", page, "").body)
	})
	if n.series(page, "roundhouse_kv_events_failures_total", `reason="malformed"`) != 0 || n.series(page, "roundhouse_kv_events_gaps_total") != 0 {
		n.t.Errorf("messages were refused or missed:\n%s", kvFigures(n.send("GET", page, "").body))
	}
}

// series sums the series of a metric that have these labels.
func (n *node) series(page, name string, labels ...string) (sum float64) {
	n.t.Helper()
	a := n.send("GET", page, "")
	if a.status != http.StatusOK {
		n.t.Fatalf("GET %s: %s", page, a)
	}
	for line := range strings.Lines(a.body) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") || slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			n.t.Fatalf("%s: %s", page, line)
		}
		sum += value
	}
	return sum
}

// kvFigures are the lines of a page of metrics that are about KV events.
func kvFigures(page string) (text string) {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "roundhouse_kv_events_") {
			text += line
		}
	}
	return text
}

// rendersAlike compares the tokens that an engine makes of calls of the Responses and
// the Messages API with those of the chats that the gateway takes them for.
func rendersAlike(t *testing.T, engine *node) {
	t.Helper()
	var cases []struct {
		Name, Path string
		Body, Chat json.RawMessage
	}
	raw, err := os.ReadFile("../../internal/core/openai/testdata/chats.json")
	if err == nil {
		err = json.Unmarshal([]byte(strings.ReplaceAll(string(raw), `"model": "m"`, `"model": "tiny"`)), &cases)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		chat, ok := openai.AsChat(c.Path, c.Body)
		if !ok {
			continue
		}
		var rendered struct {
			Tokens []uint32 `json:"token_ids"`
		}
		var told struct{ Tokens []uint32 }
		path := strings.TrimPrefix(c.Path, "/prefix")
		a, b := engine.post(path+"/render", string(c.Body)), engine.post("/tokenize", string(chat))
		if json.Unmarshal([]byte(a.body), &rendered) != nil || json.Unmarshal([]byte(b.body), &told) != nil || len(rendered.Tokens) == 0 || len(told.Tokens) == 0 {
			t.Errorf("%s: rendered: %.500s; tokenized: %.500s", c.Name, a, b)
		} else if !slices.Equal(rendered.Tokens, told.Tokens) {
			t.Errorf("%s: vLLM renders %v, and the chat that it is taken for %v", c.Name, rendered.Tokens, told.Tokens)
		}
	}
}
