package engines

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// vllmPair is a service of replicas that publish KV events.
func vllmPair(folder string, replicas int, more string) string {
	count := strconv.Itoa(replicas)
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: tiny}
spec:
  model: {uri: "file://` + folder + `/model"}
  runtime: {name: vllm}
  scaling: {minReplicas: ` + count + `, maxReplicas: ` + count + `, startupTimeout: 20m}
  engine:
    resources: {limits: {nvidia.com/gpu: 0}}
    args: [--enable-prompt-tokens-details, --kv-events-config, '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:{{.GRPCPort}}", "topic": "kv@tiny"}'` + more + `]
`
}

// TestVLLMPair: of two replicas each holds the prefixes of its conversations, and
// publishes them; streams go on while the service is scaled down and edited.
func TestVLLMPair(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(vllmPair(folder, 2, ""))
	parts := n.ready("tiny", 2)
	heard := listenToKV(t, bin, parts)
	for _, c := range []struct {
		gateways      int
		events, share bool
		least         float64 // part of the reusable tokens
		even          float64 // least part of the requests of each replica
	}{{1, false, false, 0.98, 0.4}, {2, false, true, 0.98, 0.4}, {1, true, false, 0.98, 0.4}, {2, true, true, 0.98, 0.4}, {2, true, false, 0.9, 0}, {2, false, false, 0.9, 0}} {
		what := fmt.Sprintf("%d gateways, KV events %t, sharing %t", c.gateways, c.events, c.share)
		remembers(t, startGateways(t, c.gateways, parts, c.events, c.share), parts, what, c.least, c.even)
	}
	if err := heard.Wait(); err != nil {
		t.Errorf("KV events: %v", err)
	}
	n.drains(vllmPair(folder, 1, ""), vllmPair(folder, 1, ", --max-num-seqs, '8'"), parts)
}

// listenToKV starts a subscriber, which ends when each replica has published a
// stored block.
func listenToKV(t *testing.T, bin string, parts []part) *exec.Cmd {
	t.Helper()
	args := []string{"kv_events.py"}
	for _, p := range parts {
		_, port, err := net.SplitHostPort(p.GRPC)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, port)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "python"), args...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = cmd.Stdout
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "listening" {
		t.Fatalf("the subscriber says %q", lines.Text())
	}
	go func() {
		for lines.Scan() {
			fmt.Println(lines.Text()) // the test's log, which go test keeps in order
		}
	}()
	return cmd
}

const (
	turns = 20
	block = 128 // tokens of a block on a CPU
)

// remembers has four conversations of 20 turns at once over two replicas, by turns
// through the gateways; two begin with one system prompt, two with another. By the
// engines' own counters, nearly all of what a turn repeats is cached, and each replica
// has its part of the requests.
func remembers(t *testing.T, gateways []*node, parts []part, what string, least, even float64) {
	t.Helper()
	n, begun := gateways[0], time.Now()
	cached, asked := n.each(parts, "vllm:prefix_cache_hits_total"), n.each(parts, "vllm:request_success_total")
	var talks []*talk
	for c := range 4 {
		system := fmt.Sprintf("%s: you are guide %d of a roundhouse. ", what, c/2)
		talks = append(talks, &talk{prompt: system + strings.Repeat("the quick brown fox jumps over the lazy dog ", 18), name: fmt.Sprintf("conversation %d of %s", c, what)})
	}
	reusable := 0.0
	for i, c := range talks {
		c.turn(gateways[i%len(gateways)], 0)
		if i%2 == 1 {
			c.repeated = (talks[i-1].last - added) / block * block
		}
	}
	var all sync.WaitGroup
	for i, c := range talks {
		all.Go(func() {
			for turn := 1; turn < turns; turn++ {
				c.repeated += c.last / block * block
				c.turn(gateways[(turn+i)%len(gateways)], turn)
			}
		})
	}
	all.Wait()
	for _, c := range talks {
		reusable += float64(c.repeated)
	}
	hits := 0.0
	for i, after := range n.each(parts, "vllm:prefix_cache_hits_total") {
		hits += after - cached[i]
	}
	for i, after := range n.each(parts, "vllm:request_success_total") {
		asked[i] = after - asked[i]
	}
	t.Logf("%s: %v of %v reusable tokens cached (%.1f %%), requests %v, in %s", what, hits, reusable, 100*hits/reusable, asked, time.Since(begun).Round(time.Second))
	if hits < least*reusable {
		t.Errorf("%s: %v tokens cached, want %v of %v", what, hits, least, reusable)
	}
	if few := slices.Min(asked); few < even*float64(len(talks)*turns) {
		t.Errorf("%s: a replica had %v of %d requests, want at least %v of them", what, few, len(talks)*turns, even)
	}
}

// added is at most how many tokens a turn adds.
const added = 80

// talk is a conversation.
type talk struct {
	name, prompt string
	last         int // tokens of the last prompt
	repeated     int // tokens, in whole blocks, of prompts that came again
}

// turn asks a gateway with all that was said before.
func (c *talk) turn(n *node, turn int) {
	n.t.Helper()
	c.prompt += c.name + " asks in turn " + strconv.Itoa(turn) + ": what is a roundhouse? "
	said := n.complete(c.prompt)
	if whole := c.last / block * block; said.Usage.Details.Cached < whole {
		n.t.Logf("%s, turn %d: %d of %d tokens were cached", c.name, turn, said.Usage.Details.Cached, whole)
	}
	c.last = said.Usage.Prompt
	if len(said.Choices) == 1 {
		c.prompt += said.Choices[0].Text
	}
}

// completion is an answer of /v1/completions.
type completion struct {
	Choices []struct{ Text string }
	Usage   struct {
		Prompt  int `json:"prompt_tokens"`
		Details struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
}

// complete asks for 8 tokens after a prompt.
func (n *node) complete(prompt string) (said completion) {
	n.t.Helper()
	body, err := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0})
	if err != nil {
		n.t.Error(err)
		return said
	}
	a := n.post("/v1/completions", string(body))
	if err := json.Unmarshal([]byte(a.body), &said); err != nil || a.status != http.StatusOK {
		n.t.Errorf("a completion: %s", a)
	}
	return said
}

// each is a figure of each replica.
func (n *node) each(parts []part, name string) (values []float64) {
	n.t.Helper()
	for _, p := range parts {
		values = append(values, n.figures(p.metrics())[name])
	}
	return values
}

// drains fails unless streams go on to their end while one of two replicas is one
// too many, and while the other is replaced. The manifests are those of one replica
// and of another revision of it.
func (n *node) drains(one, edited string, parts []part) {
	n.t.Helper()
	both := make(chan *stream, 2)
	for range cap(both) {
		go func() {
			var s *stream // nil of one that fails
			defer func() { both <- s }()
			s = n.stream("/v1/completions", long("tiny"))
		}()
	}
	// By the gateway's count: on a small machine one engine may not begin its answer, nor
	// show its metrics, until the other has ended.
	n.eventually("each replica has a stream", func() (bool, string) {
		metrics, each := n.send("GET", n.admin+"/metrics", "").body, 0
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "roundhouse_gateway_endpoint_in_flight{") && strings.HasSuffix(line, "} 1\n") {
				each++
			}
		}
		return each == len(parts), metrics
	})
	n.apply(one)
	n.eventually("one of two drains", func() (bool, string) {
		parts := n.service("tiny").Replicas
		return slices.ContainsFunc(parts, func(p part) bool { return p.Phase == "Draining" }), fmt.Sprintf("%+v", parts)
	})
	for range cap(both) {
		s := <-both
		if s == nil {
			n.t.FailNow()
		}
		s.used(longTokens)
	}
	was := n.ready("tiny", 1)[0]
	n.apply(edited)
	// Streams follow each other, so that one is under way when the new replica is ready.
	for count := 1; ; count++ {
		s := n.stream("/v1/completions", long("tiny"))
		s.used(longTokens)
		if parts := n.service("tiny").Replicas; len(parts) == 1 && parts[0].ID != was.ID && parts[0].Phase == "Ready" {
			n.t.Logf("%d streams were whole while the replica was replaced", count)
			return
		}
	}
}
