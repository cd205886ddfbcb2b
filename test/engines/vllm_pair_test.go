package engines

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// vllmPair is a service of two replicas that publish KV events.
func vllmPair(folder string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: tiny}
spec:
  model: {uri: "file://` + folder + `/model"}
  runtime: {name: vllm}
  scaling: {minReplicas: 2, maxReplicas: 2, startupTimeout: 20m}
  engine:
    resources: {limits: {nvidia.com/gpu: 0}}
    args:
      - --kv-events-config
      - '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:{{.GRPCPort}}", "topic": "kv@tiny"}'
`
}

// TestVLLMPair: of two replicas each holds the prefixes of its conversations, and
// publishes them.
func TestVLLMPair(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), t.TempDir()
	python(t, bin, "hf_model.py", folder)
	n.apply(vllmPair(folder))
	parts := n.ready("tiny", 2)
	heard := listenToKV(t, bin, parts)
	n.remembers(parts)
	if err := heard.Wait(); err != nil {
		t.Errorf("KV events: %v", err)
	}
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

// remembers has four conversations at once over two replicas: by the engines'
// own counters, nearly all of what a turn repeats is cached.
func (n *node) remembers(parts []part) {
	n.t.Helper()
	const turns, block = 8, 128 // tokens of a block on a CPU
	var mu sync.Mutex
	var all sync.WaitGroup
	before := n.cached(parts)
	repeated := 0.0
	for c := range 4 {
		all.Go(func() {
			prompt := strings.Repeat("conversation "+strconv.Itoa(c)+" of the quick brown fox ", 15)
			last := 0
			for turn := range turns {
				body, err := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": 8, "temperature": 0})
				if err != nil {
					n.t.Error(err)
					return
				}
				a := n.post("/v1/completions", string(body))
				var said struct {
					Choices []struct{ Text string }
					Usage   struct {
						Prompt int `json:"prompt_tokens"`
					}
				}
				if err := json.Unmarshal([]byte(a.body), &said); err != nil || a.status != http.StatusOK || len(said.Choices) != 1 {
					n.t.Errorf("turn %d of conversation %d: %s", turn, c, a)
					return
				}
				mu.Lock()
				repeated += float64(last / block * block)
				mu.Unlock()
				last = said.Usage.Prompt
				prompt += said.Choices[0].Text + " hello there, what is turn " + strconv.Itoa(turn) + "? "
			}
		})
	}
	all.Wait()
	sum := 0.0
	for i, after := range n.cached(parts) {
		hits := after - before[i]
		n.t.Logf("replica %s: %v tokens of prompts cached", parts[i].ID, hits)
		if hits == 0 {
			n.t.Errorf("replica %s had no conversation", parts[i].ID)
		}
		sum += hits
	}
	n.t.Logf("%v of %v repeated tokens cached", sum, repeated)
	if repeated == 0 || sum < 0.95*repeated {
		n.t.Errorf("%v tokens cached, want nearly all of %v", sum, repeated)
	}
}

// cached is how many tokens of prompts each replica found in its cache.
func (n *node) cached(parts []part) (hits []float64) {
	n.t.Helper()
	for _, p := range parts {
		hits = append(hits, n.figures(p.metrics())["vllm:prefix_cache_hits_total"])
	}
	return hits
}
