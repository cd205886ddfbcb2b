package dispatch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/kvblocks"
)

// withRanks are replicas whose engines have n data-parallel ranks.
func withRanks(n int, ids ...string) []replica.Replica {
	rs := ready(ids...)
	for i := range rs {
		rs[i].DataParallel = service.DataParallel{Size: n, Local: n}
	}
	return rs
}

// TestRanksAreEndpoints: requests are spread over ranks and name the one that was picked;
// limit, drain and counts are the replica's.
func TestRanksAreEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(3, withRanks(2, "a")...))
		ranks := map[string]int{}
		var grants []*Grant
		for range 3 {
			g := mustAdmit(t, d)
			if g.Address() != "a:80" || g.Replica() != "a@"+g.Rank() {
				t.Fatalf("%s at %s names rank %q", g.Replica(), g.Address(), g.Rank())
			}
			ranks[g.Rank()]++
			grants = append(grants, g)
		}
		if ranks["0"]+ranks["1"] != 3 || ranks["0"] == 0 || ranks["1"] == 0 {
			t.Errorf("ranks got %v: want them to share", ranks)
		}
		if n := d.InFlight("a"); n != 3 {
			t.Errorf("%d requests in flight at the replica, want 3", n)
		}
		waiting := admit(t.Context(), d)
		synctest.Wait()
		select {
		case x := <-waiting:
			t.Fatalf("%v, %v: a fourth request was admitted, and the replica takes 3", x.g, x.err)
		default:
		}
		grants[0].Done(Outcome{})
		x := <-waiting
		if x.err != nil {
			t.Fatal(x.err)
		}
		drained := make(chan error, 1)
		go func() { drained <- d.Drain(t.Context(), "a") }()
		synctest.Wait()
		late := admit(t.Context(), d)
		for _, g := range []*Grant{grants[1], grants[2], x.g} {
			synctest.Wait()
			select {
			case <-drained:
				t.Fatal("the replica is drained before its last request ended")
			case <-late:
				t.Fatal("a replica that drains was given a request")
			default:
			}
			g.Done(Outcome{})
		}
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		d.Resume("a")
		y := <-late
		if y.err != nil {
			t.Fatal(y.err)
		}
		y.g.Done(Outcome{})
	})
}

// TestRanksHaveTheirOwnLoad: the rank whose engine has less to do is picked, and the
// replica's load is that of all its ranks.
func TestRanksHaveTheirOwnLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, withRanks(3, "a")...))
		for rank, waiting := range []int{4, 1, 7} {
			d.SetLoad(replica.RankID("a", rank), &replica.Load{At: d.clock.Now(), Waiting: waiting, KV: 0.25 * float64(rank), Blocks: 100, Tells: replica.Figures{Queue: true, KV: true}})
		}
		g := mustAdmit(t, d)
		if g.Rank() != "1" {
			t.Errorf("rank %s was picked, 1 has the shortest queue", g.Rank())
		}
		g.Done(Outcome{})
		if l := d.Load("a"); l == nil || l.Waiting != 12 || l.KV != 0.25 || l.Blocks != 300 {
			t.Errorf("the replica's load: %+v", l)
		}
		if l := d.Load("a@2"); l == nil || l.Waiting != 7 {
			t.Errorf("the rank's load: %+v", l)
		}
	})
}

// TestPromptsStayAtTheirRank: ranks of one address hold prompts of their own, and KV
// events of one tell nothing of another.
func TestPromptsStayAtTheirRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, withRanks(4, "a")...))
		ask := func(text string) *Grant {
			t.Helper()
			g, err := d.Admit(t.Context(), Request{Model: "iris", Prompt: [][]byte{[]byte(strings.Repeat(text, 600))}})
			if err != nil {
				t.Fatal(err)
			}
			g.FirstByte()
			g.Done(Outcome{})
			return g
		}
		first, second := ask("one "), ask("two ")
		for range 5 {
			if g := ask("one "); g.Rank() != first.Rank() {
				t.Errorf("the prompt went to rank %s, %s holds it", g.Rank(), first.Rank())
			}
		}
		d.KVEvent(first.Replica(), &kvblocks.Event{Kind: kvblocks.Cleared})
		blocks := map[string]int{}
		for _, e := range d.AllEndpoints() {
			blocks[e.ID] = e.Blocks
		}
		if first.Rank() == second.Rank() {
			t.Fatalf("both prompts have their home at rank %s: write others", first.Rank()) // hashes decide, which are constant
		}
		if blocks[first.Replica()] != 0 || blocks[second.Replica()] == 0 {
			t.Errorf("after %s was cleared, ranks hold %v blocks", first.Replica(), blocks)
		}
	})
}

// TestRanksFailTogether: a request whose server fails goes to another server, not to
// another rank.
func TestRanksFailTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, withRanks(8, "a", "b")...))
		g := mustAdmit(t, d)
		at := g.Address()
		if err := g.Retry(t.Context(), Unsent(errors.New("connection refused"))); err != nil {
			t.Fatal(err)
		}
		if g.Address() == at {
			t.Errorf("the retry went to %s again", g.Replica())
		}
		g.Done(Outcome{})
	})
}

// TestWhoseRanksAreEndpoints: those of the replicas that the gateway asks itself.
func TestWhoseRanksAreEndpoints(t *testing.T) {
	engine, prefill := withRanks(4, "a")[0], withRanks(4, "p")[0]
	prefill.Role = service.RolePrefill
	decoder, ports := engine, engine
	decoder.Role, ports.Role, ports.DataParallel.Ports = service.RoleDecoder, service.RoleDecoder, true
	decodes := PoolConfig{Entry: service.RoleDecoder}
	vllm := PoolConfig{Entry: service.RoleDecoder, Disaggregation: service.DisaggregationVLLM}
	for name, c := range map[string]struct {
		pool PoolConfig
		of   replica.Replica
		want int
	}{
		"an engine":                              {PoolConfig{Entry: service.RoleEngine}, engine, 4},
		"an engine for decoders":                 {vllm, engine, 1},
		"a decoder that the gateway connects":    {vllm, decoder, 4},
		"a decoder that a sidecar connects":      {decodes, decoder, 1},
		"a decoder with ports":                   {decodes, ports, 4},
		"a server":                               {PoolConfig{Shared: true}, engine, 4},
		"a server for others":                    {PoolConfig{Shared: true, Replicas: []replica.Replica{prefill}}, prefill, 1},
		"a server with one that prefills for it": {PoolConfig{Shared: true, Replicas: []replica.Replica{engine, prefill}}, engine, 1},
	} {
		if got := c.pool.Ranks(&c.of); got != c.want {
			t.Errorf("%s is %d endpoints, want %d", name, got, c.want)
		}
	}
}

// TestRanksAtPorts: with a port for each, ranks are addresses, and no header names them.
func TestRanksAtPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		rs := withRanks(2, "a")
		rs[0].DataParallel.Ports = true
		d.SetPool(pool1(0, rs...))
		addresses := map[string]bool{}
		for range 2 {
			g := mustAdmit(t, d)
			addresses[g.Address()] = true
			if g.Rank() != "" {
				t.Errorf("%s names rank %q", g.Address(), g.Rank())
			}
			defer g.Done(Outcome{})
		}
		if !addresses["a:80"] || !addresses["a:81"] {
			t.Errorf("requests went to %v, want a:80 and a:81", addresses)
		}
	})
}

// TestExternalPickerPicksServers: an endpoint picker that names the address of ranks
// leaves the choice among them to the gateway, and Envoy's fallbacks keep the rank.
func TestExternalPickerPicksServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := start(t, nil)
		d.SetPool(pool1(0, withRanks(2, "a", "b")...))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		seen := map[string]bool{}
		var grants []*Grant
		for range 2 {
			g, err := d.Admit(ctx, Request{Model: "iris", Subset: []string{"b:80"}})
			if err != nil || g.Address() != "b:80" {
				t.Fatalf("%v, %v", g, err)
			}
			seen[g.Rank()] = true
			for _, e := range d.AllEndpoints() {
				if e.ID == g.Replica() && (e.Replica != "b" || e.Rank != g.Rank() || e.InFlight != 1) {
					t.Errorf("%+v", e)
				}
			}
			grants = append(grants, g)
		}
		for _, g := range grants { // another gateway has sent it on, with the header as it was
			g.Served("a:80")
		}
		if n := d.InFlight("a"); n != 2 {
			t.Errorf("the server that served has %d requests, want 2", n)
		}
		for _, g := range grants {
			g.Done(Outcome{})
		}
		if len(seen) != 2 {
			t.Errorf("ranks %v of the one server were picked, want both", seen)
		}
	})
}
