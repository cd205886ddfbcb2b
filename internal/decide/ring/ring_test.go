package ring

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// naive sorts all nodes by their score, as the definition says.
func naive(names []string, key string) []string {
	out := slices.Compact(slices.Sorted(slices.Values(names)))
	h := hash(key)
	slices.SortStableFunc(out, func(a, b string) int {
		x, y := mix(hash(a)^(h<<32|h>>32)), mix(hash(b)^(h<<32|h>>32))
		switch {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return out
}

func nodes(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("http://10.0.%d.%d:8083", i/250, i%250)
	}
	return out
}

func key(r *rand.Rand) string { return fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64()) }

func TestEmpty(t *testing.T) {
	if got := (Ring{}).Owners("k", 3); got != nil {
		t.Error(got)
	}
	r := New([]string{"b", "a", "b"})
	if got := r.Names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Error(got)
	}
	if got := r.Owners("k", 9); len(got) != 2 {
		t.Error(got)
	}
	if got := r.Owners("k", 0); got != nil {
		t.Error(got)
	}
	if got := r.Owners("k", -1); got != nil {
		t.Error(got)
	}
}

func FuzzOwners(f *testing.F) {
	f.Add("key", uint8(3), uint8(2), "x")
	f.Add("", uint8(40), uint8(40), "http://10.0.0.1:8083")
	f.Fuzz(func(t *testing.T, key string, n, want uint8, extra string) {
		names := append(nodes(int(n)), extra)
		rand.New(rand.NewPCG(uint64(n), 1)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		all := naive(names, key)
		if got := New(names).Owners(key, int(want)); !slices.Equal(got, all[:min(int(want), len(all))]) {
			t.Errorf("%q: %v, want %v", key, got, all)
		}
	})
}

// TestShares: every node has about its share.
func TestShares(t *testing.T) {
	const keys = 30000
	for _, n := range []int{2, 3, 10, 100} {
		r, random, count := New(nodes(n)), rand.New(rand.NewPCG(1, uint64(n))), map[string]int{}
		for range keys {
			count[r.Owners(key(random), 1)[0]]++
		}
		want := float64(keys) / float64(n)
		for _, name := range r.Names() {
			if off := math.Abs(float64(count[name]) - want); off > 5*math.Sqrt(want) { // five standard deviations
				t.Errorf("%d nodes: %s has %d keys, %.0f are its share", n, name, count[name], want)
			}
		}
	}
}

// TestMoves: who joins takes keys from others and moves none between them; who
// leaves gives its own away, each to its second.
func TestMoves(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 3))
	for range 50 {
		n := 1 + random.IntN(20)
		names := nodes(n + 1)
		joins := names[random.IntN(n+1)]
		with, without := New(names), New(slices.DeleteFunc(slices.Clone(names), func(s string) bool { return s == joins }))
		moved := 0
		const keys = 2000
		for range keys {
			k := key(random)
			all := with.Owners(k, n+1)
			rest := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == joins })
			if got := without.Owners(k, n+1); !slices.Equal(got, rest) {
				t.Fatalf("without %s the order of %s is %v, with it %v", joins, k, got, all)
			}
			if all[0] == joins {
				moved++
			}
		}
		share := float64(keys) / float64(n+1)
		if math.Abs(float64(moved)-share) > 6*math.Sqrt(share) {
			t.Errorf("%d nodes and one more: %d of %d keys moved, its share is %.0f", n, moved, keys, share)
		}
	}
}

// TestAgreed pins the placement: nodes of two releases must agree.
func TestAgreed(t *testing.T) {
	r := New([]string{"http://a:8083", "http://b:8083", "http://c:8083"})
	for k, want := range map[string]string{
		"":  "[http://a:8083 http://b:8083 http://c:8083]",
		"k": "[http://c:8083 http://a:8083 http://b:8083]",
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": "[http://c:8083 http://b:8083 http://a:8083]"} {
		if got := fmt.Sprint(r.Owners(k, 3)); got != want {
			t.Errorf("%q: %s, want %s", k, got, want)
		}
	}
}

func TestBreaker(t *testing.T) {
	p := Pauses{time.Second, 4 * time.Second}
	at := func(s float64) time.Time { return time.Unix(0, 0).Add(time.Duration(s * float64(time.Second))) }
	var b Breaker
	check := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	check("new", b.Usable(), true)
	check("nothing to try", b.Try(at(0)), false)
	b.Failed(p, at(0))
	check("failed", b.Usable(), false)
	b.Failed(p, at(0.5)) // of a request that was under way
	check("too early", b.Try(at(0.9)), false)
	check("pause over", b.Try(at(1)), true)
	check("one tries", b.Try(at(1)), false)
	b.Worked() // of a request that was under way
	check("not back by that", b.Usable(), false)
	b.Failed(p, at(1.5))
	check("twice the pause", b.Try(at(3.4)), false)
	check("twice the pause over", b.Try(at(3.5)), true)
	b.Back()
	check("back", b.Usable(), true)
	b.Failed(p, at(4)) // it answers, and fails when used: the pause goes on growing
	check("four", b.Try(at(7.9)), false)
	check("four over", b.Try(at(8)), true)
	b.Back()
	b.Worked()
	b.Failed(p, at(9))
	check("from the first again", b.Try(at(10)), true)
	b.Bar(time.Minute, at(10))
	check("barred", b.Try(at(69)), false)
	b.Back() // nobody tried
	check("still barred", b.Usable(), false)
	check("over", b.Try(at(70)), true)
	b.Back()
	check("back after a bar", b.Usable(), true)
}

func BenchmarkOwners(b *testing.B) {
	for _, n := range []int{3, 100} {
		r := New(nodes(n))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				r.Owners("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", 3)
			}
		})
	}
}
