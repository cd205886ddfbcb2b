package modelserver

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/modelserver/openapi"
)

// api is the HTTP interface of the Open Inference Protocol and of KServe v1.
type api struct {
	models *service
	wire   wire
	lacks  func() string // why the server is not ready; "" where it is
	// standby is the configuration's; nil: the server does not sleep.
	standby func(asleep bool)
	shared  bool // clients may register shared memory
}

func (a *api) getLive(w http.ResponseWriter, _ *http.Request) {
	writeBytes(w, http.StatusOK, []byte(`{"live":true}`))
}

func (a *api) getReady(w http.ResponseWriter, _ *http.Request) {
	if why := a.lacks(); why != "" {
		writeJSON(w, http.StatusBadRequest, struct { // which MLServer's clients expect
			Ready bool   `json:"ready"`
			Live  bool   `json:"live"`
			Error string `json:"error"`
		}{false, true, "the server is not ready: " + why})
		return
	}
	writeBytes(w, http.StatusOK, []byte(`{"ready":true,"live":true}`))
}

func (a *api) getServer(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.models.Metadata())
}

func (a *api) getModel(w http.ResponseWriter, r *http.Request) {
	meta, err := a.models.ModelMetadata(r.PathValue(modelName), r.PathValue(modelVersion))
	if err != nil {
		writeError(w, err)
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

func (a *api) getModelReady(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue(modelName)
	ready, err := a.models.ModelReady(name, r.PathValue(modelVersion))
	if err != nil {
		writeError(w, err)
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

func (a *api) postIndex(w http.ResponseWriter, r *http.Request) {
	body, err := a.wire.readBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	defer body.free()
	var filter struct {
		Ready bool `json:"ready"`
	}
	if len(body.data) > 0 {
		if err := json.Unmarshal(body.data, &filter); err != nil {
			writeError(w, filterError(err))
			return
		}
	}
	writeJSON(w, http.StatusOK, a.models.Index(filter.Ready))
}

// filterError describes what is wrong with the body of an index request.
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
func (a *api) postLoad(w http.ResponseWriter, r *http.Request) {
	body, err := a.wire.readBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	var given struct {
		Parameters map[string]json.RawMessage `json:"parameters"`
	}
	_ = json.Unmarshal(body.data, &given) // MLServer reads no body, whatever it is
	body.free()
	for name := range given.Parameters {
		if name == "config" || strings.HasPrefix(name, "file:") {
			writeError(w, tensor.Errorf(tensor.KindInvalid, "parameters.%s has no effect here: a model is loaded as its folder in the repository says", name))
			return
		}
	}
	liftReadDeadline(w)
	if err := a.models.Load(r.Context(), r.PathValue(modelName)); err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (a *api) postUnload(w http.ResponseWriter, r *http.Request) {
	liftReadDeadline(w)
	if err := a.models.Unload(r.Context(), r.PathValue(modelName)); err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// postSleep unloads all models until postWake, and keeps what they ran in.
func (a *api) postSleep(w http.ResponseWriter, r *http.Request) {
	liftReadDeadline(w)
	if err := a.models.registry.sleep(r.Context(), func() { a.standby(true) }); err != nil {
		writeError(w, err)
	}
}

func (a *api) postWake(w http.ResponseWriter, r *http.Request) {
	liftReadDeadline(w)
	if err := a.models.registry.wake(r.Context(), func() { a.standby(false) }); err != nil {
		writeError(w, err)
	}
}

func (a *api) postInfer(w http.ResponseWriter, r *http.Request) {
	a.serveInference(w, r, r.PathValue(modelName), r.PathValue(modelVersion), &protocolV2)
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

// protocolV1 answers 503 for a model that does not serve, as KServe does.
var protocolV1 = protocol{tensor.DecodeV1, tensor.AppendV1, false, http.StatusServiceUnavailable}

// getAlive answers with what KServe's clients read.
func (a *api) getAlive(w http.ResponseWriter, _ *http.Request) {
	writeBytes(w, http.StatusOK, []byte(`{"status":"alive"}`))
}

// listV1 answers as KServe v1 does, and as OpenAI does for models that answer its
// clients: the two share the path, and no field.
func (a *api) listV1(w http.ResponseWriter, _ *http.Request) {
	list := []string{}
	for _, m := range a.models.registry.index() {
		if len(list) == 0 || list[len(list)-1] != m.Name {
			list = append(list, m.Name)
		}
	}
	answer := struct {
		Models []string `json:"models"`
		Object string   `json:"object,omitempty"`
		Data   []any    `json:"data,omitempty"`
	}{Models: list}
	for _, i := range a.models.registry.routers() {
		if i.routes.openAI() {
			answer.Object = "list"
			answer.Data = append(answer.Data, map[string]any{"id": i.name, "object": "model", "created": i.loaded.Unix(), "owned_by": a.models.Metadata().Name})
		}
	}
	writeJSON(w, http.StatusOK, answer)
}

// statusV1 answers 503 for a model that does not serve, as KServe's probes
// expect.
func (a *api) statusV1(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue(modelName)
	ready, err := a.models.ModelReady(name, "")
	switch {
	case err != nil:
		writeError(w, err)
	case !ready:
		writeError(w, &httpError{http.StatusServiceUnavailable, "Model with name " + name + " is not ready."})
	default:
		writeReady(w, http.StatusOK, name, true)
	}
}

func (a *api) predictV1(w http.ResponseWriter, r *http.Request) {
	name, verb, _ := cutLast(r.PathValue(modelName), ":")
	if verb != "predict" {
		writeErrorStatus(w, http.StatusNotFound, errors.New("no such path: POST takes /v1/models/{model}:predict"))
		return
	}
	a.serveInference(w, r, name, "", &protocolV1)
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// docs is the server's documentation: Swagger UI and what it shows.
type docs struct {
	models *service
	wire   wire
}

// subject is what the documents of a request are about; it answers itself when
// that is a model which does not serve.
func (d *docs) subject(w http.ResponseWriter, r *http.Request) (openapi.Subject, bool) {
	subject := openapi.Subject{Model: r.PathValue(modelName), Version: r.PathValue(modelVersion)}
	if subject.Model == "" {
		return subject, true
	}
	i, err := d.models.registry.acquire(subject.Model, subject.Version)
	if err != nil {
		writeError(w, err)
		return subject, false
	}
	i.release()
	return subject, true
}

// getDocs answers with Swagger UI.
func (d *docs) getDocs(w http.ResponseWriter, r *http.Request) {
	if subject, ok := d.subject(w, r); ok {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		d.wire.send(w, r, subject.Page())
	}
}

// getDataplane answers with the OpenAPI document of inference.
func (d *docs) getDataplane(w http.ResponseWriter, r *http.Request) {
	if subject, ok := d.subject(w, r); ok {
		w.Header()["Content-Type"] = jsonType
		d.wire.send(w, r, subject.Dataplane())
	}
}

// getModelRepository answers with the OpenAPI document of the model
// repository.
func (d *docs) getModelRepository(w http.ResponseWriter, r *http.Request) {
	w.Header()["Content-Type"] = jsonType
	d.wire.send(w, r, openapi.ModelRepository())
}

// getAsset answers with a file of Swagger UI.
func (d *docs) getAsset(w http.ResponseWriter, r *http.Request) {
	if !openapi.ServeAsset(w, r, r.PathValue("file")) {
		notFound(w, r)
	}
}
