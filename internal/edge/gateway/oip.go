package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// serveOIP serves the Open Inference Protocol and what Cohere has beside it:
// rest is the escaped path after "/v2/".
func (x *exchange) serveOIP(rest string) {
	switch rest = strings.TrimSuffix(rest, "/"); rest {
	case "chat", "embed", "rerank":
		x.only(func() { x.complete("/v2/" + rest) }, http.MethodPost)
	case "":
		x.only(x.serverMetadata, http.MethodGet, http.MethodHead)
	case "health/live":
		x.only(func() { x.reply(http.StatusOK, map[string]bool{"live": true}) }, http.MethodGet, http.MethodHead)
	case "health/ready":
		x.only(x.serverReady, http.MethodGet, http.MethodHead)
	case "repository/index":
		x.only(x.repositoryIndex, http.MethodPost)
	default:
		if model, ok := strings.CutPrefix(rest, "repository/models/"); ok {
			x.repositoryModel(model)
		} else if model, ok := strings.CutPrefix(rest, "models/"); ok {
			x.serveOIPModel(model)
		} else {
			x.fail(http.StatusNotFound, fmt.Sprintf("nothing is served at %s; the protocol's paths are /v2, /v2/health/live, /v2/health/ready, /v2/models/{name}/infer and /v2/repository/index", x.r.URL.Path))
		}
	}
}

func (x *exchange) serverMetadata() {
	x.reply(http.StatusOK, map[string]any{"name": "roundhouse", "version": x.gw.cfg.Version,
		"extensions": []string{"model_repository"}})
}

// serverReady is false only while the gateway stops.
func (x *exchange) serverReady() {
	ready, status := !x.gw.draining.Load(), http.StatusOK
	if !ready {
		status = http.StatusBadRequest
	}
	x.reply(status, map[string]bool{"ready": ready, "live": true})
}

// serveOIPModel serves "name", "name/action" and
// "name/versions/version/action".
func (x *exchange) serveOIPModel(rest string) {
	name, action, _ := strings.Cut(rest, "/")
	if !route.Inference(x.r.URL.Path) {
		x.unlisted()
		return
	}
	if !x.setModel(name) {
		return
	}
	last := action
	if versioned, ok := strings.CutPrefix(action, "versions/"); ok {
		_, last, _ = strings.Cut(versioned, "/")
	}
	forward := func() {
		after := ""
		if action != "" {
			after = "/" + action
		}
		x.forwardPath("/v2/models/", name, after)
	}
	switch last {
	case "ready":
		x.only(x.modelReady, http.MethodGet, http.MethodHead)
	case "", "versions":
		x.only(forward, http.MethodGet, http.MethodHead)
	case "infer", "generate", "infer_stream", "generate_stream":
		x.infers, x.protocol = true, service.ProtocolV2
		x.only(forward, http.MethodPost)
	default:
		forward() // documents and a model's own handlers, with any method
	}
}

// modelReady says whether a request would be answered. It wakes nothing, so
// that a probe does not keep a model awake.
func (x *exchange) modelReady() {
	if !x.mayUse() {
		return
	}
	s, err := x.gw.dispatch.Resolve(x.query())
	if err != nil {
		x.refuse(err)
		return
	}
	status := http.StatusOK
	if !s.Answers() {
		status = http.StatusBadRequest // what MLServer says, and its clients expect
	}
	x.reply(status, struct {
		Name   string `json:"name"`
		Ready  bool   `json:"ready"`
		Reason string `json:"reason,omitempty"`
	}{x.model, s.Answers(), s.Message})
}

// indexEntry is one model of the repository index.
type indexEntry struct {
	Name   string `json:"name"`
	State  string `json:"state"` // READY, LOADING or UNAVAILABLE
	Reason string `json:"reason"`
}

func newIndexEntry(s dispatch.Status) indexEntry {
	e := indexEntry{Name: s.Name, State: "UNAVAILABLE", Reason: s.Message}
	switch s.State {
	case dispatch.StateReady:
		e.State = "READY"
	case dispatch.StateLoading:
		e.State = "LOADING"
	case dispatch.StateAsleep, dispatch.StateFailed:
	}
	return e
}

// repositoryIndex lists all services; {"ready": true} in the body leaves those
// that are loaded.
func (x *exchange) repositoryIndex() {
	if err := x.readBody(true); err != nil {
		x.refuseBody(err)
		return
	}
	var want struct {
		Ready bool `json:"ready"`
	}
	if len(x.body.head) > 0 {
		if err := json.Unmarshal(x.body.head, &want); err != nil {
			x.fail(http.StatusBadRequest, `the body must be empty, {} or {"ready": true}: `+err.Error())
			return
		}
	}
	index := []indexEntry{}
	for _, s := range x.gw.dispatch.ModelsWithin(x.pass.Namespaces()) {
		if x.sees(s) && (!want.Ready || s.State == dispatch.StateReady) {
			index = append(index, newIndexEntry(s))
		}
	}
	x.reply(http.StatusOK, index)
}

// repositoryModel loads (wakes) or unloads (puts to sleep) "name/verb". The
// body is ignored.
func (x *exchange) repositoryModel(rest string) {
	name, verb, _ := strings.Cut(rest, "/")
	act := x.load
	switch verb {
	case "load":
	case "unload":
		act = x.unload
	default:
		x.fail(http.StatusNotFound, fmt.Sprintf("nothing is served at %s; the repository's verbs are load and unload", x.r.URL.Path))
		return
	}
	if x.setModel(name) && x.mayUse() {
		x.only(act, http.MethodPost)
	}
}

// load waits until a replica is ready, as a request would.
func (x *exchange) load() {
	g, err := x.admit(x.r.Context())
	if err != nil {
		x.refuse(err)
		return
	}
	x.grant = g // finish gives it back
	x.write(http.StatusOK, nil)
}

func (x *exchange) unload() {
	s, err := x.gw.dispatch.Resolve(x.query())
	if err != nil {
		x.refuse(err)
		return
	}
	x.service = s.Pool.Key.String()
	if err := x.gw.dispatch.Sleep(x.r.Context(), x.service); err != nil {
		x.fail(http.StatusBadRequest, fmt.Sprintf("%s cannot be unloaded: %v", x.model, err))
		return
	}
	x.write(http.StatusOK, nil)
}
