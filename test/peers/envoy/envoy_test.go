//go:build peers

// Package envoy tests `roundhouse endpoint-picker` with a real Envoy, from
// PyPI, which runs the configuration that docs/endpoint-picker.md shows.
package envoy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/test/envoy"
)

const startTimeout = time.Minute

// TestEnvoy sends requests through Envoy in every mode that bodies may have.
func TestEnvoy(t *testing.T) {
	program, err := envoy.Program()
	if err != nil {
		t.Skip(err)
	}
	start := func(t *testing.T, picker string, modes [2]string) *proxy {
		return &proxy{envoy.Start(t, program, envoy.Configuration(t, filepath.Join("..", "..", ".."), picker, modes))}
	}
	backends := []*httptest.Server{newBackend(t, "a"), newBackend(t, "b")}
	picker, metrics := startPicker(t, backends)
	for _, modes := range [][2]string{
		{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"}, {"FULL_DUPLEX_STREAMED", "STREAMED"}, {"FULL_DUPLEX_STREAMED", "NONE"},
		{"BUFFERED", "BUFFERED"}, {"BUFFERED", "STREAMED"}, {"BUFFERED", "NONE"},
	} {
		t.Run(modes[0]+" "+modes[1], func(t *testing.T) {
			e := start(t, picker, modes)
			e.conversations(t)
			eventually(t, func() bool {
				return strings.Contains(get(t, metrics), "\nroundhouse_endpoint_picker_requests_under_way 0\n")
			}, "requests under way end")
		})
	}
	t.Run("an endpoint dies", func(t *testing.T) {
		e := start(t, picker, [2]string{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"})
		backends[0].CloseClientConnections()
		backends[0].Close()
		row := 0
		eventually(t, func() bool {
			if status, _, by := e.post(t, "/v1/completions", `{"model":"llama"}`); status == 200 && by == "b" {
				row++
			} else {
				row = 0
			}
			return row == 5
		}, "the other is asked alone, five times in a row")
	})
}

// conversations are the requests that every mode answers alike.
func (e *proxy) conversations(t *testing.T) {
	prompt := strings.Repeat("Once upon a time, ", 12_000)
	for name, body := range map[string]string{
		"short":                  `{"model":"llama","seed":9007199254740993,"prompt":"<&>","a":1.0}`,
		"220 KB":                 `{"model":"llama","prompt":"` + prompt + `"}`,
		"the name comes last":    `{"prompt":"` + prompt + `","model":"llama"}`,
		"the name is escaped":    `{"model":"\u006clama","prompt":"x"}`,
		"a name that is longest": `{"model":"llama","stream":true,"messages":[{"role":"user","content":"hi"}]}`,
	} {
		want := strings.Replace(strings.Replace(body, `"\u006clama"`, `"llama"`, 1), `"llama"`, `"llama-v2"`, 1)
		status, got, _ := e.post(t, "/v1/completions", body)
		if status != 200 || got != want {
			t.Errorf("%s: %d, %d bytes came to the endpoint, want %d", name, status, len(got), len(want))
		}
	}
	for body, want := range map[string]int{`{"model":"lama"}`: 404, `{"prompt":"x"}`: 400, `{"model":`: 400} {
		if status, got, _ := e.post(t, "/v1/completions", body); status != want || !strings.Contains(got, `"error"`) {
			t.Errorf("%s: %d %s", body, status, got)
		}
	}
	res, err := http.Get(e.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("a request without body: %s", res.Status)
	}
	// A client that leaves while its request is at the endpoint.
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/hang", strings.NewReader(`{"model":"llama"}`))
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		if res, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
	}()
	select {
	case <-hanging:
	case <-ctx.Done():
		t.Error("the request did not reach an endpoint")
	}
	cancel()
	<-left
}

// hanging is told of requests that get no answer's end.
var hanging = make(chan struct{})

// newBackend answers with what it was sent.
func newBackend(t *testing.T, name string) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n")
	})
	mux.HandleFunc("/hang", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		hanging <- struct{}{}
		<-r.Context().Done()
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has left
		}
		w.Header().Set("X-Backend", name)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// startPicker runs the endpoint picker over the backends and returns its
// address and that of its metrics.
func startPicker(t *testing.T, backends []*httptest.Server) (address, metrics string) {
	t.Helper()
	binary := os.Getenv("ROUNDHOUSE_BINARY")
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "roundhouse")
		if output, err := exec.Command("go", "build", "-o", binary, "roundhouse.dev/roundhouse/cmd/roundhouse").CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, output)
		}
	}
	file := filepath.Join(t.TempDir(), "pool.yaml")
	manifest := fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: llama}
spec: {addresses: [%q, %q]}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: llama}
spec: {modelName: llama, criticality: Critical, poolRef: {name: llama}, targetModels: [{name: llama-v2}]}
`, strings.TrimPrefix(backends[0].URL, "http://"), strings.TrimPrefix(backends[1].URL, "http://"))
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "endpoint-picker", "--allow-path", "/hang", "-f", file, "--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	envoy.Run(t, cmd)
	lines := bufio.NewScanner(out)
	var ends []string
	for len(ends) < 3 && lines.Scan() {
		words := strings.Fields(lines.Text())
		ends = append(ends, words[len(words)-1])
	}
	if len(ends) < 3 {
		t.Fatalf("the endpoint picker did not start: %q", ends)
	}
	return ends[0], ends[2]
}

// proxy is a running Envoy.
type proxy struct{ url string }

// post returns the status, the body, and which backend answered.
func (e *proxy) post(t *testing.T, path, body string) (status int, answer, by string) {
	t.Helper()
	res, err := http.Post(e.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header.Get("X-Backend")
}

func get(t *testing.T, url string) string {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// eventually waits until something is so.
func eventually(t *testing.T, so func() bool, what string) {
	t.Helper()
	for end := time.Now().Add(startTimeout); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}
