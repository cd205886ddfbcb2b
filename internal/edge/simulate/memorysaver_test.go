package simulate

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// saver is an SGLang engine, and what asks it; exits gets the codes that it ends with.
func saver(t *testing.T, change func(*Config)) (ask func(method, path, body string) (int, string), exits chan int) {
	t.Helper()
	cfg := DefaultConfig()
	exits = make(chan int, 8)
	cfg.Speed, cfg.API, cfg.MemorySaver, cfg.WeightsBackup = 1000, APISGLang, true, true
	cfg.Exit = func(code int) { exits <- code }
	change(&cfg)
	e, err := New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(e.Handler())
	t.Cleanup(server.Close)
	return func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err.Error() // it ended
		}
		defer func() { _ = resp.Body.Close() }()
		raw, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(raw)
	}, exits
}

const saverPrompt = `{"model":"simulated","prompt":"x","max_tokens":2}`

// TestReleasesAsSGLang follows SGLang's source: scheduler and HTTP server.
func TestReleasesAsSGLang(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		calls  []string // METHOD PATH BODY
		status int      // of the last; 0: none
		body   string
		exits  bool
	}{
		"release":                          {calls: []string{"POST /release_memory_occupation {}"}, status: 200, body: "null"},
		"release by GET":                   {calls: []string{"GET /release_memory_occupation {}"}, status: 200, body: "null"},
		"without a body":                   {calls: []string{"POST /release_memory_occupation "}, status: 400, body: "JSON object"},
		"with a list":                      {calls: []string{"POST /release_memory_occupation []"}, status: 400, body: "JSON object"},
		"health is late, and fails":        {calls: []string{"POST /release_memory_occupation {}", "GET /health "}, status: 503},
		"all":                              {calls: []string{"POST /release_memory_occupation {}", "POST /resume_memory_occupation {}", "GET /health "}, status: 200},
		"and answers":                      {calls: []string{"POST /release_memory_occupation {}", "POST /resume_memory_occupation {}", "POST /v1/completions " + saverPrompt}, status: 200, body: "simulated"},
		"by tags":                          {calls: []string{`POST /release_memory_occupation {"tags":["kv_cache","weights"]}`, `POST /resume_memory_occupation {"tags":["weights"]}`, "GET /health "}, status: 503},
		"all tags":                         {calls: []string{`POST /release_memory_occupation {"tags":["kv_cache","weights"]}`, `POST /resume_memory_occupation {"tags":["weights"]}`, `POST /resume_memory_occupation {"tags":["kv_cache"]}`, "POST /v1/completions " + saverPrompt}, status: 200},
		"a request meanwhile":              {calls: []string{"POST /release_memory_occupation {}", "POST /v1/completions " + saverPrompt}, exits: true},
		"a resume of what is not released": {calls: []string{"POST /resume_memory_occupation {}"}, exits: true},
		"twice":                            {calls: []string{"POST /release_memory_occupation {}", "POST /resume_memory_occupation {}", "POST /resume_memory_occupation {}"}, exits: true},
		"without a backup":                 {change: func(c *Config) { c.WeightsBackup = false }, calls: []string{"POST /release_memory_occupation {}", "POST /resume_memory_occupation {}", "POST /v1/completions " + saverPrompt}, status: 500, body: "without a backup"},
		"off, nothing is released":         {change: func(c *Config) { c.MemorySaver = false }, calls: []string{"POST /release_memory_occupation {}", "POST /v1/completions " + saverPrompt}, status: 200},
		"vLLM has no such call":            {change: func(c *Config) { c.API = APIvLLM }, calls: []string{"POST /release_memory_occupation {}"}, status: 404},
		"and SGLang none of those of vLLM": {change: func(c *Config) { c.Dev = true }, calls: []string{"POST /sleep "}, status: 404},
		"no other method":                  {calls: []string{"PUT /release_memory_occupation {}"}, status: 404},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.change == nil {
				c.change = func(*Config) {}
			}
			ask, exits := saver(t, c.change)
			var status int
			var body string
			for _, call := range c.calls {
				p := strings.SplitN(call, " ", 3)
				status, body = ask(p[0], p[1], p[2])
			}
			if c.exits {
				select {
				case <-exits:
				case <-time.After(10 * time.Second):
					t.Fatalf("the engine has not ended: %d %s", status, body)
				}
			} else if status != c.status || !strings.Contains(body, c.body) || len(exits) > 0 {
				t.Errorf("%v: %d %s, ended %d times", c.calls, status, body, len(exits))
			}
		})
	}
}

// TestReleaseOfBusyEngine: SGLang's scheduler fails where requests run.
func TestReleaseOfBusyEngine(t *testing.T) {
	ask, exits := saver(t, func(c *Config) { c.Speed = 1 })
	go ask("POST", "/v1/completions", `{"model":"simulated","prompt":"x","max_tokens":1000,"ignore_eos":true}`)
	for end := time.Now().Add(10 * time.Second); ; {
		if _, state := ask("GET", "/simulate/state", ""); strings.Contains(state, `"running":1`) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the request does not run")
		}
	}
	ask("POST", "/release_memory_occupation", "{}")
	select {
	case <-exits:
	case <-time.After(10 * time.Second):
		t.Fatal("the engine has not ended")
	}
}
