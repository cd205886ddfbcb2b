package simulate

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// TestRanks: a request goes to the rank that it names, and to the one with the least to
// do otherwise. What is no number vLLM ignores and SGLang refuses.
func TestRanks(t *testing.T) {
	for _, c := range []struct {
		api  API
		rank string
		code int
		want string
	}{
		{APIvLLM, "1", 200, "1"},
		{APIvLLM, "2", 200, "2"},
		{APIvLLM, "", 200, "0"},
		{APIvLLM, "x", 200, "0"},
		{APIvLLM, "3", 400, ""},
		{APIvLLM, "-1", 400, ""},
		{APISGLang, "2", 200, "2"},
		{APISGLang, "x", 400, ""},
	} {
		cfg := DefaultConfig()
		cfg.API, cfg.DataParallelSize, cfg.Speed = c.api, 3, 1000
		e, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		h := e.Handler()
		req := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"simulated","prompt":"hi","max_tokens":2}`))
		if c.rank != "" {
			req.Header.Set(routing.HeaderRank, c.rank)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code != c.code || w.Header().Get(headerSimulatedRank) != c.want {
			t.Errorf("%s, rank %q: %d of rank %q, want %d of %q", c.api, c.rank, w.Code, w.Header().Get(headerSimulatedRank), c.code, c.want)
		}
		page := httptest.NewRecorder()
		h.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		label := map[API]string{APIvLLM: `engine="2"`, APISGLang: `dp_rank="2"`}[c.api]
		if page.Code != 200 || !strings.Contains(page.Body.String(), label) {
			t.Errorf("%s: no series with %s:\n%s", c.api, label, page.Body)
		}
	}
	for _, bad := range []func(*Config){
		func(c *Config) { c.DataParallelSize = 0 },
		func(c *Config) { c.DataParallelSize = maxRanks + 1 },
		func(c *Config) { c.DataParallelSize, c.Physics.MaxAdapters = 2, 1 },
		func(c *Config) { c.DataParallelSize, c.KVEvents = 2, "127.0.0.1:65535" },
	} {
		cfg := DefaultConfig()
		bad(&cfg)
		if cfg.Validate() == nil {
			t.Errorf("data-parallel-size %d with %d adapters at %q is accepted", cfg.DataParallelSize, cfg.Physics.MaxAdapters, cfg.KVEvents)
		}
	}
}
