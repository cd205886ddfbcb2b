package gatewayapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestKubernetesServices: a reference to a Service is one of ours if it has the name,
// otherwise a Service of the cluster, which a pool stands for.
func TestKubernetesServices(t *testing.T) {
	const open = "{name: web, port: 80, protocol: HTTP, " + all + "}"
	const fine = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"
	no := func(reason string) string { return "Accepted=True/Accepted ResolvedRefs=False/" + reason }
	const grant = "---\nkind: ReferenceGrant\nmetadata: {name: g, namespace: b}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: a}], to: [{group: '', kind: Service}]}\n"
	for name, c := range map[string]struct{ text, status, want string }{
		"ours":               {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: chat, port: 80}]}]"), fine, "service a/chat"},
		"the cluster's":      {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: echo, port: 8080}]}]"), fine, "pool a/echo/8080 plain; watched a/echo:8080"},
		"one port twice":     {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: echo, port: 8080}, {name: echo, port: 8080}]}]"), fine, "pool a/echo/8080 plain, pool a/echo/8080 plain; watched a/echo:8080"},
		"gone":               {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: gone, port: 80}]}]"), no("BackendNotFound"), "pool a/gone/80 plain fault; watched a/gone:80"},
		"another protocol":   {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: h2c, port: 80}]}]"), no("UnsupportedProtocol"), "pool a/h2c/80 plain fault; watched a/h2c:80"},
		"no port":            {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: echo}]}]"), no("BackendNotFound"), "pool a/echo/0 plain fault"},
		"elsewhere":          {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: echo, namespace: b, port: 80}]}]"), no("RefNotPermitted"), "service b/echo fault"},
		"elsewhere, granted": {grant + rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: echo, namespace: b, port: 80}]}]"), fine, "pool b/echo/80 plain; watched b/echo:80"},
		"copies": {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: chat, port: 80}], filters: [{type: RequestMirror, requestMirror: {backendRef: {name: echo, port: 80}}}]}]"),
			fine, "service a/chat copied to pool a/echo/80; watched a/echo:80"},
		"copies to what is gone": {rt("{name: g, namespace: infra}", "rules: [{backendRefs: [{name: chat, port: 80}], filters: [{type: RequestMirror, requestMirror: {backendRef: {name: gone, port: 80}}}]}]"),
			no("BackendNotFound"), "service a/chat copied to pool a/gone/80; watched a/gone:80"},
		"another's Gateway": {rt("{name: theirs, namespace: infra}", "rules: [{backendRefs: [{name: echo, port: 80}]}]"), "", ""},
	} {
		w := world(t, ours+gw("g", "roundhouse", open)+gw("theirs", "other", open)+c.text)
		w.Ours = func(k service.Key) bool { return k.Name == "chat" }
		w.Service = func(at ServicePort) (out Service) {
			switch at.Name {
			case "gone":
				out.Problem = "there is no Service gone"
			case "h2c":
				out.AppProtocol = "kubernetes.io/h2c"
			}
			return out
		}
		v := Judge(w)
		r := v.Routes[routeR]
		got, status := "", ""
		if r.Served != nil {
			status = reasons(r.Parents[0].Conditions)
			var to []string
			for _, b := range r.Served.Rules[0].Backends {
				one := b.Ref.String()
				if b.Plain {
					one += " plain"
				}
				if b.Fault != "" {
					one += " fault"
				}
				to = append(to, one)
			}
			got = strings.Join(to, ", ")
			for _, m := range r.Served.Rules[0].Handling.Mirrors {
				got += " copied to " + m.Ref.String()
			}
		}
		for _, at := range v.Services {
			got += fmt.Sprintf("; watched %s:%d", at.Key, at.Port)
		}
		if got != c.want || status != c.status {
			t.Errorf("%s: %s (%s), want %s (%s)", name, got, status, c.want, c.status)
		}
	}
}

// TestNamedCertificates: where the gateway reads Secrets, a listener for HTTPS is served
// with the one that it names, and its routes are not served over HTTP.
func TestNamedCertificates(t *testing.T) {
	https := func(name, host, secret string) string {
		return fmt.Sprintf("{name: %s, port: 443, protocol: HTTPS, hostname: %q, tls: {certificateRefs: [{name: %s}]}, %s}", name, host, secret, all)
	}
	const web = "{name: web, port: 80, protocol: HTTP, hostname: web.test, " + all + "}"
	const to = "{name: g, namespace: infra}"
	for name, c := range map[string]struct{ listeners, want string }{
		"both":          {web + ", " + https("tls", "tls.test", "fine"), "http web.test; https tls.test; tls.test=infra/fine"},
		"HTTPS alone":   {https("tls", "tls.test", "fine"), "https tls.test; tls.test=infra/fine"},
		"any host":      {`{name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: fine}]}, ` + all + "}", "https *; =infra/fine"},
		"no Secret":     {web + ", " + https("tls", "tls.test", "gone"), "http web.test"},
		"the HTTP port": {`{name: tls, port: 80, protocol: HTTPS, tls: {certificateRefs: [{name: fine}]}, ` + all + "}", ""},
		"beside the gateway's own": {`{name: own, port: 80, protocol: HTTPS, hostname: own.test, tls: {certificateRefs: [{name: own}]}, ` + all + "}, " + https("tls", "tls.test", "fine"),
			" own.test;  tls.test; tls.test=infra/fine"},
		"two of a host": {https("tls", "tls.test", "fine") + ", " + strings.Replace(https("more", "tls.test", "second"), "443", "444", 1), "https tls.test; tls.test=infra/fine"},
	} {
		w := world(t, ours+gw("g", "roundhouse", c.listeners)+rt(to, ""))
		w.Front.SecurePorts = []int32{443}
		w.Certificate = func(k service.Key) string {
			if k.Name == "gone" {
				return "there is no Secret"
			}
			return ""
		}
		if name == "beside the gateway's own" {
			w.Front.Certificate = service.Key{Namespace: "infra", Name: "own"}
		}
		v := Judge(w)
		r := v.Routes[routeR]
		var got []string
		if o := r.Served; o != nil {
			got = append(got, o.Scheme+" "+strings.Join(o.Hostnames, " "))
		}
		if o := r.Secured; o != nil {
			hosts := strings.Join(o.Hostnames, " ")
			if hosts == "" {
				hosts = "*"
			}
			got = append(got, o.Scheme+" "+hosts)
		}
		for host, k := range v.Certificates {
			got = append(got, host+"="+k.String())
		}
		slices.Sort(got[min(len(got), 2):])
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}
