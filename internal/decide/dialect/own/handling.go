package own

import (
	"maps"
	"slices"
	"time"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// Bounds of a Route's hedges and of its budget.
const (
	minPercentile  = 50
	maxPercentile  = 99
	maxBudgetRate  = 1000 // a second
	maxBudgetShare = 100  // percent
)

// readHeaders reads the changes of a header, by name.
func readHeaders(r *manifest.Reader, path string, in *api.RouteHeaders, request bool) []routing.HeaderChange {
	if in == nil {
		return nil
	}
	h := manifest.HeaderChanges{Report: r.Report, Request: request}
	for _, part := range []struct {
		op     routing.HeaderOp
		values map[string]string
	}{{routing.HeaderSet, in.Set}, {routing.HeaderAdd, in.Add}} {
		at := path + "." + string(part.op)
		manifest.CheckAtMost(r.Report, at, len(part.values), manifest.MaxHeaderChanges)
		for _, name := range slices.Sorted(maps.Keys(part.values)) {
			h.Add(strict.Key(at, name), strict.Key(at, name), part.op, name, part.values[name])
		}
	}
	manifest.CheckAtMost(r.Report, path+".remove", len(in.Remove), manifest.MaxHeaderChanges)
	for i, name := range in.Remove {
		at := strict.Index(path+".remove", i)
		h.Add(at, at, routing.HeaderRemove, name, "")
	}
	return h.List
}

// readRetries reads when a Route's requests are sent to further replicas.
func readRetries(r *manifest.Reader, in *api.RouteSpec, out *routing.Handling) {
	if t := in.Retry; t != nil {
		var backoff time.Duration
		if t.Backoff != nil {
			backoff = t.Backoff.Duration
		}
		out.Retry = manifest.ReadRetry(r.Report, "spec.retry", t.Codes, t.Attempts, backoff)
	}
	if h := in.Hedge; h != nil {
		out.Hedge = readHedge(r, h)
	}
	b := in.RetryBudget
	if b == nil {
		return
	}
	if out.Retry == nil && out.Hedge == nil {
		r.Warnf("spec.retryBudget", "has no effect without retry and hedge: retries count against the pool's own budget")
	}
	budget := routing.DefaultRetryBudget
	read := func(path string, n *int, most int, into *int) {
		if n == nil {
			return
		}
		if *n < 0 || *n > most {
			r.Errorf(path, "%d is not 0 to %d", *n, most)
		}
		*into = *n
	}
	read("spec.retryBudget.percent", b.Percent, maxBudgetShare, &budget.Percent)
	read("spec.retryBudget.perSecond", b.PerSecond, maxBudgetRate, &budget.PerSecond)
	if out.Retry != nil {
		out.Retry.Budget = budget
	}
	if out.Hedge != nil {
		out.Hedge.Budget = budget
	}
}

func readHedge(r *manifest.Reader, in *api.RouteHedge) *routing.Hedge {
	out := &routing.Hedge{Budget: routing.DefaultRetryBudget}
	switch {
	case in.After != nil && in.Percentile != nil:
		r.Errorf("spec.hedge.percentile", "is stated beside after: state one of them")
	case in.After == nil && in.Percentile == nil:
		r.Errorf("spec.hedge.after", "is missing: write after which time a second replica is asked, or a percentile")
	}
	manifest.CheckDuration(r.Report, "spec.hedge.after", in.After)
	if in.After != nil {
		out.After = in.After.Duration
	}
	if in.Percentile != nil {
		if out.Percentile = *in.Percentile; out.Percentile < minPercentile || out.Percentile > maxPercentile {
			r.Errorf("spec.hedge.percentile", "%d is not %d to %d", out.Percentile, minPercentile, maxPercentile)
		}
	}
	return out
}
