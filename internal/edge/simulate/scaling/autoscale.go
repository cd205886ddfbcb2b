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
	state    autoscale.State
	replicas []autoscale.Replica
}

// NewShipped is the decision for a service with these limits.
func NewShipped(l service.Limits) *Shipped { return &Shipped{limits: l} }

// epoch is the time at which a replay begins, for decisions that take one.
var epoch = time.Unix(0, 0)

// Step implements Scaler.
func (s *Shipped) Step(v *View) Decision {
	now := epoch.Add(v.Now)
	in := autoscale.Input{Limits: s.limits, Demand: autoscale.Demand{Queued: v.Queued, Running: v.Running,
		Arrived: v.Arrived, Done: v.Done, LoadSeconds: v.LoadSeconds, BusySeconds: v.BusySeconds}}
	if v.LastDone >= 0 {
		in.Demand.LastDone = epoch.Add(v.LastDone)
	}
	s.replicas = s.replicas[:0]
	for _, r := range v.Replicas {
		a := autoscale.Replica{ID: strconv.Itoa(r.ID), Ready: r.Ready, Starting: !r.Ready, Started: epoch.Add(r.Began), InFlight: r.InFlight}
		if r.Ready {
			a.ReadyAt = epoch.Add(r.ReadyAt)
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
