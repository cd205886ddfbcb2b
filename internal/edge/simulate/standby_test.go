package simulate

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestSleepsAsVLLM follows what vLLM's guide to its sleep mode says.
func TestSleepsAsVLLM(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Speed, cfg.Dev = 1000, true
	e, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(e.Handler())
	t.Cleanup(server.Close)
	ask := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(raw)
	}
	want := func(method, path, body string, status int, part string) {
		t.Helper()
		if code, raw := ask(method, path, body); code != status || !strings.Contains(raw, part) {
			t.Fatalf("%s %s: %d %s", method, path, code, raw)
		}
	}
	const prompt = `{"model":"simulated","prompt":"x","max_tokens":2}`
	for _, level := range []string{"1", "2"} {
		want("POST", "/sleep?level="+level, "", 200, "")
		want("GET", "/health", "", 200, "")
		want("GET", "/is_sleeping", "", 200, "true")
		want("GET", "/metrics", "", 200, map[string]string{"1": `sleep_state="weights_offloaded"} 1`, "2": `sleep_state="discard_all"} 1`}[level])
		answered := make(chan int, 1)
		go func() {
			resp, err := http.Post(server.URL+"/v1/completions", "application/json", strings.NewReader(prompt))
			if err != nil {
				answered <- 0
				return
			}
			_ = resp.Body.Close()
			answered <- resp.StatusCode
		}()
		select {
		case code := <-answered:
			t.Fatalf("a request was answered %d by an engine that sleeps", code)
		case <-time.After(50 * time.Millisecond):
		}
		if level == "2" {
			want("POST", "/wake_up?tags=weights", "", 200, "")
			want("GET", "/is_sleeping", "", 200, "true")
			want("POST", "/collective_rpc", `{"method":"reload_weights"}`, 200, "results")
			want("POST", "/wake_up?tags=kv_cache", "", 200, "")
		} else {
			want("POST", "/wake_up", "", 200, "")
		}
		if code := <-answered; code != 200 {
			t.Fatalf("woken from level %s, the request was answered %d", level, code)
		}
		want("GET", "/is_sleeping", "", 200, "false")
	}
	want("POST", "/sleep?level=2", "", 200, "")
	want("POST", "/wake_up", "", 200, "")
	want("POST", "/v1/completions", prompt, 500, "not read again")

	cfg.Dev = false
	if e, err = New(cfg, nil); err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewRecorder()
	e.Handler().ServeHTTP(plain, httptest.NewRequest(http.MethodPost, "/sleep", nil))
	if plain.Code != http.StatusNotFound {
		t.Errorf("without development mode it sleeps: %d", plain.Code)
	}
}
