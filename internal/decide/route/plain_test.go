package route

import (
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestPasses: a rule that leads to Kubernetes Services alone has every path, and the
// gateway's own only where its route asks for a host, or may have all and asks for a path.
func TestPasses(t *testing.T) {
	rule := func(path string, backends ...routing.Backend) routing.HTTPRule {
		return routing.HTTPRule{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: path}}}, Backends: backends}
	}
	echo := routing.Backend{Ref: routing.ServicePool(key("default/echo"), 80), Weight: 1, Plain: true}
	iris := routing.Backend{Ref: routing.Service(key("default/iris")), Weight: 1}
	lost, idle := echo, iris
	lost.Fault = "there is no Service echo"
	idle.Weight = 0
	pool := &routing.Pool{Meta: service.Meta{Key: echo.Key}}
	hosted := &routing.HTTPRoute{Meta: meta("default/hosted", 0), Hostnames: []string{"a.test", "iris.default.localhost"},
		Rules: []routing.HTTPRule{rule("/", echo), rule("/mixed", echo, iris), rule("/lost", lost), rule("/idle", echo, idle), rule("/iris", iris), rule("/none")}}
	tenant := &routing.HTTPRoute{Meta: meta("default/tenant", 1), AfterNames: true, Rules: []routing.HTTPRule{rule("/", echo), rule("/v1", echo)}}
	secure := &routing.HTTPRoute{Meta: meta("default/secure", 1), Hostnames: []string{"tls.test"}, Scheme: "https", Rules: []routing.HTTPRule{rule("/", echo)}}
	operator := *tenant
	operator.AfterNames = false
	of := func(routes ...routing.Object) *Table {
		return NewTable([]Entry{{Key: key("default/iris")}}, "", append(routes, pool)...)
	}
	for _, c := range []struct {
		tab             *Table
		host, path      string
		secure          bool
		passes, ifKnown bool
	}{
		{of(hosted, tenant), "a.test", "/x", false, true, true},
		{of(hosted, tenant), "a.test", "/mixed", false, false, false},
		{of(hosted, tenant), "a.test", "/lost", false, true, true},
		{of(hosted, tenant), "a.test", "/idle", false, true, true},
		{of(hosted, tenant), "a.test", "/iris", false, false, false},
		{of(hosted, tenant), "a.test", "/none", false, false, false},
		{of(hosted, tenant), "iris.default.localhost", "/x", false, false, false},
		{of(hosted, tenant), "b.test", "/x", false, true, false},
		{of(hosted, tenant), "b.test", "/v1/x", false, true, false},
		{of(&operator), "b.test", "/x", false, true, false},
		{of(&operator), "b.test", "/v1/x", false, true, true},
		{of(secure), "tls.test", "/x", true, true, true},
		{of(secure), "tls.test", "/x", false, false, false},
		{of(), "a.test", "/x", false, false, false},
	} {
		q := Query{Host: c.host, Path: c.path, Method: "GET", Secure: c.secure}
		if got := c.tab.Passes(q, false); got != c.passes {
			t.Errorf("%s%s: %v", c.host, c.path, got)
		}
		if got := c.tab.Passes(q, true); got != c.ifKnown {
			t.Errorf("%s%s, of the gateway's own: %v", c.host, c.path, got)
		}
	}
}

// TestHasRoot: where "/" is the routes' alone.
func TestHasRoot(t *testing.T) {
	rules := []routing.HTTPRule{{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/m"}}}, Backends: []routing.Backend{{Ref: routing.Service(key("default/iris")), Weight: 1}}}}
	hosted := &routing.HTTPRoute{Meta: meta("default/hosted", 0), Hostnames: []string{"*.a.test"}, Rules: rules}
	tenant := &routing.HTTPRoute{Meta: meta("default/tenant", 1), AfterNames: true, Rules: rules}
	operator := &routing.HTTPRoute{Meta: meta("default/operator", 1), Rules: rules}
	for _, c := range []struct {
		routes []routing.Object
		has    string // the hosts at which it is
	}{
		{nil, ""},
		{[]routing.Object{tenant}, ""},
		{[]routing.Object{tenant, hosted}, "x.a.test other.test"},
		{[]routing.Object{operator}, "x.a.test other.test 10.0.0.1:80 [::1]:8080"},
	} {
		tab := NewTable([]Entry{{Key: key("default/iris")}}, "", c.routes...)
		for _, host := range []string{"x.a.test", "other.test", "10.0.0.1:80", "[::1]:8080"} {
			if got := tab.HasRoot(host); got != slices.Contains(strings.Fields(c.has), host) {
				t.Errorf("%d routes, %s: %v", len(c.routes), host, got)
			}
		}
	}
}
