package gateway

import (
	"net/http"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestAdministrationIsNotForwarded: what administers a server reaches none,
// whatever the body names and whichever route takes every path.
func TestAdministrationIsNotForwarded(t *testing.T) {
	r := newRig(t, nil)
	asked := make(chan string, 100)
	addr := replicaServer(t, func(_ http.ResponseWriter, req *http.Request) { asked <- req.URL.Path })
	r.d.SetPool(pool("one", addr))
	r.d.SetObjects([]routing.Object{&routing.HTTPRoute{Meta: service.Meta{Key: service.ParseKey("all")}, Hostnames: []string{"all.test"}, Rules: []routing.HTTPRule{{
		Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/v1"}}, {Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/"}},
			{Path: routing.ValueMatch{Type: routing.MatchRegexp, Value: "/.*"}}},
		Backends: []routing.Backend{{Ref: routing.Service(service.ParseKey("one")), Weight: 1}}}}}})
	for _, host := range []string{"", "one.default.localhost", "all.test"} {
		for _, path := range []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/openai/v1/load_lora_adapter", "/v1//load_lora_adapter", "/v1/%6coad_lora_adapter", "/v1/loads",
			"/sleep", "/wake_up", "/collective_rpc", "/flush_cache", "/update_weights_from_disk", "/start_profile", "/reset_prefix_cache", "/server_info", "/abort_request", "/metrics",
			"/v2/models/one/trace/setting", "/v2/models/one//trace/setting", "/v2/trace/setting", "/v2/logging", "/v2/systemsharedmemory/region/x/register"} {
			for _, method := range []string{"POST", "GET"} {
				if a := r.send(method, path, `{"model":"one","lora_name":"x","lora_path":"/x"}`, "Host", host); a.code != 404 {
					t.Errorf("%s %s%s: %d %s", method, host, path, a.code, a.body)
				}
			}
		}
	}
	if len(asked) > 0 {
		t.Errorf("the server was asked for %s", <-asked)
	}
}

// TestJSONIsSaidToBe: curl says that its body is a form, and many engines
// believe it. Binary tensors and forms stay as they are said to be.
func TestJSONIsSaidToBe(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("one", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write([]byte(req.Header.Get("Content-Type")))
	})))
	const body, curl = `{"model":"one","inputs":[]}`, "application/x-www-form-urlencoded"
	for _, c := range []struct{ path, body, said, want string }{
		{"/v1/completions", body, curl, "application/json"},
		{"/v1/completions", body, "text/plain;charset=UTF-8", "application/json"},
		{"/v1/completions", body, "", "application/json"},
		{"/v1/completions", body, "application/json; charset=utf-8", "application/json; charset=utf-8"},
		{"/v1/completions", body, "application/cloudevents+json", "application/cloudevents+json"},
		{"/v1/models/one:predict", body, curl, "application/json"},
		{"/v2/models/one/infer", body, curl, "application/json"},
		{"/v2/models/one/infer", "a=b", curl, curl},
		{"/v2/models/one/infer", body, "application/octet-stream", "application/octet-stream"},
		{"/v2/models/one/infer", "[" + strings.Repeat("1,", 300<<10) + "1]", curl, "application/json"},
	} {
		if a := r.send("POST", c.path, c.body, "Content-Type", c.said); a.code != 200 || a.body != c.want {
			t.Errorf("%s said to be %q: %d %s, want %s", c.path, c.said, a.code, a.body, c.want)
		}
	}
}
