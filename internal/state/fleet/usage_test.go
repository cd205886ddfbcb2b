package fleet_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/metering"
)

// usageStore is a metering.Store in memory.
type usageStore struct {
	days    map[usage.Day][]usage.Row
	counted time.Time
}

func (s *usageStore) Days() ([]usage.Day, error) { return slices.Sorted(maps.Keys(s.days)), nil }
func (s *usageStore) Load(d usage.Day) ([]usage.Row, time.Time, error) {
	return s.days[d], s.counted, nil
}
func (s *usageStore) Save(d usage.Day, rows []usage.Row, counted time.Time) error {
	s.days[d], s.counted = rows, counted
	return nil
}
func (s *usageStore) Drop(d usage.Day) error { delete(s.days, d); return nil }

// TestUsageOfAWeek: of a week in which replicas come, start, work, fail and go,
// services are deleted and made anew, and up restarts, the report has what the
// replicas were seen to use.
func TestUsageOfAWeek(t *testing.T) {
	r := newRig(t)
	r.meter = &usageStore{days: map[usage.Day][]usage.Row{}}
	r.restart()
	draw := rand.New(rand.NewPCG(7, 7))
	names, present := []string{"a", "b", "c"}, map[string]bool{}
	want := map[usage.Day]map[string]usage.Use{}
	for end := r.now.Add(7 * 24 * time.Hour); r.now.Before(end); {
		name := names[draw.IntN(len(names))]
		switch event := draw.IntN(100); {
		case !present[name]:
			r.platform.replicas[key(name)] = []replica.Replica{}
			r.apply(serviceYAML(name, one))
			present[name] = true
		case event == 0:
			if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key(name)}); err != nil {
				t.Fatal(err)
			}
			present[name] = false
			delete(r.platform.replicas, key(name))
		case event == 1:
			r.stopMeter()
			r.restart()
			for _, other := range names {
				r.reconcile(other)
			}
		default:
			r.platform.replicas[key(name)] = someReplicas(draw, name, r.now, r.traffic)
		}
		r.reconcile(name)
		step := time.Duration(draw.Int64N(int64(4 * time.Minute)))
		for _, other := range names { // the naive count, of each part of the step by its day
			for _, v := range r.platform.replicas[key(other)] {
				midnight := r.now.Truncate(24 * time.Hour).Add(24 * time.Hour)
				first := min(step, midnight.Sub(r.now))
				for at, d := range map[time.Time]time.Duration{r.now: first, midnight: step - first} {
					day := usage.DayOf(at)
					if want[day] == nil {
						want[day] = map[string]usage.Use{}
					}
					want[day][other] = want[day][other].Plus(naive(v, r.traffic.inFlight[v.ID], d.Seconds()))
				}
			}
		}
		r.now = r.now.Add(step)
		r.UsageTotals() // counts until now, as Run does every 30 s
	}
	rows, err := r.Usage("", func(usage.Account) bool { return true })
	if err != nil || len(rows) < 3*7 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, row := range rows {
		w := want[row.Day][row.Service]
		for _, pair := range [][2]float64{{row.Replicas.Starting, w.Replicas.Starting}, {row.Replicas.Idle, w.Replicas.Idle}, {row.Replicas.Busy, w.Replicas.Busy},
			{row.GPUs.Starting, w.GPUs.Starting}, {row.GPUs.Idle, w.GPUs.Idle}, {row.GPUs.Busy, w.GPUs.Busy}} {
			if math.Abs(pair[0]-pair[1]) > 1e-3 || row.Component != service.RoleEngine {
				t.Errorf("%s %s: %+v, and its replicas used %+v", row.Day, row.Service, row.Use, w)
				break
			}
		}
		delete(want[row.Day], row.Service)
	}
	for day, left := range want {
		for name, u := range left {
			if u != (usage.Use{}) {
				t.Errorf("%s %s is not in the report: %+v", day, name, u)
			}
		}
	}
}

// someReplicas draws the replicas of a service, with the requests they have in flight.
func someReplicas(draw *rand.Rand, name string, now time.Time, to *traffic) (out []replica.Replica) {
	for i := range draw.IntN(4) {
		v := replica.Replica{ID: fmt.Sprintf("%s-%d", name, i), Service: key(name), Role: service.RoleEngine, Started: now,
			Phase: []replica.Phase{replica.Pending, replica.Starting, replica.Ready, replica.Draining, replica.Failed}[draw.IntN(5)]}
		if v.GPUs = make([]int, draw.IntN(3)); v.Phase == replica.Pending {
			v.Started = time.Time{}
		}
		to.inFlight[v.ID] = draw.IntN(2)
		out = append(out, v)
	}
	return out
}

// naive is what a replica uses in so many seconds.
func naive(v replica.Replica, inFlight int, seconds float64) (u usage.Use) {
	gpus := float64(len(v.GPUs)) * seconds
	switch v.Phase {
	case replica.Starting:
		u.Replicas.Starting, u.GPUs.Starting = seconds, gpus
	case replica.Ready, replica.Draining:
		if inFlight > 0 {
			u.Replicas.Busy, u.GPUs.Busy = seconds, gpus
		} else {
			u.Replicas.Idle, u.GPUs.Idle = seconds, gpus
		}
	default:
		u.GPUs.Starting = gpus
	}
	return u
}

// stopMeter has what was used stored, as at the end of Run.
func (r *rig) stopMeter() {
	ctx, cancel := context.WithCancel(r.t.Context())
	cancel()
	r.measures.Run(ctx)
}

// measured is the meter of a new fleet; nil where the test has no store for it.
func (r *rig) measured() *metering.Meter {
	if r.meter == nil {
		return nil
	}
	r.measures = metering.New(metering.Config{Store: r.meter, Now: func() time.Time { return r.now }}).Resume()
	return r.measures
}
