package usage

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

var (
	noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	iris = service.Key{Namespace: "default", Name: "iris"}
)

func account(k service.Key) Account { return Account{k.Namespace, k.Name, service.RoleEngine} }

// engine is a replica that is idle, or busy.
func engine(busy, gpus int) Sample {
	return SampleOf(replica.Replica{Role: service.RoleEngine, Phase: replica.Ready, Started: noon.Add(-time.Hour)}, gpus, busy)
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6*max(1, math.Abs(b)) }

func TestSampleOf(t *testing.T) {
	for _, c := range []struct {
		phase    replica.Phase
		started  time.Time
		inFlight int
		want     Use
	}{
		{replica.Pending, time.Time{}, 0, Use{GPUs: ByState{Starting: 2}}},
		{replica.Fetching, time.Time{}, 0, Use{GPUs: ByState{Starting: 2}}},
		{replica.Starting, noon, 0, Use{ByState{Starting: 1}, ByState{Starting: 2}}},
		{replica.Ready, noon, 0, Use{ByState{Idle: 1}, ByState{Idle: 2}}},
		{replica.Ready, noon, 3, Use{ByState{Busy: 1}, ByState{Busy: 2}}},
		{replica.Draining, noon, 1, Use{ByState{Busy: 1}, ByState{Busy: 2}}},
		{replica.Failed, noon, 0, Use{GPUs: ByState{Starting: 2}}},
	} {
		if got := SampleOf(replica.Replica{Phase: c.phase, Started: c.started}, 2, c.inFlight).Use; got != c.want {
			t.Errorf("%s, %d in flight: %+v, want %+v", c.phase, c.inFlight, got, c.want)
		}
	}
}

func TestMidnight(t *testing.T) {
	var tally Tally
	at := time.Date(2026, 11, 22, 23, 59, 0, 0, time.UTC)
	tally.Observe(iris, []Sample{engine(0, 1)}, at.In(time.FixedZone("far", 7*3600)))
	tally.Observe(iris.Canary(), []Sample{engine(1, 0)}, at)
	tally.Advance(at.Add(3 * time.Minute))
	want := Days{
		"2026-11-22": {account(iris): {ByState{Idle: 60, Busy: 60}, ByState{Idle: 60}}},
		"2026-11-23": {account(iris): {ByState{Idle: 120, Busy: 120}, ByState{Idle: 120}}},
	}
	if got := tally.Take(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := tally.Take(); len(got) != 0 {
		t.Errorf("taken twice: %v", got)
	}
}

// TestClockJumps: a clock that is set back or ahead by days adds nothing negative
// and no more than maxInterval for each replica.
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{-400 * 24 * time.Hour, -time.Hour, -time.Nanosecond, 0, time.Hour, 3000 * 24 * time.Hour} {
		var tally Tally
		now := noon
		for range 10 {
			tally.Observe(iris, []Sample{engine(0, 0), engine(1, 0)}, now)
			now = now.Add(10 * time.Second)
		}
		tally.Observe(iris, []Sample{engine(0, 0), engine(1, 0)}, now.Add(jump))
		for i := range 10 {
			tally.Advance(now.Add(jump).Add(time.Duration(i) * 10 * time.Second))
		}
		total := tally.Total(account(iris), now.Add(jump).Add(90*time.Second)).Replicas
		if least, most := 2*180.0, 2*(190+maxInterval.Seconds()); total.Running() < least || total.Running() > most || total.Idle != total.Busy {
			t.Errorf("a jump of %v: %+v, want %v to %v", jump, total, least, most)
		}
		sum := 0.0
		for day, accounts := range tally.Take() {
			for _, u := range accounts {
				if sum += u.Replicas.Running(); u.Replicas.Idle < 0 || u.Replicas.Running() > 2*86400 {
					t.Errorf("a jump of %v: %s has %+v", jump, day, u)
				}
			}
		}
		if !near(sum, total.Running()) {
			t.Errorf("a jump of %v: the days add up to %v, the total is %v", jump, sum, total.Running())
		}
	}
}

// TestResume: replicas that a process before left count from when it counted last,
// once, for at most maxInterval, as idle; those that started later do not.
func TestResume(t *testing.T) {
	old, young := engine(4, 1), engine(0, 1)
	young.Started = noon.Add(time.Second)
	for _, c := range []struct{ gap, want float64 }{{20, 20}, {3600, maxInterval.Seconds()}, {-3600, 0}, {0, 0}} {
		var tally Tally
		tally.Resume(noon)
		now := noon.Add(time.Duration(c.gap) * time.Second)
		tally.Observe(iris, []Sample{old, young}, now)
		tally.Observe(iris, nil, now)
		tally.Observe(iris, []Sample{old, young}, now)
		if got := tally.Total(account(iris), now); !near(got.Replicas.Idle, c.want) || !near(got.GPUs.Idle, c.want) || got.Replicas.Busy != 0 {
			t.Errorf("after %v s: %+v, want %v", c.gap, got, c.want)
		}
	}
}

// TestDeletedServices: what a deleted service used stays in its day, and for a day
// in the totals; a service of its name goes on with them.
func TestDeletedServices(t *testing.T) {
	var tally Tally
	tally.Observe(iris, []Sample{engine(0, 0)}, noon)
	tally.Forget(iris, noon.Add(time.Minute))
	tally.Advance(noon.Add(time.Hour))
	if got := tally.Total(account(iris), noon.Add(time.Hour)); got.Replicas.Idle != 60 {
		t.Errorf("an hour after: %+v", got)
	}
	tally.Observe(iris, []Sample{engine(0, 0)}, noon.Add(time.Hour))
	tally.Advance(noon.Add(time.Hour + time.Second))
	tally.Advance(noon.Add(26 * time.Hour))
	if got := tally.Totals(); len(got) != 1 || got[0].Replicas.Idle != 61+maxInterval.Seconds() {
		t.Errorf("a service of that name: %+v", got)
	}
	tally.Forget(iris, noon.Add(26*time.Hour))
	tally.Advance(noon.Add(51 * time.Hour))
	if got := tally.Totals(); len(got) != 0 || tally.Sum().Replicas.Idle != 61+maxInterval.Seconds() {
		t.Errorf("a day after: %+v, in all %+v", got, tally.Sum())
	}
	if len(tally.Take()) != 2 {
		t.Error("its days are lost")
	}
}

// TestDeletedCanaries: the total of a deleted service goes a day later, also where
// its canary is deleted after it.
func TestDeletedCanaries(t *testing.T) {
	var tally Tally
	tally.Observe(iris, []Sample{engine(0, 0)}, noon)
	tally.Observe(iris.Canary(), []Sample{engine(0, 0)}, noon)
	tally.Forget(iris, noon.Add(time.Minute))
	tally.Forget(iris.Canary(), noon.Add(2*time.Minute))
	if got := tally.Total(account(iris), noon.Add(time.Hour)); got.Replicas.Idle != 180 {
		t.Errorf("an hour after: %+v", got)
	}
	tally.Advance(noon.Add(25 * time.Hour))
	if got := tally.Totals(); len(got) != 0 {
		t.Errorf("a day after: %+v", got)
	}
}

// TestTooManyAccounts: no use is lost of services that a day has no account for.
func TestTooManyAccounts(t *testing.T) {
	var tally Tally
	for i := range maxAccounts + 5 {
		tally.Observe(service.Key{Namespace: "many", Name: fmt.Sprint("s", i)}, []Sample{engine(0, 0)}, noon)
	}
	tally.Advance(noon.Add(time.Second))
	tally.Advance(noon.Add(2 * time.Second))
	if n := len(tally.Totals()); n != maxAccounts+1 {
		t.Errorf("%d totals", n)
	}
	sum := 0.0
	for _, u := range tally.Take()[DayOf(noon)] {
		sum += u.Replicas.Idle
	}
	if want := 2.0 * (maxAccounts + 5); sum != want || tally.Sum().Replicas.Idle != want {
		t.Errorf("%v on the day and %v in all, want %v", sum, tally.Sum().Replicas.Idle, want)
	}
}

func TestRowsAreJSON(t *testing.T) {
	r := Row{Day: "2026-11-22", Account: account(iris), Use: Use{Replicas: ByState{Idle: 1.5}}}
	data, err := json.Marshal(r)
	if want := `{"day":"2026-11-22","namespace":"default","service":"iris","component":"engine","replicas":{"idle":1.5}}`; err != nil || string(data) != want {
		t.Errorf("%s (%v), want %s", data, err, want)
	}
	var back Row
	if err := json.Unmarshal(data, &back); err != nil || back != r {
		t.Errorf("%+v (%v)", back, err)
	}
}

// event is a change of one replica: how many requests it has in flight, or that it
// is starting or gone.
type event struct {
	second  int
	key     service.Key
	replica int
	state   string
}

// week draws the events of replicas of five services, a canary among them, in a
// week, by second.
func week(r *rand.Rand) (out []event) {
	for i := range 5 {
		k := service.Key{Namespace: "default", Name: fmt.Sprint("s", i/2)}
		if i%2 == 1 {
			k = k.Canary()
		}
		for n := range 3 {
			state, at := "gone", r.IntN(86400)
			for at < 7*86400 {
				next := map[string][]string{"gone": {"starting"}, "starting": {"idle", "gone"}, "idle": {"busy", "gone"}, "busy": {"idle"}}[state]
				state = next[r.IntN(len(next))]
				out = append(out, event{at, k, n, state})
				at += 1 + int(r.ExpFloat64()*[]float64{20, 600, 20000}[r.IntN(3)])
			}
		}
	}
	return out
}

// counted is a replica's state, and for how many seconds of the day it was in each.
type counted struct {
	state                string
	starting, idle, busy float64
}

// sampleIn is a replica in a state, which holds as many GPUs as its number.
func sampleIn(state string, gpus int) (Sample, bool) {
	v, busy := replica.Replica{Role: service.RoleEngine, Phase: replica.Ready, Started: noon}, 0
	switch state {
	case "", "gone":
		return Sample{}, false
	case "starting":
		v.Phase = replica.Starting
	case "busy":
		busy = 2
	}
	return SampleOf(v, gpus, busy), true
}

// TestWeekAgainstNaiveCount: what a week's events add up to is what a count of each
// second says.
func TestWeekAgainstNaiveCount(t *testing.T) {
	begin := time.Date(2026, 11, 20, 13, 7, 0, 0, time.UTC)
	for seed := range uint64(1) {
		events := week(rand.New(rand.NewPCG(seed, 0)))
		at := map[int][]event{}
		for _, e := range events {
			at[e.second] = append(at[e.second], e)
		}
		var tally Tally
		got, want := Days{}, Days{}
		states := map[service.Key]*[3]counted{}
		for second := range 7 * 86400 {
			now := begin.Add(time.Duration(second) * time.Second)
			changed := map[service.Key]bool{}
			for _, e := range at[second] {
				if states[e.key] == nil {
					states[e.key] = &[3]counted{}
				}
				states[e.key][e.replica].state = e.state
				changed[e.key] = true
			}
			for k := range changed {
				var samples []Sample
				for n, r := range states[k] {
					if s, there := sampleIn(r.state, n); there {
						samples = append(samples, s)
					}
				}
				tally.Observe(k, samples, now)
			}
			if second%30 == 0 {
				tally.Advance(now)
				for day, accounts := range tally.Take() {
					for a, u := range accounts {
						got.Add(day, a, u)
					}
				}
			}
			for _, replicas := range states { // the naive count
				for n, r := range replicas {
					switch r.state {
					case "starting":
						replicas[n].starting++
					case "idle":
						replicas[n].idle++
					case "busy":
						replicas[n].busy++
					}
				}
			}
			if next := now.Add(time.Second); !next.Truncate(24*time.Hour).Equal(next) && second != 7*86400-1 {
				continue
			}
			for k, replicas := range states {
				for n, r := range replicas {
					g := float64(n)
					want.Add(DayOf(now), account(k), Use{ByState{r.starting, r.idle, r.busy, 0}, ByState{g * r.starting, g * r.idle, g * r.busy, 0}})
					replicas[n] = counted{state: r.state}
				}
			}
		}
		tally.Advance(begin.Add(7 * 24 * time.Hour))
		for day, accounts := range tally.Take() {
			for a, u := range accounts {
				got.Add(day, a, u)
			}
		}
		if len(got) != 8 || len(want) != 8 {
			t.Fatalf("%d days, and %d by the naive count", len(got), len(want))
		}
		for day := range want {
			for a, w := range want[day] {
				g := got[day][a]
				for _, pair := range [][2]float64{{g.Replicas.Starting, w.Replicas.Starting}, {g.Replicas.Idle, w.Replicas.Idle}, {g.Replicas.Busy, w.Replicas.Busy},
					{g.GPUs.Starting, w.GPUs.Starting}, {g.GPUs.Idle, w.GPUs.Idle}, {g.GPUs.Busy, w.GPUs.Busy}} {
					if !near(pair[0], pair[1]) {
						t.Fatalf("seed %d, %s %s: %+v, the naive count says %+v", seed, day, a.Service, g, w)
					}
				}
			}
		}
	}
}

// TestEncode: a day comes back as it was, to milliseconds, in a ConfigMap however many
// accounts it has, and no second is lost: what does not fit is that of Others.
func TestEncode(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for _, n := range []int{0, 1, 2, 3, 300, maxAccounts} {
		for _, limit := range []int{MaxEncoded, 20_000, 0} {
			var rows []Row
			for range n {
				name := fmt.Sprintf("%x-%x", r.Uint64(), r.Uint64())
				rows = append(rows, Row{Day: "2026-11-22", Account: Account{"ns-" + name, name, service.RoleEngine},
					Use: Use{Replicas: ByState{r.Float64() * 9, r.Float64() * 86400, r.Float64() * 86400, r.Float64()}, GPUs: ByState{Busy: r.Float64() * 86400}}})
			}
			counted := time.Date(2026, 11, 22, 13, 14, 15, 0, time.UTC)
			data, err := Encode(rows, counted, limit)
			if err != nil {
				t.Fatal(err)
			}
			got, at, err := Decode("2026-11-22", data)
			if err != nil || !at.Equal(counted) {
				t.Fatalf("%d rows: %v, counted %v", n, err, at)
			}
			if len(data) > limit && len(got) > 2 {
				t.Errorf("%d rows: %d bytes are more than %d, with %d rows left", n, len(data), limit, len(got))
			}
			_, want := Sum(rows)
			_, sum := Sum(got)
			if d := math.Abs(sum.Replicas.Running()+sum.GPUs.Busy-want.Replicas.Running()-want.GPUs.Busy) / float64(max(n, 1)); d > 0.003 {
				t.Errorf("%d rows in %d bytes: %v s differ by row", n, limit, d)
			}
			if limit == MaxEncoded && n <= 300 && len(got) != n {
				t.Errorf("%d rows came back as %d", n, len(got))
			}
		}
	}
}

// FuzzDecode: whatever a ConfigMap has, it is an error or rows of the day.
func FuzzDecode(f *testing.F) {
	good, err := Encode([]Row{{Account: Others, Use: Use{Replicas: ByState{Busy: 1}}}}, time.Unix(1, 0), MaxEncoded)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte("{}"))
	f.Add(good[:len(good)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, _, err := Decode("2026-11-22", data)
		for _, r := range rows {
			if err != nil || r.Day != "2026-11-22" {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	})
}
