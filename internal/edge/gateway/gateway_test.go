package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// demand calls back on a wake and counts sleeps.
type demand struct {
	mu     sync.Mutex
	onWake func(pool string)
	wakes  atomic.Int32
	slept  atomic.Int32
	asleep atomic.Value // the name that the last Sleep was called with
	fail   error        // of Sleep
}

func (d *demand) Wake(_ context.Context, pool string, _ int) error {
	d.wakes.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.onWake != nil {
		d.onWake(pool)
	}
	return nil
}

func (d *demand) Sleep(_ context.Context, name string) error {
	d.slept.Add(1)
	d.asleep.Store(name)
	return d.fail
}

func (d *demand) Report(string, autoscale.Demand) {}

// rig is a gateway on loopback.
type rig struct {
	t      testing.TB
	d      *dispatch.Dispatcher
	demand *demand
	gw     *Gateway
	reg    *prometheus.Registry
	url    string
	client *http.Client
}

func newRig(t testing.TB, mutate func(*Config, *dispatch.Config)) *rig {
	t.Helper()
	cfg, dcfg := DefaultConfig(), dispatch.DefaultConfig()
	cfg.AllowedHosts = []string{"*"}
	if mutate != nil {
		mutate(&cfg, &dcfg)
	}
	r := &rig{t: t, demand: &demand{}, reg: prometheus.NewRegistry(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	var err error
	if r.d, err = dispatch.New(dcfg, r.demand, nil, func(int) int { return 0 }); err != nil {
		t.Fatal(err)
	}
	if r.gw, err = New(cfg, r.d, slog.New(slog.DiscardHandler), r.reg); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.gw.Serve(ctx, l) }()
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		r.d.Close()
	})
	return r
}

// replicaServer serves h on loopback and returns its address.
func replicaServer(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.Listener.Addr().String()
}

func pool(name string, addresses ...string) dispatch.PoolConfig {
	k := service.ParseKey(name)
	p := dispatch.PoolConfig{Key: k, Limits: service.Scaling{}.Settled()}
	for i, a := range addresses {
		p.Replicas = append(p.Replicas, replica.Replica{ID: fmt.Sprintf("%s-%d", k.Name, i), Service: k,
			Role: service.RoleEngine, Phase: replica.Ready, HTTP: a})
	}
	return p
}

// until waits for what only counters tell.
func until(t testing.TB, is func() bool) {
	t.Helper()
	for limit := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("it did not come to pass within a minute")
		}
	}
}

// answer is what a client got.
type answer struct {
	code   int
	header http.Header
	body   string
	err    error // while reading the body
}

func (r *rig) send(method, path, body string, header ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if h := req.Header.Get("Host"); h != "" {
		req.Host = h
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(b), err}
}

func (a answer) want(t *testing.T, code int, parts ...string) {
	t.Helper()
	if a.err != nil || a.code != code {
		t.Fatalf("got %d %q (%v), want %d", a.code, a.body, a.err, code)
	}
	for _, p := range parts {
		if !strings.Contains(a.body, p) {
			t.Errorf("body %q lacks %q", a.body, p)
		}
	}
}

// echo answers with the path and the body it got.
func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.EscapedPath(), b)
}

func TestWakeAndAnswer(t *testing.T) {
	r := newRig(t, nil)
	addr := replicaServer(t, echo)
	r.demand.onWake = func(string) { go r.d.SetPool(pool("iris", addr)) }
	r.d.SetPool(pool("iris"))
	r.send("GET", "/v2/models/iris/ready", "").want(t, 200, `{"name":"iris","ready":true`, "asleep")
	r.send("GET", "/v1/models/iris", "").want(t, 200, `"ready":true`, `"state":"Asleep"`)
	r.send("POST", "/v2/repository/index", "").want(t, 200, `{"name":"iris","state":"UNAVAILABLE","reason":"asleep`)
	if n := r.demand.wakes.Load(); n != 0 {
		t.Fatalf("%d wakes by reading", n)
	}
	r.send("POST", "/v2/models/iris/infer", `{"inputs":[]}`).want(t, 200, `POST /v2/models/iris/infer {"inputs":[]}`)
	r.send("POST", "/v2/repository/index", `{"ready":true}`).want(t, 200, `"state":"READY"`)
}

func TestRoutes(t *testing.T) {
	r := newRig(t, nil)
	addr := replicaServer(t, echo)
	r.d.SetPools([]dispatch.PoolConfig{pool("iris", addr), pool("team/iris", addr), pool("digits", addr), pool("chat", addr)})
	served := pool("gpt", addr)
	served.ServedName, served.OpenAIPrefix = `org/"x"`, "/openai"
	r.d.SetPool(served)
	chat := `{"n":9007199254740993123, "model" : "chat","z":{"a":1e400,"<&>":"\u00e9"},"a":[ ]}`
	for _, c := range []struct{ method, path, body, host, want string }{
		{"POST", "/v1/chat/completions?x=%2F1", chat, "", "POST /v1/chat/completions " + chat},
		{"POST", "/openai/v1/embeddings", `{"model":"chat"}`, "", `POST /v1/embeddings {"model":"chat"}`},
		{"POST", "/v1/completions", `{"a":9007199254740993,"model":"gpt" ,"b":0}`, "", `POST /openai/v1/completions {"a":9007199254740993,"model":"org/\"x\"" ,"b":0}`},
		{"POST", "/v1/completions", `{"model":"default/chat","b":0}`, "", `POST /v1/completions {"model":"chat","b":0}`},
		{"POST", "/v1/completions", `{"model":"adapter","b":0}`, "chat.default.localhost:8080", `POST /v1/completions {"model":"adapter","b":0}`},
		{"POST", "/v1/models/digits:predict", `{"instances":[]}`, "", `POST /v1/models/digits:predict {"instances":[]}`},
		{"POST", "/v1/models/team/iris:explain", `1`, "", `POST /v1/models/iris:explain 1`},
		{"POST", "/v1/models/iris:predict", `1`, "iris.team.localhost", `POST /v1/models/iris:predict 1`},
		{"POST", "/v2/models/team%2Firis/infer", `1`, "", `POST /v2/models/iris/infer 1`},
		{"POST", "/v2/models/team%2Firis/versions/3/infer", `1`, "", `POST /v2/models/iris/versions/3/infer 1`},
		{"GET", "/v2/models/digits", ``, "", `GET /v2/models/digits `},
		{"GET", "/v2/models/digits/docs/dataplane.json", ``, "", `GET /v2/models/digits/docs/dataplane.json `},
		{"PUT", "/v2/models/digits/custom%20handler", `x`, "", `PUT /v2/models/digits/custom%20handler x`},
		{"POST", "/v2/models/gpt/generate", `1`, "", `POST /v2/models/org%2F%22x%22/generate 1`},
	} {
		var header []string
		if c.host != "" {
			header = []string{"Host", c.host}
		}
		a := r.send(c.method, c.path, c.body, header...)
		if a.code != 200 || a.body != c.want {
			t.Errorf("%s %s: %d\n got %s\nwant %s", c.method, c.path, a.code, a.body, c.want)
		}
	}
}

func TestForms(t *testing.T) {
	r := newRig(t, nil)
	p := pool("whisper", replicaServer(t, echo))
	p.ServedName = "openai/whisper-large"
	r.d.SetPool(p)
	form := func(model string) string {
		return "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\x00\x01--XY\r\n\xff\r\n" +
			"--XX\r\ncontent-disposition: form-data; name=model\r\n\r\n" + model + "\r\n--XX--\r\n"
	}
	header := []string{"Content-Type", "multipart/form-data; boundary=XX"}
	r.send("POST", "/v1/audio/transcriptions", form("whisper"), header...).want(t, 200, "POST /v1/audio/transcriptions "+form("openai/whisper-large"))
	r.send("POST", "/v1/audio/transcriptions", form(""), header...).want(t, 400, "no field")
	r.send("POST", "/v1/audio/transcriptions", "--XX--", header...).want(t, 400, "no field")
	r.send("POST", "/v1/audio/transcriptions", "--XX", header...).want(t, 400, "no multipart")
	r.send("POST", "/v1/audio/transcriptions", form("a")[:60], header...).want(t, 400, "no multipart")
	twice := strings.TrimSuffix(form("a"), "--XX--\r\n") + form("b")
	r.send("POST", "/v1/audio/transcriptions", twice, header...).want(t, 400, "two fields")
	for _, other := range []string{ // a second model, for some parsers
		"Content-Disposition: form-data;\r\n name=model", "A: b\nContent-Disposition: form-data; name=model",
		"Content-Disposition: form-data; name=x\r\nContent-Disposition: form-data; name=model",
		"Content-Disposition: form-data; name=x; name=model", "Content-Disposition: form-data; name=Model; name",
	} {
		body := strings.TrimSuffix(form("whisper"), "--XX--\r\n") + "--XX\r\n" + other + "\r\n\r\nsecret\r\n--XX--\r\n"
		r.send("POST", "/v1/audio/transcriptions", body, header...).want(t, 400, "no multipart")
	}
	odd := strings.Replace(form("whisper"), `"a.wav"`, `"a"b.wav"`, 1)
	r.send("POST", "/v1/audio/transcriptions", odd, header...).want(t, 200)
}

// TestBodyOfTwoTypes: a replica might read it as the other.
func TestBodyOfTwoTypes(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("m", replicaServer(t, echo)))
	for _, h := range []http.Header{
		{"Content-Type": {"application/json", "multipart/form-data; boundary=x"}},
		{"Content-Type": {"application/json"}, "Content-Encoding": {"identity", "deflate"}},
	} {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"m"}`))
		req.Header = h
		w := httptest.NewRecorder()
		r.gw.Handler().ServeHTTP(w, req)
		if w.Code != http.StatusUnsupportedMediaType {
			t.Errorf("%v: %d %s", h, w.Code, w.Body)
		}
	}
}

func TestErrors(t *testing.T) {
	r := newRig(t, func(c *Config, _ *dispatch.Config) { c.MaxBodyBytes = 100 })
	addr := replicaServer(t, echo)
	bad := pool("broken")
	bad.Cause = dispatch.Cause{Reason: "NoSupportingRuntime", Message: "vllm is not on PATH: pip install vllm", Permanent: true}
	r.d.SetPools([]dispatch.PoolConfig{pool("iris", addr), pool("team/iris", addr), pool("digits", addr), bad})
	long := strings.Repeat("x", 101)
	for _, c := range []struct {
		method, path, body string
		code               int
		want               string
	}{
		{"POST", "/v1/chat/completions", `{"messages":[]}`, 400, `"param":"model"`},
		{"POST", "/v1/chat/completions", `{"model":"a","model":"b"}`, 400, "twice"},
		{"POST", "/v1/chat/completions", `{"model":`, 400, `{"error":{"message":"body is not valid JSON`},
		{"POST", "/v1/chat/completions", `{"model":"digit"}`, 404, `did you mean digits?","type":"not_found_error","param":"model","code":"model_not_found"`},
		{"POST", "/v1/chat/completions", `{"model":"iris"}`, 404, "default/iris, team/iris"},
		{"POST", "/v1/chat/completions", `{"model":"broken"}`, 503, "pip install vllm"},
		{"POST", "/v1/chat/completions", long, 413, `"message":"the body is larger than 100 bytes`},
		{"GET", "/v1/chat/completions", ``, 405, "POST"},
		{"POST", "/v1/models", `{}`, 405, "GET"},
		{"GET", "/v1/models/nope", ``, 404, "not served here"},
		{"POST", "/v1/models/nope:predict", `{}`, 404, `{"error":"model \"nope\" is not served here`},
		{"GET", "/v1/models/digits:predict", ``, 405, `{"error":"GET`},
		{"POST", "/v1/models/:predict", ``, 400, "not a model name"},
		{"POST", "/v2/models/nope/infer", `{}`, 404, `{"error":"model \"nope\" is not served here`},
		{"POST", "/v2/models/iris/infer", `{}`, 404, `namespace/name: default/iris, team/iris"}`},
		{"POST", "/v2/models/digits/infer", long, 413, `{"error":"the body is larger`},
		{"GET", "/v2/models/digits/infer", ``, 405, "POST"},
		{"GET", "/v2/models/broken/ready", ``, 400, `"ready":false`},
		{"GET", "/v2/models/nope/ready", ``, 404, "error"},
		{"GET", "/v2/nothing", ``, 404, "/v2/models/{name}/infer"},
		{"POST", "/v2/repository/index", `[`, 400, "error"},
		{"POST", "/v2/repository/models/nope/load", ``, 404, "error"},
		{"POST", "/v2/repository/models/digits/explode", ``, 404, "load and unload"},
		{"GET", "/nothing", ``, 404, "/v1/models/{name}:predict"},
	} {
		a := r.send(c.method, c.path, c.body)
		if a.code != c.code || !strings.Contains(a.body, c.want) || !json.Valid([]byte(a.body)) {
			t.Errorf("%s %s: got %d %s, want %d %s", c.method, c.path, a.code, a.body, c.code, c.want)
		}
	}
	a := r.send("POST", "/v1/chat/completions", "x", "Content-Encoding", "gzip")
	a.want(t, 415, "gzip")
	// A body without a stated length meets the same bound, held or streamed.
	for _, path := range []string{"/v1/completions", "/v2/models/digits/infer"} {
		resp, err := r.client.Post(r.url+path, "application/json", io.MultiReader(strings.NewReader(long)))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("%s: %d for a long chunked body", path, resp.StatusCode)
		}
	}
}

func TestServerLevel(t *testing.T) {
	r := newRig(t, nil)
	addr := replicaServer(t, echo)
	r.d.SetPools([]dispatch.PoolConfig{pool("iris", addr), pool("team/iris", addr), pool("chat")})
	r.send("GET", "/v2", "").want(t, 200, `"name":"roundhouse"`, `"extensions":["model_repository"]`)
	r.send("GET", "/v2/health/live", "").want(t, 200, `{"live":true}`)
	r.send("GET", "/v2/health/ready", "").want(t, 200, `"ready":true`)
	r.send("GET", "/healthz", "").want(t, 200, "ok")
	r.send("GET", "/", "").want(t, 200, "/v1/models")
	r.send("GET", "/v1/models", "").want(t, 200, `"object":"list"`, `"id":"default/iris"`, `"object":"model"`, `"models":["chat","default/iris","team/iris"]`)
	r.demand.onWake = func(string) { go r.d.SetPool(pool("chat", addr)) }
	r.send("POST", "/v2/repository/models/chat/load", "").want(t, 200)
	r.send("GET", "/v2/models/chat/ready", "").want(t, 200, `{"name":"chat","ready":true}`)
	r.send("POST", "/v2/repository/models/chat/unload", `{}`).want(t, 200)
	if r.demand.slept.Load() != 1 || r.demand.wakes.Load() != 1 {
		t.Errorf("%d sleeps, %d wakes", r.demand.slept.Load(), r.demand.wakes.Load())
	}
	r.demand.fail = errors.New("minReplicas is 1")
	r.send("POST", "/v2/repository/models/team%2Firis/unload", "").want(t, 400, "minReplicas is 1")
}

func TestHeaders(t *testing.T) {
	r := newRig(t, nil)
	got := make(chan http.Header, 1)
	r.d.SetPool(pool("iris", replicaServer(t, func(w http.ResponseWriter, req *http.Request) {
		got <- req.Header
		w.Header().Set("Connection", "X-Private")
		w.Header().Set("X-Private", "1")
		w.Header().Set("Ce-Id", "7")
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(202)
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "43")
	})))
	req, err := http.NewRequestWithContext(t.Context(), "POST", r.url+"/v2/models/iris/infer", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"X-Request-Id": "abc", "Connection": "X-Mine", "X-Mine": "1",
		"Inference-Header-Content-Length": "2", "X-Forwarded-For": "10.0.0.1", "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"} {
		req.Header.Set(k, v)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	up := <-got
	for k, want := range map[string]string{"X-Request-Id": "abc", "X-Mine": "", "Inference-Header-Content-Length": "2",
		"X-Forwarded-For": "10.0.0.1, 127.0.0.1", "X-Forwarded-Host": strings.TrimPrefix(r.url, "http://"),
		"X-Forwarded-Proto": "http", "Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Idempotency-Key": "", "User-Agent": "Go-http-client/1.1"} {
		if up.Get(k) != want {
			t.Errorf("replica got %s %q, want %q", k, up.Get(k), want)
		}
	}
	if resp.StatusCode != 202 || resp.Header.Get("X-Private") != "" || resp.Header.Get("Ce-Id") != "7" || resp.Header.Get("X-Request-Id") != "abc" {
		t.Errorf("client got %d %v", resp.StatusCode, resp.Header)
	}
	if resp.Trailer.Get("X-Sum") != "42" || resp.Trailer.Get("X-Late") != "43" {
		t.Errorf("trailers %v", resp.Trailer)
	}
	// Without them both are made.
	a := make(chan answer, 1)
	go func() { a <- r.send("POST", "/v2/models/iris/infer", "{}") }()
	up = <-got
	if id := (<-a).header.Get("X-Request-Id"); len(id) != 32 || up.Get("X-Request-Id") != id {
		t.Errorf("request id %q and %q", id, up.Get("X-Request-Id"))
	}
	if tp := up.Get("Traceparent"); len(tp) != 55 {
		t.Errorf("traceparent %q", tp)
	}
}

func TestMetrics(t *testing.T) {
	r := newRig(t, nil)
	r.d.SetPool(pool("iris", replicaServer(t, echo)))
	r.send("POST", "/v2/models/iris/infer", "{}").want(t, 200)
	r.send("POST", "/v2/models/made-up-by-a-client/infer", "{}").want(t, 404)
	series := func() string {
		families, err := r.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, f := range families {
			for _, m := range f.GetMetric() {
				_, _ = fmt.Fprintln(&b, f.GetName(), m.String())
			}
		}
		return b.String()
	}
	until(t, func() bool { return strings.Contains(series(), `value:"404"`) }) // counted after the client has its answer
	got := series()
	for _, want := range []string{"requests_total", "queued", "in_flight", "wait_seconds", `value:"default/iris"`, `value:"200"`} {
		if !strings.Contains(got, want) {
			t.Errorf("metrics lack %s:\n%s", want, got)
		}
	}
	if strings.Contains(got, "made-up") {
		t.Error("a client's word became a label")
	}
	r.d.Remove(routing.Service(service.ParseKey("iris")))
	if got := series(); strings.Contains(got, "default/iris") {
		t.Errorf("series of a deleted service stay:\n%s", got)
	}
}
