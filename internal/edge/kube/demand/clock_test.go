package demand

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// TestClockSetBack: a gateway that starts anew in its pod with its clock set
// back is heard once the process before has been silent; until then nothing
// falls.
func TestClockSetBack(t *testing.T) {
	b := newBook(t0, 15*time.Second)
	b.live = map[string]bool{"g": true}
	before, after := t0.Add(48*time.Hour).UnixNano(), t0.Add(-48*time.Hour).UnixNano()
	now := t0.Add(time.Minute)
	b.take(rep("g", before, time.Second, 1, true, Line{Service: "a/x", Arrived: 3, Running: 1}), now)
	number := uint64(0)
	for waited := time.Duration(0); ; waited += 2 * time.Second {
		if waited > 20*time.Second {
			t.Fatal("it is never heard again")
		}
		now = now.Add(2 * time.Second)
		b.sweep(now)
		number++
		b.take(rep("g", after, 2*time.Second+waited, number, true, Line{Service: "a/x", Arrived: 5, Running: 2}), now)
		if b.gateways["g"].instance == after {
			break
		}
	}
	if d := b.demand("a/x", now.Add(maxSpan)); d.Unknown || d.Running != 2 || d.Arrived != 8 {
		t.Errorf("heard again: %+v", d)
	}
}

// TestSkewedClocks: gateways tell ages, never times of day: clocks that are
// hours off change neither what is summed nor when a request was over.
func TestSkewedClocks(t *testing.T) {
	for _, skew := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
		b := newBook(t0, 15*time.Second)
		b.live = map[string]bool{"g": true}
		theirs := func(now time.Time) time.Time { return now.Add(skew) }
		born, now := t0.Add(time.Second), t0.Add(11*time.Second)
		l := line("a/x", autoscale.Demand{Arrived: 4, Done: 4, LoadSeconds: 2, LastDone: theirs(t0.Add(9 * time.Second))}, nil, theirs(now))
		b.take(rep("g", theirs(born).UnixNano(), now.Sub(born), 1, true, l), now)
		d := b.demand("a/x", now.Add(maxSpan))
		if d.Unknown || d.Arrived != 4 || d.LoadSeconds != 2 || !d.LastDone.Equal(t0.Add(9*time.Second)) {
			t.Errorf("off by %v: %+v", skew, d)
		}
	}
}

// TestHangingGateway: a gateway that takes requests by its EndpointSlice and
// says nothing keeps what runs running, for as long as it is there, and no
// longer: the count falls when the idle time is over after it went.
func TestHangingGateway(t *testing.T) {
	const idle = time.Minute
	b := newBook(t0, 15*time.Second)
	b.live = map[string]bool{"good": true, "hung": true}
	limits := service.Limits{Max: 3, Target: 1, Metric: service.MetricConcurrency, ScaleToZeroAfter: idle}
	now, number := t0, uint64(0)
	state := autoscale.State{}
	count := 2
	step := func(hung bool) {
		now = now.Add(time.Second)
		number++
		b.take(rep("good", 1, now.Sub(t0), number, true), now)
		if !hung {
			b.take(rep("hung", 2, now.Sub(t0), number, true, Line{Service: "a/x", Arrived: 9, Done: 7, Running: 2}), now)
		}
		b.sweep(now)
		var replicas []autoscale.Replica
		for i := range count {
			replicas = append(replicas, autoscale.Replica{ID: string(rune('a' + i)), Ready: true, ReadyAt: t0})
		}
		var d autoscale.Decision
		state, d = autoscale.Step(state, autoscale.Input{Demand: b.demand("a/x", now), Limits: limits, Replicas: replicas}, now)
		count = d.Count
	}
	for range 30 {
		step(false)
	}
	for range 3600 {
		if step(true); count != 2 {
			t.Fatalf("%v after the start the count fell to %d", now.Sub(t0), count)
		}
	}
	delete(b.live, "hung")
	gone := now
	for count > 0 && now.Sub(gone) < time.Hour {
		step(true)
	}
	if lasted := now.Sub(gone); lasted < idle || lasted > idle+5*time.Second {
		t.Errorf("it slept %v after the gateway went", lasted)
	}
}

// TestSilenceIsTold: whom the controller waits for is in its log, once in a
// while.
func TestSilenceIsTold(t *testing.T) {
	var log bytes.Buffer
	now := t0
	s, err := NewServer(Config{Reviewer: NewReviewer(nil, nil), Accounts: []string{"a"}, Silence: 15 * time.Second, Now: func() time.Time { return now },
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.SetLive([]string{"good", "hung"})
	s.update(func(b *book) []string { b.take(rep("good", 1, 0, 1, true), now); return nil })
	for range 90 {
		now = now.Add(time.Second)
		s.update(func(b *book) []string {
			b.take(rep("good", 1, now.Sub(t0), uint64(now.Sub(t0)), false), now)
			return b.sweep(now)
		})
		s.nag()
		if told := strings.Count(log.String(), "hung"); told > 1 || told == 1 && now.Sub(t0) < unheardFor || told == 0 && now.Sub(t0) > unheardFor+2*time.Second {
			t.Fatalf("after %v told %d times: %s", now.Sub(t0), told, log.String())
		}
	}
	if text := log.String(); strings.Contains(text, "good") {
		t.Error(text)
	}
}
