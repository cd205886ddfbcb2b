package route

import (
	"fmt"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// reasons are what led to a target, kept as they were found so that naming
// them costs nothing until somebody asks.
type reasons struct {
	http      *httpMatch
	claim     *claim
	index     int // of the backend, or the route's target
	rewrite   *rewriteRule
	model     *modelRule
	objective *routing.Objective
}

// Why returns what led here, in one line: which object sent the request where,
// and what its share is. It is built anew for every call.
func (t Target) Why() string {
	var steps []string
	add := func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
	by := &t.by
	switch {
	case by.http != nil:
		add("HTTPRoute %s, rule %d%s", by.http.route.Key, by.http.rule+1, share(&by.http.split, by.index))
	case by.claim != nil && by.claim.route != nil:
		add("Route %s%s", by.claim.route.Key, share(&by.claim.split, by.index))
	case t.Adapter != "":
		add("adapter %s", t.Adapter)
	case by.claim == nil && !t.Named && t.Model == "" && by.model == nil && by.rewrite == nil:
		add("by its host")
	case !t.Pool.Pool:
		add("by its name")
	}
	add("%s", t.Pool)
	if by.rewrite != nil {
		add("InferenceModelRewrite %s", by.rewrite.object.Key)
	}
	if m := by.model; m != nil {
		at := -1
		for i, target := range m.object.Targets {
			if target.Name == t.Model {
				at = i
			}
		}
		add("InferenceModel %s%s", m.object.Key, share(&m.split, at))
	}
	if t.Model != "" {
		add("model %s", t.Model)
	}
	if by.objective != nil {
		add("InferenceObjective %s", by.objective.Key)
	}
	if t.Priority != 0 {
		add("priority %d", t.Priority)
	}
	return strings.Join(steps, " → ")
}

// share is " (25 of 100)" of a split that has more than one part.
func share(s *split, i int) string {
	if len(s.ends) < 2 || i < 0 {
		return ""
	}
	return fmt.Sprintf(" (%d of %d)", s.weight(i), s.total())
}
