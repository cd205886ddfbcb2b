package engines

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestVLLMPooling wakes a vLLM that embeds from zero by the first request.
func TestVLLMPooling(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(alone(folder, "minReplicas: 0, maxReplicas: 1", ", args: [--runner, pooling, --convert, embed]"))
	begun := time.Now()
	if a := n.post("/v1/embeddings", `{"model":"tiny","input":"hello"}`); a.status != http.StatusOK {
		t.Fatalf("the request that woke it: %.500s", a)
	}
	t.Logf("woken from zero in %s", time.Since(begun).Round(time.Second))
	t.Log(python(t, bin, "sdks.py", n.gateway, "vllm-pooling"))
}

// alone is a service of vLLM without adapters.
func alone(folder, scaling, more string) string {
	_, rest, _ := strings.Cut(vllmService(folder, more), "  runtime:")
	rest = strings.Replace(rest, "minReplicas: 1, maxReplicas: 1", scaling, 1)
	return "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: tiny}\nspec:\n  model: {uri: \"file://" + folder + "/model\"}\n  runtime:" + rest
}

// TestVLLMSleeps: an idle vLLM sleeps at each of its levels that a CPU has, by its
// own metric, and the next request wakes the same process.
func TestVLLMSleeps(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(alone(folder, "minReplicas: 0, maxReplicas: 1, scaleToZeroAfter: 3s, standby: level1", ""))
	first := n.complete("hello there")
	was := n.service("tiny").Replicas[0]
	for range 2 {
		n.eventually("the engine has given its weights away", func() (bool, string) {
			page := n.send("GET", was.metrics(), "").body
			return asleep.MatchString(page), page[max(0, len(page)-1000):]
		})
		n.eventually("the replica sleeps", func() (bool, string) {
			out := n.do("get", "tiny")
			return strings.Contains(out, "Asleep (level 1"), out // and how long its last waking took
		})
		begun := time.Now()
		if again := n.complete("hello there"); len(again.Choices) != 1 || len(first.Choices) != 1 || again.Choices[0].Text != first.Choices[0].Text {
			t.Errorf("awake again it answers %+v, before %+v", again, first)
		}
		t.Logf("woken in %s", time.Since(begun).Round(time.Millisecond))
	}
	if parts := n.service("tiny").Replicas; len(parts) != 1 || parts[0].PID != was.PID {
		t.Errorf("it was not woken but started: %+v", parts)
	}
}

var asleep = regexp.MustCompile(`(?m)^vllm:engine_sleep_state\{.*sleep_state="weights_offloaded".*\} 1(\.0)?$`)

// TestVLLMApart: long prompts are computed by the engine, whose KV comes to the
// decoder over NIXL; with the engine killed the decoder computes them.
// The arguments are quoted for a shell, as KServe's presets take them.
func TestVLLMApart(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	parts := n.vllmApart(folder)
	prefill, prompt := parts[0], apartPrompt
	for i := range 4 {
		begun := time.Now()
		n.complete(prompt(i))
		t.Logf("a long prompt took %s", time.Since(begun).Round(time.Millisecond))
	}
	n.complete("hello there")
	const asked, moved = "vllm:request_success_total", "vllm:external_prefix_cache_hits_total"
	of, tokens := n.each(parts, asked), n.each(parts, moved)
	t.Logf("requests of the engine and the decoder: %v; tokens whose KV came from elsewhere: %v", of, tokens)
	if of[0] != 4 || of[1] != 5 {
		t.Errorf("the engine had %v requests, the decoder %v, want 4 and 5", of[0], of[1])
	}
	if tokens[1] < 4*256 {
		t.Errorf("the KV of %v tokens came to the decoder, want that of four prompts", tokens[1])
	}
	if c := n.figures(n.admin + "/metrics")["roundhouse_gateway_prefills_total"]; c != 4 {
		t.Errorf("%v prefills counted, want 4", c)
	}
	kill(t, prefill.PID)
	for i := range 2 {
		n.complete(prompt(10 + i))
	}
	if of := n.each(parts[1:], asked); of[0] != 7 {
		t.Errorf("with the engine killed the decoder answered %v of 2", of[0]-5)
	}
	n.eventually("the engine's next process computes prompts", func() (bool, string) {
		n.complete(prompt(100 + int(time.Now().UnixMilli()%1e6)))
		now := n.each(parts[1:], moved)
		return now[0] > tokens[1], fmt.Sprint(now)
	})
}

// vllmApart starts an engine that computes prompts, and the decoder of a service, which
// gets their KV over NIXL.
func (n *node) vllmApart(folder string) (parts []part) {
	n.t.Helper()
	const nixl = `
    containers:
      - name: main
        args: ["--kv-transfer-config", "'{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"kv_both\", \"kv_buffer_device\": \"cpu\"}'"]
        env: [{name: VLLM_NIXL_SIDE_CHANNEL_HOST, value: 127.0.0.1}]
`
	n.apply(`apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: tiny}
spec:
  model: {uri: "file://` + folder + `/model", name: tiny}
  replicas: 1
  template:` + nixl + `  prefill:
    replicas: 1
    template:` + strings.ReplaceAll(nixl, "\n", "\n  ") + "\n")
	return n.apart("tiny")
}

// apart are the ready engine of a service and its decoder.
func (n *node) apart(name string) (parts []part) {
	n.t.Helper()
	parts = n.ready(name, 2)
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(b.ID, a.ID) })
	if !strings.Contains(parts[0].ID, "-engine-") || !strings.Contains(parts[1].ID, "-decoder-") {
		n.t.Fatalf("the replicas are %+v", parts)
	}
	return parts
}

// apartPrompt is a prompt that is long enough to be computed apart.
func apartPrompt(i int) string {
	return fmt.Sprint("prompt ", i, ": ") + strings.Repeat("the quick brown fox jumps over the lazy dog ", 25)
}

// TestVLLMApartKilled kills the engine that computes prompts while it has one, which the
// decoder then computes, and while the decoder writes what follows, which goes on; and
// the decoder within a stream, which ends with an error, and before the first byte, which
// its next process answers.
func TestVLLMApartKilled(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	parts := n.vllmApart(folder)
	const moved, running, tokens = "vllm:external_prefix_cache_hits_total", "vllm:num_requests_running", 600
	stream := func(i int) string {
		return fmt.Sprintf(`{"model":"tiny","prompt":%q,"max_tokens":%d,"stream":true,"stream_options":{"include_usage":true}}`, apartPrompt(i), tokens)
	}
	n.complete(apartPrompt(0))
	had := n.each(parts[1:], moved)[0]
	if had < 256 {
		t.Fatalf("the KV of %v tokens came to the decoder", had)
	}

	if err := syscall.Kill(parts[0].PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan answer)
	go func() {
		waiting <- n.post("/v1/completions", strings.Replace(stream(1), `"stream":true,"stream_options":{"include_usage":true}`, `"seed":1`, 1))
	}()
	n.eventually("the engine has the prompt", func() (bool, string) {
		sum := n.figures(n.admin + "/metrics")["roundhouse_gateway_endpoint_in_flight"]
		return sum == 1, fmt.Sprint(sum) // which the decoder is to answer, once it has an answer or is lost
	})
	kill(t, parts[0].PID)
	if a := <-waiting; a.status != http.StatusOK || !strings.Contains(a.body, fmt.Sprintf(`"completion_tokens":%d`, tokens)) {
		t.Errorf("the engine was killed before the first byte: %.500s", a)
	}
	if now := n.each(parts[1:], moved)[0]; now != had {
		t.Errorf("the KV of %v tokens came from an engine that was killed", now-had)
	}

	parts = n.apart("tiny")
	n.eventually("the engine's next process computes a prompt", func() (bool, string) {
		n.complete(apartPrompt(100 + int(time.Now().UnixMilli()%1e6)))
		now := n.each(parts[1:], moved)[0]
		return now > had, fmt.Sprint(now)
	})
	had = n.each(parts[1:], moved)[0]
	s := n.stream("/v1/completions", stream(2))
	n.figure(parts[1].metrics(), running, 1)
	kill(t, parts[0].PID)
	s.used(tokens)
	if now := n.each(parts[1:], moved)[0]; now < had+256 {
		t.Errorf("the KV of %v tokens came to the decoder for the stream", now-had)
	}

	parts = n.apart("tiny")
	s = n.stream("/v1/completions", stream(3))
	n.figure(parts[1].metrics(), running, 1)
	go func() {
		waiting <- n.post("/v1/completions", strings.Replace(stream(4), `"stream":true,"stream_options":{"include_usage":true}`, `"seed":1`, 1))
	}()
	n.figure(parts[1].metrics(), running, 2)
	kill(t, parts[1].PID)
	s.broken()
	if a := <-waiting; a.status != http.StatusOK || !strings.Contains(a.body, fmt.Sprintf(`"completion_tokens":%d`, tokens)) {
		t.Errorf("the decoder was killed before the first byte: %.500s", a)
	}
}

// TestVLLMEvicts: with little KV memory, what the gateway knows by KV events
// against what it estimates: the hit rate by the engines' own counters.
func TestVLLMEvicts(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(vllmPair(folder, 2, ", --num-gpu-blocks-override, '24'"))
	parts := n.ready("tiny", 2)
	rates := map[bool]float64{}
	for round := range 4 {
		events := round%2 == 1
		gateways := startGateways(t, 1, parts, events, false)
		hits, queries := n.each(parts, "vllm:prefix_cache_hits_total"), n.each(parts, "vllm:prefix_cache_queries_total")
		begun := time.Now()
		n.shared(gateways[0], fmt.Sprint("round ", round))
		hit, all := 0.0, 0.0
		for i, h := range n.each(parts, "vllm:prefix_cache_hits_total") {
			hit += h - hits[i]
		}
		for i, q := range n.each(parts, "vllm:prefix_cache_queries_total") {
			all += q - queries[i]
		}
		rates[events] += hit / all / 2
		t.Logf("KV events %t: %v of %v tokens cached (%.1f %%) in %s", events, hit, all, 100*hit/all, time.Since(begun).Round(time.Second))
	}
	t.Logf("hit rate by estimate %.1f %%, by KV events %.1f %%", 100*rates[false], 100*rates[true])
	// By turns the two differed by up to 7 points here, either way.
	if !(rates[true] > 0.2 && rates[true] > rates[false]-0.15) {
		t.Error("KV events made the hit rate worse")
	}
}

// shared sends 240 requests, four at a time, of ten prompts that together are more
// than the engines hold, the first of them the most often.
func (n *node) shared(gateway *node, label string) {
	n.t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.3, 2, 9)
	work := make(chan string)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for prompt := range work {
				gateway.complete(prompt)
			}
		})
	}
	for i := range 240 {
		work <- fmt.Sprintf("%s, prompt %d: ", label, zipf.Uint64()) + strings.Repeat("the quick brown fox jumps over the lazy dog ", 60) + fmt.Sprint("question ", i)
	}
	close(work)
	all.Wait()
}

// TestVLLMRanks: the data-parallel ranks of one vLLM are endpoints. Two prompts are at
// one rank each, which answers them again from its cache, and the end of one rank's
// engine is the end of both.
func TestVLLMRanks(t *testing.T) {
	bin := vllm.needs(t, "vllm", "python")
	n, folder := startNode(t, bin), tinyLlama(t, bin)
	n.apply(alone(folder, "minReplicas: 1, maxReplicas: 1", `, args: [--data-parallel-size, "2"]`))
	was := n.ready("tiny", 1)[0]
	// Of servers without requests nothing is read, and a rank tells nothing until it
	// has answered.
	s := n.stream("/v1/completions", vllmLong)
	n.eventually("the load of a rank is read", func() (bool, string) {
		page := n.figures(n.admin + "/metrics")
		return page["roundhouse_scrape_duration_seconds_count"] > page["roundhouse_scrape_failures_total"], fmt.Sprint(page)
	})
	s.cancel()
	n.figure(was.metrics(), "vllm:num_requests_running", 0)
	contains(t, n.do("describe", "tiny"), was.ID+"@0", was.ID+"@1")

	const asked, cached = "vllm:request_success_total", "vllm:prefix_cache_hits_total"
	before := n.ranks(was.metrics())
	for range 4 {
		for _, town := range []string{"Bern", "Basel"} {
			n.complete(town + " " + strings.Repeat("the quick brown fox jumps over the lazy dog ", 90))
		}
	}
	after := n.ranks(was.metrics())
	for _, rank := range []string{"0", "1"} {
		if got := after[rank][asked] - before[rank][asked]; got != 4 {
			t.Errorf("rank %s had %g of 8 requests, want 4", rank, got)
		}
		if got := after[rank][cached] - before[rank][cached]; got < 3*block {
			t.Errorf("rank %s had %g tokens in its cache, of a prompt that came four times", rank, got)
		}
	}

	s = n.stream("/v1/completions", vllmLong)
	engines := children(t, was.PID, "VLLM::EngineCor")
	if len(engines) != 2 {
		t.Fatalf("%d processes of engines, want one for each rank", len(engines))
	}
	kill(t, engines[1])
	s.ends()
	n.restarted("tiny", was.PID)
	n.complete("hello there")
}

// ranks reads vLLM's metrics: the sums of series by rank, and by name.
func (n *node) ranks(url string) map[string]map[string]float64 {
	n.t.Helper()
	sums := map[string]map[string]float64{"0": {}, "1": {}}
	for _, m := range ranked.FindAllStringSubmatch(n.send("GET", url, "").body, -1) {
		value, err := strconv.ParseFloat(m[3], 64)
		if err != nil || sums[m[2]] == nil {
			n.t.Fatalf("%s: %s", url, m[0])
		}
		sums[m[2]][m[1]] += value
	}
	return sums
}

var ranked = regexp.MustCompile(`(?m)^([\w:]+)\{engine="(\d+)"[^}]*\} (\S+)$`)
