package gatewayapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// world reads manifests of every kind that is judged.
func world(t *testing.T, text string) *World {
	t.Helper()
	w := &World{Front: &Front{Ports: []int32{80}, Addresses: []Address{{AddressIP, "10.0.0.1"}}}, Bundle: "v1.5.1"}
	w.Labels = func(ns string) (map[string]string, bool) { return map[string]string{"team": ns}, ns != "unknown" }
	w.Missing = func(r routing.Ref) string {
		if strings.HasPrefix(r.Name, "lost") {
			return "there is no " + r.String()
		}
		return ""
	}
	for _, doc := range strings.Split("\n"+text, "\n---\n") {
		var m struct {
			Kind string `json:"kind"`
		}
		into := func(v any) {
			if err := yaml.Unmarshal([]byte(doc), v); err != nil {
				t.Fatal(err)
			}
		}
		into(&m)
		switch m.Kind {
		case "GatewayClass":
			w.Classes = append(w.Classes, Class{})
			into(&w.Classes[len(w.Classes)-1])
		case "Gateway":
			w.Gateways = append(w.Gateways, Gateway{})
			into(&w.Gateways[len(w.Gateways)-1])
		case "ReferenceGrant":
			w.Grants = append(w.Grants, Grant{})
			into(&w.Grants[len(w.Grants)-1])
		default:
			res := dialect.Read("", []byte(doc))
			if bad := res.Errors(dialect.Kubernetes); len(bad) > 0 {
				t.Fatal(bad)
			}
			var of struct {
				Metadata struct {
					Created time.Time `json:"creationTimestamp"`
				} `json:"metadata"`
			}
			into(&of)
			for _, o := range res.Objects {
				if !of.Metadata.Created.IsZero() {
					o.Routing.Common().Created = of.Metadata.Created
				}
				switch o := o.Routing.(type) {
				case *routing.HTTPRoute:
					w.Routes = append(w.Routes, Route{ID: routing.IDOf(o), Parents: o.Parents, Object: o})
				case *routing.Pool:
					w.Pools = append(w.Pools, o)
				}
			}
		}
	}
	return w
}

const ours = `
kind: GatewayClass
metadata: {name: roundhouse}
spec: {controllerName: roundhouse.dev/gateway}
---
kind: GatewayClass
metadata: {name: other}
spec: {controllerName: example.com/gateway}
`

// gw is a Gateway of a class with listeners in YAML.
func gw(name, class, listeners string) string {
	return fmt.Sprintf("---\nkind: Gateway\nmetadata: {name: %s, namespace: infra}\nspec: {gatewayClassName: %s, listeners: [%s]}\n", name, class, listeners)
}

// rt is an HTTPRoute of namespace a; spec is what follows parentRefs.
func rt(parents, more string) string {
	if !strings.Contains(more, "rules") {
		more += "\n  rules: [{backendRefs: [{name: chat}]}]"
	}
	return fmt.Sprintf("---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r, namespace: a}\nspec:\n  parentRefs: [%s]\n  %s\n", parents, more)
}

// routeR is the HTTPRoute that rt makes.
var routeR = routing.ID{Kind: routing.KindHTTPRoute, Key: service.Key{Namespace: "a", Name: "r"}}

const all = "allowedRoutes: {namespaces: {from: All}}"

func reasons(cs []service.Condition) string {
	var out []string
	for _, c := range cs {
		out = append(out, c.Type+"="+c.Status+"/"+c.Reason)
	}
	return strings.Join(out, " ")
}

func TestGateways(t *testing.T) {
	const fine = "Accepted=True/Accepted Programmed=True/Programmed"
	const bad = "Accepted=False/ListenersNotValid Programmed=False/Invalid"
	l := func(accepted, conflict, resolved, programmed string) string {
		return "Accepted=" + accepted + " Conflicted=" + conflict + " ResolvedRefs=" + resolved + " Programmed=" + programmed
	}
	const yes, none, refs, on, off = "True/Accepted", "False/NoConflicts", "True/ResolvedRefs", "True/Programmed", "False/Invalid"
	for name, c := range map[string]struct {
		listeners string
		secure    bool
		gateway   string
		want      []string // of the listeners
	}{
		"plain":         {"{name: x, port: 80, protocol: HTTP}", false, fine, []string{l(yes, none, refs, on)}},
		"another port":  {"{name: x, port: 81, protocol: HTTP}", false, bad, []string{l("False/PortUnavailable", none, refs, off)}},
		"TCP":           {"{name: x, port: 80, protocol: TCP}", false, bad, []string{l("False/UnsupportedProtocol", none, refs, off)}},
		"HTTPS without": {"{name: x, port: 80, protocol: HTTPS}", false, bad, []string{l("False/UnsupportedProtocol", none, "False/InvalidCertificateRef", off)}},
		"HTTPS":         {"{name: x, port: 80, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}", true, fine, []string{l(yes, none, refs, on)}},
		"another certificate": {"{name: x, port: 80, protocol: HTTPS, tls: {certificateRefs: [{name: others}]}}", true, bad,
			[]string{l(yes, none, "False/InvalidCertificateRef", off)}},
		"a certificate that is none": {"{name: x, port: 80, protocol: HTTPS, tls: {certificateRefs: [{name: cert, kind: ConfigMap}]}}", true, bad,
			[]string{l(yes, none, "False/InvalidCertificateRef", off)}},
		"a certificate elsewhere": {"{name: x, port: 80, protocol: HTTPS, tls: {certificateRefs: [{name: cert, namespace: b}]}}", true, bad,
			[]string{l(yes, none, "False/RefNotPermitted", off)}},
		"passthrough": {"{name: x, port: 80, protocol: HTTPS, tls: {mode: Passthrough, certificateRefs: [{name: cert}]}}", true, bad,
			[]string{l("False/UnsupportedValue", none, refs, off)}},
		"HTTP where HTTPS is": {"{name: x, port: 80, protocol: HTTP}", true, bad, []string{l("False/UnsupportedProtocol", none, refs, off)}},
		"two hosts":           {"{name: x, port: 80, protocol: HTTP, hostname: a.test}, {name: y, port: 80, protocol: HTTP}", false, fine, []string{l(yes, none, refs, on), l(yes, none, refs, on)}},
		"one host twice": {"{name: x, port: 80, protocol: HTTP}, {name: y, port: 80, protocol: HTTP}", false,
			"Accepted=True/ListenersNotValid Programmed=True/Programmed", []string{l(yes, none, refs, on), l(yes, "True/HostnameConflict", refs, off)}},
		"two protocols": {"{name: x, port: 80, protocol: HTTP}, {name: y, port: 80, protocol: HTTPS}", false,
			"Accepted=True/ListenersNotValid Programmed=True/Programmed",
			[]string{l(yes, none, refs, on), l("False/UnsupportedProtocol", "True/ProtocolConflict", "False/InvalidCertificateRef", off)}},
		"TCPRoute":  {"{name: x, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}]}}", false, fine, []string{l(yes, none, "False/InvalidRouteKinds", on)}},
		"GRPCRoute": {"{name: x, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: GRPCRoute}]}}", false, fine, []string{l(yes, none, refs, on)}},
	} {
		t.Run(name, func(t *testing.T) {
			w := world(t, ours+gw("g", "roundhouse", c.listeners)+gw("others", "other", c.listeners))
			if c.secure {
				w.Front.Certificate = service.Key{Namespace: "infra", Name: "cert"}
			}
			v := Judge(w)
			g := v.Gateways[service.Key{Namespace: "infra", Name: "g"}]
			if got := reasons(g.Conditions); got != c.gateway || len(v.Gateways) != 1 {
				t.Errorf("%s, %d Gateways; want %s", got, len(v.Gateways), c.gateway)
			}
			for i, want := range c.want {
				if got := reasons(g.Listeners[i].Conditions); got != want {
					t.Errorf("listener %d:\n%s, want\n%s", i, got, want)
				}
			}
			if name == "TCPRoute" && (g.Listeners[0].SupportedKinds == nil || len(g.Listeners[0].SupportedKinds) != 0) {
				t.Errorf("kinds %v", g.Listeners[0].SupportedKinds)
			}
		})
	}
}

func TestClassesAndAddresses(t *testing.T) {
	const g = "{name: x, port: 80, protocol: HTTP}"
	w := world(t, ours+"---\nkind: GatewayClass\nmetadata: {name: set}\nspec: {controllerName: roundhouse.dev/gateway, parametersRef: {kind: ConfigMap, name: x}}\n"+
		gw("g", "roundhouse", g)+gw("bad", "set", g)+strings.Replace(gw("there", "roundhouse", g), "spec: {", "spec: {addresses: [{value: 10.9.9.9}], ", 1))
	v := Judge(w)
	for class, want := range map[string]string{"roundhouse": "Accepted=True/Accepted SupportedVersion=True/SupportedVersion",
		"set": "Accepted=False/InvalidParameters SupportedVersion=True/SupportedVersion", "other": ""} {
		if got := reasons(v.Classes[class]); got != want {
			t.Errorf("%s: %s, want %s", class, got, want)
		}
	}
	for name, want := range map[string]string{"bad": "Accepted=False/InvalidParameters Programmed=False/Invalid", "there": "Accepted=False/UnsupportedAddress Programmed=False/Invalid"} {
		if got := reasons(v.Gateways[service.Key{Namespace: "infra", Name: name}].Conditions); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	w.Front.Addresses, w.Bundle = nil, "v0.8.0"
	v = Judge(w)
	if got := reasons(v.Gateways[service.Key{Namespace: "infra", Name: "g"}].Conditions); got != "Accepted=True/Accepted Programmed=False/AddressNotAssigned" {
		t.Error(got)
	}
	if got := reasons(v.Classes["roundhouse"]); got != "Accepted=True/Accepted SupportedVersion=False/UnsupportedVersion" {
		t.Error(got)
	}
}

func TestRoutes(t *testing.T) {
	const open = "{name: web, port: 80, protocol: HTTP, " + all + "}"
	const g = "{name: g, namespace: infra}"
	const fine = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"
	no := func(reason string) string { return "Accepted=False/" + reason + " ResolvedRefs=True/ResolvedRefs" }
	unresolved := func(reason string) string { return "Accepted=True/Accepted ResolvedRefs=False/" + reason }
	grant := func(group, kind, from, name string) string {
		return fmt.Sprintf("---\nkind: ReferenceGrant\nmetadata: {name: x, namespace: b}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: %s}], to: [{group: %q, kind: %s, name: %q}]}\n", from, group, kind, name)
	}
	pool := "{group: inference.networking.k8s.io, kind: InferencePool, name: p, namespace: b}"
	for name, c := range map[string]struct {
		text  string
		want  []string // by parent of ours
		hosts string   // it is served under; "-" for not at all, "*" for any
	}{
		"any host":                 {gw("g", "roundhouse", open) + rt(g, ""), []string{fine}, "*"},
		"of another class":         {gw("g", "other", open) + rt(g, ""), nil, "-"},
		"no such Gateway":          {gw("x", "roundhouse", open) + rt(g, ""), nil, "-"},
		"of the same namespace":    {gw("g", "roundhouse", open) + rt("{name: g}", ""), nil, "-"},
		"of two, one ours":         {gw("g", "roundhouse", open) + gw("o", "other", open) + rt(g+", {name: o, namespace: infra}", ""), []string{fine}, "*"},
		"a Service as its parent":  {gw("g", "roundhouse", open) + rt("{group: \"\", kind: Service, name: g, namespace: infra}", ""), nil, "-"},
		"no such listener":         {gw("g", "roundhouse", open) + rt("{name: g, namespace: infra, sectionName: x}", ""), []string{no("NoMatchingParent")}, "-"},
		"no such port":             {gw("g", "roundhouse", open) + rt("{name: g, namespace: infra, port: 81}", ""), []string{no("NoMatchingParent")}, "-"},
		"listeners by name":        {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, hostname: '*.x.test', "+all+"}, {name: api, port: 80, protocol: HTTP, hostname: y.test, "+all+"}") + rt("{name: g, namespace: infra, sectionName: api}", ""), []string{fine}, "y.test"},
		"both listeners":           {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, hostname: '*.x.test', "+all+"}, {name: api, port: 80, protocol: HTTP, hostname: y.test, "+all+"}") + rt(g, ""), []string{fine}, "*.x.test y.test"},
		"namespaces: Same":         {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP}") + rt(g, ""), []string{no("NotAllowedByListeners")}, "-"},
		"namespaces: None":         {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: None}}}") + rt(g, ""), []string{no("NotAllowedByListeners")}, "-"},
		"namespaces: by label":     {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: a}}}}}") + rt(g, ""), []string{fine}, "*"},
		"namespaces: others":       {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {team: b}}}}}") + rt(g, ""), []string{no("NotAllowedByListeners")}, "-"},
		"gRPC routes alone":        {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}, kinds: [{kind: GRPCRoute}]}}") + rt(g, ""), []string{no("NotAllowedByListeners")}, "-"},
		"a host of the listener's": {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, hostname: '*.x.test', "+all+"}") + rt(g, "hostnames: [a.x.test, b.test, x.test]"), []string{fine}, "a.x.test"},
		"a narrower wildcard":      {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, hostname: '*.x.test', "+all+"}") + rt(g, "hostnames: ['*.a.x.test']"), []string{fine}, "*.a.x.test"},
		"a wider wildcard":         {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, hostname: '*.a.x.test', "+all+"}") + rt(g, "hostnames: ['*.x.test']"), []string{fine}, "*.a.x.test"},
		"no host of the listener":  {gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, hostname: a.test, "+all+"}") + rt(g, "hostnames: [b.test]"), []string{no("NoMatchingListenerHostname")}, "-"},
		"a listener not served":    {gw("g", "roundhouse", "{name: web, port: 81, protocol: HTTP, "+all+"}") + rt(g, ""), []string{no("Pending")}, "-"},
		"a backend not there":      {gw("g", "roundhouse", open) + rt(g, "rules: [{backendRefs: [{name: lost}]}]"), []string{unresolved("BackendNotFound")}, "*"},
		"a backend of no kind":     {gw("g", "roundhouse", open) + rt(g, "rules: [{backendRefs: [{group: example.com, kind: Thing, name: x}]}]"), []string{unresolved("InvalidKind")}, "*"},
		"elsewhere":                {gw("g", "roundhouse", open) + rt(g, "rules: [{backendRefs: ["+pool+"]}]"), []string{unresolved("RefNotPermitted")}, "*"},
		"elsewhere, granted":       {gw("g", "roundhouse", open) + rt(g, "rules: [{backendRefs: ["+pool+"]}]") + grant("inference.networking.k8s.io", "InferencePool", "a", ""), []string{fine}, "*"},
		"elsewhere, by name":       {gw("g", "roundhouse", open) + rt(g, "rules: [{backendRefs: ["+pool+"]}]") + grant("inference.networking.k8s.io", "InferencePool", "a", "p"), []string{fine}, "*"},
		"granted to another":       {gw("g", "roundhouse", open) + rt(g, "rules: [{backendRefs: ["+pool+"]}]") + grant("inference.networking.k8s.io", "InferencePool", "c", ""), []string{unresolved("RefNotPermitted")}, "*"},
		"granted another":          {gw("g", "roundhouse", open) + rt(g, "rules: [{backendRefs: ["+pool+"]}]") + grant("inference.networking.k8s.io", "InferencePool", "a", "q"), []string{unresolved("RefNotPermitted")}, "*"},
		"granted another kind":     {gw("g", "roundhouse", open) + rt(g, "rules: [{backendRefs: ["+pool+"]}]") + grant("", "Service", "a", ""), []string{unresolved("RefNotPermitted")}, "*"},
	} {
		t.Run(name, func(t *testing.T) {
			v := Judge(world(t, ours+c.text))
			r := v.Routes[routeR]
			var got []string
			for _, p := range r.Parents {
				got = append(got, reasons(p.Conditions))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", r.Parents, c.want)
			}
			hosts := "-"
			if r.Served != nil {
				if hosts = strings.Join(r.Served.Hostnames, " "); hosts == "" {
					hosts = "*"
				}
				fault := r.Served.Rules[0].Backends[0].Fault
				if faulty := strings.Contains(c.want[0], "RefNotPermitted") || strings.Contains(c.want[0], "InvalidKind"); faulty != (fault != "") {
					t.Errorf("fault %q", fault)
				}
			}
			if hosts != c.hosts {
				t.Errorf("hosts %s, want %s", hosts, c.hosts)
			}
			for _, g := range v.Gateways {
				attached := 0
				for _, l := range g.Listeners {
					attached += l.AttachedRoutes
				}
				if want := len(strings.Split(c.hosts, " ")); c.hosts != "-" && attached != want {
					t.Errorf("%d attached, want %d", attached, want)
				}
			}
		})
	}
}

func TestUnreadableRoute(t *testing.T) {
	w := world(t, ours+gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP, "+all+"}"))
	k := routeR
	w.Routes = []Route{{ID: k, Parents: []routing.Parent{{Name: "g", Namespace: "infra"}}, Problem: "spec.rules[0].filters[0]: is not supported"}}
	r := Judge(w).Routes[k]
	if r.Served != nil || len(r.Parents) != 1 || reasons(r.Parents[0].Conditions) != "Accepted=False/UnsupportedValue" {
		t.Errorf("%+v", r)
	}
}

func TestPools(t *testing.T) {
	const p = "---\napiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p, namespace: a}\nspec: {selector: {matchLabels: {app: x}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: epp, port: {number: 9002}%s}}\n"
	const to = "rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: p}]}]"
	const open = "{name: web, port: 80, protocol: HTTP, " + all + "}"
	for name, c := range map[string]struct{ text, want string }{
		"routed":     {fmt.Sprintf(p, "") + gw("g", "roundhouse", open) + rt("{name: g, namespace: infra}", to), "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		"no route":   {fmt.Sprintf(p, "") + gw("g", "roundhouse", open), ""},
		"others'":    {fmt.Sprintf(p, "") + gw("g", "other", open) + rt("{name: g, namespace: infra}", to), ""},
		"refused":    {fmt.Sprintf(p, "") + gw("g", "roundhouse", "{name: web, port: 80, protocol: HTTP}") + rt("{name: g, namespace: infra}", to), "Accepted=False/HTTPRouteNotAccepted ResolvedRefs=True/ResolvedRefs"},
		"bad picker": {fmt.Sprintf(p, ", kind: ConfigMap") + gw("g", "roundhouse", open) + rt("{name: g, namespace: infra}", to), "Accepted=True/Accepted ResolvedRefs=False/InvalidExtensionRef"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, parent := range Judge(world(t, ours+"---\n"+c.text)).Pools[service.Key{Namespace: "a", Name: "p"}] {
				got += reasons(parent.Conditions)
				if parent.Ref != (routing.Parent{Group: Group, Kind: "Gateway", Namespace: "infra", Name: "g"}) {
					t.Errorf("%+v", parent.Ref)
				}
			}
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestUnsupportedFilters: a filter that is not applied leaves the route's other rules as
// they are, and its status names it.
func TestUnsupportedFilters(t *testing.T) {
	const bad, custom, fine = "{backendRefs: [{name: chat}], filters: [{type: CORS, cors: {}}]}", "{backendRefs: [{name: chat}], filters: [{type: ExtensionRef, extensionRef: {group: e, kind: F, name: f}}]}", "{backendRefs: [{name: chat}]}"
	for name, c := range map[string]struct{ rules, want string }{
		"none":         {fine, "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"},
		"of one rule":  {fine + ", " + bad, "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs PartiallyInvalid=True/UnsupportedValue"},
		"of all":       {bad, "Accepted=False/UnsupportedValue ResolvedRefs=True/ResolvedRefs"},
		"of a backend": {"{backendRefs: [{name: chat, filters: [{type: Own}]}]}", "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs PartiallyInvalid=True/UnsupportedValue"},
		"custom":       {fine + ", " + custom, "Accepted=True/Accepted ResolvedRefs=False/InvalidKind"},
	} {
		v := Judge(world(t, ours+gw("g", "roundhouse", "{name: x, port: 80, protocol: HTTP, "+all+"}")+rt("{name: g, namespace: infra}", "rules: ["+c.rules+"]")))
		r := v.Routes[routeR]
		if len(r.Parents) != 1 || reasons(r.Parents[0].Conditions) != c.want {
			t.Errorf("%s: %+v, want %s", name, r.Parents, c.want)
			continue
		}
		if r.Served == nil { // its requests get the error
			t.Errorf("%s: the route is not served", name)
		}
	}
}
