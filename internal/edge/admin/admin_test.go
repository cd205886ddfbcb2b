package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

const token = "the-token"

// outside is everything around a fleet, doing nothing but keep one log.
type outside struct{ log string }

func (outside) Host(context.Context, ...selection.Check) (selection.Host, error) {
	return selection.Host{}, nil
}
func (outside) Apply(context.Context, workload.Revision) error           { return nil }
func (outside) Scale(context.Context, workload.Ref, int, []string) error { return nil }
func (outside) Remove(context.Context, service.Key) error                { return nil }
func (outside) Services(context.Context) ([]service.Key, error)          { return nil, nil }
func (outside) Changed() <-chan service.Key                              { return nil }
func (outside) PutObject(fleet.Object) error                             { return nil }
func (outside) DeleteObject(fleet.ID) error                              { return nil }
func (outside) PutRecord(fleet.Record) error                             { return nil }
func (outside) DeleteRecord(service.Key) error                           { return nil }
func (outside) Load() ([]fleet.Object, []fleet.Record, error)            { return nil, nil, nil }
func (outside) Publish(fleet.View)                                       {}
func (outside) Withdraw(service.Key)                                     {}
func (outside) Demand(service.Key) autoscale.Demand                      { return autoscale.Demand{} }
func (outside) InFlight(string) int                                      { return 0 }
func (outside) Inspect(context.Context, service.Files) (service.Attributes, error) {
	return service.Attributes{}, nil
}

func (o outside) Observe(_ context.Context, k service.Key) ([]replica.Replica, error) {
	if o.log == "" {
		return nil, nil
	}
	return []replica.Replica{{ID: "old"}, {ID: "new", Service: k, Phase: replica.Ready}}, nil
}

func (o outside) Logs(_ context.Context, id string, _ fleet.LogOptions) (io.ReadCloser, error) {
	if id != "new" {
		return nil, errors.New("no log")
	}
	return io.NopCloser(strings.NewReader(o.log)), nil
}

func newServer(t *testing.T, o outside, change func(*Config)) *Server {
	t.Helper()
	f, err := fleet.New(fleet.Config{Platform: o, Store: o, Models: o, Traffic: o,
		URL: func(k service.Key) string { return "http://" + k.Name + "." + k.Namespace + ".localhost:8080" }})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Fleet: f, Token: token, Host: "192.0.2.1", Version: "v1"}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ask makes one request as the owner would; header is pairs that override.
func ask(s *Server, method, path, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, "http://127.0.0.1:8090"+path, strings.NewReader(body))
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, req)
	return w
}

func TestGuard(t *testing.T) {
	s := newServer(t, outside{}, func(c *Config) {
		c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "up 1\n") })
	})
	for _, c := range []struct {
		method, path string
		header       []string
		want         int
	}{
		{"GET", "/api/v1", nil, 200},
		{"GET", "/api/v1/services", nil, 200},
		{"GET", "/api/v1", []string{"Authorization", ""}, 401},
		{"GET", "/api/v1", []string{"Authorization", "Bearer"}, 401},
		{"GET", "/api/v1", []string{"Authorization", "Bearer " + token + "x"}, 401},
		{"GET", "/api/v1", []string{"Authorization", "Basic " + token}, 401},
		{"GET", "/nowhere", []string{"Authorization", ""}, 401},
		{"GET", "/api/v1", []string{"Authorization", "bearer " + token}, 200}, // RFC 9110: in any case
		{"GET", "/nowhere", nil, 404},
		{"GET", "/healthz", []string{"Authorization", ""}, 200},
		{"GET", "/metrics", []string{"Authorization", ""}, 200},
		{"POST", "/metrics", []string{"Authorization", ""}, 401},
		{"POST", "/api/v1/apply", []string{"Authorization", ""}, 401},
		{"DELETE", "/api/v1/services/a/b", []string{"Authorization", ""}, 401},

		{"GET", "/api/v1", []string{"Host", "localhost:1"}, 200},
		{"GET", "/api/v1", []string{"Host", "roundhouse.localhost"}, 200},
		{"GET", "/api/v1", []string{"Host", "127.9.9.9:8090"}, 200},
		{"GET", "/api/v1", []string{"Host", "[::1]:8090"}, 200},
		{"GET", "/api/v1", []string{"Host", "192.0.2.1:8090"}, 200}, // where it listens
		{"GET", "/api/v1", []string{"Host", "192.0.2.2:8090"}, 403},
		{"GET", "/api/v1", []string{"Host", "evil.example"}, 403},
		{"GET", "/api/v1", []string{"Host", "localhost.evil.example"}, 403},
		{"GET", "/api/v1", []string{"Host", "evillocalhost"}, 403},
		{"GET", "/healthz", []string{"Host", "evil.example"}, 403},

		{"GET", "/api/v1", []string{"Origin", "http://localhost:3000"}, 200},
		{"GET", "/api/v1", []string{"Origin", "http://127.0.0.1:8090"}, 200},
		{"POST", "/api/v1/apply", []string{"Origin", "https://evil.example"}, 403},
		{"POST", "/api/v1/apply", []string{"Origin", "null"}, 403},
		{"POST", "/api/v1/apply", []string{"Origin", "file://"}, 403},
		{"GET", "/metrics", []string{"Origin", "http://localhost.evil.example"}, 403},
	} {
		w := ask(s, c.method, c.path, "{}", c.header...)
		if w.Code != c.want {
			t.Errorf("%s %s %q: %d, want %d: %s", c.method, c.path, c.header, w.Code, c.want, w.Body)
		}
		if w.Code >= 400 {
			var e Error
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Message == "" {
				t.Errorf("%s %s %q: the error is %s", c.method, c.path, c.header, w.Body)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	s := newServer(t, outside{}, nil)
	for _, path := range []string{"/api/v1/apply", "/api/v1/explain"} {
		w := ask(s, "POST", path, `{"files":[{"name":"`+strings.Repeat("x", maxManifestBytes)+`"}]}`)
		if w.Code != 413 || !strings.Contains(w.Body.String(), "16777216 bytes") {
			t.Errorf("%s over the limit: %d %s", path, w.Code, w.Body)
		}
		if w := ask(s, "POST", path, `{"files":`); w.Code/100 != 4 {
			t.Errorf("%s of torn JSON: %d %s", path, w.Code, w.Body)
		}
	}
}

const irisYAML = "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: iris}\nspec: {model: {uri: \"file:///m\", format: {name: xgboost}}}\n"

func applyBody(t *testing.T, files ...File) string {
	t.Helper()
	raw, err := json.Marshal(ApplyRequest{Files: files})
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestApply(t *testing.T) {
	s := newServer(t, outside{}, nil)
	bad := strings.Replace(irisYAML, "spec:", "spce:", 1)
	w := ask(s, "POST", "/api/v1/apply", applyBody(t, File{Name: "good.yaml", Data: irisYAML}, File{Name: "bad.yaml", Data: bad}, File{Name: "twice.yaml", Data: irisYAML}))
	var e Error
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != 422 || len(e.Problems) < 2 {
		t.Fatalf("want every problem, got %d %s", w.Code, w.Body)
	}
	if all := strings.Join(e.Problems, "\n"); !strings.Contains(all, `bad.yaml:4: spce: unknown field; did you mean "spec"?`) ||
		!strings.Contains(all, "twice.yaml:1: metadata.name: service default/iris is also at good.yaml:1") {
		t.Errorf("problems:\n%s", all)
	}
	if w := ask(s, "GET", "/api/v1/services", ""); strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("a part was applied: %s", w.Body)
	}
	for _, action := range []string{"created", "unchanged"} {
		w = ask(s, "POST", "/api/v1/apply", applyBody(t, File{Name: "good.yaml", Data: irisYAML}))
		var resp ApplyResponse
		if err := json.Unmarshal(w.Body.Bytes(), &resp); err != nil || len(resp.Changes) != 1 || resp.Changes[0] != (Change{Kind: "service", Namespace: "default", Name: "iris", Action: action}) {
			t.Errorf("want %s, got %d %s", action, w.Code, w.Body)
		}
	}
	if w := ask(s, "GET", "/api/v1/services?namespace=other", ""); strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("another namespace holds %s", w.Body)
	}
	for path, code := range map[string]int{"/api/v1/services/default/iris": 200, "/api/v1/services/default/nobody": 404, "/api/v1/runtimes/_cluster/nobody": 404} {
		if w := ask(s, "DELETE", path, ""); w.Code != code {
			t.Errorf("DELETE %s: %d %s", path, w.Code, w.Body)
		}
	}
}

// TestManifestNamesItsFilesEverywhere: a manifest that is printed may be applied
// from any folder, so its relative paths are absolute by then.
func TestManifestNamesItsFilesEverywhere(t *testing.T) {
	for dialect, manifest := range map[string]string{
		"roundhouse": `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: m, annotations: {uri: m.ubj}}
spec:
  model:
    uri: m.ubj # beside this file
    format: {name: xgboost}
    adapters: [{name: lora, uri: "file://lora"}]
`,
		"kserve": "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: m}\nspec: {predictor: {model: {modelFormat: {name: xgboost}, storageUri: m.ubj}}}\n",
		"alias":  "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: m, annotations: {x: &m m.ubj}}\nspec: {predictor: {model: {modelFormat: {name: xgboost}, storageUri: *m}}}\n",
		"seldon": "apiVersion: machinelearning.seldon.io/v1\nkind: SeldonDeployment\nmetadata: {name: m}\nspec: {protocol: v2, predictors: [{name: p, graph: {name: g, implementation: XGBOOST_SERVER, modelUri: m.ubj}}]}\n",
	} {
		t.Run(dialect, func(t *testing.T) {
			uris := map[string]string{"m.ubj": "file:///srv/my models/m.ubj", "file://lora": "file:///srv/lora"}
			objects, _, err := Objects([]File{{Name: "m.yaml", Data: manifest, URIs: uris}}, "")
			if err != nil || len(objects) != 1 {
				t.Fatal(objects, err)
			}
			got := ServiceOf(fleet.ServiceState{Object: objects[0]}, true)
			if got.Model != "file:///srv/my models/m.ubj" {
				t.Errorf("the model is %q", got.Model)
			}
			again, _, err := Objects([]File{{Name: "again.yaml", Data: got.Rendered}}, "")
			if err != nil || len(again) != 1 {
				t.Fatalf("%v in\n%s", err, got.Rendered)
			}
			for _, uri := range again[0].ModelURIs() {
				if !strings.HasPrefix(uri, "file:///srv/") {
					t.Errorf("%s is relative in\n%s", uri, got.Rendered)
				}
			}
			if strings.Contains(manifest, "annotations") && !strings.Contains(got.Rendered, " m.ubj}") || strings.Contains(manifest, "#") != strings.Contains(got.Rendered, "# beside") {
				t.Errorf("more than the URIs is changed:\n%s", got.Rendered)
			}
		})
	}
}

// TestNoSecretsOfURIs: neither a password nor a signature of a URI is told
// beside the manifest itself.
func TestNoSecretsOfURIs(t *testing.T) {
	s := newServer(t, outside{}, nil)
	manifest := strings.Replace(irisYAML, "file:///m", "https://user:hunter2@models.invalid/m?X-Amz-Signature=deadbeef", 1)
	if w := ask(s, "POST", "/api/v1/apply", applyBody(t, File{Name: "a.yaml", Data: manifest})); w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, path := range []string{"/api/v1/services", "/api/v1/services/default/iris", "/api/v1/services/default/iris/explain"} {
		w := ask(s, "GET", path, "")
		var told any
		if err := json.Unmarshal(w.Body.Bytes(), &told); err != nil || w.Code != 200 || !strings.Contains(w.Body.String(), "https://models.invalid/m?…") {
			t.Fatalf("%s: %d %s (%v)", path, w.Code, w.Body, err)
		}
		if one, ok := told.(map[string]any); ok {
			delete(one, "rendered") // the manifest itself
			delete(one, "written")
		}
		text, err := json.Marshal(told)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "deadbeef") {
			t.Errorf("%s tells %s", path, text)
		}
	}
}

func TestLogs(t *testing.T) {
	s := newServer(t, outside{log: "one\ntwo\n"}, nil)
	if w := ask(s, "POST", "/api/v1/apply", applyBody(t, File{Name: "a.yaml", Data: irisYAML})); w.Code != 200 {
		t.Fatal(w.Body)
	}
	const path = "/api/v1/services/default/iris/logs"
	w := ask(s, "GET", path, "")
	if w.Body.String() != "one\ntwo\n" || w.Header().Get("X-Roundhouse-Replica") != "new" {
		t.Errorf("want the newest replica's, got %q of %q", w.Body, w.Header().Get("X-Roundhouse-Replica"))
	}
	for _, bad := range []string{"?tail=x", "?tail=-1", "?replica=old"} {
		if w := ask(s, "GET", path+bad, ""); w.Code/100 != 4 {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
	if w := ask(s, "GET", "/api/v1/services/default/nobody/logs", ""); w.Code != 404 {
		t.Errorf("of nobody: %d", w.Code)
	}
}

// TestClientAgainstServer speaks through a real listener, uploads included.
func TestClientAgainstServer(t *testing.T) {
	store, err := artifact.New(artifact.Config{Dir: t.TempDir()}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, outside{}, func(c *Config) { c.Files = store })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, time.Second) }()
	c := &Client{Base: "http://" + l.Addr().String(), Token: token}
	if resp, err := c.Apply(ctx, ApplyRequest{Files: []File{{Name: "a.yaml", Data: irisYAML}}}); err != nil || len(resp.Changes) != 1 {
		t.Errorf("apply: %+v (%v)", resp, err)
	}
	k := service.ParseKey("iris")
	if got, err := c.Service(ctx, k); err != nil || got.Model != "file:///m" || !strings.Contains(got.Rendered, "kind: ModelService") {
		t.Errorf("service: %+v (%v)", got, err)
	}
	if past, err := c.ExplainScale(ctx, k); err != nil || len(past) != 0 {
		t.Errorf("explain scale before a decision: %+v (%v)", past, err)
	}
	data := []byte("a model")
	u := artifact.Upload{SHA256: "5bcc2ff0df6d6a5c3b8fd1b1ddfbb47ab4f4b0f4ed4f0d5d9b2ca4ce8bd1b2ec", Name: "iris.ubj", Size: int64(len(data))}
	body := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	if _, err := c.Upload(ctx, u, body); err == nil || !strings.Contains(err.Error(), "sha256") && !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("an upload that is not what it says: %v", err)
	}
	if reads, err := c.Reads(ctx, filepath.Join(t.TempDir(), "none"), 1, false); err != nil || reads {
		t.Errorf("it reads what is not there (%v)", err)
	}
	_, err = c.Delete(ctx, "services", service.ParseKey("nobody"))
	var api *APIError
	if !errors.As(err, &api) || api.Status != 404 {
		t.Errorf("delete of nobody: %v", err)
	}
	c.Token = "another"
	if _, err := c.Services(ctx, "", false); !errors.As(err, &api) || api.Status != 401 {
		t.Errorf("with another token: %v", err)
	}
	stop()
	if err := <-served; err != nil {
		t.Errorf("stopped by its context, Serve returns %v", err)
	}
	var nobody *UnreachableError
	if _, err := c.Services(t.Context(), "", false); !errors.As(err, &nobody) || !strings.Contains(err.Error(), "roundhouse up") {
		t.Errorf("nobody listens: %v", err)
	}
}
