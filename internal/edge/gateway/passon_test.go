package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// TestPathsOfHTTPRoutes: a path that an HTTPRoute names is forwarded as it is;
// one that only a route over everything takes is not.
func TestPathsOfHTTPRoutes(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPools(namedPools(t))
	backend := func(name string) []routing.Backend {
		return []routing.Backend{{Ref: routing.Service(service.ParseKey(name)), Weight: 1}}
	}
	path := func(kind routing.MatchType, value string) []routing.HTTPMatch {
		return []routing.HTTPMatch{{Path: routing.ValueMatch{Type: kind, Value: value}}}
	}
	r.d.SetObjects([]routing.Object{
		&routing.HTTPRoute{Meta: service.Meta{Key: service.ParseKey("paths")}, Hostnames: []string{"a.test"}, Rules: []routing.HTTPRule{
			{Matches: path(routing.MatchPrefix, "/own"), Backends: backend("one")},
			{Matches: path(routing.MatchExact, "/only/this"), Backends: backend("two")},
			{Matches: path(routing.MatchRegexp, "/r[0-9]+"), Backends: backend("two")},
			{Matches: path(routing.MatchPrefix, "/lost"), Backends: backend("nothing")},
		}},
		&routing.HTTPRoute{Meta: service.Meta{Key: service.ParseKey("all")}, Hostnames: []string{"all.test"}, Rules: []routing.HTTPRule{
			{Matches: path(routing.MatchPrefix, "/"), Backends: backend("one")},
		}},
		&routing.HTTPRoute{Meta: service.Meta{Key: service.ParseKey("nowhere")}, Hostnames: []string{"lost.test"}, Rules: []routing.HTTPRule{
			{Matches: path(routing.MatchPrefix, "/"), Backends: backend("nothing")},
			{Matches: path(routing.MatchPrefix, "/v2"), Backends: backend("nothing")},
		}},
	})
	long := strings.Repeat("x", 3<<20)
	for _, c := range []struct {
		method, host, target, body string
		status                     int
		by                         string
	}{
		{"GET", "a.test", "/own", "", 200, "one GET a.test/own "},
		{"GET", "a.test", "/own/a%2Fb?q=1&r", "", 200, "one GET a.test/own/a%2Fb?q=1&r "},
		{"POST", "a.test", "/own/x", `{"model":"whatever"}`, 200, `one POST a.test/own/x {"model":"whatever"}`},
		{"POST", "a.test", "/own/x", long, 200, "one POST a.test/own/x " + long},
		{"DELETE", "a.test", "/only/this", "", 200, "two DELETE a.test/only/this "},
		{"PUT", "a.test", "/r12", "b", 200, "two PUT a.test/r12 b"},
		{"HEAD", "a.test", "/own", "", 200, ""},
		{"GET", "a.test", "/lost", "", 500, ""},
		{"GET", "a.test", "/only/that", "", 404, ""},
		{"GET", "a.test", "/ownership", "", 404, ""},
		{"GET", "b.test", "/own", "", 404, ""},
		{"GET", "one.default.localhost", "/own", "", 404, ""},
		{"GET", "all.test", "/metrics", "", 404, ""},
		{"GET", "lost.test", "/", "", 500, ""},
		{"GET", "lost.test", "/v2", "", 500, ""},
		{"GET", "lost.test", "/anything", "", 500, ""},
		{"GET", "lost.test", "/healthz", "", 200, ""}, // the gateway's own
		{"GET", "all.test", "/v2", "", 200, ""},
		{"GET", "a.test", "/own/../metrics", "", 400, ""},
		{"GET", "a.test", "/own/%2e%2e/metrics", "", 400, ""},
		{"TRACE", "a.test", "/own", "", 501, ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, r.url+c.target, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatalf("%s %s%s: %v", c.method, c.host, c.target, err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode != c.status || c.by != "" && string(body) != c.by {
			t.Errorf("%s %s%s: %s %.80q, %v; want %d %.80q", c.method, c.host, c.target, res.Status, body, err, c.status, c.by)
		}
	}
}

// namedPools are two services that say what they were asked.
func namedPools(t *testing.T) (out []dispatch.PoolConfig) {
	for _, name := range []string{"one", "two"} {
		out = append(out, pool(name, replicaServer(t, func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // a client that leaves is nobody's concern here
			_, _ = fmt.Fprintf(w, "%s %s %s%s %s", name, r.Method, r.Host, r.RequestURI, body)
		})))
	}
	return out
}

// TestServesOnePool: at a listener of a pool's own, whatever is asked goes to
// the pool as it stands, a router's word on who computes a prompt too, and it
// waits for the replica that is being started again.
func TestServesOnePool(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.AllowedHosts = nil })
	to := routing.PoolRef(service.ParseKey("chat/decoder"))
	facts := pool("chat/decoder", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprintf(w, "%s %s %s from %s", req.Method, req.URL.RequestURI(), body, req.Header.Get("X-Prefiller-Host-Port"))
	}))
	facts.Key, facts.Shared, facts.Restarted = to.Key, true, true
	back := slices.Clone(facts.Replicas)
	facts.Replicas[0].Phase = replica.Failed
	r.d.SetPool(facts)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.gw.ServeTo(ctx, l, to) }()
	time.AfterFunc(10*time.Millisecond, func() { facts.Replicas = back; r.d.SetPool(facts) })
	for _, c := range []struct{ method, target, body string }{
		{"POST", "/v1/completions", `{"model":"m","prompt":"p","kv_transfer_params":{"remote_host":"h"}}`},
		{"GET", "/get_server_info?a=b", ""},
		{"POST", "/generate", `{"text":"no model is named"}`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, "http://"+l.Addr().String()+c.target, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Prefiller-Host-Port", "10.0.0.1:1")
		res, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if want := c.method + " " + c.target + " " + c.body + " from 10.0.0.1:1"; string(got) != want {
			t.Errorf("%d %s, want %s", res.StatusCode, got, want)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+l.Addr().String()+"/v1/completions", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "evil.com"
	res, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _ = res.Body.Close(); res.StatusCode != http.StatusForbidden {
		t.Errorf("a page that leads its own name here got %d", res.StatusCode)
	}
	stop()
	r.client.CloseIdleConnections()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
