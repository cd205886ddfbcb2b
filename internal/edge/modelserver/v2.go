package modelserver

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

func (s *Server) getLive(w http.ResponseWriter, _ *http.Request) {
	writeBytes(w, http.StatusOK, []byte(`{"live":true}`))
}

func (s *Server) getReady(w http.ResponseWriter, _ *http.Request) {
	if !s.Ready() {
		// MLServer's clients expect 400.
		writeBytes(w, http.StatusBadRequest, []byte(`{"ready":false,"live":true,"error":"the server is not ready"}`))
		return
	}
	writeBytes(w, http.StatusOK, []byte(`{"ready":true,"live":true}`))
}

func (s *Server) getServer(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Metadata())
}

func (s *Server) getModel(w http.ResponseWriter, r *http.Request) {
	meta, err := s.ModelMetadata(r.PathValue(modelName), r.PathValue(modelVersion))
	if err != nil {
		s.writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Name       string                  `json:"name"`
		Versions   []string                `json:"versions"` // present even when there are none
		Platform   string                  `json:"platform"`
		Inputs     []tensor.TensorMetadata `json:"inputs"`
		Outputs    []tensor.TensorMetadata `json:"outputs"`
		Parameters tensor.Parameters       `json:"parameters"`
	}{meta.Name, meta.Versions, meta.Platform, notNil(meta.Inputs), notNil(meta.Outputs), notNilMap(meta.Parameters)})
}

// notNil makes JSON's [] of no tensors, notNilMap {} of no parameters.
func notNil(list []tensor.TensorMetadata) []tensor.TensorMetadata {
	return append([]tensor.TensorMetadata{}, list...)
}

func notNilMap(p tensor.Parameters) tensor.Parameters {
	if p == nil {
		return tensor.Parameters{}
	}
	return p
}

func (s *Server) getModelReady(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue(modelName)
	ready, err := s.ModelReady(name, r.PathValue(modelVersion))
	if err != nil {
		s.writeError(w, err)
		return
	}
	status := http.StatusOK
	if !ready {
		status = http.StatusBadRequest
	}
	writeReady(w, status, name, ready)
}

func writeReady(w http.ResponseWriter, status int, name string, ready bool) {
	writeJSON(w, status, struct {
		Name  string `json:"name"`
		Ready bool   `json:"ready"`
	}{name, ready})
}

func (s *Server) postIndex(w http.ResponseWriter, r *http.Request) {
	body, err := s.readBody(w, r)
	if err != nil {
		s.writeError(w, err)
		return
	}
	defer body.free()
	var filter struct {
		Ready bool `json:"ready"`
	}
	if len(body.data) > 0 {
		if err := json.Unmarshal(body.data, &filter); err != nil {
			s.writeError(w, filterError(err))
			return
		}
	}
	writeJSON(w, http.StatusOK, s.Index(filter.Ready))
}

// filterError says what is wrong with the body of an index request.
func filterError(err error) error {
	if field, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		if field.Field == "" {
			return &tensor.Error{Kind: tensor.KindSchema, Type: "model_attributes_type", Message: "Input should be a valid dictionary or object to extract fields from"}
		}
		return &tensor.Error{Kind: tensor.KindSchema, Type: "bool_parsing", Path: []any{field.Field}, Message: "Input should be a valid boolean, unable to interpret input"}
	}
	return &tensor.Error{Kind: tensor.KindSchema, Type: "json_invalid", Message: "JSON decode error: " + err.Error()}
}

// postLoad loads a model as the repository has it. What Triton's clients give to be
// loaded in its place is refused: to load something else would be no answer to it.
func (s *Server) postLoad(w http.ResponseWriter, r *http.Request) {
	body, err := s.readBody(w, r)
	if err != nil {
		s.writeError(w, err)
		return
	}
	var given struct {
		Parameters map[string]json.RawMessage `json:"parameters"`
	}
	_ = json.Unmarshal(body.data, &given) // MLServer reads no body, whatever it is
	body.free()
	for name := range given.Parameters {
		if name == "config" || strings.HasPrefix(name, "file:") {
			s.writeError(w, tensor.Errorf(tensor.KindInvalid, "parameters.%s has no effect here: a model is loaded as its folder in the repository says", name))
			return
		}
	}
	s.unhurried(w)
	if err := s.Load(r.Context(), r.PathValue(modelName)); err != nil {
		s.writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) postUnload(w http.ResponseWriter, r *http.Request) {
	s.unhurried(w)
	if err := s.Unload(r.Context(), r.PathValue(modelName)); err != nil {
		s.writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) postInfer(w http.ResponseWriter, r *http.Request) {
	s.serveInference(w, r, r.PathValue(modelName), r.PathValue(modelVersion), &protocolV2)
}

// protocolV2 answers 400 for a model that does not serve, as MLServer does.
var protocolV2 = protocol{tensor.DecodeRequest, tensor.AppendResponse, true, http.StatusBadRequest}

// newID is a random UUID (version 4).
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	var out [36]byte
	hex.Encode(out[0:8], b[0:4])
	hex.Encode(out[9:13], b[4:6])
	hex.Encode(out[14:18], b[6:8])
	hex.Encode(out[19:23], b[8:10])
	hex.Encode(out[24:36], b[10:16])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return string(out[:])
}
