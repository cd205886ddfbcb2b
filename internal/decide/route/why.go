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

// ID names the rule of a route: of a Route the first.
type ID struct {
	routing.ID
	Rule int
}

// RouteID is the rule that led here; zero for none.
func (t *Target) RouteID() (id ID) {
	switch by := &t.by; {
	case by.http != nil:
		id.ID, id.Rule = routing.IDOf(by.http.route), by.http.rule
	case by.claim != nil && by.claim.route != nil:
		id.ID = routing.IDOf(by.claim.route)
	}
	return id
}

// Why returns what led here, in one line: which object sent the request where,
// and what its share is. It is built anew for every call.
func (t Target) Why() string {
	var steps []string
	add := func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
	by := &t.by
	switch {
	case by.http != nil:
		add("%s, rule %d%s", by.http.name(), by.http.rule+1, share(&by.http.split, by.index))
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

// split chooses among weighted things by cumulative weight: ends[i] is the sum
// of the weights up to and with i, so that 0 <= ends[i] <= ends[i+1].
type split struct{ ends []int }

func (s *split) add(weight uint32) { s.ends = append(s.ends, s.total()+int(weight)) }

func (s *split) total() int {
	if len(s.ends) == 0 {
		return 0
	}
	return s.ends[len(s.ends)-1]
}

// weight is that of i.
func (s *split) weight(i int) int {
	if i == 0 {
		return s.ends[0]
	}
	return s.ends[i] - s.ends[i-1]
}

// pick is an index with a weight above 0; -1 when there is none. Lists are
// short (at most 16), so they are walked.
func (s *split) pick(random func(n int) int) int {
	total := s.total()
	if total == 0 {
		return -1
	}
	n := 0
	if total > 0 && len(s.ends) > 1 {
		n = random(total)
	}
	for i, end := range s.ends {
		if n < end {
			return i
		}
	}
	return -1
}

func modelSplit(targets []routing.WeightedModel) (s split) {
	for _, m := range targets {
		s.add(m.Weight)
	}
	return s
}
