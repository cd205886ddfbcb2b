package route

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// TestBroken: a rule of which no backend is there is broken; one that can forward a
// part of its requests is not.
func TestBroken(t *testing.T) {
	rule := func(path string, backends ...routing.Backend) routing.HTTPRule {
		return routing.HTTPRule{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: path}}}, Backends: backends}
	}
	iris := routing.Backend{Ref: routing.Service(key("default/iris")), Weight: 1}
	idle, gone, refused := iris, iris, iris
	idle.Weight = 0
	gone.Ref = routing.Service(key("default/gone"))
	refused.Fault = "no ReferenceGrant"
	tab := NewTable([]Entry{{Key: key("default/iris")}}, "", &routing.HTTPRoute{Meta: meta("default/r", 0), Hostnames: []string{"a.test", "iris.default.localhost"},
		Rules: []routing.HTTPRule{rule("/", gone), rule("/refused", refused), rule("/half", iris, gone), rule("/idle", idle), rule("/lost", idle, gone), rule("/none")}})
	for _, c := range []struct{ host, path, want string }{
		{"a.test", "/", "gone"}, {"a.test:80", "/other", "gone"}, {"a.test", "/refused", "no ReferenceGrant"}, {"a.test", "/half", ""},
		{"a.test", "/idle", "weight above 0"}, {"a.test", "/lost", "gone"}, {"a.test", "/none", "weight above 0"},
		{"b.test", "/", ""}, {"iris.default.localhost", "/", ""},
	} {
		err := tab.Broken(Query{Host: c.host, Path: c.path, Method: "GET"}, false)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s%s: %v, want %q", c.host, c.path, err, c.want)
		}
	}
}

// TestNamesPath: a route that takes every path names none, nor does one that
// another with a more specific path comes before, nor any for a service's host.
func TestNamesPath(t *testing.T) {
	match := func(kind routing.MatchType, value, method string) []routing.HTTPMatch {
		return []routing.HTTPMatch{{Path: routing.ValueMatch{Type: kind, Value: value}, Method: method}}
	}
	to := []routing.Backend{{Ref: routing.Service(key("default/iris")), Weight: 1}}
	rewritten := func(prefix, value string) routing.Handling {
		return routing.Handling{Rewrite: &routing.URLRewrite{Path: &routing.PathRewrite{Prefix: prefix, Value: value}}}
	}
	stripped, strips := to[0], rewritten("/part", "")
	stripped.Handling = &strips
	tab := NewTable([]Entry{{Key: key("default/iris")}}, "", &routing.HTTPRoute{Meta: meta("default/r", 0), Hostnames: []string{"a.test", "iris.default.localhost"},
		Rules: []routing.HTTPRule{
			{Matches: match(routing.MatchPrefix, "/", "POST"), Backends: to},
			{Matches: match(routing.MatchPrefix, "/own/", ""), Backends: to},
			{Matches: match(routing.MatchExact, "/", "DELETE"), Backends: to},
			{Matches: match(routing.MatchRegexp, "/x.*", ""), Backends: to},
			{Matches: match(routing.MatchPrefix, "/v1", ""), Backends: to},
			{Matches: match(routing.MatchPrefix, "/v1/own", ""), Backends: to},
			{Matches: match(routing.MatchExact, "/v2/own", ""), Backends: to},
			{Matches: match(routing.MatchRegexp, "/v2/.*|/.*s", ""), Backends: to},
			{Matches: match(routing.MatchPrefix, "/team", ""), Backends: to, Handling: rewritten("/team", "/")},
			{Matches: match(routing.MatchPrefix, "/one", ""), Backends: to, Handling: rewritten("/one/", "/v1")},
			{Matches: match(routing.MatchPrefix, "/tools", ""), Backends: to, Handling: rewritten("/tools", "/v1/tools")},
			{Matches: match(routing.MatchPrefix, "/part", ""), Backends: []routing.Backend{to[0], stripped}},
		}})
	for _, c := range []struct {
		host, path, method string
		want               bool
	}{
		{"a.test", "/own", "GET", true},
		{"A.test:80", "/own/more", "GET", true},
		{"a.test", "/owned", "POST", false},
		{"a.test", "/", "DELETE", true},
		{"a.test", "/", "POST", false},
		{"a.test", "/xyz", "GET", true},
		{"a.test", "/v1/load_lora_adapter", "POST", false},
		{"a.test", "/v1/own/x", "POST", true},
		{"a.test", "/v2/own", "POST", true},
		{"a.test", "/v2/trace/setting", "POST", false},
		{"a.test", "/metrics", "GET", false},
		{"a.test", "/team/metrics", "GET", false}, // it would become /metrics
		{"a.test", "/one/load_lora_adapter", "POST", false},
		{"a.test", "/tools/x", "POST", true},
		{"a.test", "/part/metrics", "GET", false},
		{"b.test", "/own", "GET", false},
		{"iris.default.localhost", "/own", "GET", false},
	} {
		if got := tab.NamesPath(Query{Host: c.host, Path: c.path, Method: c.method}); got != c.want {
			t.Errorf("%s %s%s: %v", c.method, c.host, c.path, got)
		}
	}
}
