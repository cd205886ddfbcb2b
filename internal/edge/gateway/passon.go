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

// hostOf is the host that a replica is asked for.
func (x *exchange) hostOf(address string) string {
	if x.asIs && x.r.Host != "" {
		return x.r.Host
	}
	return address
}
