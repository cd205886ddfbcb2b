package gatewayapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// made is a route of namespace a, made at an hour, for hosts ("" for any).
func made(kind, name string, hour int, parents, hosts string) string {
	text := fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: %s\nmetadata: {name: %s, namespace: a, creationTimestamp: \"%s\"}\nspec:\n  parentRefs: [%s]\n",
		kind, name, time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC).Format(time.RFC3339), parents)
	if hosts != "" {
		text += "  hostnames: [" + hosts + "]\n"
	}
	return text + "  rules: [{backendRefs: [{name: chat, port: 80}]}]\n"
}

// TestRoutesOfBothKinds: on one listener an HTTPRoute and a GRPCRoute share no host: the
// older has it, then the first by name.
func TestRoutesOfBothKinds(t *testing.T) {
	const open, tls = "{name: web, port: 80, protocol: HTTP, " + all + "}", "{name: second, port: 80, protocol: HTTP, hostname: second.test, " + all + "}"
	const g, web, second = "{name: g, namespace: infra}", "{name: g, namespace: infra, sectionName: web}", "{name: g, namespace: infra, sectionName: second}"
	for name, c := range map[string]struct {
		text string
		want string // the routes that are refused, or accepted with a word
		on   string // attached routes of each listener
	}{
		"apart":                 {made("HTTPRoute", "h", 1, g, "a.test") + made("GRPCRoute", "c", 2, g, "b.test"), "", "2 0"},
		"one host":              {made("HTTPRoute", "h", 1, g, "a.test") + made("GRPCRoute", "c", 2, g, "a.test"), "GRPCRoute/c", "1 0"},
		"one host, older calls": {made("HTTPRoute", "h", 2, g, "a.test") + made("GRPCRoute", "c", 1, g, "a.test"), "HTTPRoute/h", "1 0"},
		"of one age":            {made("HTTPRoute", "h", 1, g, "a.test") + made("GRPCRoute", "c", 1, g, "a.test"), "HTTPRoute/h", "1 0"},
		"of one age and name":   {made("HTTPRoute", "r", 1, g, "a.test") + made("GRPCRoute", "r", 1, g, "a.test"), "GRPCRoute/r", "1 0"},
		"one of two hosts":      {made("HTTPRoute", "h", 1, g, "a.test") + made("GRPCRoute", "c", 2, g, "a.test, b.test"), "GRPCRoute/c", "1 0"},
		"any host":              {made("HTTPRoute", "h", 1, web, "") + made("GRPCRoute", "c", 2, web, "b.test"), "GRPCRoute/c", "1 0"},
		"any host later":        {made("HTTPRoute", "h", 1, web, "a.test") + made("GRPCRoute", "c", 2, web, ""), "GRPCRoute/c", "1 0"},
		"a wildcard over it":    {made("HTTPRoute", "h", 1, g, "'*.x.test'") + made("GRPCRoute", "c", 2, g, "b.a.x.test"), "GRPCRoute/c", "1 0"},
		"under its wildcard":    {made("HTTPRoute", "h", 1, g, "b.a.x.test") + made("GRPCRoute", "c", 2, g, "'*.x.test'"), "GRPCRoute/c", "1 0"},
		"wildcards":             {made("HTTPRoute", "h", 1, g, "'*.a.x.test'") + made("GRPCRoute", "c", 2, g, "'*.x.test'"), "GRPCRoute/c", "1 0"},
		"wildcards apart":       {made("HTTPRoute", "h", 1, g, "'*.a.test'") + made("GRPCRoute", "c", 2, g, "'*.b.test', a.test"), "", "2 0"},
		"who lost takes none":   {made("HTTPRoute", "h", 1, g, "a.test") + made("GRPCRoute", "c", 2, g, "a.test, b.test") + made("HTTPRoute", "late", 3, g, "b.test"), "GRPCRoute/c", "2 0"},
		"of one kind":           {made("GRPCRoute", "h", 1, g, "a.test") + made("GRPCRoute", "c", 2, g, "a.test"), "", "2 0"},
		"on two listeners":      {made("HTTPRoute", "h", 1, web, "") + made("GRPCRoute", "c", 2, second, ""), "", "1 1"},
		"on one of two":         {made("HTTPRoute", "h", 1, web, "second.test") + made("GRPCRoute", "c", 2, g, "second.test"), "GRPCRoute/c by some", "1 1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t, ours+gw("g", "roundhouse", open+", "+tls)+c.text)
			for range 2 { // in whichever order they are read
				v := Judge(w)
				var refused []string
				for id, r := range v.Routes {
					for _, p := range r.Parents {
						at := p.Conditions[0]
						text := string(id.Kind) + "/" + id.Name
						switch {
						case at.Status == "True" && strings.Contains(at.Message, "not by all listeners"):
							refused = append(refused, text+" by some")
						case at.Status == "False":
							if at.Reason != "Conflicted" || r.Served != nil || !strings.Contains(at.Message, "Route a/") {
								t.Errorf("%s: %+v, served %v", text, at, r.Served != nil)
							}
							refused = append(refused, text)
						case r.Served == nil:
							t.Errorf("%s is accepted and not served", text)
						}
					}
				}
				if got := strings.Join(refused, " "); got != c.want {
					t.Errorf("%q, want %q", got, c.want)
				}
				listeners := v.Gateways[service.Key{Namespace: "infra", Name: "g"}].Listeners
				if got := fmt.Sprint(listeners[0].AttachedRoutes, listeners[1].AttachedRoutes); got != c.on {
					t.Errorf("attached: %s, want %s", got, c.on)
				}
				slices.Reverse(w.Routes)
			}
		})
	}
}

// TestTenantsConflicts: a route that has every host after names shuts out no other
// namespace's route that names a host, nor does that it.
func TestTenantsConflicts(t *testing.T) {
	const tenant, operator = "{name: gw, namespace: t}", "{name: gw, namespace: system}"
	gates := gateAt("t", "gw", "", 1) + gateAt("system", "gw", "", 1)
	in := func(namespace, text string) string {
		return strings.Replace(text, "namespace: a,", "namespace: "+namespace+",", 1)
	}
	for name, c := range map[string]struct{ text, want string }{
		"every host, then a host of another":  {made("GRPCRoute", "c", 1, tenant, "") + in("b", made("HTTPRoute", "h", 2, tenant, "b.test")), ""},
		"a host, then every host of another":  {in("b", made("HTTPRoute", "h", 1, tenant, "b.test")) + made("GRPCRoute", "c", 2, tenant, ""), ""},
		"the other kind":                      {made("HTTPRoute", "h", 1, tenant, "") + in("b", made("GRPCRoute", "c", 2, tenant, "b.test")), ""},
		"a host of its own":                   {made("GRPCRoute", "c", 1, tenant, "") + made("HTTPRoute", "h", 2, tenant, "a.test"), "a/h"},
		"after a host of its own":             {made("HTTPRoute", "h", 1, tenant, "a.test") + made("GRPCRoute", "c", 2, tenant, ""), "a/c"},
		"its own, behind another's":           {in("b", made("HTTPRoute", "h", 1, tenant, "a.test")) + made("HTTPRoute", "h", 2, tenant, "a.test") + made("GRPCRoute", "c", 3, tenant, ""), "a/c"},
		"every host of both":                  {made("GRPCRoute", "c", 1, tenant, "") + in("b", made("HTTPRoute", "h", 2, tenant, "")), "b/h"},
		"hosts of others still conflict":      {made("GRPCRoute", "c", 1, tenant, "b.test") + in("b", made("HTTPRoute", "h", 2, tenant, "b.test")), "b/h"},
		"every host of the operator's":        {made("GRPCRoute", "c", 1, operator, "") + in("b", made("HTTPRoute", "h", 2, operator, "b.test")), "b/h"},
		"before every host of the operator's": {in("b", made("HTTPRoute", "h", 1, operator, "b.test")) + made("GRPCRoute", "c", 2, operator, ""), "a/c"},
	} {
		t.Run(name, func(t *testing.T) {
			var refused []string
			for id, r := range Judge(owned(t, gates+c.text)).Routes {
				for _, p := range r.Parents {
					if at := p.Conditions[0]; at.Status != "True" {
						refused = append(refused, id.Key.String())
						if at.Reason != reasonConflict {
							t.Errorf("%v: %+v", id, at)
						}
					}
				}
			}
			if got := strings.Join(refused, " "); got != c.want {
				t.Errorf("refused %q, want %q", got, c.want)
			}
		})
	}
}

// TestGRPCRoutes: what differs by the kind of a route: which listeners take it, whose
// grants count, and how Services are asked.
func TestGRPCRoutes(t *testing.T) {
	listener := func(kinds string) string {
		return gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}, kinds: ["+kinds+"]}}")
	}
	grant := func(kind string) string {
		return "---\nkind: ReferenceGrant\nmetadata: {name: x, namespace: b}\nspec: {from: [{group: gateway.networking.k8s.io, kind: " + kind + ", namespace: a}], to: [{group: '', kind: Service}]}\n"
	}
	to := func(backend string) string {
		return strings.Replace(made("GRPCRoute", "r", 1, "{name: g, namespace: infra}", ""), "{name: chat, port: 80}", backend, 1)
	}
	const fine = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"
	for name, c := range map[string]struct{ text, want, kinds string }{
		"every kind":            {listener("") + to("{name: chat}"), fine, "HTTPRoute GRPCRoute"},
		"its own":               {listener("{kind: GRPCRoute}") + to("{name: chat}"), fine, "GRPCRoute"},
		"both":                  {listener("{kind: GRPCRoute}, {kind: HTTPRoute, group: gateway.networking.k8s.io}, {kind: GRPCRoute}") + to("{name: chat}"), fine, "GRPCRoute HTTPRoute"},
		"HTTPRoutes alone":      {listener("{kind: HTTPRoute}") + to("{name: chat}"), "Accepted=False/NotAllowedByListeners ResolvedRefs=True/ResolvedRefs", "HTTPRoute"},
		"with a kind of others": {listener("{kind: GRPCRoute}, {kind: TCPRoute}") + to("{name: chat}"), fine, "GRPCRoute"},
		"HTTP/2":                {listener("") + to("{name: h2c, port: 80}"), fine, "HTTPRoute GRPCRoute"},
		"gRPC":                  {listener("") + to("{name: grpc, port: 80}"), fine, "HTTPRoute GRPCRoute"},
		"no protocol":           {listener("") + to("{name: none, port: 80}"), fine, "HTTPRoute GRPCRoute"},
		"HTTP/1.1":              {listener("") + to("{name: http, port: 80}"), "Accepted=True/Accepted ResolvedRefs=False/UnsupportedProtocol", "HTTPRoute GRPCRoute"},
		"TLS":                   {listener("") + to("{name: https, port: 80}"), "Accepted=True/Accepted ResolvedRefs=False/UnsupportedProtocol", "HTTPRoute GRPCRoute"},
		"elsewhere, granted":    {listener("") + grant("GRPCRoute") + to("{name: h2c, namespace: b, port: 80}"), fine, "HTTPRoute GRPCRoute"},
		"granted to HTTPRoutes": {listener("") + grant("HTTPRoute") + to("{name: h2c, namespace: b, port: 80}"), "Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted", "HTTPRoute GRPCRoute"},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t, ours+c.text)
			w.Ours = func(k service.Key) bool { return k.Name == "chat" }
			w.Service = func(at ServicePort) Service {
				return Service{AppProtocol: map[string]string{"h2c": "kubernetes.io/h2c", "grpc": "grpc", "http": "http", "https": "https"}[at.Name]}
			}
			v := Judge(w)
			r := v.Routes[routing.ID{Kind: routing.KindGRPCRoute, Key: routeR.Key}]
			if len(r.Parents) != 1 || reasons(r.Parents[0].Conditions) != c.want {
				t.Errorf("%+v, want %s", r.Parents, c.want)
			}
			if _, other := v.Routes[routeR]; other {
				t.Error("there is a verdict of an HTTPRoute")
			}
			var kinds []string
			for _, k := range v.Gateways[service.Key{Namespace: "infra", Name: "g"}].Listeners[0].SupportedKinds {
				kinds = append(kinds, k.Kind)
				if k.Group != Group {
					t.Errorf("%+v", k)
				}
			}
			if got := strings.Join(kinds, " "); got != c.kinds {
				t.Errorf("kinds %s, want %s", got, c.kinds)
			}
		})
	}
}
