package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

// serve answers one request of the surfaces.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	x := newExchange(g, w, r)
	defer x.end()
	path := r.URL.EscapedPath()
	x.call = surface.Find(path, r.URL.Path, r.Header.Get("Anthropic-Version") != "")
	if _, ok := w.(*explained); ok && x.call.Surface != surface.V1 {
		x.call.Surface = surface.OIP // whose errors are one string
	}
	x.surface = x.call.Surface
	x.seen.StartTrace(g.cfg.Tracer, r, path)
	if x.admitted() && !x.unsafe() {
		x.serveCall()
	}
}

// admitted reports whether the request may go on; false when it was answered.
func (x *exchange) admitted() bool {
	if x.call.Open {
		return !x.answerCORS()
	}
	return !x.foreign() && !x.answerCORS() && x.enter()
}

// valid reports whether the call's path takes the method and names a model if it
// should; false when the request was answered.
func (x *exchange) valid() bool {
	c := &x.call
	if len(c.Methods) > 0 && !slices.Contains(c.Methods, x.r.Method) {
		x.w.Header().Set("Allow", strings.Join(c.Methods, ", "))
		x.fail(http.StatusMethodNotAllowed, fmt.Sprintf("%s %s: this path takes %s", x.r.Method, x.r.URL.Path, strings.Join(c.Methods, " or ")))
		return false
	}
	return !c.Kind.NamesModel() || x.setModel(c.Model)
}

// serveCall answers the exchange's call, or has a replica answer it.
func (x *exchange) serveCall() {
	kind := x.call.Kind
	if (kind == surface.Banner || kind == surface.ServerMetadata) && x.broken() || !x.valid() {
		return
	}
	switch kind {
	case surface.ModelInBody:
		x.serveBody()
	case surface.ModelInPath:
		x.servePath()
	case surface.Unknown, surface.Unlisted:
		if !x.serveRouted() && (kind == surface.Unlisted || !x.broken()) {
			x.notFound()
		}
	case surface.NotFound, surface.AsIs:
		x.notFound()
	case surface.RepositoryIndex:
		x.serveIndex()
	case surface.DescribeModel, surface.ModelReady, surface.RepositoryLoad, surface.RepositoryUnload:
		if x.mayUse() {
			x.serveModelCall()
		}
	case surface.Banner, surface.Health, surface.ServerMetadata, surface.ServerLive, surface.ServerReady, surface.ListModels:
		x.serveOwn()
	}
}

func (x *exchange) notFound() {
	x.fail(http.StatusNotFound, "nothing is served at "+x.r.URL.Path+x.call.Hint)
}

// serveOwn answers what concerns the gateway as a whole.
func (x *exchange) serveOwn() {
	switch x.call.Kind { //nolint:exhaustive // the other kinds do not come here
	case surface.Banner:
		x.plain("roundhouse " + x.gw.cfg.Version + ": models are at /v1/models; inference is at " + surface.Paths + "\n")
	case surface.Health:
		x.plain("ok\n")
	case surface.ServerMetadata:
		x.reply(http.StatusOK, map[string]any{"name": "roundhouse", "version": x.gw.cfg.Version, "extensions": []string{"model_repository"}})
	case surface.ServerLive:
		x.reply(http.StatusOK, map[string]bool{"live": true})
	case surface.ServerReady: // false only while the gateway stops
		ready, status := !x.gw.draining.Load(), http.StatusOK
		if !ready {
			status = http.StatusBadRequest
		}
		x.reply(status, map[string]bool{"ready": ready, "live": true})
	case surface.ListModels:
		x.reply(http.StatusOK, listModels(x.gw.dispatch, x.pass, x.call.Surface))
	}
}

func (x *exchange) serveIndex() {
	if err := x.readBody(true); err != nil {
		x.refuseBody(err)
		return
	}
	index, err := repositoryIndex(visible(x.gw.dispatch, x.pass), x.body.head)
	if err != nil {
		x.fail(http.StatusBadRequest, err.Error())
		return
	}
	x.reply(http.StatusOK, index)
}

// serveModelCall answers what is asked of one model without its replicas: to
// describe it, which wakes nothing so that a probe does not keep it awake, to load
// (wake) it, or to unload it (put it to sleep).
func (x *exchange) serveModelCall() {
	if x.call.Kind == surface.RepositoryLoad { // it waits until a replica is ready, as a request would
		g, err := x.admit(x.r.Context())
		if err != nil {
			x.refuse(err)
			return
		}
		x.grant = g // finish gives it back
		x.write(http.StatusOK, nil)
		return
	}
	s, err := x.gw.dispatch.Resolve(x.query())
	if err != nil {
		x.refuse(err)
		return
	}
	switch x.call.Kind { //nolint:exhaustive // the other kinds do not come here
	case surface.DescribeModel:
		info := describe(s, parentOf(x.gw.dispatch, x.pass, s), x.call.Surface)
		info.ID, info.Name = x.model, x.model
		x.reply(http.StatusOK, info)
	case surface.ModelReady:
		status := http.StatusOK
		if !s.Answers() {
			status = http.StatusBadRequest // what MLServer says, and its clients expect
		}
		x.reply(status, struct {
			Name   string `json:"name"`
			Ready  bool   `json:"ready"`
			Reason string `json:"reason,omitempty"`
		}{x.model, s.Answers(), s.Message})
	case surface.RepositoryUnload:
		x.service = s.Pool.Key.String()
		if err := x.gw.dispatch.Sleep(x.r.Context(), x.service); err != nil {
			x.fail(http.StatusBadRequest, fmt.Sprintf("%s cannot be unloaded: %v", x.model, err))
			return
		}
		x.write(http.StatusOK, nil)
	}
}

// serveBody forwards a request by the model its body names.
func (x *exchange) serveBody() {
	x.seen.Operation = x.call.Operation
	for _, enc := range x.r.Header["Content-Encoding"] {
		if enc != "" && enc != "identity" {
			x.fail(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Encoding %q: send the body uncompressed, so that its model can be read", enc))
			return
		}
	}
	if kinds := x.r.Header["Content-Type"]; len(kinds) > 1 {
		x.fail(http.StatusUnsupportedMediaType, fmt.Sprintf("Content-Type is given %d times: give it once", len(kinds)))
		return
	}
	if err := x.readBody(true); err != nil {
		x.refuseBody(err)
		return
	}
	var err error
	if x.request, x.form, err = surface.ParseBody(x.r.Header.Get("Content-Type"), x.body.head); err != nil {
		param, code := "model", ""
		var bad *openai.BodyError
		if errors.As(err, &bad) {
			param, code = bad.Code()
		}
		x.failWith(http.StatusBadRequest, err.Error(), param, code)
		return
	}
	x.parsed = &x.request
	x.model = string(x.parsed.Model)
	if !x.form {
		stateJSON(x.r.Header)
		x.prompt = x.parsed.AppendPrompt(x.prompt, x.body.head)
	}
	x.serveModel()
}

// stateJSON has the replica told that the body, which is JSON, is: clients that
// state nothing, and curl, say otherwise, and engines go by it.
func stateJSON(h http.Header) {
	if kind := h.Get("Content-Type"); !openai.IsJSON(kind) {
		h["Content-Type"] = []string{surface.TypeJSON}
	}
}

// typeForm is curl's Content-Type where nothing is said. No model server reads
// such forms.
const typeForm = "application/x-www-form-urlencoded"

// setModel takes the model's name from a path.
func (x *exchange) setModel(escaped string) bool {
	name, err := url.PathUnescape(escaped)
	if err != nil || name == "" {
		x.fail(http.StatusBadRequest, fmt.Sprintf("%q is no model name", escaped))
		return false
	}
	x.model = name
	return true
}

// servePath forwards a request whose path names the model. The body is streamed
// if it is long.
func (x *exchange) servePath() {
	if err := x.readBody(false); err != nil {
		x.refuseBody(err)
		return
	}
	if x.r.Header.Get("Content-Type") == typeForm && x.body.tail == nil && json.Valid(x.body.head) {
		stateJSON(x.r.Header)
	}
	x.serveModel()
}
