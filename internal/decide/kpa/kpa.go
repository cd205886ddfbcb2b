// Package kpa is the decision of Knative's autoscaler (KPA): what a replica is to
// have, averaged over a stable and a panic window, as a pure step. Its activator
// always knows what waits.
package kpa

import (
	"math"
	"slices"
	"time"
)

// Config are the settings of Knative's config-autoscaler and annotations.
type Config struct {
	Min, Max         int     // a Max of 0 is no bound
	RPS              bool    // requests per second count, not those in flight
	Total            float64 // what a replica takes: containerConcurrency, or the target
	Utilization      float64 // of Total is the target
	StableWindow     time.Duration
	PanicWindow      float64 // percent of the stable window
	PanicThreshold   float64 // percent of the ready replicas
	MaxScaleUpRate   float64
	MaxScaleDownRate float64
	BurstCapacity    float64 // target-burst-capacity
	ScaleDownDelay   time.Duration
	ZeroGrace        time.Duration // scale-to-zero-grace-period
	Retention        time.Duration // scale-to-zero-pod-retention-period
	InitialScale     int
	ActivationScale  int
	// ActivationTimeout is after how long a service that does not become ready may
	// go to zero; 0 for never.
	ActivationTimeout time.Duration
}

// Default is Knative's default configuration for replicas that take total, but for
// an InitialScale of 0.
func Default(total float64, least, most int) Config {
	return Config{Min: least, Max: most, Total: total, Utilization: 0.7, StableWindow: time.Minute, PanicWindow: 10, PanicThreshold: 200,
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, BurstCapacity: 211, ZeroGrace: 30 * time.Second}
}

// Target is what a replica is to have.
func (c Config) Target() float64 { return max(0.01, c.Total*c.Utilization) }

// PanicSpan is the length of the panic window.
func (c Config) PanicSpan() time.Duration {
	return max(time.Duration(float64(c.StableWindow)*c.PanicWindow/100), report)
}

// View is what a step looks at.
type View struct {
	Now     time.Duration // since the first step
	Load    int           // requests that wait or run
	Present int           // replicas, starting or ready
	Ready   int
	Before  int // of Ready: of the revision before, which do not count for the initial scale
	// LoadSeconds is the integral of Load over time, and Arrived counts requests.
	LoadSeconds float64
	Arrived     uint64
	// Poked: the activator asks for a replica, whether Load tells of a request or not.
	Poked bool
}

// Decision is the count, and what it is made of.
type Decision struct {
	Count int
	Again time.Duration // Now of the next step; 0 for none before a request
	// Stable and Panic are the averages of the last tick, and Desired the count that it
	// asked for.
	Stable, Panic float64
	Desired       int
	Panicking     bool
	Since         time.Duration // of the last time over the panic threshold
	Decided       bool          // false: no data have come yet
	Initial       bool          // the initial scale is not reached yet
}

// State is carried from step to step; the zero State has seen nothing.
type State struct {
	begun         bool
	stable, panic window
	tick          Decision // as of the last tick
	integral      float64  // View.LoadSeconds at the last report
	arrived       uint64   // View.Arrived at the last report
	reported      time.Duration
	ticked        time.Duration
	load          int  // at the last step
	asleep        bool // since the last step nothing could change
	poked         bool // a first request was told ahead of the report of its second
	panicCount    int
	delays        []delayed // the desired counts of the last ScaleDownDelay
	initialized   bool      // the initial scale was reached once
	activity      activity
	activeSince   time.Duration // or activating, or inactive
	proxied       bool          // the activator is in the path
	proxiedSince  time.Duration
}

// Begin is the state of a service whose initial scale was reached before.
func Begin() State { return State{initialized: true} }

// Revised is the state where a new revision takes the place of one: its initial scale
// is to be reached. The windows stay, as both get the same requests.
func (s State) Revised() State {
	s.initialized = false
	return s
}

// Anew is the state of an autoscaler that has been started again.
func (s State) Anew() State { return State{initialized: s.initialized} }

// Idle reports whether a first request is to be told at once.
func (s *State) Idle() bool { return s.tick.Desired <= 0 }

// activity is the Active condition of Knative's PodAutoscaler.
type activity int

const (
	inactive activity = iota
	activating
	active
)

const (
	tick   = 2 * time.Second // between decisions
	report = time.Second     // between reports, and the length of a bucket
)

type delayed struct {
	at    time.Duration
	count int
}

// Step decides the count. s stays as it is.
func (s State) Step(cfg Config, v View) (State, Decision) {
	s.begin(cfg, v)
	poke := s.Idle() && (v.Poked || v.Load > 0 && s.load == 0)
	switch {
	case s.asleep: // the second that began while it slept counts as a whole
		s.reported, s.integral, s.arrived, s.poked = v.Now.Truncate(report), v.LoadSeconds, v.Arrived, false
	case v.Now/report > s.reported/report:
		s.report(cfg, v)
	}
	if poke {
		s.record(v.Now, 1)
		s.poked = true
	}
	if poke || v.Now/tick > s.ticked/tick {
		s.ticked = v.Now
		s.decide(cfg, v)
	}
	s.load = v.Load
	d := s.tick
	d.Count, d.Initial = s.apply(cfg, v), !s.initialized
	s.asleep = d.Desired == 0 && s.activity == inactive && s.initialized && v.Present == 0 && v.Load == 0 && d.Count == 0
	if !s.asleep {
		d.Again = v.Now.Truncate(report) + report
	}
	return s, d
}

// begin takes windows of the right lengths, which the step may change. An
// autoscaler that begins where several replicas are ready begins in panic, so that
// it does not end them for want of data.
func (s *State) begin(cfg Config, v View) {
	if s.stable.size() != buckets(cfg.StableWindow) || s.panic.size() != buckets(cfg.PanicSpan()) {
		s.stable, s.panic = newWindow(cfg.StableWindow), newWindow(cfg.PanicSpan())
	} else {
		s.stable.buckets, s.panic.buckets = slices.Clone(s.stable.buckets), slices.Clone(s.panic.buckets)
	}
	s.delays = slices.Clone(s.delays)
	if !s.begun && v.Ready > 1 {
		s.tick.Panicking, s.tick.Since, s.panicCount = true, v.Now, v.Ready
	}
	if !s.begun && v.Present > 0 {
		s.activate(cfg, v)
	}
	if !s.begun {
		s.reported, s.integral, s.arrived = v.Now, v.LoadSeconds, v.Arrived
	}
	s.begun = true
	s.initialized = s.initialized || v.Ready-v.Before >= cfg.InitialScale
}

// report records the mean of each second since the last report.
func (s *State) report(cfg Config, v View) {
	grown := v.LoadSeconds - s.integral
	if cfg.RPS {
		grown = float64(v.Arrived - min(s.arrived, v.Arrived))
	}
	mean := max(0, grown) / (v.Now - s.reported).Seconds()
	first, now := s.reported.Truncate(report)+report, v.Now.Truncate(report)
	for at := max(first, now-cfg.StableWindow); at <= now; at += report {
		value := mean
		if at == first && s.poked { // the request that was told at once is not told twice
			value = max(0, mean-1)
		}
		if v.Load > 0 || v.Present > 0 || value > 0 {
			s.record(at, value)
		}
	}
	s.integral, s.arrived, s.reported, s.poked = v.LoadSeconds, v.Arrived, v.Now, false
}

func (s *State) record(now time.Duration, value float64) {
	s.stable.record(now, value)
	s.panic.record(now, value)
}

// decide is the autoscaler's tick.
func (s *State) decide(cfg Config, v View) {
	if s.stable.empty(v.Now) {
		return // no data: the last decision stays
	}
	ready, target := max(1, float64(v.Ready)), cfg.Target()
	up, down := math.Ceil(cfg.MaxScaleUpRate*ready), math.Floor(ready/cfg.MaxScaleDownRate)
	s.tick.Stable, s.tick.Panic, s.tick.Decided = s.stable.average(v.Now), s.panic.average(v.Now), true
	stable, panic := math.Ceil(s.tick.Stable/target), math.Ceil(s.tick.Panic/target)
	wantStable, wantPanic := int(min(max(stable, down), up)), int(min(max(panic, down), up))
	if cfg.ActivationScale > 1 {
		if stable > 0 {
			wantStable = max(wantStable, cfg.ActivationScale)
		}
		if panic > 0 {
			wantPanic = max(wantPanic, cfg.ActivationScale)
		}
	}
	switch over := panic/ready >= cfg.PanicThreshold/100; {
	case over:
		s.tick.Panicking, s.tick.Since = true, v.Now
	case s.tick.Panicking && v.Now > s.tick.Since+cfg.StableWindow:
		s.tick.Panicking, s.panicCount = false, 0
	}
	want := wantStable
	if s.tick.Panicking {
		s.panicCount = max(s.panicCount, wantStable, wantPanic)
		want = s.panicCount
	}
	s.tick.Desired = s.delay(cfg, v.Now, want)
	capacity := float64(v.Ready) * cfg.Total
	s.proxy(v.Now, cfg.BurstCapacity < 0 || cfg.BurstCapacity > 0 && math.Floor(capacity-cfg.BurstCapacity-s.tick.Panic) < 0)
}

// delay is the largest of the counts of the last ScaleDownDelay.
func (s *State) delay(cfg Config, now time.Duration, want int) int {
	if cfg.ScaleDownDelay <= 0 {
		s.delays = nil
		return want
	}
	for len(s.delays) > 0 && (s.delays[0].at <= now-cfg.ScaleDownDelay) {
		s.delays = s.delays[1:]
	}
	for len(s.delays) > 0 && s.delays[len(s.delays)-1].count <= want {
		s.delays = s.delays[:len(s.delays)-1]
	}
	s.delays = append(s.delays, delayed{at: now, count: want})
	return s.delays[0].count
}

// proxy notes whether the activator is in the path.
func (s *State) proxy(now time.Duration, in bool) {
	if in && !s.proxied {
		s.proxiedSince = now
	}
	s.proxied = in
}

// apply bounds the desired count and handles the way to zero, as the
// reconciler does: one stays until the service was active for the stable window,
// the activator was in the path for the grace period, and the retention is over.
func (s *State) apply(cfg Config, v View) int {
	now, least := v.Now, cfg.Min
	stuck := s.activity == activating && v.Ready < max(cfg.Min, 1) && cfg.ActivationTimeout > 0 && now-s.activeSince >= cfg.ActivationTimeout
	s.initialized = s.initialized || stuck
	if !s.initialized {
		least = max(least, cfg.InitialScale)
	}
	want := max(s.tick.Desired, least)
	if !s.tick.Decided {
		want = max(v.Present, least)
	}
	if cfg.Max > 0 {
		want = min(want, cfg.Max)
	}
	if !s.tick.Decided && s.initialized {
		return want
	}
	if want > 0 {
		s.activate(cfg, v)
		return want
	}
	switch s.activity {
	case activating: // it does not go to zero while it starts
		if stuck {
			s.activity, s.activeSince = inactive, now-cfg.Retention
			s.proxied, s.proxiedSince = true, now-cfg.ZeroGrace
			return 0
		}
		s.activate(cfg, v)
		return v.Present
	case active:
		if now-s.activeSince < cfg.StableWindow {
			return min(v.Present, 1)
		}
		s.activity, s.activeSince = inactive, now
		s.proxy(now, true)
		return v.Present
	default:
		if v.Present > 0 && (now-s.proxiedSince < cfg.ZeroGrace || now-s.activeSince < cfg.Retention) {
			return v.Present
		}
		return 0
	}
}

// activate computes the Active condition of a service that is wanted.
func (s *State) activate(cfg Config, v View) {
	switch served := v.Ready >= max(cfg.Min, 1); {
	case !served && s.activity != activating:
		s.activity, s.activeSince = activating, v.Now
	case served && s.activity != active:
		s.activity, s.activeSince = active, v.Now
	}
}
