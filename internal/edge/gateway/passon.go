package gateway

import "roundhouse.dev/roundhouse/internal/state/dispatch"

// passOn forwards a request to a path that an HTTPRoute names and that is none
// of the gateway's, as it stands; it is false where no HTTPRoute does. What a
// model server has beside inference, such as its metrics, is not handed out by
// routes that take every path.
func (x *exchange) passOn(path string) bool {
	if !x.gw.dispatch.NamesPath(x.query()) {
		return false
	}
	x.seen.operation = operationOther
	if err := x.readBody(false); err != nil {
		x.refuseBody(err)
		return true
	}
	x.path, x.asIs = func(*dispatch.Pool) string { return path }, true
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
	if x.asIs && x.r.Host != "" {
		return x.r.Host
	}
	return address
}
