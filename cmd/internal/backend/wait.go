package backend

import (
	"cmp"
	"context"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/progress"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Resolved reports whether a service has a runtime, or the reason why none fits.
func Resolved(s admin.Service) bool {
	return len(s.Status.Conditions) > 0 && s.Status.Generation == s.Generation
}

// Settled reports whether a service is ready, or cannot become ready without a
// change.
func Settled(s admin.Service) bool {
	ready := s.Ready()
	switch {
	case !Resolved(s):
		return false
	case ready.Status == "True":
		// Replicas are being replaced, or the canary's start.
		return s.Status.Model.Transition != service.InProgress && s.Canary() != service.InProgress
	case ready.Status == "False":
		return ready.Reason != "Starting" && ready.Reason != "Fetching" && ready.Reason != "Pending"
	}
	return false
}

// Started reports whether a service has a ready replica, or cannot become ready
// without a change. One that was just asked to wake is ready as long as it sleeps still.
func Started(s admin.Service) bool {
	awake := slices.ContainsFunc(s.Replicas, func(r replica.Replica) bool { return r.Phase == replica.Ready })
	return Settled(s) && (awake || s.Ready().Status != "True")
}

// UpToDate reports whether a service is ready and answers as its present manifest
// says.
func UpToDate(s admin.Service) bool {
	done := func(t service.Transition) bool { return t == service.UpToDate || t == "" }
	return s.Ready().Status == "True" && done(s.Status.Model.Transition) && done(s.Canary())
}

// RolledOut reports whether a service is as its manifest says, and the replicas of
// earlier revisions have ended; or cannot become so without a change.
func RolledOut(s admin.Service) bool {
	return Settled(s) && (!UpToDate(s) || s.Superseded() == 0)
}

// Await polls a service until it is as wanted or the limit is over, and returns it
// as it is then.
func Await(ctx context.Context, c Backend, k service.Key, until func(admin.Service) bool, limit time.Duration, p *progress.Bar) (admin.Service, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer p.Done()
	var last admin.Service
	first, most := c.Pace()
	for wait := first; ; wait = min(2*wait, most) {
		svc, err := c.Service(ctx, k)
		switch {
		case ctx.Err() == context.DeadlineExceeded && last.Name != "":
			return last, nil
		case err != nil:
			return svc, err
		case until(svc):
			return svc, nil
		}
		last = svc
		p.Service(svc)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			if ctx.Err() == context.Canceled {
				return last, ctx.Err()
			}
			return last, nil
		}
	}
}

// reportLimit bounds how long AwaitRouting waits for the first status of an
// object. In a cluster an InferencePool that no route names has none.
const reportLimit = 10 * time.Second

// AwaitRouting polls routes and pools until the state of all of these is known or
// the limit is over, and returns them as they are then.
func AwaitRouting(ctx context.Context, c Backend, ids []fleet.ID, limit time.Duration) (map[fleet.ID]admin.RoutingObject, error) {
	began := time.Now()
	first, most := c.Pace()
	for wait := first; ; wait = min(2*wait, most) {
		list, err := c.Routing(ctx, "")
		if err != nil {
			return nil, err
		}
		out := make(map[fleet.ID]admin.RoutingObject, len(ids))
		known := true
		for _, o := range list {
			id := fleet.ID{Kind: o.Type, Key: service.Key{Namespace: o.Namespace, Name: o.Name}}
			if slices.Contains(ids, id) {
				out[id] = o
				known = known && Known(o, time.Since(began))
			}
		}
		left := limit - time.Since(began)
		if known || left <= 0 {
			return out, nil
		}
		select {
		case <-time.After(min(wait, left)):
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// Known reports whether a route or a pool that has been waited for is ready or
// not: its servers have been checked.
func Known(o admin.RoutingObject, waited time.Duration) bool {
	ready := o.Status.Ready()
	return ready.Status != "" && ready.Reason != routing.ReasonChecking || ready.Status == "" && waited >= reportLimit
}

// Unready returns why a route or a pool is not ready; "" where nothing says so.
func Unready(o admin.RoutingObject) string {
	switch ready := o.Status.Ready(); {
	case ready.Status == "False", ready.Reason == routing.ReasonChecking:
		return cmp.Or(ready.Message, ready.Reason)
	case ready.Status == "" && o.Kind != "InferencePool":
		return "no controller has reported its state"
	}
	return ""
}

// AwaitBenchmarks polls benchmarks until all of these have ended or the limit is over,
// and returns them as they are then.
func AwaitBenchmarks(ctx context.Context, c Backend, keys []service.Key, limit time.Duration) (map[service.Key]admin.Benchmark, error) {
	began := time.Now()
	first, most := c.Pace()
	for wait := first; ; wait = min(2*wait, most) {
		list, err := c.Objects(ctx, "benchmarkjobs")
		if err != nil {
			return nil, err
		}
		out := make(map[service.Key]admin.Benchmark, len(keys))
		ended := true
		for _, o := range list {
			k := service.Key{Namespace: o.Namespace, Name: o.Name}
			if slices.Contains(keys, k) && o.Benchmark != nil {
				out[k] = *o.Benchmark
				ended = ended && Ended(*o.Benchmark)
			}
		}
		left := limit - time.Since(began)
		if ended || left <= 0 {
			return out, nil
		}
		select {
		case <-time.After(min(wait, left)):
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// Ended reports whether a benchmark has measured all it is to, or cannot.
func Ended(b admin.Benchmark) bool { return b.State == "Completed" || b.State == "Failed" }
