package metrics

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func register(t *testing.T, r *Registry, d Desc) *Family {
	t.Helper()
	f, err := r.Register(d)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestText reads what is written with Prometheus' own parser.
func TestText(t *testing.T) {
	r := &Registry{}
	counter := register(t, r, Desc{Name: "asked_total", Help: "back\\slash\nline", Kind: Counter, Labels: []string{"model", "path"}})
	counter.With("a\"\\\n", "/x\xff").Add(3)
	counter.With("b", "").Add(1)
	register(t, r, Desc{Name: "now", Kind: Gauge}).With().Add(-2)
	took := register(t, r, Desc{Name: "took_seconds", Aliases: []string{"takes_seconds"}, Kind: Histogram, Labels: []string{"model"}})
	for _, x := range []float64{0.005, 0.006, 3, 100} {
		took.With("a").Observe(x)
	}
	register(t, r, Desc{Name: "unused", Kind: Counter})

	parser := expfmt.NewTextParser(model.UTF8Validation)
	text := r.Append(nil)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if len(families) != 4 {
		t.Errorf("%d families\n%s", len(families), text)
	}
	asked := families["asked_total"]
	if got := asked.Metric[0]; got.Label[0].GetValue() != "a\"\\\n" || got.Label[1].GetValue() != "/x\ufffd" || got.Counter.GetValue() != 3 || asked.GetHelp() != "back\\slash\nline" {
		t.Errorf("counter: %v", asked)
	}
	if got := families["now"].Metric[0].Gauge.GetValue(); got != -2 {
		t.Errorf("gauge %v", got)
	}
	for _, name := range []string{"took_seconds", "takes_seconds"} {
		h := families[name].Metric[0].Histogram
		if h.GetSampleCount() != 4 || h.GetSampleSum() != 103.011 || h.Bucket[0].GetCumulativeCount() != 1 || h.Bucket[1].GetCumulativeCount() != 2 || h.Bucket[11].GetCumulativeCount() != 3 {
			t.Errorf("%s: %v", name, h)
		}
	}
}

func TestRegister(t *testing.T) {
	r := &Registry{}
	first := register(t, r, Desc{Name: "a", Aliases: []string{"b"}, Kind: Counter, Labels: []string{"x"}})
	if again := register(t, r, Desc{Name: "b", Kind: Counter, Labels: []string{"x"}}); again != first {
		t.Error("the same metric was registered twice")
	}
	for _, d := range []Desc{{Name: "a", Kind: Gauge, Labels: []string{"x"}}, {Name: "b", Kind: Counter}, {Name: "0x", Kind: Counter}, {Name: ""}, {Name: "c", Labels: []string{"a-b"}}, {Name: "c", Labels: []string{"le"}}} {
		if _, err := r.Register(d); err == nil {
			t.Errorf("%+v was registered", d)
		}
	}
	for i := range MaxFamilies - 1 {
		register(t, r, Desc{Name: fmt.Sprint("m", i), Kind: Counter})
	}
	if _, err := r.Register(Desc{Name: "over", Kind: Counter}); err == nil || !strings.Contains(err.Error(), "the limit") {
		t.Errorf("beyond the limit: %v", err)
	}
}

func TestMaxSeries(t *testing.T) {
	f := register(t, &Registry{}, Desc{Name: "a", Kind: Counter, Labels: []string{"x"}})
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			for i := range MaxSeries {
				f.With(fmt.Sprint(client, "/", i)).Add(1)
			}
		})
	}
	clients.Wait()
	if n := len(f.mu.series); n != MaxSeries+1 {
		t.Errorf("%d series", n)
	}
	if got := f.With("new").Value(); got != 3*MaxSeries {
		t.Errorf("%d beyond the limit", got)
	}
}

func BenchmarkObserve(b *testing.B) {
	f, err := (&Registry{}).Register(Desc{Name: "a", Kind: Histogram, Labels: []string{"x", "y"}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		f.With("model", "path").Observe(0.01)
	}
}
