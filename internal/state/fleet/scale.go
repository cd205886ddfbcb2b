package fleet

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// ExternalScaler is a Platform some of whose counts others set, such as an
// autoscaler of the cluster.
type ExternalScaler interface {
	// ExternalCount reports whether somebody else sets a role's count, and
	// returns it.
	ExternalCount(ref workload.Ref) (count int, external bool)
}

// readExternalCounts notes the counts that others set.
func (w *work) readExternalCounts(scaler ExternalScaler) {
	if w.record == nil {
		return
	}
	for i := range w.record.Revision.Components {
		role := w.record.Revision.Components[i].Role
		rs, known := w.roles[role]
		if !known {
			rs.scaled = -1
		}
		rs.external = nil
		if n, external := scaler.ExternalCount(ref(w.key, role)); external {
			rs.external = &n
		}
		w.roles[role] = rs
	}
}

// externalScalers names who counts the replicas of roles that scale by what they use of a
// resource, "" where there are none.
func (w *work) externalScalers() string {
	var out []string
	for i := range w.record.Revision.Components {
		c := &w.record.Revision.Components[i]
		if w.roles[c.Role].external != nil && c.Limits.ByResource() {
			out = append(out, string(c.Role)+": "+counter(c.Limits))
		}
	}
	return strings.Join(out, "; ")
}

func counter(l service.Limits) string {
	if !l.ByResource() {
		return "another autoscaler counts its replicas"
	}
	return fmt.Sprintf("a HorizontalPodAutoscaler counts its replicas by %s, %.0f %% each", l.Metric, l.Target)
}

// wanted is how many replicas of a role there are to be.
func (w *work) wanted(role service.Role) int {
	if external := w.roles[role].external; external != nil {
		return *external
	}
	return max(w.roles[role].scaled, 0)
}

// scale steps the autoscaler of each role and hands changed counts on.
func (r *reconciler) scale(ctx context.Context, w *work) (time.Duration, error) {
	again := time.Duration(0)
	demand := r.cfg.Traffic.Demand(w.key)
	for i := range w.record.Revision.Components {
		c := &w.record.Revision.Components[i]
		rs, ok := w.roles[c.Role]
		if !ok {
			rs.scaled = -1
			rs.state.Learned = w.record.Learned[c.Role]
		}
		in := autoscale.Input{Demand: demand, Limits: c.Limits, AtLeast: w.ratio(c), Wake: w.wake, Stopped: w.object.Service.Stopped, Unloaded: w.asleep || w.madeRoom(demand),
			BeforeServes: w.beforeServes(c.Role), Revision: w.record.Revision.Hash}
		in.Replicas, in.Before = w.alive(c.Role, r.cfg.Traffic.InFlight)
		if len(c.Limits.Measured()) > 0 {
			if r.cfg.Cluster {
				in.Limits = onCluster(in.Limits)
			}
			r.measure(w.key, &in)
		}
		rs.state, rs.decision = autoscale.Step(rs.state, in, r.cfg.Now())
		if in.Unloaded && !w.asleep {
			rs.decision.Why = w.evicted
		}
		rest := r.standby(w, c, &rs)
		if !r.cfg.Cluster { // with thousands of services they would take too much memory
			rs.made = decisionOf(in, rs.decision, r.cfg.Now())
		}
		again = sooner(again, rest.Again)
		if rs.scaled != rs.decision.Count || rs.level != rest.Level || len(rs.decision.Victims) > 0 {
			ref := ref(w.key, c.Role)
			if err := r.give(ctx, ref, rs.decision, rest.Level); err != nil {
				return 0, fmt.Errorf("scale %s to %d: %w", ref, rs.decision.Count, err)
			}
			rs.level = rest.Level
			was := rs.scaled
			if was < 0 { // since the start: what runs already was not started now
				was = len(in.Replicas)
			}
			if rs.external == nil && was != rs.decision.Count {
				r.cfg.Log.Info("scaled", "service", w.key.String(), "role", c.Role, "replicas", rs.decision.Count, "was", was, "why", rs.decision.Reason(r.cfg.Now()))
			}
			rs.scaled = rs.decision.Count
		}
		w.roles[c.Role] = rs
		again = sooner(again, rs.decision.Again)
		r.keep(w, c.Role, rs.state.Learned)
	}
	return again, nil
}

// onCluster are the limits of a component in a cluster: where a resource alone counts,
// that is the business of a HorizontalPodAutoscaler, and requests say only whether
// there is to be a replica.
func onCluster(l service.Limits) service.Limits {
	if l.ByResource() {
		l.Metric, l.Target = service.MetricConcurrency, service.DefaultScaleTarget
	}
	return l
}

// measure adds to a step's input what is measured of the replicas.
func (r *reconciler) measure(k service.Key, in *autoscale.Input) {
	if r.cfg.Signals == nil {
		return
	}
	metrics := in.Limits.Measured()
	for _, m := range metrics {
		if m.External == nil {
			continue
		}
		if in.External == nil {
			in.External = map[string]autoscale.Reading{}
		}
		in.External[m.Name()] = r.cfg.Signals.External(k, *m.External)
	}
	engine := slices.ContainsFunc(metrics, func(m service.MetricTarget) bool { return m.Metric.Engine() })
	resource := slices.ContainsFunc(metrics, func(m service.MetricTarget) bool { return m.Metric.Resource() })
	for i := range in.Replicas {
		a := &in.Replicas[i]
		if engine {
			a.Load = r.cfg.Signals.Load(k, a.ID)
		}
		if resource {
			a.Use = r.cfg.Signals.Use(k, a.ID)
		}
	}
}

// ratio is how many replicas of a component the others of its service ask for, by
// what they needed at the last step.
func (w *work) ratio(c *workload.Component) int {
	most := 0
	for i := range w.record.Revision.Components {
		o := &w.record.Revision.Components[i]
		need := float64(w.roles[o.Role].decision.Need)
		if r := c.Limits.Ratio; r != nil && r.Component == o.Role {
			most = max(most, int(math.Ceil(need*r.Replicas-1e-9)))
		}
		if r := o.Limits.Ratio; r != nil && r.Component == c.Role {
			most = max(most, int(math.Ceil(need/r.Replicas-1e-9)))
		}
	}
	return most
}

// standby decides at which level a role's last replica sleeps, and has the role's
// decision say so.
func (r *reconciler) standby(w *work, c *workload.Component, rs *roleState) autoscale.StandbyDecision {
	sleeper, can := r.cfg.Platform.(Sleeper)
	if !can || rs.decision.Count > 0 || c.Process == nil {
		return autoscale.StandbyDecision{}
	}
	if c.Process.Standby == nil {
		if c.Limits.Standby != "" && len(rs.decision.Victims) > 0 {
			rs.decision.Why += fmt.Sprintf("; its engine cannot sleep (standby: %s)", c.Limits.Standby)
		}
		return autoscale.StandbyDecision{}
	}
	asleep := w.sleeper(c.Role)
	if asleep == nil && len(rs.decision.Victims) == 0 {
		return autoscale.StandbyDecision{} // there is nothing to put to sleep
	}
	in := autoscale.Standby{Policy: c.Limits.Standby, For: c.Limits.StandbyFor, Gone: w.object.Service.Stopped || w.asleep}
	for _, l := range c.Process.Standby.Levels {
		in.Levels = append(in.Levels, l.Level)
	}
	if asleep != nil {
		in.Level, in.Since = asleep.Standby, asleep.AsleepSince
		if in.Level == 0 { // it falls asleep
			in.Level, in.Since = max(rs.level, 1), r.cfg.Now()
		}
	}
	in.Free, in.Total = sleeper.Memory()
	in.Swap.Free, in.Swap.Total, in.Swap.Why = sleeper.Swap()
	for _, v := range w.replicas {
		if v.Role == c.Role {
			in.Swap.Holds, in.Swap.GPUs = max(in.Swap.Holds, v.Memory), max(in.Swap.GPUs, v.GPUMemory)
		}
	}
	d := autoscale.DecideStandby(in, r.cfg.Now())
	if d.Why == "" {
		return d
	}
	switch {
	case !rs.decision.IdleSince.IsZero():
		d.Why += ", idle since " + rs.decision.IdleSince.UTC().Format(time.RFC3339)
	case w.evicted != "":
		d.Why += ", " + strings.TrimPrefix(w.evicted, "stopped ")
	}
	rs.decision.Why, rs.decision.IdleSince = d.Why, time.Time{}
	return d
}

// sleeper is the replica of a role that sleeps, falls asleep, or is being woken; nil
// for none.
func (w *work) sleeper(role service.Role) *replica.Replica {
	for i := range w.replicas {
		if v := &w.replicas[i]; v.Role == role && (v.Phase == replica.Asleep || v.Standby > 0 && v.Phase != replica.Draining) {
			return v
		}
	}
	return nil
}

// give hands a role's count to the platform, with the level at which those sleep
// that are too many.
func (r *reconciler) give(ctx context.Context, ref workload.Ref, d autoscale.Decision, level int) error {
	if level > 0 {
		return r.cfg.Platform.(Sleeper).Sleep(ctx, ref, level)
	}
	return r.cfg.Platform.Scale(ctx, ref, d.Count, d.Victims)
}

// keep stores what a role has shown where that changes what is known. What could not be
// stored is learned anew after a restart.
func (r *reconciler) keep(w *work, role service.Role, learned autoscale.Learned) {
	if !learned.Differs(w.record.Learned[role]) {
		return
	}
	next := *w.record
	next.Learned = maps.Clone(next.Learned)
	if next.Learned == nil {
		next.Learned = map[service.Role]autoscale.Learned{}
	}
	next.Learned[role] = learned
	w.record = &next
	if err := r.cfg.Store.PutRecord(next); err != nil {
		r.cfg.Log.Warn("the learned startup time was not stored", "service", w.key.String(), "role", role, "error", err)
	}
}

// alive are the replicas of a role that count against its number: those of the
// revision, else those of the one before, which serve until there are any; before reports that.
func (w *work) alive(role service.Role, inFlight func(string) int) (of []autoscale.Replica, before bool) {
	rev := &w.record.Revision
	out := w.aliveOf(role, rev.Hash, inFlight)
	if len(out) == 0 && rev.Before != nil {
		out = w.aliveOf(role, rev.Before.Hash, inFlight)
		return out, len(out) > 0
	}
	return out, false
}

// beforeServes reports whether a replica of a role of the revision before is ready.
func (w *work) beforeServes(role service.Role) bool {
	before := w.record.Revision.Before
	return before != nil && slices.ContainsFunc(w.replicas, func(r replica.Replica) bool {
		return r.Role == role && r.Phase == replica.Ready && r.Revision == before.Hash
	})
}

func (w *work) aliveOf(role service.Role, hash string, inFlight func(string) int) []autoscale.Replica {
	var out []autoscale.Replica
	for _, r := range w.replicas {
		if r.Role != role || !r.Alive() || r.Revision != hash {
			continue
		}
		out = append(out, autoscale.Replica{ID: r.ID, Ready: r.Phase == replica.Ready, Started: r.Started, ReadyAt: r.ReadyAt,
			Starting: r.Phase == replica.Starting || r.Phase == replica.Fetching,
			Waiting:  r.Phase == replica.Pending && r.PID == 0, Failed: r.Restarts > 0, InFlight: inFlight(r.ID), Woke: r.Woke})
	}
	return out
}
