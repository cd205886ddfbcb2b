package demand

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestStates: gateways that take requests are told apart by what is heard of
// them; others are nobody's concern.
func TestStates(t *testing.T) {
	b := newBook(t0, 15*time.Second)
	want := func(when string, want map[string]int) {
		t.Helper()
		if got := b.states(); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	want("before anything is known", map[string]int{"reporting": 0, "silent": 0, "unheard": 0})
	b.live = map[string]bool{"a": true, "b": true}
	want("heard nobody", map[string]int{"reporting": 0, "silent": 0, "unheard": 2})
	b.take(&Report{Pod: "a", Instance: 1, Number: 1, Full: true}, t0)
	b.take(&Report{Pod: "b", Instance: 1, Number: 1}, t0)
	b.take(&Report{Pod: "gone", Instance: 1, Number: 1, Full: true}, t0)
	want("one told all", map[string]int{"reporting": 1, "silent": 0, "unheard": 1})
	b.sweep(t0.Add(time.Minute))
	want("a minute later", map[string]int{"reporting": 0, "silent": 2, "unheard": 0})
	b.take(&Report{Pod: "b", Instance: 1, Number: 2, Full: true}, t0.Add(time.Minute))
	want("one is back", map[string]int{"reporting": 1, "silent": 1, "unheard": 0})
}

// counts reads a server's metrics by name and label.
func counts(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return out
}
