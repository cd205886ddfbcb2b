package metering

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
)

// store is a Store in memory.
type store struct {
	fail    error
	days    map[usage.Day][]usage.Row
	counted map[usage.Day]time.Time
	saves   int
}

func newStore() *store {
	return &store{days: map[usage.Day][]usage.Row{}, counted: map[usage.Day]time.Time{}}
}

func (s *store) Days() ([]usage.Day, error) { return slices.Sorted(maps.Keys(s.days)), nil }
func (s *store) Load(d usage.Day) ([]usage.Row, time.Time, error) {
	return s.days[d], s.counted[d], nil
}
func (s *store) Save(d usage.Day, rows []usage.Row, counted time.Time) error {
	if s.fail != nil {
		return s.fail
	}
	s.saves++
	s.days[d], s.counted[d] = rows, counted
	return nil
}
func (s *store) Drop(d usage.Day) error { delete(s.days, d); return nil }

var (
	noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	iris = service.Key{Namespace: "default", Name: "iris"}
)

func ready(n int, started time.Time) (out []usage.Sample) {
	for range n {
		out = append(out, usage.SampleOf(replica.Replica{Role: service.RoleEngine, Phase: replica.Ready, Started: started}, 1, 0))
	}
	return out
}

func all(usage.Account) bool { return true }

func idle(t *testing.T, m *Meter, since usage.Day) float64 {
	t.Helper()
	rows, err := m.Report(since, all)
	if err != nil {
		t.Fatal(err)
	}
	_, total := usage.Sum(rows)
	return total.Replicas.Idle
}

// TestKilledAnyTime: a week with a crash every few hours loses at most what was used
// since the last write before each, and the time in which nothing ran.
func TestKilledAnyTime(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s, now := newStore(), noon
	m := New(Config{Store: s, Now: func() time.Time { return now }}).Resume()
	used, lost, replicas, written := 0.0, 0.0, 0, now
	for now.Before(noon.Add(7 * 24 * time.Hour)) {
		step := time.Duration(r.Int64N(int64(20 * time.Second)))
		used += float64(replicas) * step.Seconds()
		now = now.Add(step)
		switch {
		case r.IntN(2000) == 0: // a crash, with all that ran
			lost += 3 * now.Sub(written).Seconds()
			now, replicas = now.Add(time.Duration(r.Int64N(int64(time.Hour)))), 0
			m = New(Config{Store: s, Now: func() time.Time { return now }}).Resume()
			m.Observe(iris, nil)
			written = now
		case r.IntN(3) == 0:
			replicas = r.IntN(4)
			m.Observe(iris, ready(replicas, now))
		case now.Sub(written) >= writeEvery:
			m.Store()
			written = now
		}
	}
	got := idle(t, m, "2026-11-22")
	if got > used+1e-3 || got < used-lost-1e-3 || lost == 0 {
		t.Errorf("counted %.0f of %.0f replica-seconds; at most %.0f may be lost", got, used, lost)
	}
	if rows, _ := m.Report("2026-11-25", all); len(rows) != 5 || rows[0].Day != "2026-11-25" {
		t.Errorf("since a day: %+v", rows)
	}
}

// TestKeptReplicas: replicas that outlive the process count through a restart.
func TestKeptReplicas(t *testing.T) {
	s, now := newStore(), noon
	m := New(Config{Store: s, Now: func() time.Time { return now }}).Resume()
	m.Observe(iris, ready(2, noon))
	now = now.Add(45 * time.Second)
	m.Store()
	now = now.Add(20 * time.Second)
	m = New(Config{Store: s, Now: func() time.Time { return now }}).Resume()
	m.Observe(iris, ready(2, noon))
	now = now.Add(10 * time.Second)
	if got := idle(t, m, ""); got != 2*75 {
		t.Errorf("%v replica-seconds, want 150", got)
	}
	if got := m.Total(usage.Account{Namespace: "default", Service: "iris", Component: service.RoleEngine}); got.Replicas.Idle != 2*30 || got.GPUs.Idle != 2*30 {
		t.Errorf("since the restart: %+v", got)
	}
}

// TestDiskIsFull: what cannot be stored is kept and stored later, once.
func TestDiskIsFull(t *testing.T) {
	s, now := newStore(), noon.Add(12*time.Hour-time.Minute)
	m := New(Config{Store: s, Now: func() time.Time { return now }}).Resume()
	m.Observe(iris, ready(1, noon))
	s.fail = errors.New("no space left on device")
	for range 6 {
		now = now.Add(30 * time.Second)
		m.Store()
	}
	if got := idle(t, m, ""); got != 180 || len(s.days) != 0 {
		t.Errorf("%v replica-seconds while the disk is full; stored: %v", got, s.days)
	}
	s.fail = nil
	m.Store()
	if got := idle(t, New(Config{Store: s}).Resume(), ""); got != 180 || len(s.days) != 2 {
		t.Errorf("%v replica-seconds stored, want 180 on two days: %v", got, s.days)
	}
	if m.Store(); s.saves != 2 {
		t.Errorf("%d writes for two days", s.saves)
	}
}

// TestDaysExpire: the oldest day goes for a new one, and a clock that was ahead for
// a while costs one day.
func TestDaysExpire(t *testing.T) {
	s, now := newStore(), noon
	m := New(Config{Store: s, Now: func() time.Time { return now }}).Resume()
	use := func() {
		m.Observe(iris, ready(1, noon))
		now = now.Add(time.Second)
		m.Observe(iris, nil)
		m.Store()
	}
	for range keptDays {
		use()
		now = now.Add(24 * time.Hour)
	}
	before := now
	now = now.Add(20 * 365 * 24 * time.Hour)
	use()
	now = before
	use()
	days, _ := s.Days()
	if len(days) != keptDays || days[0] != "2026-11-24" || days[keptDays-1] < "2040" {
		t.Errorf("%d days, %s to %s", len(days), days[0], days[len(days)-1])
	}
}

// TestRunStores: Run stores in its interval, and what is left as it ends.
func TestRunStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		m := New(Config{Store: s}).Resume()
		done := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		go func() { m.Run(ctx); close(done) }()
		m.Observe(iris, ready(1, time.Now()))
		time.Sleep(writeEvery + time.Second)
		synctest.Wait()
		stored := func() (sum float64) {
			for _, rows := range s.days {
				_, u := usage.Sum(rows)
				sum += u.Replicas.Idle
			}
			return sum
		}
		if got := stored(); got != writeEvery.Seconds() {
			t.Errorf("%v stored after %v", got, writeEvery+time.Second)
		}
		time.Sleep(4 * time.Second)
		stop()
		<-done
		if got := stored(); got != writeEvery.Seconds()+5 {
			t.Errorf("%v stored at the end", got)
		}
	})
}

// TestReportIsBounded: a report of too many rows is refused with what to do.
func TestReportIsBounded(t *testing.T) {
	s := newStore()
	for d := range 41 {
		day := usage.DayOf(noon.AddDate(0, 0, d))
		for i := range 5000 {
			s.days[day] = append(s.days[day], usage.Row{Day: day, Account: usage.Account{Namespace: "many", Service: fmt.Sprint(i)}})
		}
	}
	m := New(Config{Store: s}).Resume()
	if _, err := m.Report("", all); !errors.Is(err, ErrTooMany) {
		t.Errorf("41 days of 5000 services: %v", err)
	}
	if rows, err := m.Report("", func(a usage.Account) bool { return a.Service == "7" }); err != nil || len(rows) != 41 {
		t.Errorf("of one service: %d rows, %v", len(rows), err)
	}
}
