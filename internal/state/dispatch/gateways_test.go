package dispatch

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/breaker"
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

// TestPickerOfAManifest: a pool's own filters, choice and bounds are obeyed.
func TestPickerOfAManifest(t *testing.T) {
	d, _ := start(t, nil)
	p := pool1(0, ready("a", "b", "c")...)
	p.Picker = routing.Picker{Filters: []routing.Filter{{Name: "waiting-below", Waiting: 3, Then: []routing.Filter{{Name: "least-kv"}}, Else: []routing.Filter{{Name: "drop"}}}},
		Choice: "random", Balance: 3, Fresh: time.Second, Stale: time.Minute}
	d.SetPool(p)
	if s, _ := d.Status(routing.Service(iris)); s.Fault == "" {
		t.Error("scorers beside a choice at random are no fault")
	}
	p.Picker.Choice = ""
	d.SetPool(p)
	for id, l := range map[string]replica.Load{"a": {Waiting: 4}, "b": {Waiting: 2, KV: 0.7}, "c": {Waiting: 2, KV: 0.3}} {
		l.At = time.Now()
		d.SetLoad(id, &l)
	}
	if g := grantOf(t, d, Request{Model: "iris"}); g.Replica() != "c" {
		t.Errorf("picked %s", g.Replica())
	}
	for _, id := range []string{"a", "b", "c"} {
		d.SetLoad(id, &replica.Load{At: time.Now(), Waiting: 3})
	}
	if _, err := d.Admit(t.Context(), Request{Model: "iris"}); !errors.Is(err, ErrBusy) {
		t.Errorf("dropped: %v", err)
	}
}

// TestSilentEndpointComesLast: an endpoint whose metrics have died comes after
// those that speak, and serves when it is alone.
func TestSilentEndpointComesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, ready("a", "b", "c")...))
		d.SetLoad("a", &replica.Load{At: time.Now()})
		for range 25 {
			d.SetLoad("b", &replica.Load{At: time.Now(), Running: 3, KV: 0.5})
			d.SetLoad("c", &replica.Load{At: time.Now(), Running: 3, KV: 0.5})
			time.Sleep(time.Second)
		}
		for range 12 {
			g := mustAdmit(t, d)
			defer g.Done(Outcome{})
			if g.Replica() == "a" {
				t.Fatal("went to the one that is silent")
			}
		}
		d.SetPool(pool1(0, ready("a")...))
		mustAdmit(t, d).Done(Outcome{})
		// After a pause nobody has spoken for long: who speaks first gets no more.
		d.SetPool(pool1(0, ready("a", "b")...))
		d.SetLoad("b", &replica.Load{At: time.Now()})
		time.Sleep(time.Minute)
		d.SetLoad("b", &replica.Load{At: time.Now()})
		had := map[string]int{}
		for range 10 {
			g := mustAdmit(t, d)
			defer g.Done(Outcome{})
			had[g.Replica()]++
		}
		if had["a"] < 4 {
			t.Errorf("%v", had)
		}
	})
}

// TestGatewaysTellEachOther: a conversation that load sent elsewhere than ties do
// stays where it is when it goes on through the other gateway. A prompt that was not
// answered is told to nobody.
func TestGatewaysTellEachOther(t *testing.T) {
	var one, two *Dispatcher
	told := 0
	one, _ = start(t, func(c *Config) {
		c.Sent = func(endpoint string, blocks []uint64) { told++; two.Heard(endpoint, blocks) }
	})
	two, _ = start(t, nil)
	for _, d := range []*Dispatcher{one, two} {
		d.SetPool(pool1(0, ready("a", "b", "c", "d")...))
	}
	two.Heard("of no pool", []uint64{1})
	request := func(conversation, turns int) Request {
		return Request{Model: "iris", Prompt: [][]byte{[]byte(fmt.Sprintf("conversation %d: ", conversation) + strings.Repeat("word ", 200*turns))}}
	}
	moved, where := 0, map[int]string{}
	for c := range 24 {
		x, err := two.Explain(request(c, 1))
		if err != nil {
			t.Fatal(err)
		}
		one.SetLoad(x.Pick.Replica, &replica.Load{At: time.Now(), Waiting: 5, Running: 8}) // where ties would send it
		g := grantOf(t, one, request(c, 1))
		if where[c] = g.Replica(); where[c] != x.Pick.Replica {
			moved++
		}
		g.FirstByte()
		g.Done(Outcome{})
		one.SetLoad(x.Pick.Replica, &replica.Load{At: time.Now()})
	}
	if moved < 20 || told != 24 {
		t.Fatalf("%d of 24 first turns went elsewhere than ties would have sent them, %d told", moved, told)
	}
	for c := range 24 {
		if g := grantOf(t, two, request(c, 2)); g.Replica() != where[c] {
			t.Errorf("conversation %d goes on at %s, not at %s", c, g.Replica(), where[c])
		} else {
			g.Done(Outcome{})
		}
	}
	g := grantOf(t, one, request(99, 1))
	g.Answered(Answer{Result: breaker.Failed})
	g.FirstByte()
	g.Done(Outcome{})
	grantOf(t, one, request(98, 1)).Done(Outcome{Failed: errors.New("broken")})
	if told != 24 {
		t.Errorf("%d prompts told that no replica computed", told-24)
	}
}
