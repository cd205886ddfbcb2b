package fleet

import (
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestWakePlanReads: each state of a plan says what is stopped, why, and how long
// the start takes.
func TestWakePlanReads(t *testing.T) {
	for state, c := range map[string]struct {
		plan residency.Plan
		want []string
	}{
		"fits":       {residency.Plan{}, []string{"stops    nothing: what it needs is free", "starts   in about 12s, and in 15s in 9 of 10 cases, by its last 5 starts", "keeps    d/e: pinned"}},
		"waits":      {residency.Plan{Wait: []residency.Verdict{{Service: "d/b", Why: "a is busy"}}}, []string{"waits    a is busy", "starts   in about 12s"}},
		"refused":    {residency.Plan{Refuse: []residency.Verdict{{Service: "d/b", Why: "too large"}}}, []string{"refused  too large"}},
		"makes room": {residency.Plan{Stop: []residency.Stop{{Service: "d/a", For: "d/b", Why: "it is idle"}, {Service: "d/c", For: "d/d"}}}, []string{"stops    d/a: it is idle", "starts   in about 12s once that has stopped"}},
	} {
		p := WakePlan{Service: "d/b", Needs: []RoleNeed{{Role: service.RoleEngine, Need: residency.Need{GPUs: 1}}, {Role: service.RoleDecoder, Need: residency.Need{GPUs: 2}}},
			Startup: 12 * time.Second, StartupLate: 15 * time.Second, Starts: 5}
		p.judge(residency.Facts{Services: []residency.Service{{Name: "d/e", Pinned: true, Replicas: []residency.Replica{{GPUs: []int{0}}}}}}, c.plan)
		if p.State != state {
			t.Errorf("state %q, want %q", p.State, state)
		}
		for _, want := range append(c.want, "needs    engine: 1 GPU\n", "needs    decoder: 2 GPUs\n") {
			if !strings.Contains(p.String(), want) {
				t.Errorf("%s reads %q", state, p)
			}
		}
		if strings.Contains(p.String(), "d/c") {
			t.Errorf("stops for another are told: %s", p)
		}
	}
}

// TestEditOfAnIdleService: a replica that waits for room although no request does
// is given up, unless it is of a new revision whose predecessor serves: both would
// end together.
func TestEditOfAnIdleService(t *testing.T) {
	revision := func(hash string, gpus int) workload.Revision {
		return workload.Revision{Hash: hash, Components: []workload.Component{{Role: service.RoleEngine, Process: &workload.Process{GPUs: gpus}}}}
	}
	before, after := revision("old", 1), revision("new", 2)
	edited := after
	edited.Before = &before
	serves := replica.Replica{Role: service.RoleEngine, Revision: "old", Phase: replica.Ready, PID: 1, GPUs: []int{0}}
	waits := replica.Replica{Role: service.RoleEngine, Revision: "new", Phase: replica.Pending, Reason: replica.ReasonInsufficientGPUs}
	leaving := serves
	leaving.Phase = replica.Draining
	for name, c := range map[string]struct {
		revision workload.Revision
		replicas []replica.Replica
		demand   autoscale.Demand
		given    bool
	}{
		"the edit of one that serves":           {edited, []replica.Replica{serves, waits}, autoscale.Demand{}, false},
		"its predecessor is not recorded":       {after, []replica.Replica{serves, waits}, autoscale.Demand{}, false},
		"its predecessor makes room":            {edited, []replica.Replica{leaving, waits}, autoscale.Demand{}, false},
		"nothing serves, and nobody asks":       {after, []replica.Replica{waits}, autoscale.Demand{}, true},
		"nothing serves, and a request waits":   {after, []replica.Replica{waits}, autoscale.Demand{Queued: 1}, false},
		"nothing serves, and its client left":   {after, []replica.Replica{waits}, autoscale.Demand{Arrived: 1}, true},
		"a request runs on the one that serves": {edited, []replica.Replica{serves, waits}, autoscale.Demand{Running: 1}, false},
	} {
		x := resident{revision: c.revision, rolling: c.revision.Before != nil}
		s := x.facts(c.replicas, c.demand)
		var l lack
		l.look(s, time.Now())
		if len(s.Lacks) != 1 || s.Lacks[0].GPUs != 2 {
			t.Errorf("%s: it lacks %v", name, s.Lacks)
		}
		if given := !l.abandoned.IsZero(); given != c.given {
			t.Errorf("%s: given up %v, want %v", name, given, c.given)
		}
	}
}
