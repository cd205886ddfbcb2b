package picker

import (
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

func TestResidency(t *testing.T) {
	var r Residency
	score := func(name string) float64 { return r.score(xxhash.Sum64String(name)) }
	expect := func(when string, want map[string]float64) {
		t.Helper()
		for name, v := range want {
			if got := score(name); got != v {
				t.Errorf("%s: %s scores %v, want %v", when, name, got, v)
			}
		}
	}
	expect("nothing known", map[string]float64{"a": 0.8})
	r.Used("")
	r.Used("a")
	expect("used", map[string]float64{"a": 1, "b": 0.8})
	r.Observe(nil)
	expect("says nothing", map[string]float64{"a": 1, "b": 0.8})
	r.Observe(&replica.Adapters{Running: []string{"b"}, Max: 2})
	expect("a is idle and loaded", map[string]float64{"a": 1, "b": 1, "c": 0.6})
	r.Observe(&replica.Adapters{Running: []string{"b", "c"}, Max: 2})
	expect("a had to go, nothing idle is left", map[string]float64{"a": 0, "b": 1, "c": 1})
	r.Observe(&replica.Adapters{Max: 2})
	expect("all idle", map[string]float64{"a": 0.6, "b": 1, "c": 1})
	r.Observe(&replica.Adapters{Max: -3})
	expect("an odd report", map[string]float64{"b": 1})
	for i := range 10 * maxAdapters {
		r.Used(fmt.Sprint(i))
	}
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprint("m", i))
	}
	r.Observe(&replica.Adapters{Running: many, Max: 1 << 40})
	if r.n != maxAdapters {
		t.Errorf("%d are remembered", r.n)
	}
	expect("more than can be remembered", map[string]float64{"m31": 1, "m32": 0.8, "b": 0.8})
}
