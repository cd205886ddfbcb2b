package admin

import (
	"fmt"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// rulesOf are the rules of an HTTPRoute or GRPCRoute, and of a ModelRoute the one that it is where
// it does something with requests besides sending them on.
func rulesOf(o routing.Object) (out []RoutingRule) {
	switch o := o.(type) {
	case *routing.Route:
		if does := o.Handling.Lines(); len(does) > 0 {
			from, to := summary(o, routing.Status{})
			out = append(out, RoutingRule{From: from, To: to, Handling: does})
		}
	case *routing.HTTPRoute:
		for i := range o.Rules {
			rule := &o.Rules[i]
			var matches []string
			for _, m := range rule.Matches {
				matches = append(matches, matchText(m))
			}
			all := rule.Handling.Lines()
			r := RoutingRule{From: few(matches), To: few(backendsOf(rule)), Handling: all}
			if rule.Fault != "" {
				r.Handling = append(r.Handling, "fault: "+rule.Fault)
			}
			for _, b := range rule.Backends {
				if b.Handling == nil {
					continue
				}
				for _, line := range b.Handling.Lines() { // the rule's are among them
					if !slices.Contains(all, line) {
						r.Handling = append(r.Handling, b.Name+": "+line)
					}
				}
			}
			out = append(out, r)
		}
	}
	return out
}

// backendsOf are the names of a rule's backends, with their weights.
func backendsOf(rule *routing.HTTPRule) (out []string) {
	for _, b := range rule.Backends {
		out = append(out, weighted(b.Name, b.Weight, len(rule.Backends)))
	}
	return out
}

// matchText is what a request must look like.
func matchText(m routing.HTTPMatch) string {
	var out []string
	if m.Method != "" {
		out = append(out, m.Method)
	}
	path := m.Path.Value
	switch m.Path.Type {
	case routing.MatchPrefix:
		path = strings.TrimSuffix(path, "/") + "/*"
	case routing.MatchRegexp:
		path = "~" + path
	case routing.MatchExact:
	}
	out = append(out, path)
	for _, h := range m.Headers {
		out = append(out, fmt.Sprintf("header %s%s", h.Name, valueText(h.ValueMatch)))
	}
	for _, q := range m.Query {
		out = append(out, fmt.Sprintf("query %s%s", q.Name, valueText(q.ValueMatch)))
	}
	return strings.Join(out, " ")
}

func valueText(v routing.ValueMatch) string {
	if v.Type == routing.MatchRegexp {
		return "~" + v.Value
	}
	return "=" + v.Value
}
