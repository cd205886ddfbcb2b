package modelserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

func TestRoutes(t *testing.T) {
	s := loaded(t, map[string]string{
		"good/model-settings.json":   settings("test.Fake", "./model.fake", "v3"),
		"good/model.fake":            "fake triple",
		"older/model-settings.json":  `{"name":"good","implementation":"test.Fake","parameters":{"uri":"../good/double","version":"v2"}}`,
		"good/double":                "fake double",
		"broken/model-settings.json": settings("test.Fake", "model.fake", ""),
		"broken/model.fake":          "fake broken",
		"panics/model-settings.json": settings("test.Fake", "model.fake", ""),
		"panics/model.fake":          "fake panic",
	})
	tests := []struct {
		line, body string
		status     int
		says       string
	}{
		{"GET /", "", 200, `{"status":"alive"}`},
		{"GET /v2", "", 200, `{"name":"mlserver","version":"","extensions":["model_repository","binary_tensor_data","statistics","model_configuration"]}`},
		{"GET /v2/health/live", "", 200, `{"live":true}`},
		{"GET /v2/health/ready", "", 400, `{"ready":false,"live":true`},
		{"GET /v2/models/good", "", 200, `{"name":"good","versions":["v3","v2"],"platform":"fake","inputs":[{"name":"x","datatype":"FP32","shape":[-1]}],"outputs":[],"parameters":{}}`},
		{"GET /v2/models/good/versions/v2", "", 200, `"name":"good"`},
		{"GET /v2/models/good/ready", "", 200, `{"name":"good","ready":true}`},
		{"GET /v2/models/good/versions/v2/ready", "", 200, `{"name":"good","ready":true}`},
		{"GET /v2/models/good/versions/v9/ready", "", 404, `{"error":"Model good with version v9 not found"}`},
		{"GET /v2/models/none/ready", "", 404, `{"error":"Model none not found"}`},
		{"GET /v2/models/broken/ready", "", 400, `{"name":"broken","ready":false}`},
		{"GET /v2/models/broken", "", 400, `the file is broken`},
		{"POST /v2/models/good/infer", ask, 200, `{"model_name":"good","model_version":"v3","id":"7","parameters":{},"outputs":[{"name":"y","shape":[2],"datatype":"FP32","data":[3.0,6.0]}]}`},
		{"POST /v2/models/good/versions/v2/infer", ask, 200, `"model_version":"v2","id":"7","parameters":{},"outputs":[{"name":"y","shape":[2],"datatype":"FP32","data":[2.0,4.0]}]`},
		{"POST /v2/models/good/versions/v9/infer", ask, 404, `not found`},
		{"POST /v2/models/none/infer", ask, 404, `{"error":"Model none not found"}`},
		{"POST /v2/models/broken/infer", ask, 400, `Model broken is not ready yet (UNAVAILABLE): the file is broken`},
		{"POST /v2/models/panics/infer", ask, 500, `{"error":"internal error: boom"}`},
		{"POST /v2/models/good/infer", `{"inputs":[]}`, 400, `{"error":"expected 1 input, got 0"}`},
		{"POST /v2/models/good/infer", `{`, 422, `"detail":[{"type":"json_invalid","loc":["body",1]`},
		{"POST /v2/models/good/infer", `{}`, 422, `{"error":"inputs: Field required","detail":[{"type":"missing","loc":["body","inputs"],"msg":"Field required","input":{}}]}`},
		{"POST /v2/models/good/infer", `{"inputs":[{"name":"x","shape":[1.5],"datatype":"FP32","data":[1]}]}`, 422, `"type":"int_from_float","loc":["body","inputs",0,"shape",0]`},
		{"POST /v2/models/good/infer", `{"inputs":[{"name":"x","shape":[3],"datatype":"FP32","data":[1]}]}`, 400, `{"error":"input \"x\": shape [3] holds 3 elements, data has 1"}`},
		{"POST /v2/models/good/generate", ask, 200, `[3.0,6.0]`},
		{"POST /v2/models/good/versions/v2/generate", ask, 200, `[2.0,4.0]`},
		{"POST /v2/models/none/infer_stream", ask, 404, `{"error":"Model none not found"}`},
		{"POST /v2/models/broken/generate_stream", ask, 400, `is not ready`},
		{"POST /v2/models/good/versions/v9/generate_stream", ask, 404, `not found`},
		{"POST /v2/models/panics/infer_stream", ask, 500, `{"error":"internal error: boom"}`},
		{"POST /v2/models/good/infer_stream", `{}`, 422, `"type":"missing"`},
		{"POST /v2/models/none/infer", `{`, 422, `json_invalid`},
		{"GET /v2/models/none/docs", "", 404, `{"error":"Model none not found"}`},
		{"GET /v2/models/good/versions/v9/docs/dataplane.json", "", 404, `not found`},
		{"GET /v2/docs/assets/none.js", "", 404, `no such path`},
		{"DELETE /v2/models/good", "", 405, `{"error":"DELETE is not allowed here, only GET"}`},
		{"GET /v2/models/good/infer", "", 405, `{"error":"GET is not allowed here, only POST"}`},
		{"POST /v2/health/live", "", 405, `{"error":"POST is not allowed here, only GET"}`},
		{"GET /v3", "", 404, `{"error":"no such path: /v3"}`},
		{"GET /v2/health/live/?x=1", "", 200, `{"live":true}`},      // redirected
		{"POST /v2/models/good/infer/", ask, 200, `"outputs"`},      // so is a body
		{"GET /v2/models/none/", "", 404, `"Model none not found"`}, // and a name
		{"GET /v3/", "", 404, `{"error":"no such path: /v3/"}`},
		{"POST /v2/repository/index", "", 200, `[{"name":"broken","state":"UNAVAILABLE","reason":"the file is broken"},{"name":"good","version":"v3","state":"READY","reason":""},{"name":"good","version":"v2","state":"READY","reason":""},{"name":"panics"`},
		{"POST /v2/repository/index", `{"ready":true}`, 200, `[{"name":"good","version":"v3"`},
		{"POST /v2/repository/index", `{"ready":`, 422, `json_invalid`},
		{"POST /v2/repository/index", `{"ready":"perhaps"}`, 422, `"type":"bool_parsing","loc":["body","ready"]`},
		{"POST /v2/repository/index", `[]`, 422, `model_attributes_type`},
		{"POST /v2/repository/models/none/load", "", 404, `{"error":"Model none not found"}`},
		{"POST /v2/repository/models/none/unload", "", 404, `{"error":"Model none not found"}`},
		{"POST /v2/repository/models/broken/load", "", 400, `the file is broken`},
		{"GET /v1/models", "", 200, `{"models":["broken","good","panics"]}`},
		{"GET /v1/models/good", "", 200, `{"name":"good","ready":true}`},
		{"GET /v1/models/broken", "", 503, `not ready`},
		{"GET /v1/models/none", "", 404, `not found`},
		{"POST /v1/models/good:predict", `{"instances":[1,2]}`, 200, `{"predictions":[3.0,6.0]}`},
		{"POST /v1/models/broken:predict", `{"instances":[1,2]}`, 503, `not ready`},
		{"POST /v1/models/none:predict", `{"instances":[1,2]}`, 404, `not found`},
		{"POST /v1/models/good:explain", `{"instances":[1,2]}`, 404, `no such path`},
		{"POST /v1/models/good:predict", `{"instances":3}`, 422, `list_type`},
		{"GET /metrics", "", 200, `model_infer_request_success_total{model_name="good",model_version="v3",model="good",version="v3"}`},
	}
	for _, test := range tests {
		t.Run(test.line, func(t *testing.T) {
			status, answer, header := s.do(t, test.line, test.body)
			if status != test.status || !strings.Contains(answer, test.says) {
				t.Errorf("%s: %d %s\nwant %d with %s", test.body, status, answer, test.status, test.says)
			}
			if got := header.Get("Content-Type"); got != "application/json" && !strings.HasSuffix(test.line, "/metrics") {
				t.Errorf("Content-Type %q", got)
			}
		})
	}
}

func TestGeneratedID(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"})
	seen := map[string]bool{}
	for range 3 {
		_, answer, _ := s.do(t, "POST /v2/models/only/infer", strings.Replace(ask, `"id":"7",`, "", 1))
		var response struct{ ID string }
		if err := json.Unmarshal([]byte(answer), &response); err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(response.ID) || seen[response.ID] {
			t.Errorf("id %q", response.ID)
		}
		seen[response.ID] = true
	}
}

func TestBodyLimit(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"}, func(c *Config) { c.Limits.MaxBodyBytes = 200 })
	s.want(t, "POST /v2/models/only/infer", ask, 200, "4.0")
	s.want(t, "POST /v2/models/only/infer", ask+strings.Repeat(" ", 200), 413, "larger than 200 bytes")
	// Without a Content-Length the limit shows only while reading.
	chunked, err := http.NewRequest(http.MethodPost, s.url+"/v2/models/only/infer", struct{ *strings.Reader }{strings.NewReader(strings.Repeat(" ", 300))})
	if err != nil {
		t.Fatal(err)
	}
	chunked.ContentLength = -1
	response, err := http.DefaultClient.Do(chunked)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("chunked: %s", response.Status)
	}
	encoded, err := http.NewRequest(http.MethodPost, s.url+"/v2/models/only/infer", strings.NewReader(ask))
	if err != nil {
		t.Fatal(err)
	}
	encoded.Header.Set("Content-Encoding", "br")
	response, err = http.DefaultClient.Do(encoded)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("br: %s", response.Status)
	}
}

func TestMaxConcurrency(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake wait"}, func(c *Config) { c.Limits.MaxConcurrency = 1 })
	first := make(chan int)
	go func() {
		status, _, _ := s.do(t, "POST /v2/models/only/infer", ask)
		first <- status
	}()
	<-s.entered
	status, answer, header := s.do(t, "POST /v2/models/only/infer", ask)
	if status != 429 || header.Get("Retry-After") == "" || !strings.Contains(answer, `{"error":`) {
		t.Errorf("beyond the limit: %d %s %v", status, answer, header)
	}
	s.leave <- struct{}{}
	if status := <-first; status != 200 {
		t.Errorf("within the limit: %d", status)
	}
}

func TestReload(t *testing.T) {
	s := loaded(t, map[string]string{"m/model-settings.json": settings("test.Fake", "model.fake", ""), "m/model.fake": "fake wait"})
	first := make(chan string)
	go func() {
		_, answer, _ := s.do(t, "POST /v2/models/m/infer", ask)
		first <- answer
	}()
	<-s.entered
	write(t, s.folder, map[string]string{"m/model.fake": "fake triple"})
	s.want(t, "POST /v2/repository/models/m/load", "", 200, "")
	s.want(t, "POST /v2/models/m/infer", ask, 200, "[3.0,6.0]")
	if s.closed.Load() != 0 {
		t.Error("the old instance was closed while it was in use")
	}
	s.leave <- struct{}{}
	if answer := <-first; !strings.Contains(answer, "[2.0,4.0]") {
		t.Errorf("the request under way got %s", answer)
	}
	s.registry.retiring.Wait()
	if s.closed.Load() != 1 {
		t.Error("the old instance was not closed")
	}

	write(t, s.folder, map[string]string{"m/model.fake": "fake explode"})
	s.want(t, "POST /v2/repository/models/m/load", "", 400, "the loader panicked: boom")
	s.want(t, "POST /v2/models/m/infer", ask, 200, "[3.0,6.0]")
	s.want(t, "POST /v2/repository/index", "", 200, `"state":"READY","reason":"the last reload failed: the loader panicked: boom"`)

	s.want(t, "POST /v2/repository/models/m/unload", "", 200, "")
	s.want(t, "POST /v2/models/m/infer", ask, 404, "Model m not found: unloaded")
	s.want(t, "GET /v2/models/m/ready", "", 404, "Model m not found: unloaded")
	s.want(t, "GET /v2/health/ready", "", 200, "true")
	write(t, s.folder, map[string]string{"m/model.fake": "fake double",
		"n/model-settings.json": settings("test.Fake", "model.fake", ""), "n/model.fake": "fake double"})
	s.want(t, "POST /v2/repository/models/m/load", "", 200, "")
	s.want(t, "POST /v2/models/m/infer", ask, 200, "[2.0,4.0]")
	s.want(t, "POST /v2/repository/models/n/load", "", 200, "")
	s.want(t, "POST /v2/models/n/infer", ask, 200, "[2.0,4.0]")
}

// TestReloadUnderLoad checks that no request fails while its model is loaded
// again and again.
func TestReloadUnderLoad(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	var answered atomic.Int64
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				s.want(t, "POST /v2/models/only/infer", ask, 200, "[2.0,4.0]")
				answered.Add(1)
			}
		})
	}
	for range 20 {
		s.want(t, "POST /v2/repository/models/only/load", "", 200, "")
	}
	for seen := answered.Load(); answered.Load() < seen+4; {
		runtime.Gosched()
	}
	cancel()
	clients.Wait()
	s.registry.retiring.Wait()
	if got := s.closed.Load(); got != 20 {
		t.Errorf("%d instances closed, want 20", got)
	}
}

func TestReady(t *testing.T) {
	s := newSite(t, map[string]string{"m.fake": "fake broken"})
	s.want(t, "GET /v2/health/ready", "", 400, `{"ready":false,"live":true,"error":"the server is not ready: its models are being loaded"}`)
	if err := s.LoadAll(context.Background()); err == nil || !strings.Contains(err.Error(), "the file is broken") {
		t.Errorf("LoadAll: %v", err)
	}
	s.want(t, "GET /v2/health/ready", "", 400, `"ready":false`)
	s.want(t, "GET /v2/health/live", "", 200, "true")
	write(t, s.folder, map[string]string{"m.fake": "fake double"})
	s.want(t, "POST /v2/repository/models/only/load", "", 200, "")
	s.want(t, "GET /v2/health/ready", "", 200, `"ready":true`)
}

// running starts Run on a free port.
func running(t *testing.T, s *site) (url string, stop func(), done chan error) {
	t.Helper()
	address, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	done = make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return "http://" + address.String(), stop, done
}

func TestDrain(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake wait"})
	url, stop, done := running(t, s)
	s.url = url
	first := make(chan int)
	go func() {
		status, _, _ := s.do(t, "POST /v2/models/only/infer", ask)
		first <- status
	}()
	<-s.entered
	stop()
	select {
	case err := <-done:
		t.Fatalf("Run returned %v with a request under way", err)
	case s.leave <- struct{}{}:
	}
	if status := <-first; status != 200 {
		t.Errorf("the request under way got %d", status)
	}
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if s.Ready() {
		t.Error("ready after the end")
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(url, "http://")); err == nil {
		t.Error("the port still accepts connections")
	}
	if s.closed.Load() != s.loads.Load() {
		t.Errorf("%d models loaded, %d closed", s.loads.Load(), s.closed.Load())
	}
}

func TestDrainBound(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake wait"}, func(c *Config) { c.Limits.DrainTimeout = 20 * time.Millisecond })
	url, stop, done := running(t, s)
	first := make(chan error)
	go func() {
		response, err := http.Post(url+"/v2/models/only/infer", "application/json", strings.NewReader(ask))
		if err == nil {
			_ = response.Body.Close()
		}
		first <- err
	}()
	<-s.entered
	stop()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("Run: %v", err)
	}
	if err := <-first; err == nil {
		t.Error("the request that hung was answered")
	}
}

// TestSlowReader checks that a client which asks and does not read lets go of
// the model.
func TestSlowReader(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake large"}, func(c *Config) { c.Limits.WriteTimeout = 500 * time.Millisecond })
	c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("POST /v2/models/only/infer HTTP/1.1\r\nHost: x\r\nContent-Length: " + strconv.Itoa(len(ask)) + "\r\n\r\n" + ask)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil { // it has begun to answer
		t.Fatal(err)
	}
	s.want(t, "POST /v2/repository/models/only/unload", "", 200, "")
	s.registry.retiring.Wait()
	if s.closed.Load() != 1 {
		t.Error("the model was not let go")
	}
}

// TestSleepAndWake: asleep the server has no model; it wakes with those it had, and not
// with one that was unloaded before.
func TestSleepAndWake(t *testing.T) {
	plain := loaded(t, map[string]string{"m.fake": "fake double"})
	plain.want(t, "POST /v2/repository/sleep", "", 404, "")
	var told []bool
	s := loaded(t, map[string]string{
		"a/model-settings.json": settings("test.Fake", "model.fake", ""), "a/model.fake": "fake double",
		"b/model-settings.json": settings("test.Fake", "model.fake", ""), "b/model.fake": "fake triple",
	}, func(c *Config) { c.Standby = func(asleep bool) { told = append(told, asleep) } })
	s.want(t, "POST /v2/repository/models/b/unload", "", 200, "")
	for range 2 { // the second time it is asleep already
		s.want(t, "POST /v2/repository/sleep", "", 200, "")
		s.want(t, "GET /v2/health/ready", "", 400, "")
		s.want(t, "POST /v2/models/a/infer", ask, 400, "asleep")
	}
	if n := s.closed.Load(); n != 2 {
		t.Errorf("%d models are closed", n)
	}
	for range 2 {
		s.want(t, "POST /v2/repository/wake", "", 200, "")
		s.want(t, "GET /v2/health/ready", "", 200, "")
		s.want(t, "POST /v2/models/a/infer", ask, 200, "4.0")
		s.want(t, "POST /v2/models/b/infer", ask, 404, "unloaded")
	}
	if n := s.loads.Load(); n != 3 {
		t.Errorf("%d loads", n)
	}
	s.want(t, "POST /v2/repository/sleep", "", 200, "")
	write(t, s.folder, map[string]string{"a/model.fake": "fake broken"})
	s.want(t, "POST /v2/repository/wake", "", 400, "broken")
	s.want(t, "GET /v2/health/ready", "", 400, "")
	if want := []bool{true, true, false, false, true, false}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

func TestStrict(t *testing.T) {
	s := newSite(t, map[string]string{"m.fake": "fake broken"}, func(c *Config) { c.Strict = true })
	_, _, done := running(t, s)
	if err := <-done; err == nil || !strings.Contains(err.Error(), `model "only": the file is broken`) {
		t.Errorf("Run: %v", err)
	}
	several := newSite(t, map[string]string{"a.fake": "fake double", "b.fake": "fake double"})
	_, _, done = running(t, several)
	if _, ok := errors.AsType[*RepositoryError](<-done); !ok {
		t.Error("an ambiguous folder did not end Run")
	}
}

func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := taken.Addr().(*net.TCPAddr).Port
	s := newSite(t, nil, func(c *Config) { c.HTTP.Port = port })
	if err := s.Run(context.Background()); err == nil || !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), ":"+strconv.Itoa(port)) {
		t.Errorf("Run: %v, want the port named", err)
	}
}

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	bad := "("
	err := Config{HTTP: HTTPConfig{Port: 70000, RootPath: "x", CORS: &CORS{AllowOriginRegex: &bad}}, GRPC: GRPCConfig{Port: -2},
		Limits: Limits{MaxConcurrency: -1}, Metrics: MetricsConfig{Path: "metrics", Port: 70000, RESTPrefix: "a-b"}, TLS: TLSConfig{KeyFile: "k"}}.Validate()
	for _, want := range []string{"http_port 70000", "grpc_port -2", "metrics_port 70000", "grpc_max_message_length 0", `metrics_rest_server_prefix "a-b"`, `root_path "x"`, "allow_origin_regex", "TLS needs both", "maximum body", "maximum concurrency", "read timeout", "write timeout", "drain timeout", "metrics_endpoint"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// TestStrictShapes: texts and answers that do not fill their shape are passed on
// with one warning, and with StrictShapes refused: a text is the client's fault,
// an answer the model's.
func TestStrictShapes(t *testing.T) {
	files := map[string]string{"a/model-settings.json": settings("test.Fake", "m.fake", ""), "a/m.fake": "fake echo"}
	const text = `{"inputs":[{"name":"x","shape":[59],"datatype":"BYTES","data":["hello"]}]}`
	for strict, want := range map[bool]int{false: 200, true: 400} {
		s := loaded(t, files, func(c *Config) { c.StrictShapes = strict })
		for range 2 {
			s.want(t, "POST /v2/models/a/infer", text, want, "")
		}
		if n := strings.Count(s.log.String(), "do not fill their shape"); !strict && n != 1 {
			t.Errorf("%d warnings, want 1: %s", n, s.log)
		}
		answer := &tensor.Response{Outputs: []tensor.Tensor{{Name: "y", Datatype: tensor.FP32, Shape: []int64{3}, Data: tensor.Values{Float32: []float32{1}}}}}
		err := s.checkAnswer(&instance{name: "m"}, answer)
		if (err != nil) != strict || strict && (statusOf(err) != 500 || !strings.Contains(err.Error(), `output "y": shape [3] holds 3 elements, data has 1`)) {
			t.Errorf("strict %v: an answer is refused with %v", strict, err)
		}
	}
}

// TestRoutesAreCompressed: paths of models' own take and give gzip as the server's
// do, and pass on no header that breaks a connection.
func TestRoutesAreCompressed(t *testing.T) {
	s := loaded(t, map[string]string{"a/model-settings.json": settings("test.Fake", "model.fake", ""), "a/model.fake": "fake routes"})
	text := strings.Repeat("word ", 200)
	post := func(path, body, encoding, accept string) *http.Response {
		r, err := http.NewRequest(http.MethodPost, s.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept-Encoding", accept)
		if encoding != "" {
			r.Header.Set("Content-Encoding", encoding)
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, text)
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ body, encoding, accept, answered string }{
		{text, "", "identity", ""}, {text, "", "gzip", "gzip"}, {packed.String(), "gzip", "identity", ""}, {packed.String(), "gzip", "gzip", "gzip"}, {"short", "", "gzip", ""},
	} {
		answer := post("/mirror", c.body, c.encoding, c.accept)
		if got := answer.Header.Get("Content-Encoding"); got != c.answered || answer.StatusCode != http.StatusCreated || answer.Header.Get("X-Encoding") != "" {
			t.Errorf("%+v: status %d, encoding %q, the route saw %q", c.encoding, answer.StatusCode, got, answer.Header.Get("X-Encoding"))
		}
		if got := answer.Header.Get("X-Odd"); got != "a%00b%0Ac" {
			t.Errorf("the header is %q", got)
		}
		var body io.Reader = answer.Body
		if c.answered != "" {
			var err error
			if body, err = gzip.NewReader(answer.Body); err != nil {
				t.Fatal(err)
			}
		}
		got, err := io.ReadAll(body)
		if err != nil || string(got) != text && string(got) != "short" {
			t.Errorf("%s, accepting %s: %q (%v)", c.encoding, c.accept, got, err)
		}
	}
	if answer := post("/mirror", "no gzip", "gzip", "identity"); answer.StatusCode != http.StatusBadRequest {
		t.Errorf("a body that is no gzip: %d", answer.StatusCode)
	}
	if answer := post("/nothing", "", "", "gzip"); answer.StatusCode != http.StatusNoContent {
		t.Errorf("an answer without a body: %d", answer.StatusCode)
	}
}

// TestIdsInHeaders: whatever a client's id is, its answer can be read, and repeats
// it in the body.
func TestIdsInHeaders(t *testing.T) {
	s := loaded(t, map[string]string{"a/model-settings.json": settings("test.Fake", "m.fake", ""), "a/m.fake": "fake echo"})
	long := strings.Repeat("x", 200_000)
	for id, want := range map[string]string{"plain-1": "plain-1", "a\x00": "a%00", "a\r\nX-Evil: 1": "a%0D%0AX-Evil: 1", "del\x7f": "del%7F", long: ""} {
		quoted, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		status, answer, header := s.do(t, "POST /v2/models/a/infer", `{"id":`+string(quoted)+`,"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1.5]}]}`)
		var body struct{ ID string }
		if err := json.Unmarshal([]byte(answer), &body); err != nil || status != 200 || body.ID != id {
			t.Errorf("id of %d bytes: %d, %.200s (%v)", len(id), status, answer, err)
		}
		if got := header.Get("Ce-Id"); got != want || header.Get("X-Evil") != "" || header.Get("Ce-Requestid") != want {
			t.Errorf("id of %d bytes: Ce-Id %.100q, want %q", len(id), got, want)
		}
	}
}

// TestReadyNamesFewModels: of many that cannot serve, some are named.
func TestReadyNamesFewModels(t *testing.T) {
	files := map[string]string{}
	for i := range maxLacking + 3 {
		name := fmt.Sprintf("m%d", i)
		files[name+"/model-settings.json"], files[name+"/model.fake"] = settings("test.Fake", "model.fake", ""), "fake broken"
	}
	s := loaded(t, files)
	s.want(t, "GET /v2/health/ready", "", 400, "not ready: m0, m1, m2, m3, m4 and 3 more cannot serve")
}

// TestReadyMeansAllModels: one that failed at the start keeps the server from being
// ready until it loads; one that is added later and fails does not.
func TestReadyMeansAllModels(t *testing.T) {
	s := loaded(t, map[string]string{
		"good/model-settings.json": settings("test.Fake", "model.fake", ""), "good/model.fake": "fake double",
		"bad/model-settings.json": settings("test.Fake", "model.fake", ""), "bad/model.fake": "fake broken",
	})
	s.want(t, "GET /v2/health/ready", "", 400, `{"ready":false,"live":true,"error":"the server is not ready: bad cannot serve: GET /v2/models/NAME says why"}`)
	s.want(t, "GET /v2/models/bad", "", 400, "the file is broken")
	s.want(t, "POST /v2/models/good/infer", ask, 200, "")
	s.want(t, "POST /v2/repository/models/bad/load", "", 400, "broken")
	s.want(t, "GET /v2/health/ready", "", 400, "not ready")
	write(t, s.folder, map[string]string{"bad/model.fake": "fake double"})
	s.want(t, "POST /v2/repository/models/bad/load", "", 200, "")
	s.want(t, "GET /v2/health/ready", "", 200, "")
	write(t, s.folder, map[string]string{"new/model-settings.json": settings("test.Fake", "model.fake", ""), "new/model.fake": "fake broken"})
	s.want(t, "POST /v2/repository/models/new/load", "", 400, "broken")
	s.want(t, "GET /v2/health/ready", "", 200, "")
	s.want(t, "POST /v2/repository/models/good/unload", "", 200, "")
	s.want(t, "GET /v2/health/ready", "", 200, "")
}

// TestStatedFormatRunsNothingElse: where the format is stated, settings in a model's
// folder cannot have another engine load what lies beside them.
func TestStatedFormatRunsNothingElse(t *testing.T) {
	fakes := newFakes()
	var ran []string
	code := Engine{Name: "custom", Others: true, Loader: LoaderFunc(func(_ context.Context, s Settings) (Model, error) {
		ran = append(ran, s.Implementation)
		return nil, errors.New("code ran")
	})}
	pickles := Engine{Name: "pickles", Files: []string{"model.pkl"}, Loader: code.Loader}
	for name, c := range map[string]struct{ settings, says string }{
		"a class":        {`{"implementation":"evil.Model"}`, `implementation "evil.Model" is not of the stated format fake`},
		"another format": {`{"parameters":{"format":"pickles"}}`, `format "pickles" is not the stated format fake`},
		"by the file":    {`{"parameters":{"uri":"model.pkl"}}`, ""},
		"the same":       {`{"implementation":"test.Fake","parameters":{"uri":"model.fake"}}`, ""},
		"nothing":        {`{}`, ""},
	} {
		folder := t.TempDir()
		write(t, folder, map[string]string{"model-settings.json": c.settings, "model.fake": "fake double", "model.pkl": "anything", "evil.py": "raise SystemExit"})
		engines := []Engine{fakes.engine(), code, pickles}
		log := slog.New(slog.DiscardHandler)
		server, err := New(DefaultConfig(), Folder{Root: folder, Name: "m", Format: "fake", Engines: engines, Log: log}, engines, log)
		if err != nil {
			t.Fatal(err)
		}
		err = server.LoadAll(t.Context())
		if len(ran) > 0 {
			t.Errorf("%s: the stated format ran %q", name, ran)
		}
		if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) || (name == "the same" || name == "nothing") && err != nil {
			t.Errorf("%s: error %v, want %q", name, err, c.says)
		}
	}
}

// TestLoadTakesNoConfig: what Triton's clients send to be loaded in a model's place
// is refused, not passed over.
func TestLoadTakesNoConfig(t *testing.T) {
	s := loaded(t, map[string]string{"a/model-settings.json": `{"versions":["v1","v2"],"implementation":"test.Fake","parameters":{"uri":"m.fake"}}`, "a/m.fake": "fake double"})
	s.want(t, "POST /v2/repository/models/a/load", `{"parameters":{"config":"{}"}}`, 400, "parameters.config has no effect here")
	s.want(t, "POST /v2/repository/models/a/load", `{"parameters":{"file:1/model.onnx":"AA=="}}`, 400, "file:1/model.onnx")
	for _, body := range []string{"", "{}", "no JSON", `{"parameters":{"unload_dependents":true}}`} {
		s.want(t, "POST /v2/repository/models/a/load", body, 200, "")
	}
	s.want(t, "GET /v2/models/a", "", 200, `"versions":["v1","v2"]`) // as its settings state them
}
