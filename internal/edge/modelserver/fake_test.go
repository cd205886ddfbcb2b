package modelserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// fakes makes models of files that begin with "fake". The rest of the file is
// a word that says how loading or inference goes: "double" multiplies by two,
// "triple" by three, "broken" cannot be loaded, "explode" panics while it is,
// "panic" at inference, "wait" answers when it is let go, "large" answers 16
// MiB, "echo" gives its inputs and headers back, "gather" waits as "wait" and
// gives inputs and parameters back, unless some value is 13, "short" answers one
// row to any number. Streams: "stream" sends an
// event, then one more whenever it is let go, "stall" sends one and fails when
// it is let go, "sum" answers all requests with one response. "routes" has
// routes of its own, "conflict" some that cannot be.
type fakes struct {
	loads   atomic.Int64
	closed  atomic.Int64
	entered chan struct{} // one for every waiting inference
	leave   chan struct{} // one lets one go
	busy    atomic.Int64  // inferences under way
	most    atomic.Int64  // of them at once
	infers  atomic.Int64  // inferences there were
}

func newFakes() *fakes {
	return &fakes{entered: make(chan struct{}, 100), leave: make(chan struct{})}
}

func (f *fakes) engine() Engine {
	return Engine{Name: "fake", Implementations: []string{"test.Fake"}, Files: []string{"model.fake"},
		Match: func(head []byte) bool { return bytes.HasPrefix(head, []byte("fake")) }, Loader: LoaderFunc(f.load)}
}

func (f *fakes) load(_ context.Context, s Settings) (Model, error) {
	f.loads.Add(1)
	text, err := os.ReadFile(s.Parameters.URI)
	if err != nil {
		return nil, err
	}
	switch word := strings.TrimSpace(strings.TrimPrefix(string(text), "fake")); word {
	case "broken":
		return nil, errors.New("the file is broken")
	case "explode":
		panic("boom")
	case "stream", "stall", "sum":
		return &fakeStreamer{fakeModel{fakes: f, word: word}}, nil
	case "routes", "more routes", "conflict":
		return &fakeRouter{fakeModel{fakes: f, word: word}}, nil
	default:
		return &fakeModel{fakes: f, word: word}, nil
	}
}

type fakeModel struct {
	fakes *fakes
	word  string
}

func (m *fakeModel) Metadata() tensor.ModelMetadata {
	return tensor.ModelMetadata{Platform: "fake", Inputs: []tensor.TensorMetadata{{Name: "x", Datatype: tensor.FP32, Shape: []int64{-1}}}}
}

func (m *fakeModel) Close(context.Context) error {
	m.fakes.closed.Add(1)
	return nil
}

// Parallelism has a batcher run one batch at a time.
func (m *fakeModel) Parallelism() int { return 1 }

func (m *fakeModel) Infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	m.fakes.infers.Add(1)
	m.fakes.most.Store(max(m.fakes.most.Load(), m.fakes.busy.Add(1)))
	defer m.fakes.busy.Add(-1)
	factor := float32(2)
	switch m.word {
	case "triple":
		factor = 3
	case "panic":
		panic("boom")
	case "large":
		n := int64(1 << 22)
		return &tensor.Response{Outputs: []tensor.Tensor{{Name: "y", Datatype: tensor.FP32, Shape: []int64{n}, Data: tensor.Values{Float32: make([]float32, n)}}}}, nil
	case "echo":
		headers, _ := r.Parameters["headers"].(map[string]any)
		asked := map[string]any{"X-Seen": headers["x-ask"], "Content-Length": "1", "ce-type": "mine", "X-Number": 5}
		return &tensor.Response{Outputs: r.Inputs, Parameters: tensor.Parameters{"own": true, "headers": asked}}, nil
	case "short":
		return &tensor.Response{Outputs: []tensor.Tensor{{Name: "y", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{1}}}}}, nil
	case "wait", "gather":
		m.fakes.entered <- struct{}{}
		select {
		case <-m.fakes.leave:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if m.word == "gather" {
		if slices.Contains(r.Inputs[0].Data.Float32, 13) {
			return nil, tensor.Errorf(tensor.KindInvalid, "13 is not served")
		}
		return &tensor.Response{Outputs: r.Inputs, Parameters: tensor.Parameters{"own": r.Parameters["own"]}}, nil
	}
	if len(r.Inputs) == 0 {
		return nil, tensor.Errorf(tensor.KindInvalid, "expected 1 input, got 0")
	}
	values, err := r.Inputs[0].AppendFloat32(nil)
	for i := range values {
		values[i] *= factor
	}
	return &tensor.Response{Outputs: []tensor.Tensor{{Name: "y", Datatype: tensor.FP32, Shape: r.Inputs[0].Shape, Data: tensor.Values{Float32: values}}}}, err
}

// fakeStreamer is a fakeModel that streams.
type fakeStreamer struct{ fakeModel }

func (m *fakeStreamer) Stream(ctx context.Context, in Requests, send func(*tensor.Response) error) error {
	if m.word == "sum" {
		return m.sum(in, send)
	}
	for r, err := range in {
		if err != nil {
			return err
		}
		for n := range 3 {
			if n > 0 {
				select {
				case <-m.fakes.leave:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			if n > 0 && m.word == "stall" {
				return errors.New("it stalled")
			}
			out := tensor.Tensor{Name: "y", Datatype: tensor.Int64, Shape: []int64{1}, Data: tensor.Values{Int64: []int64{int64(n)}}}
			if err := send(&tensor.Response{Outputs: []tensor.Tensor{out}, Parameters: tensor.Parameters{"headers": map[string]string{"X-Event": fmt.Sprint(n)}}}); err != nil {
				return err
			}
		}
		_ = r
	}
	return nil
}

func (m *fakeStreamer) sum(in Requests, send func(*tensor.Response) error) error {
	total := int64(0)
	for r, err := range in {
		if err != nil {
			return err
		}
		total += int64(len(r.Inputs))
	}
	return send(&tensor.Response{Outputs: []tensor.Tensor{{Name: "y", Datatype: tensor.Int64, Shape: []int64{1}, Data: tensor.Values{Int64: []int64{total}}}}})
}

// fakeRouter is a fakeModel with routes.
type fakeRouter struct{ fakeModel }

// chat answers a piece at once, and the next when it is let go.
func (m *fakeRouter) chat(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, "one,")
	if http.NewResponseController(w).Flush() != nil {
		return
	}
	m.fakes.entered <- struct{}{}
	<-m.fakes.leave
	_, _ = io.WriteString(w, "two")
}

func (m *fakeRouter) Routes() []Route {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.PathValue("id"), r.PathValue("rest"))
	})
	if m.word == "conflict" {
		return []Route{{"GET", "/a/{x}/b", answer}, {"GET", "/a/b/{x}", answer}}
	}
	return []Route{{"POST", "/items/{id}", answer}, {"GET", "/items/{id}", answer}, {"GET", "/files/{rest:path}", answer}, {"GET", "/v2/health/live", answer},
		{"POST", "/v1/chat/completions", http.HandlerFunc(m.chat)},
		{"POST", "/v1/embeddings", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, m.word+": ")
			_, _ = io.Copy(w, r.Body)
		})},
		{"POST", "/mirror", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Encoding", r.Header.Get("Content-Encoding"))
			w.Header().Set("X-Odd", "a\x00b\nc")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.Copy(w, r.Body)
		})}, {"POST", "/nothing", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })}}
}

// write makes files below dir, by path and content.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// site is a server of a folder, behind an HTTP test server.
type site struct {
	*fakes
	*Server
	url    string
	folder string
	log    *logText
}

// logText is a log that requests write while a test reads.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newSite(t *testing.T, files map[string]string, change ...func(*Config)) *site {
	t.Helper()
	s := &site{fakes: newFakes(), folder: t.TempDir(), log: &logText{}}
	write(t, s.folder, files)
	config := DefaultConfig()
	config.HTTP.Port, config.GRPC.Port, config.Metrics.Port = 0, 0, NoPort
	for _, f := range change {
		f(&config)
	}
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	engines := []Engine{s.engine()}
	var err error
	s.Server, err = New(config, Folder{Root: s.folder, Name: "only", Engines: engines, Log: log}, engines, log)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.handler)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// loaded is newSite with its models loaded; failures are left to the index.
func loaded(t *testing.T, files map[string]string, change ...func(*Config)) *site {
	t.Helper()
	s := newSite(t, files, change...)
	_ = s.LoadAll(context.Background())
	return s
}

// do makes a request, given as "METHOD path", and returns the answer.
func (s *site) do(t *testing.T, line, body string) (status int, answer string, header http.Header) {
	t.Helper()
	method, path, _ := strings.Cut(line, " ")
	r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text), response.Header
}

func (s *site) want(t *testing.T, line, body string, status int, says string) {
	t.Helper()
	got, answer, _ := s.do(t, line, body)
	if got != status || !strings.Contains(answer, says) {
		t.Errorf("%s: %d %s\nwant %d with %s", line, got, answer, status, says)
	}
}

func settings(implementation, uri, version string) string {
	return fmt.Sprintf(`{"implementation":%q,"parameters":{"uri":%q,"version":%q}}`, implementation, uri, version)
}

const ask = `{"id":"7","inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2]}]}`
