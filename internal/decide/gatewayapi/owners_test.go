package gatewayapi

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// gateAt is a Gateway of a namespace, of an age in minutes, whose one listener
// has a host, "" for none, and takes routes of every namespace.
func gateAt(ns, name, host string, age int) string {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(-time.Duration(age) * time.Minute).Format(time.RFC3339)
	return fmt.Sprintf("---\nkind: Gateway\nmetadata: {name: %s, namespace: %s, creationTimestamp: %q}\nspec: {gatewayClassName: roundhouse, listeners: [{name: web, port: 80, protocol: HTTP, hostname: %q, allowedRoutes: {namespaces: {from: All}}}]}\n",
		name, ns, at, host)
}

// routeAt is an HTTPRoute of a namespace to a Gateway, "namespace/name", under hosts.
func routeAt(ns, name, gate, hosts string, age int) string {
	k := service.ParseKey(gate)
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).Add(-time.Duration(age) * time.Minute).Format(time.RFC3339)
	return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: %s, namespace: %s, creationTimestamp: %q}\nspec: {parentRefs: [{namespace: %s, name: %s}], hostnames: [%s], rules: [{backendRefs: [{name: %[2]s}]}]}\n",
		name, ns, at, k.Namespace, k.Name, hosts)
}

// owned is a world whose gateway is in namespace system, and services' hosts
// end in example.com.
func owned(t *testing.T, text string) *World {
	w := world(t, ours+text)
	w.Domain, w.System, w.Own = "example.com", "system", []string{"roundhouse-gateway.system.svc", "lb.cloud.net"}
	return w
}

// servedUnder are the hosts of a route, "*" for any and "*!" for any after
// names, "-" for none; and what its status says.
func servedUnder(v *Verdict, k string) (hosts, status string) {
	r := v.Routes[routing.ID{Kind: routing.KindHTTPRoute, Key: service.ParseKey(k)}]
	for _, p := range r.Parents {
		status += p.Conditions[0].Status + " " + p.Conditions[0].Reason + " " + p.Conditions[0].Message
	}
	switch {
	case r.Served == nil:
		return "-", status
	case len(r.Served.Hostnames) > 0:
		return strings.Join(r.Served.Hostnames, " "), status
	case r.Served.AfterNames:
		return "*!", status
	}
	return "*", status
}

// TestOwners: whoever may write a Gateway in one namespace takes no host of
// another's.
func TestOwners(t *testing.T) {
	const a, b, sys = "a/gw", "b/gw", "system/gw"
	for name, c := range map[string]struct {
		text string
		want map[string]string // hosts by route
		says string            // in the status of a/r
	}{
		"no host":                    {gateAt("a", "gw", "", 1) + routeAt("a", "r", a, "", 1), map[string]string{"a/r": "*!"}, ""},
		"no host, by the operator":   {gateAt("system", "gw", "", 1) + routeAt("a", "r", sys, "", 1), map[string]string{"a/r": "*"}, ""},
		"no host, by both":           {gateAt("system", "gw", "", 1) + strings.Replace(routeAt("a", "r", sys, "", 1), "name: gw}]", "name: gw}, {namespace: a, name: gw}]", 1) + gateAt("a", "gw", "", 1), map[string]string{"a/r": "*"}, ""},
		"its services' hosts":        {gateAt("a", "gw", "", 1) + routeAt("a", "r", a, "iris.a.example.com, '*.a.example.com'", 1), map[string]string{"a/r": "*.a.example.com iris.a.example.com"}, ""},
		"others' services' hosts":    {gateAt("a", "gw", "", 1) + routeAt("a", "r", a, "iris.b.example.com, '*.b.example.com'", 1), map[string]string{"a/r": "-"}, "is of the services of namespace b"},
		"others', as a listener":     {gateAt("a", "gw", "iris.b.example.com", 1) + routeAt("a", "r", a, "", 1), map[string]string{"a/r": "-"}, "is of the services of namespace b"},
		"others', by their route":    {gateAt("a", "gw", "*.b.example.com", 1) + routeAt("b", "r", a, "", 1), map[string]string{"b/r": "*.b.example.com"}, ""},
		"all services' hosts":        {gateAt("a", "gw", "*.example.com", 1) + routeAt("a", "r", a, "", 1), map[string]string{"a/r": "-"}, "of every namespace's services"},
		"the domain":                 {gateAt("a", "gw", "Example.com", 1) + routeAt("a", "r", a, "", 1), map[string]string{"a/r": "-"}, "the gateway's own"},
		"more than the domain":       {gateAt("a", "gw", "*.com", 1) + routeAt("a", "r", a, "", 1), map[string]string{"a/r": "-"}, "of every namespace's services"},
		"one host of a wider":        {gateAt("a", "gw", "*.com", 1) + routeAt("a", "r", a, "chat.test.com, x.b.example.com", 1), map[string]string{"a/r": "chat.test.com"}, "not under all its hosts: x.b.example.com is of"},
		"the gateway's Service":      {gateAt("a", "gw", "roundhouse-gateway.system.svc", 1) + routeAt("a", "r", a, "", 1), map[string]string{"a/r": "-"}, "a name of the gateway itself"},
		"its load balancer":          {gateAt("a", "gw", "*.cloud.net", 1) + routeAt("a", "r", a, "", 1), map[string]string{"a/r": "-"}, "of the gateway itself"},
		"the operator's, though old": {gateAt("a", "gw", "api.test", 9) + routeAt("a", "r", a, "", 9) + gateAt("system", "gw", "api.test", 1), map[string]string{"a/r": "-"}, "api.test is Gateway system/gw's"},
		"over the operator's":        {gateAt("a", "gw", "*.test", 9) + routeAt("a", "r", a, "", 9) + gateAt("system", "gw", "api.test", 1), map[string]string{"a/r": "-"}, "has hosts of Gateway system/gw"},
		"under the operator's":       {gateAt("a", "gw", "x.api.test", 9) + routeAt("a", "r", a, "", 9) + gateAt("system", "gw", "*.test", 1), map[string]string{"a/r": "-"}, "is Gateway system/gw's"},
		"the operator leaves a host": {gateAt("system", "gw", "*.test", 1) + routeAt("a", "r", sys, "chat.test", 1), map[string]string{"a/r": "chat.test"}, ""},
		"one host, the older has it": {gateAt("a", "gw", "chat.test", 1) + routeAt("a", "r", a, "", 1) + gateAt("b", "gw", "chat.test", 2) + routeAt("b", "r", b, "", 2), map[string]string{"a/r": "-", "b/r": "chat.test"}, "is Gateway b/gw's"},
		"a host of an older":         {gateAt("a", "gw", "x.chat.test", 1) + routeAt("a", "r", a, "", 1) + gateAt("b", "gw", "*.test", 2) + routeAt("b", "r", b, "", 2), map[string]string{"a/r": "-", "b/r": "*.test"}, "is Gateway b/gw's"},
		"a host that was there":      {gateAt("a", "gw", "x.chat.test", 2) + routeAt("a", "r", a, "", 2) + gateAt("b", "gw", "*.test", 1) + routeAt("b", "r", b, "", 1), map[string]string{"a/r": "x.chat.test", "b/r": "*.test"}, ""},
		"a route's host":             {gateAt("a", "gw", "", 9) + routeAt("a", "r", a, "chat.test", 2) + gateAt("b", "gw", "chat.test", 1) + routeAt("b", "r", b, "", 1), map[string]string{"a/r": "chat.test", "b/r": "-"}, ""},
		"two Gateways of one":        {gateAt("a", "gw", "chat.test", 2) + gateAt("a", "other", "*.test", 3) + routeAt("a", "r", a, "", 1) + routeAt("a", "s", "a/other", "chat.test", 1), map[string]string{"a/r": "chat.test", "a/s": "chat.test"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(owned(t, c.text))
			for k, want := range c.want {
				hosts, status := servedUnder(v, k)
				if hosts != want {
					t.Errorf("%s is served under %s, want %s: %s", k, hosts, want, status)
				}
				if k == "a/r" && (!strings.Contains(status, c.says) || c.says != "" && !strings.Contains(status, AnnotationAnyHost)) {
					t.Errorf("its status says %q, want %q", status, c.says)
				}
			}
		})
	}
}

// TestAnyHost: the class says which namespaces have every host.
func TestAnyHost(t *testing.T) {
	for names, want := range map[string]string{"": "*!", "b": "*!", "b, a": "*", "*": "*"} {
		w := owned(t, gateAt("a", "gw", "", 1)+routeAt("a", "r", "a/gw", "", 1))
		w.Classes[0].Metadata.Annotations = map[string]string{AnnotationAnyHost: names}
		if hosts, status := servedUnder(Judge(w), "a/r"); hosts != want {
			t.Errorf("%q: served under %s, want %s: %s", names, hosts, want, status)
		}
	}
}

// TestNoHostIsTaken: in worlds of every shape, requests with the host of
// another's service, or with a model that another has, reach no backend that
// is not of that namespace, unless the operator has it so.
func TestNoHostIsTaken(t *testing.T) {
	hosts := []string{"", "*.com", "*.example.com", "example.com", "iris.a.example.com", "iris.b.example.com", "*.b.example.com", "chat.test", "*.test"}
	taken, kept := 0, 0
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 7))
		text, spaces := "", []string{"a", "b", "c"}
		for _, ns := range spaces {
			for i := range r.IntN(3) {
				text += gateAt(ns, fmt.Sprint("gw", i), hosts[r.IntN(len(hosts))], r.IntN(9))
			}
			var names []string
			for range r.IntN(3) {
				if h := hosts[r.IntN(len(hosts))]; h != "" && !slices.Contains(names, "'"+h+"'") {
					names = append(names, "'"+h+"'")
				}
			}
			text += routeAt(ns, "r", fmt.Sprintf("%s/gw%d", spaces[r.IntN(3)], r.IntN(2)), strings.Join(names, ", "), r.IntN(9))
		}
		v := Judge(owned(t, text))
		var objects []routing.Object
		for _, o := range v.Routes {
			if o.Served != nil {
				objects = append(objects, o.Served)
			}
		}
		table := route.NewTable([]route.Entry{{Key: service.Key{Namespace: "a", Name: "iris"}}, {Key: service.Key{Namespace: "b", Name: "b"}}, {Key: service.Key{Namespace: "c", Name: "c"}}}, "example.com", objects...)
		for _, q := range []route.Query{{Host: "iris.a.example.com", Path: "/"}, {Host: "gone.a.example.com", Path: "/"}, {Host: "10.0.0.1", Path: "/", Model: "iris"}, {Host: "10.0.0.1", Path: "/", Model: "a/iris"}} {
			got, err := table.Resolve(q, func(int) int { return 0 })
			if err == nil && got.Pool.Namespace != "a" {
				t.Fatalf("seed %d: %s %s goes to %s:\n%s", seed, q.Host, q.Model, got.Pool, text)
			}
		}
		if got, err := table.Resolve(route.Query{Host: "chat.test", Path: "/"}, func(int) int { return 0 }); err == nil && got.Pool.Name != "" {
			taken++
		} else {
			kept++
		}
	}
	if taken < 50 || kept < 50 {
		t.Errorf("%d worlds serve a host that is nobody's, %d do not: they are too tame", taken, kept)
	}
}

// TestHostWithoutPath: a request to another's host stays there, although no
// route of that host takes its path.
func TestHostWithoutPath(t *testing.T) {
	only := func(text, path string) string {
		return strings.Replace(text, "rules: [{", "rules: [{matches: [{path: {value: "+path+"}}], ", 1)
	}
	text := gateAt("a", "gw", "", 9) + only(routeAt("a", "r", "a/gw", "chat.test, '*.wild.test'", 9), "/v1/chat") +
		gateAt("b", "gw", "", 1) + only(routeAt("b", "r", "b/gw", "", 1), "/v1")
	v := Judge(owned(t, text))
	var objects []routing.Object
	for _, o := range v.Routes {
		objects = append(objects, o.Served)
	}
	table := route.NewTable([]route.Entry{{Key: service.Key{Namespace: "a", Name: "a"}}, {Key: service.Key{Namespace: "b", Name: "b"}}}, "example.com", objects...)
	for at, want := range map[string]string{"chat.test /v1/chat": "a/a", "chat.test /v1/embeddings": "", "CHAT.test.:80 /v1/embeddings": "", "x.y.wild.test /v1/embeddings": "", "wild.test /v1/x": "b/b", "other.test /v1/chat": "b/b"} {
		host, path, _ := strings.Cut(at, " ")
		got, err := table.Resolve(route.Query{Host: host, Path: path, Model: "unknown"}, func(int) int { return 0 })
		if name := got.Pool.Key.String(); err == nil && name != want || err != nil && want != "" {
			t.Errorf("%s goes to %s (%v), want %q", at, name, err, want)
		}
	}
}

// TestSaysTheSame: a wildcard over hosts of several of the operator's Gateways is
// refused by the same words each time, so that no status is written again.
func TestSaysTheSame(t *testing.T) {
	text := gateAt("a", "gw", "*.test", 9) + routeAt("a", "r", "a/gw", "", 9)
	for i := range 20 {
		text += gateAt("system", fmt.Sprint("gw", i), fmt.Sprintf("x.y%d.test", i), i)
	}
	w := owned(t, text)
	for range 20 {
		if _, status := servedUnder(Judge(w), "a/r"); !strings.Contains(status, "has hosts of Gateway system/gw19") {
			t.Fatal(status)
		}
	}
}

// BenchmarkManyRoutes is 5,000 routes of tenants with a wildcard each, and as
// many hosts of the operator's.
func BenchmarkManyRoutes(b *testing.B) {
	class := Class{}
	class.Metadata.Name, class.Spec.ControllerName = "roundhouse", ControllerName
	w := &World{Classes: []Class{class}, System: "system", Domain: "example.com"}
	gate := func(ns string) {
		g := Gateway{}
		g.Metadata.Name, g.Metadata.Namespace, g.Spec.Class = "gw", ns, "roundhouse"
		g.Spec.Listeners = []Listener{{Name: "web", Port: 80, Protocol: "HTTP"}}
		w.Gateways = append(w.Gateways, g)
	}
	gate("system")
	for i := range 10_000 {
		ns, host := "system", fmt.Sprintf("x.y%d.test", i)
		if i%2 == 0 {
			if ns, host = fmt.Sprintf("ns-%d", i%500), fmt.Sprintf("*.z%d.test", i); i < 500 {
				gate(ns)
			}
		}
		k := service.Key{Namespace: ns, Name: fmt.Sprint("r", i)}
		parents := []routing.Parent{{Name: "gw", Namespace: ns}}
		w.Routes = append(w.Routes, Route{ID: routing.ID{Kind: routing.KindHTTPRoute, Key: k}, Parents: parents, Object: &routing.HTTPRoute{Meta: service.Meta{Key: k}, Hostnames: []string{host}, Parents: parents}})
	}
	for b.Loop() {
		if v := Judge(w); len(v.Routes) != 10_000 {
			b.Fatal(len(v.Routes))
		}
	}
}
