package route

import (
	"errors"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// grpcRule is a rule of a GRPCRoute whose match was read; headers are names with the value
// "1".
func grpcRule(to routing.Backend, path routing.ValueMatch, call routing.CallMatch, headers ...string) routing.HTTPRule {
	m := routing.HTTPMatch{Path: path, Call: call}
	for _, h := range headers {
		m.Headers = append(m.Headers, routing.NamedMatch{Name: h, ValueMatch: exactly("1")})
	}
	return routing.HTTPRule{Matches: []routing.HTTPMatch{m}, Backends: []routing.Backend{to}}
}

func exactly(v string) routing.ValueMatch {
	return routing.ValueMatch{Type: routing.MatchExact, Value: v}
}

func pattern(v string) routing.ValueMatch {
	return routing.ValueMatch{Type: routing.MatchRegexp, Value: v}
}

var anyPath = routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}

// TestGRPCPrecedence: of the rules that take a call, the one with the most characters of
// its service decides, then of its method, then the most headers, then age and order.
func TestGRPCPrecedence(t *testing.T) {
	to := func(name string) routing.Backend {
		return routing.Backend{Ref: routing.Service(key("default/" + name)), Weight: 1}
	}
	names := []string{"all", "header", "service", "service-headers", "exact", "exact-header", "method", "pattern", "longer-pattern", "older", "web", "web-exact", "hosted"}
	var entries []Entry
	for _, name := range names {
		entries = append(entries, Entry{Key: key("default/" + name)})
	}
	svc, m := exactly("p.S"), exactly("M")
	calls := &routing.HTTPRoute{GRPC: true, Meta: meta("default/calls", 5), Hostnames: []string{"*.test"}, Rules: []routing.HTTPRule{
		grpcRule(to("all"), anyPath, routing.CallMatch{}),
		grpcRule(to("header"), anyPath, routing.CallMatch{}, "X-A"),
		grpcRule(to("service"), routing.ValueMatch{Type: routing.MatchPrefix, Value: "/p.S"}, routing.CallMatch{Service: svc}),
		grpcRule(to("service-headers"), routing.ValueMatch{Type: routing.MatchPrefix, Value: "/p.S"}, routing.CallMatch{Service: svc}, "X-A", "X-B"),
		grpcRule(to("exact"), exactly("/p.S/M"), routing.CallMatch{Service: svc, Method: m}),
		grpcRule(to("exact-header"), exactly("/p.S/M"), routing.CallMatch{Service: svc, Method: m}, "X-A"),
		grpcRule(to("method"), pattern("/[^/]+/Only"), routing.CallMatch{Method: exactly("Only")}),
		grpcRule(to("pattern"), pattern("/(?:q[.].*)/[^/]+"), routing.CallMatch{Service: pattern("q[.].*")}),
		grpcRule(to("longer-pattern"), pattern("/(?:q[.]Long.*)/[^/]+"), routing.CallMatch{Service: pattern("q[.]Long.*")}),
	}}
	older := &routing.HTTPRoute{GRPC: true, Meta: meta("default/older", 2), Hostnames: []string{"*.test"}, Rules: []routing.HTTPRule{
		grpcRule(to("older"), exactly("/p.Old/M"), routing.CallMatch{Service: exactly("p.Old"), Method: m})}}
	younger := &routing.HTTPRoute{GRPC: true, Meta: meta("default/younger", 1), Hostnames: []string{"*.test"}, Rules: []routing.HTTPRule{
		grpcRule(to("all"), exactly("/p.Old/M"), routing.CallMatch{Service: exactly("p.Old"), Method: m})}}
	hosted := &routing.HTTPRoute{GRPC: true, Meta: meta("default/hosted", 9), Hostnames: []string{"a.test"}, Rules: []routing.HTTPRule{
		grpcRule(to("hosted"), exactly("/p.H/M"), routing.CallMatch{Service: exactly("p.H"), Method: m})}}
	web := &routing.HTTPRoute{Meta: meta("default/web", 0), Hostnames: []string{"*.test", "web.example"}, Rules: []routing.HTTPRule{
		{Matches: []routing.HTTPMatch{{Path: exactly("/p.S/M")}}, Backends: []routing.Backend{to("web-exact")}},
		{Matches: []routing.HTTPMatch{{Path: anyPath}}, Backends: []routing.Backend{to("web")}}}}
	tab := NewTable(entries, "", calls, older, younger, hosted, web)
	for _, c := range []struct {
		host, path string
		web        bool
		headers    map[string]string
		want       string
	}{
		{"x.test", "/p.Other/M", false, nil, "all"},
		{"x.test", "/p.Other/M", false, map[string]string{"X-A": "1"}, "header"},
		{"x.test", "/p.S/N", false, map[string]string{"X-A": "1"}, "service"},
		{"x.test", "/p.S/N", false, map[string]string{"X-A": "1", "X-B": "1"}, "service-headers"},
		{"x.test", "/p.S/M", false, map[string]string{"X-B": "1"}, "exact"},
		{"x.test", "/p.S/M", false, map[string]string{"X-A": "1", "X-B": "1"}, "exact-header"},
		{"x.test", "/p.S/Only", false, nil, "service"},
		{"x.test", "/p.Other/Only", false, map[string]string{"X-A": "1"}, "method"},
		{"x.test", "/p.Sx/M", false, nil, "all"},
		{"x.test", "/q.x/M", false, nil, "pattern"},
		{"x.test", "/q.LongName/M", false, nil, "longer-pattern"},
		{"x.test", "/p.Old/M", false, nil, "older"},
		{"a.test", "/p.H/M", false, nil, "hosted"},
		{"b.test", "/p.H/M", false, nil, "all"},
		// What is no call is never a GRPCRoute's, a call may be an HTTPRoute's.
		{"x.test", "/p.S/M", true, nil, "web-exact"},
		{"a.test", "/p.H/M", true, nil, "web"},
		{"web.example", "/p.S/M", false, nil, "web-exact"},
		{"web.example", "/p.S/N", false, nil, "web"},
	} {
		q := Query{Host: c.host, Path: c.path, Method: "POST", GRPC: !c.web, Header: func(name string) string { return c.headers[name] }}
		got, err := tab.Resolve(q, func(int) int { return 0 })
		if err != nil || got.Pool != routing.Service(key("default/"+c.want)) {
			t.Errorf("%s%s %v, over HTTP %v: %v %v, want %s", c.host, c.path, c.headers, c.web, got.Pool, err, c.want)
		}
	}
}

// TestTenantsComeLast: what a namespace's route asks for of every host never goes before a
// route that has every host, neither by its path nor as a GRPCRoute.
func TestTenantsComeLast(t *testing.T) {
	to := func(name string) []routing.Backend {
		return []routing.Backend{{Ref: routing.Service(key("default/" + name)), Weight: 1}}
	}
	operator := &routing.HTTPRoute{Meta: meta("default/operator", 9), Rules: []routing.HTTPRule{
		{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/p.S"}}}, Backends: to("operator")}}}
	paths := &routing.HTTPRoute{Meta: meta("default/paths", 1), AfterNames: true, Rules: []routing.HTTPRule{
		{Matches: []routing.HTTPMatch{{Path: exactly("/p.S/M")}, {Path: exactly("/p.T/M")}}, Backends: to("tenant")}}}
	calls := &routing.HTTPRoute{GRPC: true, Meta: meta("default/calls", 1), AfterNames: true, Rules: []routing.HTTPRule{
		grpcRule(to("tenant")[0], exactly("/p.S/M"), routing.CallMatch{Service: exactly("p.S"), Method: exactly("M")}),
		grpcRule(to("tenant")[0], exactly("/p.T/M"), routing.CallMatch{Service: exactly("p.T"), Method: exactly("M")})}}
	hosted := *paths
	hosted.Hostnames = []string{"tenant.test"}
	entries := []Entry{{Key: key("default/operator")}, {Key: key("default/tenant")}}
	for name, c := range map[string]struct {
		tenant     *routing.HTTPRoute
		host, path string
		want       string
	}{
		"a path":              {paths, "any.test", "/p.S/M", "operator"},
		"a path of its own":   {paths, "any.test", "/p.T/M", "tenant"},
		"a call":              {calls, "any.test", "/p.S/M", "operator"},
		"a call of its own":   {calls, "any.test", "/p.T/M", "tenant"},
		"a host, whose it is": {&hosted, "tenant.test", "/p.S/M", "tenant"},
	} {
		got, err := NewTable(entries, "", operator, c.tenant).Resolve(Query{Host: c.host, Path: c.path, Method: "POST", GRPC: true}, func(int) int { return 0 })
		if err != nil || got.Pool != routing.Service(key("default/"+c.want)) {
			t.Errorf("%s: %v %v, want %s", name, got.Pool, err, c.want)
		}
	}
}

// TestGRPCAlone: a GRPCRoute takes nothing of HTTP, not even "/", and one that takes every
// call of every host leaves those for models to their names.
func TestGRPCAlone(t *testing.T) {
	iris, echo := routing.Service(key("default/iris")), routing.ServicePool(key("default/echo"), 80)
	calls := &routing.HTTPRoute{GRPC: true, Meta: meta("default/calls", 0), Rules: []routing.HTTPRule{
		grpcRule(routing.Backend{Ref: echo, Weight: 1, Plain: true}, anyPath, routing.CallMatch{}),
		grpcRule(routing.Backend{Ref: iris, Weight: 1, Fault: "no grant"}, exactly("/p.Lost/M"), routing.CallMatch{Service: exactly("p.Lost"), Method: exactly("M")}),
	}}
	hosted := &routing.HTTPRoute{GRPC: true, Meta: meta("default/hosted", 0), Hostnames: []string{"calls.test"}, Rules: calls.Rules}
	tab := NewTable([]Entry{{Key: iris.Key}}, "", calls, hosted, &routing.Pool{Meta: service.Meta{Key: echo.Key}})
	call := Query{Host: "any.test", Path: "/p.S/M", Method: "POST", GRPC: true}
	request := call
	request.GRPC = false
	if got, err := tab.Resolve(call, nil); err != nil || got.Pool != echo {
		t.Errorf("%v %v", got.Pool, err)
	}
	if !tab.Passes(call, false) || tab.Passes(call, true) || tab.Passes(request, false) {
		t.Error("which calls pass")
	}
	if tab.NamesPath(call) || tab.HasRoot("any.test") || tab.Broken(request, false) != nil {
		t.Error("a request of HTTP is the route's")
	}
	named := call
	named.Model = "iris"
	if got, err := tab.Resolve(named, nil); err != nil || got.Pool != iris {
		t.Errorf("%v %v", got.Pool, err)
	}
	named.Host = "calls.test"
	if got, err := tab.Resolve(named, nil); err != nil || got.Pool != echo || got.Why() != "GRPCRoute default/hosted, rule 1 → "+echo.String() {
		t.Errorf("%v %v %s", got.Pool, err, got.Why())
	}
	lost := Query{Host: "calls.test", Path: "/p.Lost/M", Method: "POST", GRPC: true}
	_, err := tab.Resolve(lost, nil)
	var backend *BackendError
	if !errors.As(err, &backend) || backend.Object != "GRPCRoute default/hosted" || tab.Broken(lost, false) == nil {
		t.Errorf("%v", err)
	}
}
