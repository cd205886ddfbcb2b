package demand

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/test/golden"
)

// TestFreshestReadingCounts: whatever is lost, late or repeated, and however many
// gateways read the same engine, what counts is the reading taken last, as a search
// through everything that was ever told finds it.
func TestFreshestReadingCounts(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 9))
	type told struct {
		id   engineID
		load replica.Load
	}
	for round := range 200 {
		b, now := newBook(t0, time.Hour), t0
		var all []told
		var late []*Report
		number := map[string]uint64{}
		deliver := func(rep *Report) {
			for _, e := range rep.Engines {
				all = append(all, told{engineID{e.Service, e.Pod}, replica.Load{At: now.Add(-ms(int(e.Ago))), Waiting: e.Waiting, Tells: replica.Figures{Queue: true}}})
			}
			b.take(rep, now)
		}
		for range 80 {
			now = now.Add(ms(1 + r.IntN(3000)))
			gw := fmt.Sprint("g", r.IntN(3))
			number[gw]++
			out := rep(gw, 1, now.Sub(t0), number[gw], r.IntN(3) == 0)
			for i := range 4 {
				if r.IntN(2) == 0 {
					// Two gateways never read at the same instant: which of two such readings counts does not matter.
					ago := int64(r.IntN(20_000))
					out.Engines = append(out.Engines, Engine{Service: fmt.Sprint("a/", i%2), Pod: fmt.Sprint("p", i), Ago: ago, Queue: true, Waiting: r.IntN(1000)})
				}
			}
			switch r.IntN(5) {
			case 0: // lost
			case 1:
				late = append(late, out)
			default:
				deliver(out)
			}
			if len(late) > 0 && r.IntN(3) == 0 {
				deliver(late[0])
				late = late[1:]
			}
			if r.IntN(10) == 0 {
				b.sweep(now)
			}
			for i := range 4 {
				id := engineID{fmt.Sprint("a/", i%2), fmt.Sprint("p", i)}
				var want *replica.Load
				for j := range all {
					if all[j].id == id && (want == nil || all[j].load.At.After(want.At)) {
						want = &all[j].load
					}
				}
				got := b.engine(id.service, id.pod)
				switch {
				case got == nil && (want == nil || now.Sub(want.At) > keepEngine):
				case got == nil || want == nil || !got.At.Equal(want.At):
					t.Fatalf("round %d: %v: %+v, the freshest told is %+v", round, id, got, want)
				}
			}
		}
		b.sweep(now.Add(keepEngine + time.Hour))
		for pod, g := range b.gateways {
			if len(g.engines) > 0 {
				t.Fatalf("round %d: %s still has %d readings of an hour ago", round, pod, len(g.engines))
			}
		}
	}
}

// TestEngineOfWhatCannotBe: a gateway never sends a figure that has its whole report
// refused, and JSON has no word for some of them.
func TestEngineOfWhatCannotBe(t *testing.T) {
	k := service.ParseKey("a/x")
	both := replica.Figures{Queue: true, KV: true}
	for name, c := range map[string]struct {
		load         replica.Load
		queue, cache bool
	}{
		"good":          {replica.Load{At: t0, Waiting: 3, Running: 4, KV: 0.5, Tells: both}, true, true},
		"not a number":  {replica.Load{At: t0, Waiting: 3, KV: math.NaN(), Tells: both}, true, false},
		"infinite":      {replica.Load{At: t0, KV: math.Inf(1), Tells: both}, true, false},
		"over full":     {replica.Load{At: t0, KV: 1.5, Tells: both}, true, false},
		"negative":      {replica.Load{At: t0, Waiting: -1, KV: 0.2, Tells: both}, false, true},
		"too many":      {replica.Load{At: t0, Running: math.MaxInt, Blocks: -1, Tells: both}, false, false},
		"tells nothing": {replica.Load{At: t0, Waiting: 3, KV: 0.2}, false, false},
		"old":           {replica.Load{At: t0.Add(-time.Hour), Tells: both}, false, false},
		"of the future": {replica.Load{At: t0.Add(time.Hour), Tells: both}, true, true},
	} {
		e, ok := EngineOf(k, "p", &c.load, t0)
		if ok != (c.queue || c.cache) || e.Queue != c.queue || e.Cache != c.cache {
			t.Errorf("%s: %+v, %t", name, e, ok)
		}
		r := rep("g", 1, 0, 1, false)
		r.Engines = []Engine{e}
		if raw, err := json.Marshal(r); ok && (err != nil || r.Validate() != nil) {
			t.Errorf("%s: %s %v, %v", name, raw, err, r.Validate())
		}
	}
}

// FuzzReport: whatever bytes come, a report is refused or taken, and one that is
// taken has every engine within its bounds.
func FuzzReport(f *testing.F) {
	good := rep("g", 1, time.Second, 1, true, Line{Service: "a/x", Queued: 1})
	good.Engines = []Engine{{Service: "a/x", Pod: "p", Queue: true, Waiting: 9, Running: 8, Cache: true, KV: 0.5, Blocks: 100, BlockTokens: 16}}
	raw, err := json.Marshal(good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add([]byte(`{"pod":"g","instance":1,"number":1,"engines":[{"s":"a/x","p":"p","o":-5}]}`))
	f.Add([]byte(`{"pod":"g","instance":1,"number":1,"engines":[{"s":"a/x","p":"p","k":1e308,"tk":true}]}`))
	f.Add([]byte(`{"pod":"g","instance":1,"number":1,"engines":[{"s":"a/x","p":"p","o":9223372036854775807,"w":9e99}]}`))
	f.Add([]byte(`{"pod":"g","instance":1,"number":1,"services":[{"s":"a/x","later":"fields"}],"later":{"a":[1]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var in Report
		if json.Unmarshal(data, &in) != nil || in.Validate() != nil {
			return
		}
		b := newBook(t0, time.Minute)
		b.take(&in, t0.Add(time.Second))
		for id, l := range b.gateways[in.Pod].engines {
			if id.service == "" || id.pod == "" || !inRange(l.Waiting, l.Running, l.Blocks, l.BlockTokens) || !(l.KV >= 0 && l.KV <= 1) || l.At.After(t0.Add(time.Second)) || l.At.Before(t0.Add(-keepEngine)) {
				t.Fatalf("%v: %+v", id, l)
			}
		}
		again, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out Report
		if err := json.Unmarshal(again, &out); err != nil || out.Validate() != nil || !reflect.DeepEqual(in.Engines, out.Engines) && len(in.Engines) > 0 {
			t.Fatalf("%s: %v", again, err)
		}
	})
}

// TestScripts follow a controller from gateways' reports to the count. Each second
// every gateway reports; a replica is ready startup after it was asked for.
//
//	config metric=queue target=2 min=1 max=9 startup=20s
//	gateway NAME MODE   reads: reports all engines; old: knows no engines; silent; gone;
//	                    lies POD waiting=N: reports that instead
//	engine POD waiting=N running=N kv=F | untold
//	requests NAME N     so many are in flight at that gateway
//	wait DURATION
//
// The output has each change of the count or of its reason.
func TestScripts(t *testing.T) {
	golden.Scripts(t, func(t *testing.T, text string) string {
		s := &script{t: t, out: &strings.Builder{}}
		for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
			if strings.HasPrefix(line, "  ") {
				continue
			}
			s.out.WriteString(line + "\n")
			if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
				s.run(words[0], words[1:])
			}
		}
		return s.out.String()
	})
}

// age is what changes of a reason every second.
var age = regexp.MustCompile(`[0-9ms]+ ago`)

type script struct {
	t        *testing.T
	out      *strings.Builder
	now      time.Time
	book     *book
	limits   service.Limits
	startup  time.Duration
	gateways map[string]string // mode
	lies     map[string]Engine
	requests map[string]int
	engines  map[string]replica.Load
	started  map[string]time.Time // pods
	number   uint64
	state    autoscale.State
	said     string
}

func (s *script) run(command string, words []string) {
	switch command {
	case "config":
		o := s.options(words)
		*s = script{t: s.t, out: s.out, now: t0, book: newBook(t0.Add(-time.Second), 15*time.Second), startup: s.duration(o["startup"]),
			limits:  service.Limits{Min: s.int(o["min"]), Max: s.int(o["max"]), Target: float64(s.int(o["target"])), Metric: service.ScaleMetric(o["metric"]), ScaleToZeroAfter: time.Hour},
			engines: map[string]replica.Load{}, lies: map[string]Engine{}, requests: map[string]int{}, gateways: map[string]string{}, started: map[string]time.Time{}}
		s.book.live = map[string]bool{}
		for i := range s.limits.Min {
			s.started[podOf(i)] = t0.Add(-time.Hour)
		}
		s.state.Count = s.limits.Min
	case "gateway":
		s.gateways[words[0]] = words[1]
		s.book.live[words[0]] = words[1] != "gone"
		if words[1] == "gone" {
			delete(s.book.live, words[0])
		}
		if words[1] == "lies" {
			s.lies[words[0]] = Engine{Service: "a/x", Pod: words[2], Queue: true, Waiting: s.int(s.options(words[3:])["waiting"])}
		}
	case "requests":
		s.requests[words[0]] = s.int(words[1])
	case "engine":
		delete(s.engines, words[0])
		if words[1] == "untold" {
			return
		}
		o := s.options(words[1:])
		kv, err := strconv.ParseFloat(o["kv"]+"0", 64)
		if err != nil {
			s.t.Fatal(err)
		}
		s.engines[words[0]] = replica.Load{Waiting: s.int(o["waiting"]), Running: s.int(o["running"]), KV: kv, Tells: replica.Figures{Queue: true, KV: true}}
	case "wait":
		for end := s.now.Add(s.duration(words[0])); s.now.Before(end); {
			s.second()
		}
	default:
		s.t.Fatalf("unknown command %q", command)
	}
}

func podOf(i int) string { return string(rune('a' + i)) }

// second is a second: reports, then a step.
func (s *script) second() {
	s.now = s.now.Add(time.Second)
	for name, mode := range s.gateways {
		if mode == "silent" || mode == "gone" {
			continue
		}
		s.number++
		r := rep(name, 1, s.now.Sub(t0), s.number, true)
		if n := s.requests[name]; n > 0 {
			r.Services = []Line{{Service: "a/x", Running: n, Arrived: uint64(n)}}
		}
		for pod, l := range s.engines {
			l.At = s.now.Add(-ms(500))
			if e, ok := EngineOf(service.ParseKey("a/x"), pod, &l, s.now); ok && mode == "reads" {
				r.Engines = append(r.Engines, e)
			}
		}
		if mode == "lies" {
			r.Engines = []Engine{s.lies[name]}
		}
		if err := r.Validate(); err != nil {
			s.t.Fatal(err)
		}
		s.book.take(r, s.now)
	}
	s.book.sweep(s.now)
	in := autoscale.Input{Demand: s.book.demand("a/x", s.now), Limits: s.limits}
	for i := range len(s.started) {
		at := s.started[podOf(i)].Add(s.startup)
		ready := !s.now.Before(at)
		in.Replicas = append(in.Replicas, autoscale.Replica{ID: podOf(i), Ready: ready, Starting: !ready, Started: s.started[podOf(i)], ReadyAt: at, Load: s.book.engine("a/x", podOf(i))})
	}
	var d autoscale.Decision
	s.state, d = autoscale.Step(s.state, in, s.now)
	for i := len(s.started); i < d.Count; i++ {
		s.started[podOf(i)] = s.now
	}
	for i := len(s.started) - 1; i >= d.Count; i-- {
		delete(s.started, podOf(i))
	}
	said := fmt.Sprintf("%d: %s", d.Count, d.Reason(s.now))
	if same := age.ReplaceAllString(said, "ago"); same != s.said {
		fmt.Fprintf(s.out, "  %s %s\n", s.now.Sub(t0), said)
		s.said = same
	}
}

func (s *script) options(words []string) map[string]string {
	o := map[string]string{"metric": "queue", "target": "2", "min": "1", "max": "9", "startup": "20s", "waiting": "0", "running": "0", "kv": "0."}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if _, known := o[name]; !known {
			s.t.Fatalf("unknown option %q", w)
		}
		o[name] = value
	}
	return o
}

func (s *script) int(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}
