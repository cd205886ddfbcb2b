package gateway

import (
	"net/http"
	"net/url"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

// enterRoute is the call of a request whose HTTPRoute gives replicas another path, where
// only that path is a call of the gateway's: its body is read as that of any such call.
func (x *exchange) enterRoute(call surface.Call, anthropic bool) surface.Call {
	if call.Kind != surface.Unknown && call.Kind != surface.Unlisted || !x.gw.dispatch.EditsRequests() {
		return call
	}
	path, ok := x.gw.dispatch.Rewritten(x.query())
	if !ok {
		return call
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return call
	}
	found := surface.Find(path, plain, anthropic)
	if !found.Kind.Forwards() {
		return call
	}
	x.req.rewritten = path
	return found
}

// enterPlain is the call of a request that an HTTPRoute leads to Kubernetes Services: it
// is forwarded as it stands.
func (x *exchange) enterPlain(call surface.Call, path string) (surface.Call, bool) {
	d := x.gw.dispatch
	if !d.HasHTTPRoutes() || !d.Passes(x.query(), call.Kind.Known()) {
		return call, false
	}
	x.req.passes, x.req.known = true, call.Kind.Known()
	return surface.Call{Kind: surface.AsIs, Path: path}, true
}

// servePlain forwards such a request, if the route still takes it now that its key is
// known.
func (x *exchange) servePlain() error {
	if !x.req.passes || !x.gw.dispatch.Passes(x.query(), x.req.known) {
		return x.req.notFound()
	}
	return x.serveAsIs()
}

// staysRewritten returns an error unless the request's HTTPRoute still takes it, now that
// its key and model are known: those of another namespace have no such path.
func (x *exchange) staysRewritten() error {
	if x.req.rewritten == "" {
		return nil
	}
	if path, _ := x.gw.dispatch.Rewritten(x.query()); path != x.req.rewritten {
		return x.req.notFound()
	}
	return nil
}

// redirected returns the answer of the request's HTTPRoute itself; nil for none.
func (x *exchange) redirected() error {
	if !x.gw.dispatch.EditsRequests() {
		return nil
	}
	return x.gw.dispatch.Redirected(x.query())
}

// redirect sends the client elsewhere.
func (x *exchange) redirect(e *route.RedirectError) {
	if x.explains() {
		x.fail(&failure{status: http.StatusBadRequest, message: e.Error()})
		return
	}
	x.w.Header().Set("Location", e.Location)
	x.write(e.Status, nil)
}

// changeHeader makes the changes of the request's route. What the client's Connection
// names is removed before, so that a client removes nothing that the route sets.
func (q *request) changeHeader(changes []routing.HeaderChange) {
	if len(changes) == 0 {
		return
	}
	h := q.r.Header
	if dropped := h["Connection"]; len(dropped) > 0 {
		for name := range h {
			if name != "Connection" && listed(dropped, name) {
				delete(h, name)
			}
		}
		delete(h, "Connection")
	}
	const forwarded = "X-Forwarded-For" // by which loops are found, and clients: it is no route's
	came, there := h[forwarded]
	applyChanges(h, changes)
	if delete(h, forwarded); there {
		h[forwarded] = came
	}
	q.fields = q.fields[:0] // they are encoded anew
}

func applyChanges(h http.Header, changes []routing.HeaderChange) {
	for i := range changes {
		switch c := &changes[i]; c.Op {
		case routing.HeaderSet:
			h[c.Name] = []string{c.Value}
		case routing.HeaderAdd:
			h[c.Name] = append(h[c.Name], c.Value)
		case routing.HeaderRemove:
			delete(h, c.Name)
		}
	}
}

// pathFor is the path to ask a replica for as its route changes it: prefix is what the
// replica's engine has before /v1, name what it serves the model by. rewritten marks a
// call whose path is the changed one already.
func pathFor(call *surface.Call, h *routing.Handling, rewritten bool, prefix, name string) string {
	if h.Rewrite == nil || h.Rewrite.Path == nil || rewritten {
		return call.Target(prefix, name)
	}
	asked := call.Target("", name)
	if path := h.Rewrite.Path.Apply(asked); path != asked {
		return path
	}
	return h.Rewrite.Path.Apply(call.Target("", "")) // the name is a part of what is replaced
}
