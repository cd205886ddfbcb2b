package route

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

func meta(s string, age int) service.Meta {
	return service.Meta{Key: key(s), Created: time.Unix(int64(1000-age), 0)}
}

func weighted(pairs ...any) (out []routing.WeightedModel) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, routing.WeightedModel{Name: pairs[i].(string), Weight: uint32(pairs[i+1].(int))})
	}
	return out
}

// seed is the article's example, its HTTPRoute mended.
func seed() []routing.Object {
	pool := key("default/vllm-llama2-7b-pool")
	return []routing.Object{
		&routing.Model{Meta: meta("default/inferencemodel-llama2", 0), ModelName: "llama2", Criticality: "Critical", Priority: routing.PriorityCritical,
			Pool: pool, Targets: weighted("vllm-llama2-7b-2024-11-20", 75, "vllm-llama2-7b-2025-03-24", 25)},
		&routing.Pool{Meta: service.Meta{Key: pool}, Selector: map[string]string{"app": "vllm-llama2-7b"}},
		&routing.HTTPRoute{Meta: meta("default/llm-route", 0), Rules: []routing.HTTPRule{{
			Matches:  []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}}},
			Backends: []routing.Backend{{Ref: routing.PoolRef(pool), Weight: 1}}}}},
	}
}

// TestSeedSplit draws the article's split 75 to 25, and bounds how far the
// counts may be off: four standard deviations of the binomial distribution.
func TestSeedSplit(t *testing.T) {
	tab := NewTable([]Entry{{Key: key("default/iris")}}, "", seed()...)
	r := rand.New(rand.NewPCG(1, 2))
	const n = 20_000
	counts := map[string]int{}
	for range n {
		got, err := tab.Resolve(Query{Host: "gateway.example", Path: "/v1/completions", Model: "llama2"}, r.IntN)
		if err != nil || got.Pool != routing.PoolRef(key("default/vllm-llama2-7b-pool")) || got.Priority != 1 || got.Named {
			t.Fatalf("got %+v, %v", got, err)
		}
		counts[got.Model]++
	}
	for model, share := range map[string]float64{"vllm-llama2-7b-2024-11-20": 0.75, "vllm-llama2-7b-2025-03-24": 0.25} {
		if off := math.Abs(float64(counts[model]) - n*share); off > 4*math.Sqrt(n*0.75*0.25) {
			t.Errorf("%s: %d of %d, want about %v", model, counts[model], n, n*share)
		}
	}
	if len(counts) != 2 {
		t.Errorf("models %v", counts)
	}
}

// TestCatchAllComesAfterNames: an HTTPRoute that takes everything leaves the
// services their names, and takes what nobody else answers to.
func TestCatchAllComesAfterNames(t *testing.T) {
	tab := NewTable([]Entry{{Key: key("default/iris")}}, "", seed()...)
	for model, want := range map[string]string{
		"iris":         "service default/iris",
		"default/iris": "service default/iris",
		"llama2":       "pool default/vllm-llama2-7b-pool",
	} {
		got, err := tab.Resolve(Query{Path: "/v1/chat/completions", Model: model}, first)
		if err != nil || got.Pool.String() != want {
			t.Errorf("%s: got %v, %v; want %s", model, got.Pool, err, want)
		}
	}
	_, err := tab.Resolve(Query{Path: "/", Model: "llama3"}, first)
	want := `model "llama3" is not served by pool default/vllm-llama2-7b-pool; did you mean llama2?`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	var missing *MissingModelError
	if _, err := tab.Resolve(Query{Path: "/"}, first); !errors.As(err, &missing) || !strings.Contains(err.Error(), "llama2") {
		t.Errorf("no model: %v", err)
	}
}

func first(int) int { return 0 }

func TestSplit(t *testing.T) {
	var s split
	for _, w := range []uint32{0, 3, 0, 1} {
		s.add(w)
	}
	counts := map[int]int{}
	for n := range 4 {
		counts[s.pick(func(total int) int {
			if total != 4 {
				t.Errorf("total %d", total)
			}
			return n
		})]++
	}
	if counts[1] != 3 || counts[3] != 1 || len(counts) != 2 {
		t.Errorf("got %v: a weight of 0 is never chosen", counts)
	}
	for _, empty := range []split{{}, {ends: []int{0, 0}}} {
		if i := empty.pick(func(int) int { t.Error("chance was asked"); return 0 }); i != -1 {
			t.Errorf("picked %d of nothing", i)
		}
	}
}

// TestWhy: the line names every object that had a say.
func TestWhy(t *testing.T) {
	pool := key("default/p")
	tab := NewTable([]Entry{{Key: key("default/chat")}, {Key: key("default/chat-next")}}, "",
		&routing.Pool{Meta: meta("default/p", 0)},
		&routing.Model{Meta: meta("default/im", 0), ModelName: "m", Pool: pool, Targets: weighted("x", 1, "y", 3), Priority: -1},
		&routing.Rewrite{Meta: meta("default/rw", 0), Pool: pool, Rules: []routing.RewriteRule{{Models: []string{"old"}, Targets: weighted("m", 1)}}},
		&routing.Objective{Meta: meta("default/batch", 0), Pool: pool, Priority: -7},
		&routing.Route{Meta: meta("default/split", 0), Models: []string{"chat"}, Targets: []routing.Target{
			{Ref: routing.Service(key("default/chat")), Weight: 9}, {Ref: routing.Service(key("default/chat-next")), Weight: 1}}},
		&routing.HTTPRoute{Meta: meta("default/hr", 0), Rules: []routing.HTTPRule{{
			Matches:  []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/p"}}},
			Backends: []routing.Backend{{Ref: routing.PoolRef(pool), Weight: 1}}}}},
	)
	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{Model: "chat"}, "Route default/split (9 of 10) → service default/chat"},
		{Query{Model: "chat-next"}, "by its name → service default/chat-next"},
		{Query{Host: "chat.default.localhost", Model: "adapter"}, "by its host → service default/chat"},
		{Query{Model: "m"}, "pool default/p → InferenceModel default/im (1 of 4) → model x → priority -1"},
		{Query{Path: "/p/v1", Model: "old", Objective: "batch"},
			"HTTPRoute default/hr, rule 1 → pool default/p → InferenceModelRewrite default/rw → InferenceModel default/im (1 of 4) → model x → InferenceObjective default/batch → priority -7"},
	} {
		got, err := tab.Resolve(c.q, first)
		if err != nil || got.Why() != c.want {
			t.Errorf("%+v:\n got %s, %v\nwant %s", c.q, got.Why(), err, c.want)
		}
	}
}

// TestRouteOverService: a Route says what a service's name means; the
// service's host still reaches it, and names of other namespaces stay.
func TestRouteOverService(t *testing.T) {
	tab := NewTable([]Entry{{Key: key("default/chat")}, {Key: key("team/chat")}}, "",
		&routing.Route{Meta: meta("default/r", 0), Models: []string{"chat"}, Priority: 5,
			Targets: []routing.Target{{Ref: routing.Service(key("team/chat")), Weight: 1}}})
	for _, c := range []struct{ host, model, want string }{
		{"", "default/chat", "team/chat"},
		{"", "team/chat", "team/chat"},
		{"chat.default.localhost", "chat", "default/chat"},
	} {
		got, err := tab.Resolve(Query{Host: c.host, Model: c.model}, first)
		if err != nil || got.Pool.Key.String() != c.want || !got.Named {
			t.Errorf("%+v: got %+v, %v", c, got, err)
		}
	}
	var ambiguous *AmbiguousError
	if _, err := tab.Resolve(Query{Model: "chat"}, first); !errors.As(err, &ambiguous) || len(ambiguous.Candidates) != 2 {
		t.Errorf("a bare name of two namespaces: %v", err)
	}
}

// TestTwoPoolsOneName: hosts tell the pools apart, and the error says so.
func TestTwoPoolsOneName(t *testing.T) {
	tab := NewTable(nil, "", &routing.Pool{Meta: meta("default/a", 0)}, &routing.Pool{Meta: meta("default/b", 0)},
		&routing.Model{Meta: meta("default/x", 0), ModelName: "m", Pool: key("default/a")},
		&routing.Model{Meta: meta("default/y", 0), ModelName: "m", Pool: key("default/b")})
	_, err := tab.Resolve(Query{Model: "m"}, first)
	want := `model "m" is served by 2 pools; send the request to the host of one: a.default.localhost, b.default.localhost`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if got, err := tab.Resolve(Query{Host: "b.default.localhost", Model: "m"}, first); err != nil || got.Pool != routing.PoolRef(key("default/b")) {
		t.Errorf("got %+v, %v", got, err)
	}
	if names := tab.Names(); len(names) != 0 {
		t.Errorf("names %+v", names)
	}
}

// TestNames: what routing objects name is listed with the shortest name that
// resolves, and every listed name does.
func TestNames(t *testing.T) {
	tab := NewTable([]Entry{{Key: key("default/chat")}, {Key: key("team/big")}}, "", append(seed(),
		&routing.Route{Meta: meta("default/r", 0), Models: []string{"chat", "big"}, Targets: []routing.Target{
			{Ref: routing.Service(key("default/chat")), Weight: 1}, {Ref: routing.Service(key("team/big")), Weight: 9}}})...)
	var got []string
	for _, n := range tab.Names() {
		got = append(got, n.Model+" "+n.Pool.String()+" "+n.Origin.Name)
		if target, err := tab.Resolve(Query{Model: n.Model}, func(total int) int { return total - 1 }); err != nil || target.Pool != n.Pool {
			t.Errorf("%s: %v, %v", n.Model, target.Pool, err)
		}
	}
	want := []string{"default/big service team/big r", "chat service team/big r", "llama2 pool default/vllm-llama2-7b-pool inferencemodel-llama2"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestMissingBackends: what is not there fails with a suggestion, for its
// share alone.
func TestMissingBackends(t *testing.T) {
	objects := seed()
	objects[2].(*routing.HTTPRoute).Rules[0].Backends = []routing.Backend{
		{Ref: routing.PoolRef(key("default/vllm-llama2-7b")), Weight: 1},
		{Ref: routing.PoolRef(key("default/vllm-llama2-7b-pool")), Weight: 1}}
	tab := NewTable(nil, "", objects...)
	var lost *BackendError
	_, err := tab.Resolve(Query{Path: "/", Model: "x"}, first)
	want := "HTTPRoute default/llm-route: there is no pool default/vllm-llama2-7b; did you mean vllm-llama2-7b-pool?"
	if !errors.As(err, &lost) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	second := func(int) int { return 1 }
	var unknown *NotFoundError
	if _, err := tab.Resolve(Query{Path: "/", Model: "x"}, second); !errors.As(err, &unknown) || unknown.Pool == "" {
		t.Errorf("the other half: %v", err)
	}
}

func TestResolveThroughObjectsAllocatesNothing(t *testing.T) {
	objects := append(seed(), &routing.Route{Meta: meta("default/r", 0), Models: []string{"chat"},
		Targets: []routing.Target{{Ref: routing.Service(key("default/iris")), Weight: 1}, {Ref: routing.PoolRef(key("default/vllm-llama2-7b-pool")), Model: "z", Weight: 1}}})
	tab := NewTable([]Entry{{Key: key("default/iris")}}, "", objects...)
	r := rand.New(rand.NewPCG(1, 2))
	for _, q := range []Query{{Host: "localhost:8080", Model: "iris"}, {Host: "localhost:8080", Path: "/v1/completions", Model: "llama2"}, {Model: "chat"}} {
		if n := testing.AllocsPerRun(100, func() {
			if _, err := tab.Resolve(q, r.IntN); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", q.Model, n)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	var entries []Entry
	for _, n := range strings.Fields("a b c d e f g h iris") {
		entries = append(entries, Entry{Key: key("default/" + n)})
	}
	tab := NewTable(entries, "", seed()...)
	for _, model := range []string{"iris", "llama2"} {
		b.Run(model, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tab.Resolve(Query{Host: "localhost:8080", Path: "/v1/completions", Model: model}, rand.IntN); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
