package modelserver

import (
	"net/http"

	"roundhouse.dev/roundhouse/internal/edge/modelserver/openapi"
)

// subject is what the documents of a request are about; it answers itself when
// that is a model which does not serve.
func (s *Server) subject(w http.ResponseWriter, r *http.Request) (openapi.Subject, bool) {
	subject := openapi.Subject{Model: r.PathValue(modelName), Version: r.PathValue(modelVersion)}
	if subject.Model == "" {
		return subject, true
	}
	i, err := s.registry.acquire(subject.Model, subject.Version)
	if err != nil {
		s.writeError(w, err)
		return subject, false
	}
	i.release()
	return subject, true
}

// getDocs answers with Swagger UI.
func (s *Server) getDocs(w http.ResponseWriter, r *http.Request) {
	if subject, ok := s.subject(w, r); ok {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		s.send(w, r, subject.Page())
	}
}

// getDataplane answers with the OpenAPI document of inference.
func (s *Server) getDataplane(w http.ResponseWriter, r *http.Request) {
	if subject, ok := s.subject(w, r); ok {
		w.Header()["Content-Type"] = jsonType
		s.send(w, r, subject.Dataplane())
	}
}

// getModelRepository answers with the OpenAPI document of the model
// repository.
func (s *Server) getModelRepository(w http.ResponseWriter, r *http.Request) {
	w.Header()["Content-Type"] = jsonType
	s.send(w, r, openapi.ModelRepository())
}

// getAsset answers with a file of Swagger UI.
func (s *Server) getAsset(w http.ResponseWriter, r *http.Request) {
	if !openapi.ServeAsset(w, r, r.PathValue("file")) {
		notFound(w, r)
	}
}
