package modelserver

import (
	"errors"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// protocolV1 answers 503 for a model that does not serve, as KServe does.
var protocolV1 = protocol{tensor.DecodeV1, tensor.AppendV1, false, http.StatusServiceUnavailable}

// getAlive answers with what KServe's clients read.
func (s *Server) getAlive(w http.ResponseWriter, _ *http.Request) {
	writeBytes(w, http.StatusOK, []byte(`{"status":"alive"}`))
}

func (s *Server) listV1(w http.ResponseWriter, _ *http.Request) {
	list := []string{}
	for _, m := range s.registry.index() {
		if len(list) == 0 || list[len(list)-1] != m.Name {
			list = append(list, m.Name)
		}
	}
	writeJSON(w, http.StatusOK, struct {
		Models []string `json:"models"`
	}{list})
}

// statusV1 answers 503 for a model that does not serve, as KServe's probes
// expect.
func (s *Server) statusV1(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue(modelName)
	ready, err := s.ModelReady(name, "")
	switch {
	case err != nil:
		s.writeError(w, err)
	case !ready:
		s.writeError(w, &httpError{http.StatusServiceUnavailable, "Model with name " + name + " is not ready."})
	default:
		writeReady(w, http.StatusOK, name, true)
	}
}

func (s *Server) predictV1(w http.ResponseWriter, r *http.Request) {
	name, verb, _ := cutLast(r.PathValue(modelName), ":")
	if verb != "predict" {
		writeErrorStatus(w, http.StatusNotFound, errors.New("no such path: POST takes /v1/models/{model}:predict"))
		return
	}
	s.serveInference(w, r, name, "", &protocolV1)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
