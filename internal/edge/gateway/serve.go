package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// serve answers one request of the surfaces.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request) {
	x := newExchange(g, w, r)
	defer x.end()
	path := r.URL.EscapedPath()
	anthropic := r.Header.Get("Anthropic-Version") != ""
	call := surface.Find(path, r.URL.Path, anthropic)
	if call.Kind == surface.Unknown && g.enterService(r, path) {
		path = r.URL.EscapedPath()
		call = surface.Find(path, r.URL.Path, anthropic)
	} else if plain, ok := x.enterPlain(call, path); ok {
		call = plain
	} else {
		call = x.enterRoute(call, anthropic)
	}
	if x.explains() && call.Surface != surface.V1 {
		call.Surface = surface.OIP // whose errors are one string
	}
	x.begin(call, path)
	if call.Open && x.asksGraph() != nil {
		x.req.call.Open = false // it is the graph that is asked
	}
	answered, err := x.enter()
	if err == nil && !answered {
		err = x.serveFound()
	}
	if err != nil {
		x.refuse(err)
	}
}

// explains reports whether the request is only to be explained.
func (x *exchange) explains() bool {
	_, ok := x.w.(*explained)
	return ok
}

// enterService makes a request to a path below a service's, such as
// /NAMESPACE/NAME/v1/models, one to the service's host.
func (g *Gateway) enterService(r *http.Request, path string) bool {
	if g.checkPage(r) != nil { // which is refused by the host that its client named
		return false
	}
	host, rest, ok := g.dispatch.Below(dispatch.Request{Host: r.Host, Path: path, RawQuery: r.URL.RawQuery, Method: r.Method, Header: r.Header.Get})
	if !ok {
		return false
	}
	plain, err := url.PathUnescape(rest)
	if err != nil {
		return false
	}
	r.Host, r.URL.Path, r.URL.RawPath = host, plain, rest
	return true
}

// enter checks who sends the request, before its path and body are looked at. The
// answer to a browser's preflight is all that the request gets.
func (x *exchange) enter() (answered bool, err error) {
	open := x.req.call.Open
	if !open {
		if err := x.gw.checkPage(x.req.r); err != nil {
			return false, err
		}
	}
	if x.answerCORS() {
		return true, nil
	}
	if !open {
		if x.pass, err = ingress.Enter(x.gw.cfg.Keys, x.req.r.Header, ingress.SecretHeaders); err != nil {
			return false, err
		}
	}
	return false, checkTarget(x.req.r)
}

// serveFound answers what the request's host and path ask for: a graph at its own
// host, or the exchange's call.
func (x *exchange) serveFound() error {
	if g := x.asksGraph(); g != nil {
		return x.serveGraph(g)
	}
	return x.serveCall()
}

// serveCall answers the exchange's call, or has a replica answer it.
func (x *exchange) serveCall() error {
	if err := x.redirected(); err != nil {
		return err
	}
	kind := x.req.call.Kind
	if kind == surface.Banner || kind == surface.ServerMetadata {
		if err := x.gw.dispatch.Broken(x.query(), true); err != nil {
			return err
		}
	}
	if kind == surface.Banner && x.gw.dispatch.HasRoot(x.req.r.Host) {
		return x.req.notFound() // as the Gateway API wants it: no route takes the request
	}
	if err := x.req.check(); err != nil {
		return err
	}
	switch kind {
	case surface.ModelInBody:
		return x.serveBody()
	case surface.ModelInPath:
		return x.servePath()
	case surface.Unknown, surface.Unlisted:
		return x.serveRouted()
	case surface.NotFound:
		return x.req.notFound()
	case surface.AsIs:
		return x.servePlain()
	case surface.RepositoryIndex:
		return x.serveIndex()
	case surface.DescribeModel, surface.ModelReady, surface.RepositoryLoad, surface.RepositoryUnload:
		return x.serveModelCall()
	case surface.Banner, surface.Health, surface.ServerMetadata, surface.ServerLive, surface.ServerReady, surface.ListModels:
		x.serveOwn()
	}
	return nil
}

// notFound is the error of a path at which nothing is served.
func (q *request) notFound() error {
	return &failure{status: http.StatusNotFound, message: "nothing is served at " + q.r.URL.Path + q.call.Hint}
}

// serveOwn answers what concerns the gateway as a whole.
func (x *exchange) serveOwn() {
	switch x.req.call.Kind { //nolint:exhaustive // the other kinds do not come here
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
		x.reply(http.StatusOK, listModels(x.gw.dispatch, x.pass, x.req.call.Surface))
	}
}

func (x *exchange) serveIndex() error {
	if err := x.readBody(true); err != nil {
		return err
	}
	index, err := repositoryIndex(modelsFor(x.gw.dispatch, x.pass), x.req.body.head)
	if err != nil {
		return &failure{status: http.StatusBadRequest, message: err.Error()}
	}
	x.reply(http.StatusOK, index)
	return nil
}

// serveModelCall answers what is asked of one model without its replicas: to
// describe it, which wakes nothing so that a probe does not keep it awake, to load
// (wake) it, or to unload it (put it to sleep).
func (x *exchange) serveModelCall() error {
	d, q, model := x.gw.dispatch, x.query(), x.req.model
	if err := ingress.CheckModel(d, x.pass, q); err != nil {
		return err
	}
	if x.explains() && (x.req.call.Kind == surface.RepositoryLoad || x.req.call.Kind == surface.RepositoryUnload) {
		return &failure{status: http.StatusBadRequest, message: x.req.r.Method + " " + x.req.r.URL.Path + " is answered by the gateway itself, and to explain it loads and unloads nothing"}
	}
	if x.req.call.Kind == surface.RepositoryLoad { // it waits until a replica is ready, as a request would
		if err := x.admit(); err != nil {
			return err
		}
		x.write(http.StatusOK, nil)
		return nil
	}
	s, err := d.Resolve(q)
	if err != nil {
		return err
	}
	switch x.req.call.Kind { //nolint:exhaustive // the other kinds do not come here
	case surface.DescribeModel:
		info := describe(s, parentOf(d, x.pass, s), x.req.call.Surface)
		info.ID, info.Name = model, model
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
		}{model, s.Answers(), s.Message})
	case surface.RepositoryUnload:
		x.service = s.Pool.Key.Stable().String() // s may be a canary
		if err := d.Sleep(x.req.r.Context(), x.service); err != nil {
			return &failure{status: http.StatusBadRequest, message: fmt.Sprintf("%s cannot be unloaded: %v", model, err)}
		}
		x.write(http.StatusOK, nil)
	}
	return nil
}

// serveBody forwards a request by the model its body names.
func (x *exchange) serveBody() error {
	x.seen.Operation = x.req.call.Operation
	if err := x.req.checkEncoding(); err != nil {
		return err
	}
	if err := x.readBody(true); err != nil {
		return err
	}
	if err := x.req.parse(); err != nil {
		return err
	}
	return x.serveModel()
}

// typeForm is curl's Content-Type where nothing is said. No model server reads
// such forms.
const typeForm = "application/x-www-form-urlencoded"

// servePath forwards a request whose path names the model. The body is streamed
// if it is long.
func (x *exchange) servePath() error {
	if err := x.readBody(false); err != nil {
		return err
	}
	if b := &x.req.body; x.req.r.Header.Get("Content-Type") == typeForm && b.tail == nil && json.Valid(b.head) {
		x.req.setJSON()
	}
	return x.serveModel()
}

// serveRouted forwards a request to a path that an HTTPRoute names and that is
// none of the gateway's, as it stands. Routes that take every path do not lead to
// the paths that a model server has besides inference, such as its metrics.
func (x *exchange) serveRouted() error {
	d, q := x.gw.dispatch, x.query()
	if !d.NamesPath(q) {
		// The Gateway API wants the error of an HTTPRoute without a backend, rather
		// than the gateway's own answer.
		if x.req.call.Kind == surface.Unknown {
			if err := d.Broken(q, false); err != nil {
				return err
			}
		}
		return x.req.notFound()
	}
	x.req.call.Kind = surface.AsIs
	x.seen.Operation = surface.OperationOther
	if err := x.readBody(false); err != nil {
		return err
	}
	return x.serveModel()
}

// serveAsIs forwards a request of ServeTo.
func (x *exchange) serveAsIs() error {
	x.seen.Operation = surface.OperationOther
	if err := x.readBody(false); err != nil {
		return err
	}
	if b := &x.req.body; b.tail == nil && len(b.head) > 0 {
		if parsed, err := openai.Parse(b.head); err == nil {
			x.req.prompt = parsed.AppendPrompt(x.req.prompt, b.head)
		}
	}
	return x.serveModel()
}
