package fleet

import (
	"errors"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

const (
	// keptDecisions is how many decisions are kept of a component.
	keptDecisions = 120
	// decisionInterval is the least time between two kept decisions with the same
	// counts.
	decisionInterval = 10 * time.Second
)

// ScaleDecision is how many replicas a component was to have at a time, and why.
type ScaleDecision struct {
	Time time.Time `json:"time"`
	ReplicaCounts
	Why string `json:"why"`
	// Queued and Running are the requests that waited and ran.
	Queued  int `json:"queued"`
	Running int `json:"running"`
	// Inputs are zero where the load did not matter, as for a stopped service.
	Inputs autoscale.Numbers `json:"inputs"`
}

// ReplicaCounts are the replicas that a decision wanted, and those that it saw.
type ReplicaCounts struct {
	Desired int `json:"desired"`
	Ready   int `json:"ready"`
	// Starting replicas exist and are not ready.
	Starting int `json:"starting"`
}

// ScaleHistory are the last decisions of one component, the oldest first. The
// newest is always among them.
type ScaleHistory struct {
	Component service.Role `json:"component"`
	// Canary reports whether it is the component of the service's canary.
	Canary    bool            `json:"canary,omitempty"`
	Decisions []ScaleDecision `json:"decisions"`
	// Now is set on a cluster: what there is now. The decisions there are those that
	// changed the count, of which the time, the count and the reason are known.
	Now *ReplicaCounts `json:"now,omitempty"`
}

// decisionOf is what there is to tell of a decision.
func decisionOf(in autoscale.Input, d autoscale.Decision, now time.Time) *ScaleDecision {
	out := &ScaleDecision{Time: now.UTC(), Why: d.Reason(now), Queued: in.Demand.Queued, Running: in.Demand.Running, Inputs: d.Numbers}
	out.Desired = d.Count
	for _, r := range in.Replicas {
		if r.Ready {
			out.Ready++
		} else {
			out.Starting++
		}
	}
	return out
}

// remember adds a decision to those of the past. It takes the place of the last
// one if that changed nothing and came soon after the one before it. At
// keptDecisions the oldest is dropped.
func remember(past []ScaleDecision, d ScaleDecision) []ScaleDecision {
	if n := len(past); n > 1 && past[n-1].Time.Sub(past[n-2].Time) < decisionInterval &&
		past[n-1].ReplicaCounts == d.ReplicaCounts && past[n-2].ReplicaCounts == d.ReplicaCounts {
		past[n-1] = d
		return past
	}
	if len(past) >= keptDecisions {
		past = slices.Delete(past, 0, len(past)-keptDecisions+1)
	}
	return append(past, d)
}

// Desired returns the count that was decided for a component of a service last, whoever
// sets it; false where none was, or the service is unknown.
func (f *Fleet) Desired(k service.Key, role service.Role) (int, bool) {
	f.services.mu.Lock()
	defer f.services.mu.Unlock()
	if e := f.services.presentLocked(k); e != nil && e.record != nil && e.record.Revision.Component(role) != nil {
		if rs := e.roles[role]; rs != nil && !rs.state.Last.IsZero() {
			return rs.decision.Count, true
		}
	}
	return 0, false
}

// ErrNoScaleHistory is why the controller of a cluster has no history.
var ErrNoScaleHistory = errors.New("only a running `roundhouse up` keeps its scaling decisions. In a cluster, `roundhouse explain scale SERVICE --context CONTEXT` reads the events of each change of a count")

// ScaleHistory returns the last scaling decisions of a service and of its canary,
// since this process started.
func (f *Fleet) ScaleHistory(k service.Key) ([]ScaleHistory, error) {
	if f.cfg.Cluster {
		return nil, ErrNoScaleHistory
	}
	f.services.mu.Lock()
	defer f.services.mu.Unlock()
	if f.services.presentLocked(k) == nil {
		return nil, errNotFound("service", k)
	}
	out := []ScaleHistory{}
	for _, k := range []service.Key{k, k.Canary()} {
		e := f.services.presentLocked(k)
		if e == nil || e.record == nil {
			continue
		}
		for i := range e.record.Revision.Components {
			role := e.record.Revision.Components[i].Role
			if rs := e.roles[role]; rs != nil && len(rs.past) > 0 {
				out = append(out, ScaleHistory{Component: role, Canary: k.IsCanary(), Decisions: slices.Clone(rs.past)})
			}
		}
	}
	return out, nil
}
