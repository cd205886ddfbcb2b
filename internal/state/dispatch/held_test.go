package dispatch

import (
	"fmt"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/kvblocks"
)

// TestKVEvents: where an engine tells what it holds, prompts go there that it has
// computed for others, and no longer once it has evicted them. After missed
// events what was sent counts again. A block of KV may be smaller than one of text, as on
// GPUs, or larger, as vLLM's of 128 tokens on CPUs.
func TestKVEvents(t *testing.T) {
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"} {
		t.Run(path, func(t *testing.T) { testKVEvents(t, path, 16) })
	}
	for _, size := range []int{64, 128, 256} {
		t.Run(fmt.Sprint(size, " tokens to a block"), func(t *testing.T) { testKVEvents(t, "/v1/completions", size) })
	}
}

func testKVEvents(t *testing.T, called string, size int) {
	text := strings.Repeat("word ", 1024) // 20 blocks of text
	tokens := make([]uint32, len(text)/4)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	asked := 0
	d, _ := start(t, func(c *Config) {
		c.Tokenize = func(address, path string, body []byte, done func([]uint32)) bool {
			if asked++; string(body) != "a body" || path != called {
				t.Errorf("%s is asked for %s with %q", address, path, body)
			}
			done(tokens)
			return true
		}
	})
	d.SetPool(pool1(0, ready("a", "b", "c", "d")...))
	stored := kvblocks.Event{Tokens: tokens, BlockTokens: size}
	for i := range len(tokens) / size {
		stored.Blocks = append(stored.Blocks, uint64(i+1))
	}
	request := Request{Model: "iris", Prompt: [][]byte{[]byte(text)}}
	explain := func(prompt string) string {
		r := request
		r.Prompt = [][]byte{[]byte(prompt)}
		x, err := d.Explain(r)
		if err != nil || x.Pick == nil {
			t.Fatalf("%+v, %v", x, err)
		}
		return x.Pick.Replica
	}
	send := func() string {
		g := grantOf(t, d, request)
		g.Tokenize("/v1/embeddings", []byte("another")) // is no call whose prompt is asked for
		g.Tokenize(called, []byte("a "), []byte("body"))
		g.FirstByte()
		g.Done(Outcome{})
		return g.Replica()
	}
	home := send()
	if asked != 0 {
		t.Error("an engine without events is asked for tokens")
	}
	other := "a"
	if home == "a" {
		other = "b"
	}
	// Another has the prompt from a client that this gateway does not know.
	d.KVEvent(other, &stored)
	d.KVEvent(home, &kvblocks.Event{Kind: kvblocks.Stored, Blocks: []uint64{1}, Tokens: tokens[:size], BlockTokens: size})
	if send(); asked != 1 {
		t.Errorf("tokens were asked for %d times, want once", asked)
	}
	if send(); asked != 1 {
		t.Error("tokens of a known prompt are asked for again")
	}
	has := func(id string) int {
		for _, e := range d.AllEndpoints() {
			if e.ID == id {
				return e.Blocks
			}
		}
		return -1
	}
	if n := has(other); n < 19 {
		t.Errorf("%s is taken to hold %d blocks of the prompt, want 20", other, n)
	}
	d.KVEvent(home, &kvblocks.Event{Kind: kvblocks.Cleared})
	if got := explain(text); got != other {
		t.Errorf("the prompt goes to %s, want %s, which alone holds it", got, other)
	}
	kept := len(stored.Blocks) * 4 / 5
	d.KVEvent(other, &kvblocks.Event{Kind: kvblocks.Removed, Blocks: stored.Blocks[kept:]})
	if n := has(other); n < 14 || n > 16+size/64 {
		t.Errorf("after %s evicted a fifth of its blocks it is taken to hold %d of 20", other, n)
	}
	d.KVEvent(other, &kvblocks.Event{Kind: kvblocks.Removed, Blocks: stored.Blocks[:kept]})
	if n := has(other); n > max(1, size/64) { // those before the end of the first block may be another prompt's
		t.Errorf("after it evicted the others it is taken to hold %d", n)
	}
	d.KVReset(other)
	if target := send(); has(target) < 19 {
		t.Error("what is sent after a reset does not count")
	}
	d.KVEvent("nobody", &stored)
	if len(d.caches.engines) > 2 {
		t.Error("an endpoint that no pool has is followed")
	}
}
