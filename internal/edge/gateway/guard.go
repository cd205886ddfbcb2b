package gateway

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/ingress"
)

// guarded reports whether requests must show that no web page of another site
// sent them: the gateway listens on loopback, where it takes whoever asks for a
// user of this machine. An API key shows as much, and a page has none.
func (g *Gateway) guarded() bool {
	return g.loopback && (g.cfg.Keys == nil || !g.cfg.Keys.Required())
}

// onLoopback reports whether listen is an address that this machine alone
// reaches.
func onLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err == nil && network.LocalHost(host)
}

// checkPage returns an error for a request that a web page of another site may
// have sent.
func (g *Gateway) checkPage(r *http.Request) error {
	if !g.guarded() {
		return nil
	}
	origin := r.Header.Get("Origin")
	switch g.pages.Check(r.Host, origin, r.Header.Get("Sec-Fetch-Site")) {
	case network.RefusedHost:
		return &failure{status: http.StatusForbidden, code: "host_not_allowed",
			message: fmt.Sprintf("the host %q is not one of this gateway's: ask 127.0.0.1 or localhost, or name more with --allowed-hosts", r.Host)}
	case network.RefusedPage:
		return &failure{status: http.StatusForbidden, code: "origin_not_allowed", message: "web pages of other sites may not ask this gateway"}
	case network.RefusedOrigin:
		return &failure{status: http.StatusForbidden, code: "origin_not_allowed",
			message: fmt.Sprintf("web pages of %q may not ask this gateway: start it with --cors-origin %s", origin, origin)}
	case network.Admitted:
	}
	return nil
}

// checkTarget returns an error for a request that a replica may read differently
// than the gateway does.
//
// A path with a segment "." or ".." is one: a server that resolves it reaches
// another model, or something that is no model, past the checks here. So is one
// with control characters. The method CONNECT asks for a tunnel, on whose end
// client and replica may not agree, and TRACE for the request's header back, with
// what the gateway has added.
//
// A request that has passed many proxies is in a loop: a pool may lead back to this
// gateway, or two gateways to each other.
func checkTarget(r *http.Request) error {
	if n := ingress.Forwards(r.Header["X-Forwarded-For"]); n > ingress.MaxForwards {
		return &failure{status: http.StatusLoopDetected, message: fmt.Sprintf("the request has come through %d proxies, as X-Forwarded-For says: a pool leads back to this gateway", n)}
	}
	if m := r.Method; m == http.MethodConnect || m == http.MethodTrace {
		return &failure{status: http.StatusNotImplemented, message: m + " is not served"}
	}
	if !httpguts.ValidHostHeader(r.Host) { // of HTTP/2, which net/http does not check
		return &failure{status: http.StatusBadRequest, message: "the host has characters that no host name may have"}
	}
	if !plainPath(r.URL.Path) {
		return &failure{status: http.StatusBadRequest, message: `the path has a segment "." or "..", or control characters, escaped or not`}
	}
	return nil
}

// plainPath reports whether a path, unescaped, means the same to all servers. An
// escaped slash separates segments for some.
func plainPath(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return strings.IndexFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

// corsOf lets pages of these origins use every API: they may send any header, and
// read what tells them how to go on.
func corsOf(origins []string) network.CORS {
	return network.CORS{Origins: origins, Methods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions}, Headers: []string{"*"},
		Exposed: []string{"X-Request-Id", "Retry-After", "Www-Authenticate", headerWaited}, MaxAge: 600}
}

// answerCORS lets an allowed page read the answer. It reports whether the request
// was a preflight, which it has answered.
func (x *exchange) answerCORS() bool {
	if len(x.gw.cfg.CORSOrigins) == 0 || x.req.passes { // a plain Service answers for itself
		return false
	}
	h := x.req.r.Header
	r := network.CORSRequest{Method: x.req.r.Method, Origin: h.Get("Origin"),
		RequestMethod: h.Get("Access-Control-Request-Method"), RequestHeaders: h.Get("Access-Control-Request-Headers")}
	if r.Origin == "" { // a cache must not give this answer to a page
		x.w.Header().Add("Vary", "Origin")
		return false
	}
	x.gw.cors.Answer(x.w.Header(), r)
	if !r.Preflight() {
		return false
	}
	x.code = http.StatusNoContent
	x.w.WriteHeader(http.StatusNoContent)
	return true
}

// withoutCORS drops a replica's CORS fields: many engines allow all pages, which
// the gateway does only where it is configured to. Vary keeps the values of both
// the replica's answer and the gateway's.
func withoutCORS(fields []http1.Field, vary []string) []http1.Field {
	fields = slices.DeleteFunc(fields, func(f http1.Field) bool { return strings.HasPrefix(f.Name, "Access-Control-") })
	if named(fields, "Vary") {
		for _, v := range vary {
			fields = append(fields, http1.Field{Name: "Vary", Value: v})
		}
	}
	return fields
}
