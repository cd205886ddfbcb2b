package autoscale

import (
	"slices"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

func TestDecideStandby(t *testing.T) {
	now := time.Unix(1e9, 0)
	both, one, suspend := []int{1, 2}, []int{1, service.LevelSuspended}, []int{service.LevelSuspended}
	swap := Swap{Free: 90, Total: 100, Holds: 10}
	for _, c := range []struct {
		name  string
		in    Standby
		level int
		again time.Duration
	}{
		{"no policy", Standby{Levels: both, For: time.Hour}, 0, 0},
		{"never", Standby{Policy: service.StandbyNever, Levels: both, For: time.Hour}, 0, 0},
		{"an engine that cannot", Standby{Policy: service.StandbyAuto, For: time.Hour}, 0, 0},
		{"unloaded", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour, Gone: true}, 0, 0},
		{"unloaded while asleep", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour, Gone: true, Level: 1, Since: now}, 0, 0},
		{"falls asleep", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour}, 1, standbyLook},
		{"with memory", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour, Free: 10, Total: 100}, 1, standbyLook},
		{"with too little", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour, Free: 9, Total: 100}, 2, standbyLook},
		{"with too little and one level", Standby{Policy: service.StandbyAuto, Levels: []int{1}, For: time.Hour, Free: 9, Total: 100}, 0, 0},
		{"a level that is asked for", Standby{Policy: "level2", Levels: []int{2}, For: time.Hour, Free: 50, Total: 100}, 2, standbyLook},
		{"and too little memory", Standby{Policy: "level2", Levels: []int{2}, For: time.Hour, Free: 9, Total: 100}, 0, 0},
		{"sleeps on", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour, Level: 2, Since: now.Add(-time.Minute)}, 2, standbyLook},
		{"not for long", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour, Level: 2, Since: now.Add(3*time.Second - time.Hour)}, 2, 3 * time.Second},
		{"long enough", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour, Level: 1, Since: now.Add(-time.Hour)}, 0, 0},
		{"suspended, where the engine cannot sleep", Standby{Policy: service.StandbyAuto, Levels: suspend, For: time.Hour, Swap: swap}, service.LevelSuspended, standbyLook},
		{"not while the engine can", Standby{Policy: service.StandbyAuto, Levels: one, For: time.Hour, Swap: swap}, 1, standbyLook},
		{"but with too little memory", Standby{Policy: service.StandbyAuto, Levels: one, For: time.Hour, Swap: swap, Free: 9, Total: 100}, service.LevelSuspended, standbyLook},
		{"not without swap", Standby{Policy: service.StandbySuspend, Levels: suspend, For: time.Hour, Swap: Swap{Why: "this machine has no swap"}}, 0, 0},
		{"not with too little", Standby{Policy: service.StandbySuspend, Levels: suspend, For: time.Hour, Swap: Swap{Free: 30, Total: 100, Holds: 21}}, 0, 0},
		{"just enough", Standby{Policy: service.StandbySuspend, Levels: suspend, For: time.Hour, Swap: Swap{Free: 30, Total: 100, Holds: 20}}, service.LevelSuspended, standbyLook},
		{"not with memory of a GPU", Standby{Policy: service.StandbySuspend, Levels: suspend, For: time.Hour, Swap: Swap{Free: 90, Total: 100, GPUs: 1}}, 0, 0},
		{"stays, whatever main memory is", Standby{Policy: service.StandbySuspend, Levels: suspend, For: time.Hour, Level: service.LevelSuspended, Since: now, Free: 1, Total: 100, Swap: Swap{Free: 30, Total: 100, Holds: 50}}, service.LevelSuspended, standbyLook},
		{"until the swap is full", Standby{Policy: service.StandbySuspend, Levels: suspend, For: time.Hour, Level: service.LevelSuspended, Since: now, Swap: Swap{Free: 9, Total: 100}}, 0, 0},
		{"the memory runs out", Standby{Policy: service.StandbyAuto, Levels: both, For: time.Hour, Level: 1, Since: now, Free: 1, Total: 100}, 0, 0},
	} {
		if d := DecideStandby(c.in, now); d.Level != c.level || d.Again != c.again {
			t.Errorf("%s: level %d again %v (%s), want %d, %v", c.name, d.Level, d.Again, d.Why, c.level, c.again)
		}
	}
}

// TestWakesAreLearned: each waking counts once, by its level, and is no start.
func TestWakesAreLearned(t *testing.T) {
	now := time.Unix(1e9, 0)
	var s State
	in := Input{Limits: service.Scaling{}.Settled(), Replicas: []Replica{{ID: "a", Ready: true, Started: now.Add(-time.Hour), ReadyAt: now.Add(-50 * time.Minute)}}}
	wake := func(level int, seconds float64) {
		now = now.Add(time.Minute)
		in.Replicas[0].ReadyAt, in.Replicas[0].Woke = now, &replica.Woke{Level: level, Seconds: seconds, At: now}
		for range 3 {
			now = now.Add(time.Second)
			s, _ = Step(s, in, now)
		}
	}
	s, _ = Step(s, in, now)
	before := s.Learned
	for _, seconds := range []float64{1, 3, 2} {
		wake(1, seconds)
	}
	if !s.Learned.Differs(before) {
		t.Error("what was learned is not stored")
	}
	wake(2, 9)
	l := s.Learned
	if l.Wake(1) != 2*time.Second || l.Wake(2) != 9*time.Second || l.Wake(3) != 0 || len(l.Wakes[1]) != 3 || len(l.Startups) != 0 {
		t.Errorf("learned %+v", l)
	}
	if l.Differs(l) {
		t.Error("what is stored is stored again")
	}
	for range 2 * startups {
		wake(1, 5)
	}
	if n := len(s.Learned.Wakes[1]); n != startups {
		t.Errorf("%d wakings are kept", n)
	}
}

// TestWakingIsNoStart: a replica that was away while it slept has not started anew.
func TestWakingIsNoStart(t *testing.T) {
	now := time.Unix(1e9, 0)
	in := Input{Limits: service.Scaling{}.Settled()}
	s, _ := Step(State{}, in, now)
	started := now.Add(time.Second)
	now = now.Add(7 * time.Second)
	in.Replicas = []Replica{{ID: "a", Ready: true, Started: started, ReadyAt: now}}
	s, _ = Step(s, in, now)
	now = now.Add(time.Minute)
	s, _ = Step(s, Input{Limits: in.Limits}, now)
	now = now.Add(time.Minute)
	in.Replicas[0].ReadyAt, in.Replicas[0].Woke = now, &replica.Woke{Level: 1, Seconds: 1, At: now}
	s, _ = Step(s, in, now)
	if !slices.Equal(s.Learned.Startups, []float64{6}) || s.Learned.Wake(1) != time.Second {
		t.Errorf("learned %+v", s.Learned)
	}
	// Its process crashed and was started again: that is a start.
	started, now = now.Add(time.Minute), now.Add(time.Minute+4*time.Second)
	in.Replicas[0].Started, in.Replicas[0].ReadyAt = started, now
	s, _ = Step(s, in, now)
	if !slices.Equal(s.Learned.Startups, []float64{6, 4}) {
		t.Errorf("startups are %v", s.Learned.Startups)
	}
}

// TestGapOfBurst: requests that come one after the other while a replica starts
// end one idle gap.
func TestGapOfBurst(t *testing.T) {
	now := time.Unix(1e9, 0)
	in := Input{Limits: service.Scaling{}.Settled()}
	in.Limits.Min, in.Limits.ScaleToZeroAfter, in.Limits.Prewarm = 0, time.Minute, true
	in.Demand = Demand{Arrived: 1, Done: 1, LastDone: now}
	s, _ := Step(State{}, in, now)
	in.Demand.Arrived, in.Demand.Done, in.Demand.LastDone = 2, 2, now.Add(time.Second)
	s, _ = Step(s, in, now.Add(time.Second))
	s, _ = Step(s, in, now.Add(3*time.Minute))
	for now = now.Add(15 * time.Minute); in.Demand.Queued < 5; now = now.Add(time.Second) {
		in.Demand.Arrived, in.Demand.Queued = in.Demand.Arrived+1, in.Demand.Queued+1
		s, _ = Step(s, in, now)
	}
	// One that runs for long is no idle time either.
	now = now.Add(10 * time.Minute)
	in.Demand.Arrived, in.Demand.Queued = in.Demand.Arrived+1, in.Demand.Queued+1
	s, _ = Step(s, in, now)
	if !slices.Equal(s.Learned.Gaps, []float64{899}) {
		t.Errorf("gaps are %v, want one of 899 s", s.Learned.Gaps)
	}
}
