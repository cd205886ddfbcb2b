package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// filtered routes paths below prefix to the service m, as h says.
func filtered(r *rig, rules map[string]routing.Handling) {
	o := &routing.HTTPRoute{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "r"}}}
	for prefix, h := range rules {
		rule := routing.HTTPRule{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: prefix}}}, Handling: h}
		if h.Redirect == nil {
			rule.Backends = []routing.Backend{{Ref: routing.Service(service.Key{Namespace: "default", Name: "m"}), Weight: 1}}
		}
		o.Rules = append(o.Rules, rule)
	}
	r.d.SetObjects([]routing.Object{o})
}

// sees answers with what the replica sees of a request.
func sees(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Engine", "vllm")
	h.Set("Server", "uvicorn")
	h.Add("X-Trace", "1")
	_, _ = fmt.Fprintf(w, "%s %s host=%s tenant=%q secret=%q team=%q auth=%q from=%q", r.Method, r.URL.RequestURI(), r.Host,
		r.Header.Values("X-Tenant"), r.Header.Values("X-Secret"), r.Header.Values("X-Team"), r.Header.Values("Authorization"), r.Header.Values("X-Forwarded-For"))
}

func TestHeaderFilters(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("m", replicaServer(t, sees)))
	change := func(op routing.HeaderOp, name, value string) routing.HeaderChange {
		return routing.HeaderChange{Op: op, Name: name, Value: value}
	}
	filtered(r, map[string]routing.Handling{"/v1/completions": {
		RequestHeader: []routing.HeaderChange{change(routing.HeaderSet, "X-Tenant", "blue"), change(routing.HeaderAdd, "X-Team", "b"),
			change(routing.HeaderRemove, "X-Secret", ""), change(routing.HeaderSet, "X-Forwarded-For", "10.9.9.9"), change(routing.HeaderSet, "Authorization", "Bearer upstream")},
		ResponseHeader: []routing.HeaderChange{change(routing.HeaderRemove, "Server", ""), change(routing.HeaderSet, "X-Engine", "ours"), change(routing.HeaderAdd, "X-Trace", "2")},
	}})
	body := `{"model":"m","prompt":"hi"}`
	// A client cannot have the gateway drop what the route sets, nor a route whom it came through.
	a := r.send("POST", "/v1/completions", body, "X-Forwarded-For", "10.0.0.1", "X-Tenant", "red", "X-Secret", "s", "X-Team", "a", "Connection", "X-Tenant, Authorization")
	a.want(t, 200, `tenant=["blue"]`, `secret=[]`, `team=["a" "b"]`, `auth=["Bearer upstream"]`, `from=["10.0.0.1, 127.0.0.1"]`)
	if got := a.header; got.Get("Server") != "" || got.Get("X-Engine") != "ours" || strings.Join(got.Values("X-Trace"), ",") != "1,2" {
		t.Errorf("the client gets %v", got)
	}
	a = r.send("POST", "/v1/chat/completions", `{"model":"m","messages":[]}`, "X-Tenant", "red") // another path
	a.want(t, 200, `tenant=["red"]`)
	if a.header.Get("Server") != "uvicorn" {
		t.Errorf("a request of no such route is changed: %v", a.header)
	}
}

func TestRewriteAndRedirect(t *testing.T) {
	r := newRig(t, nil)
	p := pool("m", replicaServer(t, sees))
	p.ServedName = "org/m"
	r.d.SetPool(p)
	prefix := func(prefix, value string) routing.URLRewrite {
		return routing.URLRewrite{Path: &routing.PathRewrite{Prefix: prefix, Value: value}}
	}
	strip, tools, own := prefix("/team", "/"), prefix("/tools", "/x/y"), prefix("/v2/models/m", "/own")
	api := prefix("/v1", "/api/v1")
	tools.Host = "inside.test"
	filtered(r, map[string]routing.Handling{
		"/team":                {Rewrite: &strip},
		"/tools":               {Rewrite: &tools},
		"/v2/models/m":         {Rewrite: &own},
		"/v1/models/m:predict": {Rewrite: &api},
		"/whole":               {Rewrite: &routing.URLRewrite{Path: &routing.PathRewrite{Value: "/w"}}},
		"/old":                 {Redirect: &routing.Redirect{Status: 308, URLRewrite: prefix("/old", "/new")}},
		"/v1/models":           {Redirect: &routing.Redirect{Status: 301, Scheme: "https", URLRewrite: routing.URLRewrite{Host: "b.test"}}},
	})
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, c := range []struct{ method, path, body, want string }{
		// A path that becomes one of the gateway's calls is one: its model is found.
		{"POST", "/team/v1/completions?a=%2F", `{"model":"m"}`, "POST /v1/completions?a=%2F host="},
		{"POST", "/tools/a%2Fb?q=1", "x", "POST /x/y/a%2Fb?q=1 host=inside.test "},
		{"GET", "/whole/anything", "", "GET /w host="},
		{"POST", "/v2/models/m/infer", "{}", "POST /own/infer host="},
		{"POST", "/v1/models/m:predict", "{}", "POST /api/v1/models/org%2Fm:predict host="}, // by the name that the replica knows
	} {
		r.send(c.method, c.path, c.body).want(t, 200, c.want)
	}
	// What the gateway does not serve at /metrics, it does not at /team/metrics.
	r.send("GET", "/team/metrics", "").want(t, 404)
	r.send("POST", "/team/v1/load_lora_adapter", "{}").want(t, 404)
	for path, want := range map[string]string{"/old/a?b=c": r.url + "/new/a?b=c", "/v1/models": "https://b.test/v1/models"} {
		if a := r.send("GET", path, ""); a.code/100 != 3 || a.header.Get("Location") != want {
			t.Errorf("%s: %d to %q, want %s", path, a.code, a.header.Get("Location"), want)
		}
	}
}

// TestRouteAfterNames: what a namespace's route without a host answers or rewrites is never
// a request for another namespace's model, nor one of the gateway's own calls.
func TestRouteAfterNames(t *testing.T) {
	r := newRig(t, nil)
	for _, name := range []string{"a/mine", "b/iris"} {
		r.d.SetPool(pool(name, replicaServer(t, sees)))
	}
	rule := func(prefix string, h routing.Handling, to ...routing.Backend) routing.HTTPRule {
		return routing.HTTPRule{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: prefix}}}, Handling: h, Backends: to}
	}
	away := routing.Handling{Redirect: &routing.Redirect{Status: 307, URLRewrite: routing.URLRewrite{Host: "a.test"}}}
	strip := routing.Handling{Rewrite: &routing.URLRewrite{Path: &routing.PathRewrite{Prefix: "/team", Value: "/openai"}}}
	r.d.SetObjects([]routing.Object{&routing.HTTPRoute{Meta: service.Meta{Key: service.ParseKey("a/r")}, AfterNames: true, Rules: []routing.HTTPRule{
		rule("/v1", away), rule("/v2", away), rule("/old", away), rule("/", away),
		rule("/team", strip, routing.Backend{Ref: routing.Service(service.ParseKey("a/mine")), Weight: 1}),
	}}})
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for _, c := range []struct {
		method, path, body string
		code               int
	}{
		{"POST", "/v1/chat/completions", `{"model":"iris","messages":[]}`, 200},
		{"POST", "/v1/chat/completions", `{"model":"b/iris","messages":[]}`, 200},
		{"POST", "/v1/chat/completions", `{"model":"mine","messages":[]}`, 307},
		{"POST", "/v1/models/iris:predict", "{}", 200},
		{"POST", "/v1/models/mine:predict", "{}", 307},
		{"POST", "/v2/models/b%2Firis/infer", "{}", 200},
		{"GET", "/v2/models/iris/ready", "", 200},
		{"GET", "/v2/models/mine/ready", "", 307},
		{"GET", "/v1/models", "", 200},
		{"GET", "/", "", 200},
		{"GET", "/v2", "", 200},
		{"GET", "/old/a", "", 307},
		{"POST", "/team/v1/chat/completions", `{"model":"mine","messages":[]}`, 200},
		{"POST", "/team/v1/chat/completions", `{"model":"iris","messages":[]}`, 404},
		{"POST", "/team/v1/models/mine:predict", "{}", 200},
		{"POST", "/team/v1/models/iris:predict", "{}", 404},
	} {
		a := r.send(c.method, c.path, c.body)
		if a.code != c.code || (a.header.Get("Location") != "") != (c.code == 307) {
			t.Errorf("%s %s %s: %d to %q, want %d: %s", c.method, c.path, c.body, a.code, a.header.Get("Location"), c.code, a.body)
		}
	}
}

// TestStepsAreNotRedirected: where a batch or a graph's step goes is settled, so that no
// route redirects it.
func TestStepsAreNotRedirected(t *testing.T) {
	r := newRig(t, nil)
	var calls, most atomic.Int32
	p := pool("m", doubler(t, &calls, &most))
	p.Batcher = &service.Batcher{MaxSize: 1, MaxLatency: time.Minute}
	r.d.SetPool(p)
	away := routing.HTTPRule{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/v1/models"}}},
		Handling: routing.Handling{Redirect: &routing.Redirect{Status: 307, URLRewrite: routing.URLRewrite{Host: "a.test"}}}}
	r.d.SetObjects([]routing.Object{
		&routing.HTTPRoute{Meta: service.Meta{Key: service.ParseKey("a/r")}, Rules: []routing.HTTPRule{away}},
		&routing.Graph{Meta: service.Meta{Key: service.ParseKey("g")}, Nodes: root(node(routing.NodeSequence, routing.GraphStep{Service: "m"}))},
	})
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for host, path := range map[string]string{"m.default.localhost": "/v1/models/m:predict", atGraph: "/"} {
		if a := r.send("POST", path, `{"instances":[1]}`, "Host", host); a.code != 200 || a.header.Get("Location") != "" {
			t.Errorf("%s: %d to %q: %s", host, a.code, a.header.Get("Location"), a.body)
		}
	}
}

// TestPlainServices: requests that an HTTPRoute leads to Kubernetes Services are
// forwarded whatever their path and body, and need a key like all others.
func TestPlainServices(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.CORSOrigins = []string{"https://page.example"} })
	at := routing.ServicePool(service.Key{Namespace: "default", Name: "echo"}, 80)
	p := pool("echo", replicaServer(t, sees))
	p.Key, p.Shared = at.Key, true
	r.d.SetPool(p)
	o := &routing.HTTPRoute{Meta: service.Meta{Key: service.Key{Namespace: "default", Name: "r"}}, Hostnames: []string{"echo.test"},
		Rules: []routing.HTTPRule{{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}}},
			Backends: []routing.Backend{{Ref: at, Weight: 1, Plain: true}}}}}
	r.d.SetObjects([]routing.Object{o, &routing.Pool{Meta: service.Meta{Key: at.Key}}})
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/", ""}, {"PUT", "/healthz?a=%2F", ""}, {"GET", "/v1/models", ""}, {"POST", "/v1/chat/completions", "no JSON"},
		{"DELETE", "/v2/models/m/infer", ""}, {"POST", "/metrics", ""}, {"POST", "/a%2Fb", "{}"},
	} {
		r.send(c.method, c.path, c.body, "Host", "echo.test").want(t, 200, c.method+" "+c.path+" host=echo.test")
	}
	// Pages that may read its answers are the Service's to name.
	if a := r.send("OPTIONS", "/v1/models", "", "Host", "echo.test", "Origin", "https://page.example", "Access-Control-Request-Method", "GET"); a.code != 200 || a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a preflight: %d %v", a.code, a.header)
	}
	r.send("GET", "/", "", "Host", "other.test").want(t, 404, "nothing is served at /")
	if a := r.send("HEAD", "/", "", "Host", "other.test"); a.code != 404 || len(a.header["Content-Type"]) > 0 {
		t.Errorf("HEAD: %d %v", a.code, a.header)
	}
}
