package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func seeded(seed, stream uint64) Random { return rand.New(rand.NewPCG(seed, stream)) }

func TestParseScenario(t *testing.T) {
	for text, want := range map[string]Scenario{
		"D(100,1000)":          {Input: Fixed(100), Output: Fixed(1000)},
		"N(480,240)/(300,150)": {Input: Length{'N', 480, 240}, Output: Length{'N', 300, 150}},
		"U(50,100)/(200,250)":  {Input: Length{'U', 50, 100}, Output: Length{'U', 200, 250}},
		"U(50,100)":            {Input: Length{'U', 1, 50}, Output: Length{'U', 1, 100}},
		" E(64) ":              {Input: Fixed(64)},
	} {
		want.Name = strings.TrimSpace(text)
		if got, err := ParseScenario(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "D", "D(1)", "D(1,2,3)", "D(0,1)", "D(1,99999999)", "X(1,2)", "N(1,2)", "N(1,2)/(3)", "U(5,4)/(1,2)", "D(-1,2)", "D(1,2)/(3,4)", "I(512,512)",
		"D(1,99999999999999999999)", "D(" + strings.Repeat("1", 1000) + ",2)"} {
		if got, err := ParseScenario(text); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

func TestParseLength(t *testing.T) {
	for text, want := range map[string]Length{"128": Fixed(128), "D(7)": Fixed(7), "N(480,240)": {'N', 480, 240}, "U(1,1)": {'U', 1, 1}} {
		if got, err := ParseLength(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-3", "many", "U(2,1)", "N(1)", "E(3)"} {
		if got, err := ParseLength(text); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// Lengths have the means and bounds that they state, and every draw is at least 1.
func TestDraw(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		l        Length
		low, top int
		mean     float64
	}{{Fixed(7), 7, 7, 7}, {Length{'U', 50, 100}, 50, 100, 75}, {Length{'N', 480, 40}, 200, 760, 480}, {Length{'N', 1, 50}, 1, 400, 20.5}} {
		sum := 0
		for range 20_000 {
			n := c.l.Draw(random)
			if n < c.low || n > c.top {
				t.Fatalf("%v: %d", c.l, n)
			}
			sum += n
		}
		if mean := float64(sum) / 20_000; math.Abs(mean-c.mean) > c.mean*.03 {
			t.Errorf("%v: a mean of %v, want %v", c.l, mean, c.mean)
		}
	}
}

// Arrivals are as many as the rate states, and their gaps vary as much as those of a
// Poisson process: the deviation is the mean.
func TestArrivals(t *testing.T) {
	a := Load{Rate: 50, Seed: 3}.Arrivals(seeded)
	const n = 20_000
	var gaps []float64
	last := time.Duration(0)
	for range n {
		at := a.Next()
		gaps = append(gaps, (at - last).Seconds())
		last = at
	}
	mean, square := 0.0, 0.0
	for _, g := range gaps {
		mean += g / n
	}
	for _, g := range gaps {
		square += (g - mean) * (g - mean) / n
	}
	if math.Abs(mean-.02) > .0005 || math.Abs(math.Sqrt(square)-.02) > .001 {
		t.Errorf("a mean of %v, a deviation of %v", mean, math.Sqrt(square))
	}
}

func TestRequest(t *testing.T) {
	l := Load{Scenario: Scenario{Input: Length{'U', 20, 40}, Output: Fixed(9)}, SharedPrefix: 16, Seed: 5}
	a, b := l.Request(1, seeded), l.Request(2, seeded)
	if a != l.Request(1, seeded) || a == b {
		t.Error("equal numbers give equal requests, others do not")
	}
	if n := len(strings.Fields(a.Prompt)); n != a.Input || a.Output != 9 || a.Input < 20 {
		t.Errorf("%+v has %d words", a, n)
	}
	of := func(r Request) []string { return strings.Fields(r.Prompt)[:16] }
	if !slices.Equal(of(a), of(b)) {
		t.Error("the prompts do not share their prefix")
	}
	for _, w := range words {
		if len(w)+1 != wordBytes {
			t.Errorf("%q and a space are not %d bytes", w, wordBytes)
		}
	}
}

func TestPlan(t *testing.T) {
	base := Load{Requests: 10}
	two := []Scenario{{Name: "a", Input: Fixed(1)}, {Name: "b", Input: Fixed(2)}}
	all, err := Plan(base, two, []int{1, 8}, nil)
	if err != nil || len(all) != 4 || all[1].Concurrency != 8 || all[2].Scenario.Name != "b" {
		t.Errorf("%+v, %v", all, err)
	}
	all, err = Plan(base, two[:1], []int{1, 8}, []float64{2, 4})
	if err != nil || len(all) != 2 || all[1].Rate != 4 || all[1].Concurrency != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	for name, call := range map[string]func() ([]Load, error){
		"too many points": func() ([]Load, error) { return Plan(base, two, make([]int, 200), nil) },
		"no concurrency":  func() ([]Load, error) { return Plan(base, two, []int{0}, nil) },
		"no rate":         func() ([]Load, error) { return Plan(base, two, nil, []float64{0}) },
		"no number":       func() ([]Load, error) { return Plan(base, two, nil, []float64{math.NaN()}) },
		"no requests":     func() ([]Load, error) { return Plan(Load{}, two, []int{1}, nil) },
		"too fast":        func() ([]Load, error) { return Plan(base, two, nil, []float64{1e9}) },
	} {
		if all, err := call(); err == nil {
			t.Errorf("%s: %+v", name, all)
		}
	}
}

// The figures are those of the samples: quantiles are values that occurred, to five
// digits.
func TestTally(t *testing.T) {
	var y Tally
	for i := 1; i <= 100; i++ {
		first := time.Duration(i) * time.Millisecond
		y.Add(&Sample{First: first, Total: first + 30*time.Millisecond, Input: 10, Output: 4, Gaps: []time.Duration{10 * time.Millisecond, 12 * time.Millisecond}})
	}
	for range 3 {
		y.Add(&Sample{Failed: "429"})
	}
	p := y.Point(Load{Concurrency: 2, Scenario: Scenario{Name: "s"}}, 2*time.Second)
	if p.Requests != 103 || p.Failed != 3 || p.Failures["429"] != 3 || p.RequestsPerSecond != 50 || p.OutputTokensPerSecond != 200 || p.TotalTokensPerSecond != 700 {
		t.Errorf("%+v", p)
	}
	if q := p.TTFT; q.P50 != 50 || q.P99 != 99 || q.Max != 100 || math.Abs(q.Mean-50.5) > 1e-9 {
		t.Errorf("%+v", q)
	}
	if p.TPOT.P50 != 10 || p.ITL.P50 != 10 || p.ITL.P90 != 12 || p.Latency.P90 != 120 {
		t.Errorf("%+v", p)
	}
	var long counts
	long.add(123_456_789 * time.Microsecond)
	if q := long.quantiles(); q.P50 != 123_460 {
		t.Errorf("%+v", q)
	}
}

// What was gathered does not grow without bound, whatever servers answer.
func TestTallyIsBounded(t *testing.T) {
	var y Tally
	random := rand.New(rand.NewPCG(1, 1))
	for i := range 300_000 {
		y.Add(&Sample{Total: time.Duration(random.Int64N(int64(time.Hour))), Input: 1})
		y.Add(&Sample{Failed: strings.Repeat("x", i%1000)})
	}
	if len(y.failures) > maxFailures+1 || len(y.total.of) > 400_000 {
		t.Errorf("%d kinds of failures, %d values", len(y.failures), len(y.total.of))
	}
}

func TestEndpoint(t *testing.T) {
	for address, want := range map[string][2]string{
		"http://a:8000":                        {"http://a:8000", ""},
		"http://a:8000/":                       {"http://a:8000", ""},
		"https://a/v1/":                        {"https://a", ""},
		"http://a/x/v1/chat/completions":       {"http://a/x", "chat"},
		"http://a/v1/completions":              {"http://a", "completions"},
		"http://user:secret@a:1/v1/embeddings": {"http://user:secret@a:1", "embeddings"},
	} {
		if base, call, err := Endpoint(address); err != nil || base != want[0] || call != want[1] {
			t.Errorf("%s: %s %s %v", address, base, call, err)
		}
	}
	for _, address := range []string{"", "a:80", "ftp://a", "http://", "http://a?x=1", "http://a/%zz"} {
		if base, _, err := Endpoint(address); err == nil {
			t.Errorf("%s: %s", address, base)
		}
	}
}

// A summary has a line for each point, and stays below its bound whatever there is.
func TestSummary(t *testing.T) {
	r := Report{Points: []Point{
		{Scenario: "D(100,100)", Concurrency: 8, Requests: 200, Failed: 1, RequestsPerSecond: 3.31, OutputTokensPerSecond: 423.7, TTFT: Quantiles{P50: 58.3, P99: 75.9}, TPOT: Quantiles{P50: 17.8, P99: 18.4}, Latency: Quantiles{P50: 2390, P99: 2430}},
		{Scenario: "E(64)", Rate: 2, Requests: 10, RequestsPerSecond: 2, Latency: Quantiles{P50: 12, P99: 14}},
	}}
	want := "D(100,100), 8 at once: 200 requests, 1 failed, 3.31 requests/s, 423.7 tokens/s, TTFT 58.3 ms (p99 75.9), TPOT 17.8 ms (p99 18.4), latency 2390 ms (p99 2430)\n" +
		"E(64), 2/s: 10 requests, 0 failed, 2 requests/s, latency 12 ms (p99 14)"
	if got := r.Summary(4096); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for range 300 {
		r.Points = append(r.Points, r.Points[0])
	}
	got := r.Summary(4096)
	if lines := strings.Split(got, "\n"); len(got) > 4096 || len(lines) < 20 || lines[len(lines)-1] != fmt.Sprintf("and %d more", len(r.Points)-len(lines)+1) {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	if got := (&Report{}).Summary(10); got != "" {
		t.Errorf("%q", got)
	}
}

func TestClaim(t *testing.T) {
	for uri, want := range map[string][2]string{
		"pvc://results/a/b": {"results", "a/b"}, "pvc://results": {"results", ""}, "pvc://results/": {"results", ""}, "pvc://results//a/./b/": {"results", "a/b"},
		"pvc://other:results/a": {}, "pvc:///a": {}, "pvc://results/../a": {}, "file:///a": {}, "": {},
	} {
		claim, file, ok := Claim(uri)
		if claim != want[0] || file != want[1] || ok != (want[0] != "") {
			t.Errorf("%s: %q %q %v", uri, claim, file, ok)
		}
	}
}
