package admin

import (
	"encoding/json"
	"net/http"
	"strings"
)

// InferenceRequest is a request to the inference port, to be explained.
type InferenceRequest struct {
	Method string            `json:"method"` // "" is POST
	Path   string            `json:"path"`   // with the query, if any
	Host   string            `json:"host,omitempty"`
	Header map[string]string `json:"header,omitempty"`
	Body   string            `json:"body,omitempty"`
}

func (s *Server) explainRequest(w http.ResponseWriter, r *http.Request) {
	var in InferenceRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, s.cfg.MaxRequestBytes)).Decode(&in); err != nil {
		failError(w, err)
		return
	}
	if in.Method == "" {
		in.Method = http.MethodPost
	}
	if !strings.HasPrefix(in.Path, "/") {
		fail(w, http.StatusUnprocessableEntity, "path %q must begin with a slash", in.Path)
		return
	}
	ask, err := http.NewRequestWithContext(r.Context(), in.Method, "http://"+r.Host+in.Path, strings.NewReader(in.Body))
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, "%s", err)
		return
	}
	ask.Host = in.Host
	ask.Header.Set("Content-Type", "application/json")
	for name, value := range in.Header {
		ask.Header.Set(name, value)
	}
	why, err := s.cfg.ExplainRequest(ask)
	if err != nil {
		fail(w, http.StatusUnprocessableEntity, "the request is refused: %s", err)
		return
	}
	facts, err := json.Marshal(why)
	if err != nil {
		fail(w, http.StatusInternalServerError, "%s", err)
		return
	}
	answer(w, Explanation{Text: why.String(), Facts: facts})
}
