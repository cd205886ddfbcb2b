package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// engines are servers whose calls, those for inference, one handler answers; it is told
// the number of the call.
func engines(t *testing.T, n int, h func(call int, w http.ResponseWriter, r *http.Request)) (addresses string, calls *atomic.Int32) {
	t.Helper()
	calls = &atomic.Int32{}
	var list []string
	for range n {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // or the end of the connection is not noticed
			switch {
			case r.URL.Path == "/health":
			case r.Method == http.MethodGet && r.Header.Get("X-Request-Id") == "": // metrics and the like
				http.NotFound(w, r)
			default:
				h(int(calls.Add(1)), w, r)
			}
		}))
		t.Cleanup(s.Close)
		list = append(list, fmt.Sprintf("%q", s.Listener.Addr()))
	}
	return strings.Join(list, ", "), calls
}

// TestRouteFilters: an HTTPRoute's filters change what a server and a client get.
func TestRouteFilters(t *testing.T) {
	t.Parallel()
	addresses, _ := engines(t, 1, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "engine")
		_, _ = fmt.Fprintf(w, "%s host=%s tenant=%q debug=%q", r.URL.RequestURI(), r.Host, r.Header.Values("X-Tenant"), r.Header.Values("X-Debug"))
	})
	dir := t.TempDir()
	n := startNode(t)
	route := `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: outside}
spec: {addresses: [` + addresses + `]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: team}
spec:
  rules:
  - matches: [{path: {type: PathPrefix, value: /team}}]
    filters:
    - {type: URLRewrite, urlRewrite: {hostname: inside.test, path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-Tenant, value: blue}], remove: [X-Debug]}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: Server, value: ours}]}}
    backendRefs: [{group: roundhouse.dev, kind: Pool, name: outside}]
  - matches: [{path: {type: PathPrefix, value: /tools}}]
    filters:
    - {type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /own/tool}}}
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: X-Tenant, value: blue}], remove: [X-Debug]}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: Server, value: ours}]}}
    backendRefs: [{group: roundhouse.dev, kind: Pool, name: outside}]
  - matches: [{path: {type: PathPrefix, value: /old}}]
    filters:
    - {type: RequestRedirect, requestRedirect: {scheme: https, hostname: new.test, path: {type: ReplacePrefixMatch, replacePrefixMatch: /team}, statusCode: 308}}
`
	contains(t, n.do("apply", "--wait", "-f", write(t, dir, "r.yaml", route)), "httproute default/team created")
	contains(t, n.do("describe", "httproute", "team"), "Rules:\n  /team/* to outside\n    request header: set X-Tenant, remove X-Debug\n    response header: set Server\n    rewrite: host inside.test, path /team to /\n",
		"\n  /old/* to -\n    redirect: 308, scheme https, host new.test, path /old to /team\n")
	for path, want := range map[string]string{"/team/v1/completions?a=1": "/v1/completions?a=1 host=inside.test", "/tools/x": "/own/tool/x host="} {
		a := n.post(path, `{"model":"m","prompt":"hi"}`, "X-Tenant", "red", "X-Debug", "1", "Connection", "X-Tenant")
		if a.status != 200 || !strings.HasPrefix(a.body, want) || !strings.HasSuffix(a.body, ` tenant=["blue"] debug=[]`) || a.header.Get("Server") != "ours" {
			t.Errorf("%s: %s, from %q", path, a, a.header.Get("Server"))
		}
	}
	if a := n.get(n.gateway + "/team/metrics"); a.status != 404 {
		t.Errorf("a path that is none of the gateway's calls: %s", a)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Get(n.gateway + "/old/x?y=1")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close() // what matters was read
	if got := resp.Header.Get("Location"); resp.StatusCode != 308 || got != "https://new.test/team/x?y=1" {
		t.Errorf("a redirect: %d to %q", resp.StatusCode, got)
	}
	bad := n.run("apply", "-f", write(t, dir, "bad.yaml", strings.NewReplacer("type: URLRewrite, urlRewrite", "type: CORS, cors", "hostname: inside.test, path: {type: ReplacePrefixMatch, replacePrefixMatch: /}", "", "X-Debug", "Transfer-Encoding").Replace(route)))
	if bad.code == 0 {
		t.Errorf("a filter that is not supported is applied: %s", bad)
	}
	contains(t, bad.String(), "spec.rules[0].filters[0]: the filter CORS is not supported", "Transfer-Encoding is the gateway's to write")
}

// TestRouteRetriesAndHedges: a Route's answers that fail are asked for again, and the
// slow ones from a second server, within its budget.
func TestRouteRetriesAndHedges(t *testing.T) {
	t.Parallel()
	const requests, slow = 60, 20 * time.Second
	var first atomic.Int32 // requests that have come for the first time
	addresses, calls := engines(t, 3, func(call int, w http.ResponseWriter, r *http.Request) {
		switch number := r.Header.Get("X-Number"); {
		case number == "" && call == 1:
			w.WriteHeader(http.StatusTeapot)
		case number == "", number == fmt.Sprint(first.Load()):
		case first.Add(1)%20 == 0:
			select {
			case <-r.Context().Done():
			case <-time.After(slow):
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"text_completion","model":"m","choices":[]}`)
	})
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "r.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: outside}
spec: {addresses: [`+addresses+`]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: m}
spec:
  targets: [{pool: outside}]
  retry: {codes: [418], attempts: 1}
  hedge: {after: 300ms}
  retryBudget: {percent: 10, perSecond: 1}
`))
	if a, _ := n.completion("m"); a.status != 200 || calls.Load() != 2 {
		t.Errorf("an answer that the route retries: %s after %d calls", a, calls.Load())
	}
	contains(t, n.runWith(`{"model":"m","prompt":"hi"}`, "explain", "request", "-").String(),
		"retry: at most 1 after 418", "hedge: after 300ms; budget of 10% and 1 a second not used up")
	var took []time.Duration
	for i := range requests {
		begun := time.Now()
		if a, _ := n.completion("m", "X-Number", fmt.Sprint(i+1)); a.status != 200 {
			t.Fatalf("request %d: %s", i, a)
		}
		took = append(took, time.Since(begun))
	}
	if slices.Sort(took); took[requests-1] >= slow {
		t.Errorf("the slowest of %d takes %v", requests, took[requests-1])
	}
	if more := int(calls.Load()) - 2 - requests; more < requests/20 || more > requests/10+10 {
		t.Errorf("%d of %d requests are sent twice", more, requests)
	}
	contains(t, n.get(n.admin+"/metrics").body, `roundhouse_gateway_hedges_total{outcome="won",service="pool default/outside"}`)
	out, hedged := n.do("requests", "-o", "json"), 0
	for line := range strings.Lines(out) {
		var r struct {
			Tries   int    `json:"tries"`
			Retried string `json:"retried"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if r.Tries == 2 && strings.Contains(r.Retried, "was asked as well") {
			hedged++
		}
	}
	if hedged < requests/20 {
		t.Errorf("requests names %d hedged ones: %s", hedged, out)
	}
}
