package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// TestGatewaysAgreeWherePromptsBelong: the turns of conversations that come
// through two gateways by turns, which know nothing of each other, stay on one
// replica each, and the replicas share them.
func TestGatewaysAgreeWherePromptsBelong(t *testing.T) {
	var gateways []*Dispatcher
	for range 2 {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a", "b", "c", "d")...))
		gateways = append(gateways, d)
	}
	where, moved, turns := map[int]string{}, 0, 0
	used := map[string]int{}
	text := make([]string, 24)
	for turn := range 8 {
		for c := range text {
			text[c] += fmt.Sprintf("conversation %d, turn %d: ", c, turn) + strings.Repeat("word ", 200)
			g := grantOf(t, gateways[turn%2], Request{Model: "iris", Prompt: [][]byte{[]byte(text[c])}})
			if turns++; turn > 0 && where[c] != g.Replica() {
				moved++
			}
			where[c] = g.Replica()
			used[g.Replica()]++
			g.FirstByte()
			g.Done(Outcome{})
		}
	}
	if moved > 0 || len(used) != 4 {
		t.Errorf("%d of %d turns moved; the replicas had %v", moved, turns, used)
	}
}

// TestMemoryOfPromptsIsAsLargeAsTheEngines: a prompt that the engine must have
// forgotten by what it says of its memory draws nobody there.
func TestMemoryOfPromptsIsAsLargeAsTheEngines(t *testing.T) {
	d, _ := start(t, nil)
	d.SetPool(pool1(0, ready("a", "b")...))
	for _, id := range []string{"a", "b"} {
		d.SetLoad(id, &replica.Load{At: time.Now(), Blocks: 128, BlockTokens: 16}) // 2,048 tokens
	}
	for i := range 40 {
		g := grantOf(t, d, Request{Model: "iris", Prompt: [][]byte{[]byte(fmt.Sprintf("prompt %d: ", i) + strings.Repeat("word ", 800))}})
		g.FirstByte()
		g.Done(Outcome{})
	}
	for _, e := range d.AllEndpoints() {
		if e.Blocks > 32 {
			t.Errorf("%s is taken to hold %d blocks of 64 tokens, has memory for 32", e.ID, e.Blocks)
		}
	}
}
