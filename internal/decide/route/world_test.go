package route

import (
	"math/rand/v2"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// calls are matches of GRPCRoutes.
var calls = []routing.HTTPMatch{
	{Path: anyPath},
	{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/v1"}, Call: routing.CallMatch{Service: exactly("v1")}},
	{Path: exactly("/v1/x"), Call: routing.CallMatch{Service: exactly("v1"), Method: exactly("x")}},
	{Path: pattern("/[^/]+/x"), Call: routing.CallMatch{Method: exactly("x")}},
	{Path: pattern("/(?:v[12])/[^/]+"), Call: routing.CallMatch{Service: pattern("v[12]")}},
	{Path: pattern("/(?:v[12])/(?:x|y)"), Call: routing.CallMatch{Service: pattern("v[12]"), Method: pattern("x|y")}},
}

// world makes services, objects and a query of few words, so that they meet.
func world(r *rand.Rand) (*slow, Query) {
	one := func(words ...string) string { return words[r.IntN(len(words))] }
	ns := func() string { return one("default", "team") }
	name := func() string { return one("a", "b", "c", "m/1") }
	k := func() service.Key { return service.Key{Namespace: ns(), Name: one("a", "b", "c")} }
	host := func() string {
		return one("a.default.localhost", "b.team.localhost", "localhost", "x.example", "y.x.example", "z.y.x.example", "other")
	}
	meta := func(at service.Key) service.Meta {
		return service.Meta{Key: at, Created: time.Unix(int64(r.IntN(3)), 0)}
	}
	weight := func() uint32 { return uint32(r.IntN(4)) }
	weighted := func() (out []routing.WeightedModel) {
		for range r.IntN(3) {
			out = append(out, routing.WeightedModel{Name: name(), Weight: weight()})
		}
		return out
	}
	ref := func() routing.Ref { return routing.Ref{Pool: r.IntN(2) == 0, Key: k()} }
	value := func(words ...string) routing.ValueMatch {
		if r.IntN(3) == 0 {
			return routing.ValueMatch{Type: routing.MatchRegexp, Value: one("/v1/?.*", ".", "/v[12]/x", "gold|silver")}
		}
		return routing.ValueMatch{Type: routing.MatchExact, Value: one(words...)}
	}
	s := &slow{draw: r.IntN(100)}
	seen := map[service.Key]bool{}
	for range r.IntN(4) {
		if e := (Entry{Key: k()}); !seen[e.Key] {
			if r.IntN(4) == 0 {
				e.Host = host()
			}
			seen[e.Key] = true
			s.services = append(s.services, e)
		}
	}
	there := map[routing.ID]bool{}
	add := func(o routing.Object) {
		if id := routing.IDOf(o); !there[id] {
			there[id] = true
			s.objects = append(s.objects, o)
		}
	}
	for range 2 + r.IntN(12) {
		switch r.IntN(7) {
		case 0, 1:
			add(&routing.Pool{Meta: meta(k())})
		case 2:
			at := k()
			add(&routing.Model{Meta: meta(at), ModelName: name(), Pool: service.Key{Namespace: at.Namespace, Name: one("a", "b", "c")}, Targets: weighted(), Priority: int32(r.IntN(3) - 1)})
		case 3:
			o := &routing.Route{Meta: meta(k()), Models: []string{name()}, Priority: int32(r.IntN(9))}
			if r.IntN(2) == 0 {
				o.Models = append(o.Models, one("d", "e"))
			}
			for range 1 + r.IntN(2) {
				o.Targets = append(o.Targets, routing.Target{Ref: ref(), Model: one("", "", "a", "z"), Weight: weight()})
			}
			add(o)
		case 4:
			o := &routing.HTTPRoute{Meta: meta(k()), AfterNames: r.IntN(2) == 0, GRPC: r.IntN(3) == 0}
			for range r.IntN(3) {
				if h := one("x.example", "*.example", "*.x.example", "y.x.example"); !slices.Contains(o.Hostnames, h) {
					o.Hostnames = append(o.Hostnames, h)
				}
			}
			for range 1 + r.IntN(2) {
				var rule routing.HTTPRule
				for range 1 + r.IntN(2) {
					m := routing.HTTPMatch{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: one("/", "/v1", "/v1/", "/v1/x")}, Method: one("", "", "", "POST")}
					if r.IntN(3) == 0 {
						m.Path = value("/v1", "/v1/x", "/")
					}
					if o.GRPC {
						m = calls[r.IntN(len(calls))]
					}
					if r.IntN(4) == 0 {
						m.Headers = append(m.Headers, routing.NamedMatch{Name: "X-A", ValueMatch: value("1", "2")})
					}
					if !o.GRPC && r.IntN(4) == 0 {
						m.Query = append(m.Query, routing.NamedMatch{Name: "tier", ValueMatch: value("gold", "")})
					}
					rule.Matches = append(rule.Matches, m)
				}
				for range r.IntN(3) {
					rule.Backends = append(rule.Backends, routing.Backend{Ref: ref(), Weight: weight()})
				}
				o.Rules = append(o.Rules, rule)
			}
			add(o)
		case 5:
			at := k()
			o := &routing.Rewrite{Meta: meta(at), Pool: service.Key{Namespace: at.Namespace, Name: one("a", "b")}}
			for range 1 + r.IntN(2) {
				rule := routing.RewriteRule{Targets: append(weighted(), routing.WeightedModel{Name: name(), Weight: 1})}
				for range r.IntN(3) {
					rule.Models = append(rule.Models, name())
				}
				o.Rules = append(o.Rules, rule)
			}
			add(o)
		case 6:
			at := k()
			add(&routing.Objective{Meta: meta(at), Pool: service.Key{Namespace: at.Namespace, Name: one("a", "b")}, Priority: int32(r.IntN(20) - 10)})
		}
	}
	header := map[string]string{"X-A": one("", "1", "2"), routing.HeaderObjective[r.IntN(2)]: one("", "a", "b", "c")}
	q := Query{Host: host(), Path: one("/", "/v1", "/v1/x", "/v1/", "/v1x", "/v2/x"), RawQuery: one("", "tier=gold", "tier=silver&tier=gold", "tier"),
		Method: one("GET", "POST"), GRPC: r.IntN(2) == 0, Header: func(h string) string { return header[h] }, Model: one("a", "b", "c", "m/1", "d", "", "z", "default/a", "team/b", "team/m/1")}
	return s, q
}
