package modelserver

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// exchange makes a request with headers ("Name: value") and returns the answer
// and its body as it was sent.
func (s *site) exchange(t *testing.T, line string, body []byte, headers ...string) (*http.Response, []byte) {
	t.Helper()
	method, path, _ := strings.Cut(line, " ")
	r, err := http.NewRequest(method, s.url+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	client := http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, text
}

func TestHeaders(t *testing.T) {
	s := loaded(t, map[string]string{"m/model-settings.json": settings("test.Fake", "model.fake", ""), "m/model.fake": "fake echo"},
		func(c *Config) { c.ServerName = "serving" })
	body := `{"id":"a","parameters":{"headers":{"x-ask":"forged"}},"inputs":[{"name":"x","shape":[1],"datatype":"INT8","parameters":{},"data":[1]}]}`
	response, text := s.exchange(t, "POST /v2/models/m/infer", []byte(body), "X-Ask: one", "X-Ask: two")
	if want := `{"model_name":"m","id":"a","parameters":{"own":true},"outputs":[{"name":"x","shape":[1],"datatype":"INT8","parameters":{},"data":[1]}]}`; string(text) != want {
		t.Errorf("body %s\nwant %s", text, want)
	}
	for name, want := range map[string]string{
		"X-Seen": "one, two", "X-Number": "5", "Content-Length": fmt.Sprint(len(text)),
		"Ce-Specversion": "0.3", "Ce-Source": "io.seldon.serving.deployment.serving", "Ce-Type": "io.seldon.serving.inference.response",
		"Ce-Modelid": "m", "Ce-Inferenceservicename": "serving", "Ce-Endpoint": "m", "Ce-Id": "a", "Ce-Requestid": "a", "Ce-Namespace": "",
	} {
		if got := response.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func compressed(t *testing.T, encoding, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&b)
	if encoding == "deflate" {
		w = zlib.NewWriter(&b)
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCompressedRequest(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"}, func(c *Config) { c.Limits.MaxBodyBytes = 1000 })
	bomb := ask + strings.Repeat(" ", 1<<20)
	tests := []struct {
		name, encoding string
		body           []byte
		status         int
		says           string
	}{
		{"gzip", "gzip", compressed(t, "gzip", ask), 200, "[2.0,4.0]"},
		{"GZIP", "GZIP", compressed(t, "gzip", ask), 200, "[2.0,4.0]"},
		{"deflate", "deflate", compressed(t, "deflate", ask), 200, "[2.0,4.0]"},
		{"identity", "identity", []byte(ask), 200, "[2.0,4.0]"},
		{"exactly the limit", "gzip", compressed(t, "gzip", ask+strings.Repeat(" ", 1000-len(ask))), 200, "[2.0,4.0]"},
		{"one more", "gzip", compressed(t, "gzip", ask+strings.Repeat(" ", 1001-len(ask))), 413, "larger than 1000 bytes"},
		{"bomb", "gzip", compressed(t, "gzip", bomb), 413, "larger than 1000 bytes"},
		{"not gzip", "gzip", []byte(ask), 400, "the body is not gzip"},
		{"empty", "gzip", nil, 400, "the body is not gzip"},
		{"cut", "gzip", compressed(t, "gzip", ask)[:40], 400, "ended too early"},
		{"unknown", "br", []byte(ask), 415, `Content-Encoding \"br\" is not read`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			response, text := s.exchange(t, "POST /v2/models/only/infer", test.body, "Content-Encoding: "+test.encoding)
			if response.StatusCode != test.status || !strings.Contains(string(text), test.says) {
				t.Errorf("%s %s, want %d with %q", response.Status, text, test.status, test.says)
			}
		})
	}
}

func TestCompressedAnswer(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake echo"})
	plain := loaded(t, map[string]string{"m.fake": "fake echo"}, func(c *Config) { c.HTTP.Gzip = false })
	question := func(n int) string {
		return fmt.Sprintf(`{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":[%q]}]}`, strings.Repeat("z", n))
	}
	for _, test := range []struct {
		site   *site
		accept string
		n      int
		gzip   bool
	}{
		{s, "gzip, deflate", 1000, true}, {s, "*", 1000, true}, {s, "gzip;q=0.5", 1000, true}, {s, "br, GZIP", 1000, true},
		{s, "gzip;q=0", 1000, false}, {s, "*, gzip; q=0.0", 1000, false}, {s, "gzip;q=0, *", 1000, false}, {s, "br", 1000, false}, {s, "", 1000, false},
		{s, "gzip", 10, false}, {plain, "gzip", 1000, false},
	} {
		response, text := test.site.exchange(t, "POST /v2/models/only/infer", []byte(question(test.n)), "Accept-Encoding: "+test.accept)
		if got := response.Header.Get("Content-Encoding") == "gzip"; got != test.gzip {
			t.Errorf("%q, %d bytes: gzip %v", test.accept, test.n, got)
			continue
		}
		if test.gzip {
			z, err := gzip.NewReader(bytes.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if text, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		if !json.Valid(text) || !strings.Contains(string(text), strings.Repeat("z", test.n)) {
			t.Errorf("%q: %s", test.accept, text)
		}
		if varies := response.Header.Get("Vary") == "Accept-Encoding"; varies != (test.site == s && test.n > 500) {
			t.Errorf("%q, %d bytes: Vary %v", test.accept, test.n, varies)
		}
	}
}

// TestBinary sends and asks for binary tensors, as Triton's client does.
func TestBinary(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake echo"})
	raw := binary.LittleEndian.AppendUint32(nil, math.Float32bits(1.5))
	raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(math.NaN())))
	text := append([]byte{2, 0, 0, 0}, "\xff\xfe"...)
	const inputs = `"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}},{"name":"s","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6}}]`
	tail := append(bytes.Clone(raw), text...)
	ask := func(t *testing.T, rest string, headers ...string) (*http.Response, string, string) {
		t.Helper()
		head := `{"id":"1",` + inputs + rest + `}`
		body := append([]byte(head), tail...)
		if len(headers) == 0 {
			headers = []string{"Inference-Header-Content-Length: " + fmt.Sprint(len(head))}
		} else if headers[0] == "Content-Encoding: gzip" {
			headers = append(headers, "Inference-Header-Content-Length: "+fmt.Sprint(len(head)))
			body = compressed(t, "gzip", string(body))
		}
		response, answer := s.exchange(t, "POST /v2/models/only/infer", body, headers...)
		n := len(answer)
		if h := response.Header.Get("Inference-Header-Content-Length"); h != "" {
			if _, err := fmt.Sscan(h, &n); err != nil {
				t.Fatal(err)
			}
		}
		return response, string(answer[:n]), string(answer[n:])
	}
	for _, test := range []struct {
		name, rest string
		status     int
		json, tail string
		headers    []string
	}{
		{"all", `,"parameters":{"binary_data_output":true}`, 200, `{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}},{"name":"s","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6}}]}`, string(tail), nil},
		{"one", `,"outputs":[{"name":"s","parameters":{"binary_data":true}}]`, 200, `"datatype":"FP32","parameters":{},"data":[1.5,null]},{"name":"s","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":6}}]}`, string(text), nil},
		{"all but one", `,"parameters":{"binary_data_output":true},"outputs":[{"name":"x","parameters":{"binary_data":false}}]`, 200, `"data":[1.5,null]}`, string(text), nil},
		{"compressed", `,"parameters":{"binary_data_output":true}`, 200, `"binary_data_size":8`, string(tail), []string{"Content-Encoding: gzip"}},
		{"none", ``, 400, `element 0 is not UTF-8`, "", nil},
		{"length beyond the body", ``, 400, `but the body has`, "", []string{"Inference-Header-Content-Length: 100000"}},
		{"length is no number", ``, 400, `must be a whole number`, "", []string{"Inference-Header-Content-Length: x"}},
		{"no length", ``, 422, `inputs.0.data: Field required`, "", []string{"X-None: 1"}},
		{"length too short", ``, 422, `json_invalid`, "", []string{"Inference-Header-Content-Length: 7"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			response, head, tail := ask(t, test.rest, test.headers...)
			if response.StatusCode != test.status || !strings.Contains(head, test.json) || tail != test.tail {
				t.Errorf("%s %s %q\nwant %d %s %q", response.Status, head, tail, test.status, test.json, test.tail)
			}
		})
	}
	if response, _, _ := ask(t, `,"parameters":{"binary_data_output":true}`); response.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("Content-Type %q", response.Header.Get("Content-Type"))
	}
}

// TestBinaryLarge sends more than is believed before it comes.
func TestBinaryLarge(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake echo"})
	n := 3 << 20
	head := fmt.Sprintf(`{"parameters":{"binary_data_output":true},"inputs":[{"name":"x","shape":[%d],"datatype":"UINT8","parameters":{"binary_data_size":%d}}]}`, n, n)
	data := bytes.Repeat([]byte("abc"), n/3)
	response, answer := s.exchange(t, "POST /v2/models/only/infer", append([]byte(head), data...), "Inference-Header-Content-Length: "+fmt.Sprint(len(head)))
	if response.StatusCode != 200 || !bytes.HasSuffix(answer, data) {
		t.Errorf("%s, %d bytes", response.Status, len(answer))
	}
}

// openStream begins a stream and returns its lines.
func (s *site) openStream(t *testing.T, path string, headers ...string) (*http.Response, *bufio.Reader) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, strings.NewReader(ask))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response, bufio.NewReader(response.Body)
}

func event(t *testing.T, lines *bufio.Reader) string {
	t.Helper()
	var text string
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF && text == "" && line == "" {
			return ""
		}
		if err != nil {
			t.Fatalf("%v after %q", err, text+line)
		}
		text += line
		if line == "\n" {
			return text
		}
	}
}

// TestStream checks that every event of a stream comes when the model sends it,
// with gzip on and asked for: the model sends the next only afterwards.
func TestStream(t *testing.T) {
	s := loaded(t, map[string]string{"m/model-settings.json": settings("test.Fake", "model.fake", "v1"), "m/model.fake": "fake stream"})
	for _, path := range []string{"/v2/models/m/infer_stream", "/v2/models/m/versions/v1/infer_stream", "/v2/models/m/generate_stream", "/v2/models/m/versions/v1/generate_stream"} {
		response, lines := s.openStream(t, path, "Accept-Encoding: gzip")
		if got := response.Header; got.Get("Content-Type") != "text/event-stream; charset=utf-8" || got.Get("X-Event") != "0" || got.Get("Ce-Id") != "7" || got.Get("Content-Encoding") != "" {
			t.Errorf("%s: %v", path, got)
		}
		for n := range 3 {
			want := fmt.Sprintf(`data: {"model_name":"m","model_version":"v1","id":"7","parameters":{},"outputs":[{"name":"y","shape":[1],"datatype":"INT64","data":[%d]}]}`+"\n\n", n)
			if got := event(t, lines); got != want {
				t.Errorf("%s: event %q, want %q", path, got, want)
			}
			if n < 2 {
				s.leave <- struct{}{}
			}
		}
		if got := event(t, lines); got != "" {
			t.Errorf("%s: then %q", path, got)
		}
	}
	s.want(t, "POST /v2/models/m/infer", ask, 200, "[2.0,4.0]")
}

func TestStreamFails(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake stall"})
	_, lines := s.openStream(t, "/v2/models/only/infer_stream")
	if got := event(t, lines); !strings.Contains(got, `"data":[0]`) {
		t.Errorf("event %q", got)
	}
	s.leave <- struct{}{}
	if got := event(t, lines); got != "event: error\ndata: {\"error\":\"it stalled\"}\n\n" {
		t.Errorf("event %q", got)
	}
	if got := event(t, lines); got != "" {
		t.Errorf("then %q", got)
	}
}

// TestStreamGone checks that a client which leaves ends the model's stream.
func TestStreamGone(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake stream"})
	response, lines := s.openStream(t, "/v2/models/only/infer_stream")
	event(t, lines)
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	s.want(t, "POST /v2/repository/models/only/unload", "", 200, "")
	s.registry.retiring.Wait()
	if s.closed.Load() != 1 {
		t.Error("the model was not let go")
	}
}

// TestInferStream checks the other combinations, which REST does not have.
func TestInferStream(t *testing.T) {
	s := loaded(t, map[string]string{
		"sum/model-settings.json":   settings("test.Fake", "model.fake", ""),
		"sum/model.fake":            "fake sum",
		"plain/model-settings.json": settings("test.Fake", "model.fake", ""),
		"plain/model.fake":          "fake double",
	})
	input := tensor.Tensor{Name: "x", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{2}}}
	in := func(yield func(*tensor.Request, error) bool) {
		for _, id := range []string{"first", "second", ""} {
			if !yield(&tensor.Request{ID: id, Inputs: []tensor.Tensor{input}}, nil) {
				return
			}
		}
	}
	for name, want := range map[string]int{"sum": 1, "plain": 3} {
		var got []*tensor.Response
		if err := s.InferStream(t.Context(), name, "", in, func(r *tensor.Response) error { got = append(got, r); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(got) != want {
			t.Errorf("%s: %d responses, want %d", name, len(got), want)
		}
		for _, r := range got {
			if r.ID != "first" || r.ModelName != name {
				t.Errorf("%s: response of %q with id %q", name, r.ModelName, r.ID)
			}
		}
	}
	gone := errors.New("gone")
	if err := s.InferStream(t.Context(), "plain", "", in, func(*tensor.Response) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("failed send: %v", err)
	}
	if err := s.InferStream(t.Context(), "none", "", in, nil); statusOf(err) != 404 {
		t.Errorf("unknown model: %v", err)
	}
}

func TestCustomRoutes(t *testing.T) {
	s := loaded(t, map[string]string{
		"a/model-settings.json": settings("test.Fake", "model.fake", ""), "a/model.fake": "fake routes",
		"b/model-settings.json": settings("test.Fake", "model.fake", ""), "b/model.fake": "fake conflict",
	})
	s.want(t, "POST /items/7", "", 200, "POST 7 ")
	s.want(t, "GET /items/7", "", 200, "GET 7 ")
	s.want(t, "GET /files/x/y.txt", "", 200, "GET  x/y.txt")
	s.want(t, "DELETE /items/7", "", 405, "only GET, POST")
	s.want(t, "GET /items/7/8", "", 404, "no such path")
	s.want(t, "GET /v2/health/live", "", 200, `{"live":true}`)
	s.want(t, "POST /v2/repository/index", "", 200, `"name":"b","state":"UNAVAILABLE","reason":"route`)
	s.want(t, "POST /v2/repository/models/a/unload", "", 200, "")
	s.want(t, "GET /items/7", "", 404, "no such path")
	s.want(t, "POST /v2/repository/models/a/load", "", 200, "")
	s.want(t, "GET /items/7", "", 200, "GET 7 ")
	if _, _, header := s.do(t, "OPTIONS /items/7", ""); header.Get("Allow") != "GET, POST" {
		t.Errorf("Allow %q", header.Get("Allow"))
	}
}

// TestPatience checks that the bound on reading a request does not end one
// that was read.
func TestPatience(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake wait"}, func(c *Config) { c.Limits.ReadTimeout = 50 * time.Millisecond })
	url, _, _ := running(t, s)
	s.url = url
	first := make(chan int)
	go func() {
		status, _, _ := s.do(t, "POST /v2/models/only/infer", ask)
		first <- status
	}()
	<-s.entered
	timer := time.NewTimer(150 * time.Millisecond) // past the bound
	defer timer.Stop()
	select {
	case status := <-first:
		t.Fatalf("answered %d before the model", status)
	case <-timer.C:
	}
	s.leave <- struct{}{}
	if status := <-first; status != 200 {
		t.Errorf("status %d", status)
	}
}

func TestRESTMetrics(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"}, func(c *Config) { c.Metrics.RESTPrefix = "mine" })
	s.want(t, "POST /v2/models/only/infer", ask, 200, "4.0")
	s.want(t, "POST /v2/models/none/infer", ask, 404, "error")
	s.want(t, "GET /v2/health/ready", "", 200, "true")
	s.want(t, "BREW /coffee", "", 404, "error")
	_, text, _ := s.do(t, "GET /metrics", "")
	for _, want := range []string{
		`mine_requests_total{app_name="mlserver",method="POST",path="/v2/models/{model_name}/infer",status_code="200"} 1`,
		`mine_requests_total{app_name="mlserver",method="POST",path="/v2/models/{model_name}/infer",status_code="404"} 1`,
		`mine_requests_total{app_name="mlserver",method="OTHER",path="__unknown__",status_code="404"} 1`,
		`mine_request_duration_seconds_count{app_name="mlserver",method="POST",path="/v2/models/{model_name}/infer",status_code="200"} 1`,
		`mine_requests_duration_seconds_count{app_name="mlserver",method="POST",path="/v2/models/{model_name}/infer",status_code="200"} 1`,
		`mine_requests_in_progress{app_name="mlserver",method="POST"} 0`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(text, "health") || strings.Contains(text, "coffee") {
		t.Errorf("metrics of what is not counted:\n%s", text)
	}
}

func TestMetricsPort(t *testing.T) {
	s := newSite(t, map[string]string{"m.fake": "fake double"}, func(c *Config) { c.Metrics.Port = 0 })
	s.want(t, "GET /metrics", "", 404, "no such path")
	url, _, _ := running(t, s)
	s.url = url
	s.want(t, "GET /metrics", "", 404, "no such path")
	s.url = "http://" + s.transports[len(s.transports)-1].(*httpTransport).listener.Addr().String()
	s.want(t, "GET /metrics", "", 200, "")
	s.want(t, "GET /v2", "", 404, "no such path")
}

func TestRootPath(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"}, func(c *Config) { c.HTTP.RootPath = "/api/" })
	s.want(t, "POST /api/v2/models/only/infer", ask, 200, "4.0")
	s.want(t, "POST /v2/models/only/infer", ask, 200, "4.0")
	s.want(t, "GET /api/api/v2", "", 404, "no such path")
	s.want(t, "GET /apiv2", "", 404, "no such path")
}

// TestLogs checks that a request's log ties it to those of others.
func TestLogs(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake panic"})
	s.exchange(t, "POST /v2/models/only/infer", []byte(ask), "X-Request-Id: r-1", "Traceparent: 00-1-2-01")
	for _, want := range []string{"model panicked", "path=/v2/models/only/infer", "status=500", "request_id=r-1", "traceparent=00-1-2-01"} {
		if !strings.Contains(s.log.String(), want) {
			t.Errorf("log lacks %q: %s", want, s.log)
		}
	}
}

// TestNamedRoutes: where several models answer OpenAI's clients, the one does that the
// body names.
func TestNamedRoutes(t *testing.T) {
	s := loaded(t, map[string]string{"a/model-settings.json": settings("test.Fake", "model.fake", ""), "a/model.fake": "fake routes",
		"b/model-settings.json": settings("test.Fake", "model.fake", ""), "b/model.fake": "fake more routes",
		"c/model-settings.json": settings("test.Fake", "model.fake", ""), "c/model.fake": "fake double"},
		func(c *Config) { c.Aliases, c.Limits.MaxBodyBytes = map[string]string{"other": "b"}, 100 })
	for body, want := range map[string]string{
		`{"model":"a"}`:             "routes: ",
		`{"input":"","model":"b"}`:  "more routes: ",
		`{"model":"other"}`:         "more routes: ",
		`{"model":"c"}`:             "routes: ", // which tells that it is not c
		`{"model":7}`:               "routes: ",
		`{"input":"without a name"`: "routes: ",
		"":                          "routes: ",
	} {
		s.want(t, "POST /v1/embeddings", body, 200, want+body)
	}
	s.want(t, "POST /v1/embeddings", strings.Repeat("x", 200), 413, "")
	if _, said := s.exchange(t, "POST /v1/embeddings", compressed(t, "gzip", `{"model":"b"}`), "Content-Encoding: gzip"); string(said) != `more routes: {"model":"b"}` {
		t.Errorf("a compressed body: %q", said)
	}
}

// TestOpenAI: the list of models is one for clients of OpenAI, too, where a model
// answers these, and an answer that is flushed is sent at once.
func TestOpenAI(t *testing.T) {
	s := loaded(t, map[string]string{"a/model-settings.json": settings("test.Fake", "model.fake", ""), "a/model.fake": "fake routes",
		"b/model-settings.json": settings("test.Fake", "model.fake", ""), "b/model.fake": "fake double"},
		func(c *Config) {
			c.Aliases, c.HTTP.Gzip, c.Limits.MaxBodyBytes = map[string]string{"other": "b", "a": "b"}, true, 100
		})
	if _, said, _ := s.do(t, "POST /mirror", strings.Repeat("x", 200)); len(said) > 100 {
		t.Errorf("a route read %d bytes", len(said))
	}
	s.want(t, "GET /v1/models", "", 200, `{"models":["a","b"],"object":"list","data":[{"created":`)
	s.want(t, "GET /v1/models", "", 200, `"id":"a","object":"model","owned_by":"`)
	response, err := http.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	first := make([]byte, 4)
	if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "one," || response.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%q, %v", first, err)
	}
	<-s.entered
	s.want(t, "GET /metrics", "", 200, `roundhouse_requests_running{model_name="a",model_version=""} 1`)
	s.leave <- struct{}{}
	if rest, err := io.ReadAll(response.Body); err != nil || string(rest) != "two" {
		t.Errorf("%q, %v", rest, err)
	}
	// Another name is the model's, unless a model has it.
	s.want(t, "POST /v2/models/other/infer", ask, 200, `"model_name":"b"`)
	s.want(t, "GET /v2/models/other", "", 200, `"name":"b"`)
	s.want(t, "GET /v1/models/other", "", 200, `"ready":true`)
	s.want(t, "GET /v2/models/a", "", 200, `"name":"a"`)
	s.want(t, "GET /v2/models/nothing", "", 404, "not found")
}
