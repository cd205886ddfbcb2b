package admin

import (
	"mime"
	"net/http"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/admin/console"
)

// infer passes a request on to the models: without what the browser knows of this
// server, and with the API key that the page was given. The answer comes from the
// console's own origin, so of its headers only those pass that do nothing there.
func (s *Server) infer(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.URL.Path = strings.TrimPrefix(r.URL.Path, "/api/v1/infer")
	out.URL.RawPath = strings.TrimPrefix(r.URL.RawPath, "/api/v1/infer")
	out.RequestURI = out.URL.RequestURI()
	for _, name := range []string{"Cookie", "Origin", "Referer", "Authorization", "Upgrade", console.HeaderCSRF} {
		out.Header.Del(name)
	}
	if key := out.Header.Get("X-Roundhouse-Key"); key != "" {
		out.Header.Del("X-Roundhouse-Key")
		out.Header.Set("Authorization", "Bearer "+key)
	}
	s.cfg.Infer.ServeHTTP(&harmless{w: w, header: http.Header{}}, out)
}

// inertPolicy is the Content-Security-Policy of answers of models: were a browser to
// show one, it would load and run nothing, in an origin of its own.
const inertPolicy = "sandbox; default-src 'none'; frame-ancestors 'none'"

// passed are the headers of a model's answer that a page is given. Content-Type is
// not among them: see inertType.
var passed = []string{"Content-Length", "Content-Encoding", "Retry-After", "X-Request-Id", "X-Roundhouse-Simulated", "X-Roundhouse-Waited-Ms"}

// inertTypes are the types of content that no browser executes.
var inertTypes = []string{"application/json", "application/x-ndjson", "text/event-stream", "text/plain"}

// inertType is the type of a model's content as a page is told of it.
func inertType(stated string) string {
	is, _, err := mime.ParseMediaType(stated)
	for _, t := range inertTypes {
		if err == nil && is == t {
			return t + "; charset=utf-8"
		}
	}
	return "application/octet-stream"
}

// harmless writes the answer of a model to the console's page. It offers no more of
// the connection than an answer needs: a model cannot take it over. Trailers are
// dropped.
type harmless struct {
	w      http.ResponseWriter
	header http.Header // as the model has it
	sent   bool
}

func (h *harmless) Header() http.Header { return h.header }

func (h *harmless) WriteHeader(status int) {
	if h.sent || status < http.StatusOK {
		return // answers to come, which a page has no use for
	}
	h.sent = true
	to := h.w.Header()
	for _, name := range passed {
		if v := h.header.Get(name); v != "" {
			to.Set(name, v)
		}
	}
	to.Set("Content-Type", inertType(h.header.Get("Content-Type")))
	to.Set("Content-Security-Policy", inertPolicy)
	to.Set("X-Content-Type-Options", "nosniff")
	to.Set("Cross-Origin-Resource-Policy", "same-origin")
	to.Set("Cache-Control", "no-store")
	h.w.WriteHeader(status)
}

func (h *harmless) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	return h.w.Write(p)
}

// FlushError implements what http.ResponseController asks for, as those below do.
func (h *harmless) FlushError() error {
	h.WriteHeader(http.StatusOK)
	return http.NewResponseController(h.w).Flush()
}

func (h *harmless) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(h.w).SetReadDeadline(t)
}

func (h *harmless) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(h.w).SetWriteDeadline(t)
}

func (h *harmless) EnableFullDuplex() error {
	return http.NewResponseController(h.w).EnableFullDuplex()
}
