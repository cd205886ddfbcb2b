package autoscale

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/kpa"
)

// knative is the state of Knative's autoscaler, when it began, and the revision that
// it last decided for.
type knative struct {
	began    time.Time
	state    kpa.State
	revision string
}

// begins reports whether the initial scale of a revision was reached before the present
// owner came. Releases that did not note the revision knew only of the component.
func (l Learned) begins(revision string) bool {
	return l.Initial != "" && l.Initial == revision || l.Initial == "" && len(l.Startups) > 0
}

// knativeConfig is Knative's configuration for limits that have its settings.
func knativeConfig(l service.Limits) kpa.Config {
	c, k := kpa.Default(l.Target, l.Min, l.Max), l.Knative
	c.RPS, c.InitialScale, c.ActivationTimeout = l.Metric == service.MetricRPS, 1, l.StartupTimeout
	c.Utilization = stated(k.TargetUtilization, 100*c.Utilization) / 100
	c.PanicWindow, c.PanicThreshold = stated(k.PanicWindow, c.PanicWindow), stated(k.PanicThreshold, c.PanicThreshold)
	c.StableWindow, c.ScaleDownDelay = stated(k.Window, c.StableWindow), stated(k.ScaleDownDelay, c.ScaleDownDelay)
	c.InitialScale, c.ActivationScale = stated(k.InitialScale, c.InitialScale), stated(k.ActivationScale, c.ActivationScale)
	c.Retention, c.BurstCapacity = stated(k.Retention, c.Retention), stated(k.BurstCapacity, c.BurstCapacity)
	return c
}

// stated is a setting, or its default.
func stated[T any](setting *T, def T) T {
	if setting != nil {
		return *setting
	}
	return def
}

// byKnative has Knative's autoscaler decide; s is the state after begin. What Knative
// does not know bounds its count: a gateway that wakes the component is a first
// request, and the ratio to another component holds. While the demand is unknown the
// count only grows; then the windows begin anew, as after a restart.
func (s State) byKnative(in Input, now time.Time) (State, Decision) {
	cfg := knativeConfig(in.Limits)
	switch {
	case s.knative.began.IsZero():
		if s.knative.began = now; s.Learned.begins(in.Revision) {
			s.knative.state = kpa.Begin()
		}
	case s.knative.revision != in.Revision:
		s.knative.state = s.knative.state.Revised()
	}
	s.knative.revision = in.Revision
	view := kpa.View{Now: max(0, now.Sub(s.knative.began)), Load: in.Demand.Queued + in.Demand.Running, Present: len(in.Replicas),
		LoadSeconds: in.Demand.LoadSeconds, Arrived: in.Demand.Arrived, Poked: in.Wake > 0}
	for _, r := range in.Replicas {
		if r.Ready {
			view.Ready++
		}
	}
	if in.Before {
		view.Before = view.Ready
	}
	s.Quiet, s.Ahead, s.pausing = time.Time{}, false, pausing{}
	if in.Demand.Unknown {
		s.knative.state = s.knative.state.Anew()
		s.Count = min(max(held(s.Count, 0, in), in.Limits.Min, in.Wake, in.AtLeast), in.Limits.Max)
		d := decide(s, in, 0, "demand unknown until every gateway has told")
		d.Need = s.Count
		return s, d
	}
	var made kpa.Decision
	s.knative.state, made = s.knative.state.Step(cfg, view)
	if !made.Initial {
		s.Learned.Initial = in.Revision
	}
	s.Count = min(max(made.Count, in.Wake, in.AtLeast), in.Limits.Max)
	again := time.Duration(0)
	if made.Again > 0 {
		again = made.Again - view.Now
	}
	d := decide(s, in, again, knativeReason(cfg, made, view.Now, made.Count, in, s.Count))
	d.Need = made.Count
	d.Numbers = Numbers{Load: made.Stable, Base: made.Count, Wanted: made.Desired, Startup: s.Learned.startup(median)}
	return s, d
}

// knativeReason is why Knative's count is what it is.
func knativeReason(cfg kpa.Config, d kpa.Decision, now time.Duration, own int, in Input, count int) string {
	unit := "in flight"
	if cfg.RPS {
		unit = "per second"
	}
	why := []string{"knative: no data yet"}
	if d.Decided {
		why[0] = fmt.Sprintf("knative: stable %s %s over %s, panic %s over %s, target %s each", number(d.Stable), unit, cfg.StableWindow,
			number(d.Panic), cfg.PanicSpan(), number(cfg.Target()))
	}
	if d.Panicking {
		why = append(why, fmt.Sprintf("in panic mode, last over %s %% %s ago", number(cfg.PanicThreshold), (now-d.Since).Truncate(time.Second)))
	}
	switch {
	case d.Initial && cfg.InitialScale > 0 && own <= cfg.InitialScale:
		why = append(why, fmt.Sprintf("initial scale %d", cfg.InitialScale))
	case d.Decided && own > d.Desired && own == in.Limits.Min:
		why = append(why, cmp.Or(in.least, fmt.Sprintf("minReplicas %d", in.Limits.Min)))
	case d.Decided && own > d.Desired:
		why = append(why, "on the way to zero")
	case own < d.Desired:
		why = append(why, cmp.Or(in.most, fmt.Sprintf("maxReplicas %d", in.Limits.Max)))
	}
	switch {
	case count > own && count == in.AtLeast:
		why = append(why, fmt.Sprintf("%d for the ratio to another component", count))
	case count > own:
		why = append(why, "asked to wake")
	}
	return strings.Join(why, "; ")
}
