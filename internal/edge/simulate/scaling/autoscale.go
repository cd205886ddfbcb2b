package scaling

import (
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// reportEvery is the time between two reports of a gateway.
const reportEvery = time.Second

// Shipped is the product's own decision, fed as `up` feeds it: a first request
// is reported at once, other changes within a second.
type Shipped struct {
	limits   service.Limits
	begin    time.Time
	state    autoscale.State
	replicas []autoscale.Replica
}

// monday is when a replay begins whose trace does not say.
var monday = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// NewShipped is the decision for a service with these limits, over a trace that
// begins at a time; if that is zero, on a Monday at 00:00 UTC.
func NewShipped(l service.Limits, begin time.Time) *Shipped {
	if begin.IsZero() {
		begin = monday
	}
	return &Shipped{limits: l, begin: begin}
}

// Step implements Scaler.
func (s *Shipped) Step(v *View) Decision {
	now := s.begin.Add(v.Now)
	in := autoscale.Input{Limits: s.limits, Demand: autoscale.Demand{Queued: v.Queued, Running: v.Running,
		Arrived: v.Arrived, Done: v.Done, LoadSeconds: v.LoadSeconds, BusySeconds: v.BusySeconds}}
	if v.LastDone >= 0 {
		in.Demand.LastDone = s.begin.Add(v.LastDone)
	}
	s.replicas = s.replicas[:0]
	for _, r := range v.Replicas {
		a := autoscale.Replica{ID: strconv.Itoa(r.ID), Ready: r.Ready, Starting: !r.Ready, Started: s.begin.Add(r.Began), InFlight: r.InFlight}
		if r.Ready {
			a.ReadyAt = s.begin.Add(r.ReadyAt)
		}
		s.replicas = append(s.replicas, a)
	}
	in.Replicas = s.replicas
	var d autoscale.Decision
	s.state, d = autoscale.Step(s.state, in, now)
	out := Decision{Count: d.Count}
	if d.Again > 0 {
		out.Again = v.Now + d.Again
	}
	for _, id := range d.Victims {
		if n, err := strconv.Atoi(id); err == nil {
			out.Victims = append(out.Victims, n)
		}
	}
	return out
}

// Reacts implements Scaler.
func (s *Shipped) Reacts(e Event) (time.Duration, bool) {
	if e == Changed {
		return reportEvery, true
	}
	return 0, true
}
