package gateway

import (
	"context"
	"net"
	"net/http"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

// ServeTo answers on l as Serve does, with one pool: whatever is asked there,
// inference or not, is forwarded as it stands to one of the pool's replicas. Who
// asks needs no API key; pages of other sites are refused as by Serve.
func (g *Gateway) ServeTo(ctx context.Context, l net.Listener, to routing.Ref) error {
	return g.run(ctx, l, g.server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := newExchange(g, w, r)
		defer x.end()
		x.to = to
		path := r.URL.EscapedPath()
		x.call = surface.Call{Kind: surface.AsIs, Surface: surface.Find(path, r.URL.Path, r.Header.Get("Anthropic-Version") != "").Surface, Path: path}
		x.surface = x.call.Surface
		x.seen.StartTrace(g.cfg.Tracer, r, path)
		if x.foreign() || x.unsafe() {
			return
		}
		x.seen.Operation = surface.OperationOther
		if err := x.readBody(false); err != nil {
			x.refuseBody(err)
			return
		}
		if x.body.tail == nil && len(x.body.head) > 0 {
			if parsed, err := openai.Parse(x.body.head); err == nil {
				x.prompt = parsed.AppendPrompt(x.prompt, x.body.head)
			}
		}
		x.serveModel()
	})))
}

// serveRouted forwards a request to a path that an HTTPRoute names and that is
// none of the gateway's, as it stands; it is false where no HTTPRoute does. What a
// model server has beside inference, such as its metrics, is not handed out by
// routes that take every path.
func (x *exchange) serveRouted() bool {
	if !x.gw.dispatch.NamesPath(x.query()) {
		return false
	}
	x.seen.Operation = surface.OperationOther
	if err := x.readBody(false); err != nil {
		x.refuseBody(err)
		return true
	}
	x.call.Kind = surface.AsIs
	x.serveModel()
	return true
}

// broken answers a request, at a path that is not one of inference, whose HTTPRoute
// has no backend that is there: the Gateway API wants an error then, and not what
// the gateway has to say for itself.
func (x *exchange) broken() bool {
	err := x.gw.dispatch.Broken(x.query())
	if err != nil {
		x.refuse(err)
	}
	return err != nil
}

// hostOf is the host that a replica is asked for.
func (x *exchange) hostOf(address string) string {
	if x.call.Kind == surface.AsIs && x.r.Host != "" {
		return x.r.Host
	}
	return address
}
