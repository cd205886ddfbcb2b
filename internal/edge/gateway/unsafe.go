package gateway

import (
	"fmt"
	"net"
	"net/http"
	"strings"

	"golang.org/x/net/http/httpguts"

	"roundhouse.dev/roundhouse/internal/core/network"
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

// foreign refuses what a web page of another site may have sent; it is true
// when it has answered.
func (x *exchange) foreign() bool {
	if !x.gw.guarded() {
		return false
	}
	origin := x.r.Header.Get("Origin")
	switch x.gw.pages.Check(x.r.Host, origin, x.r.Header.Get("Sec-Fetch-Site")) {
	case network.RefusedHost:
		x.failWith(http.StatusForbidden, fmt.Sprintf("the host %q is not one of this gateway's: ask 127.0.0.1 or localhost, or name more with --allowed-hosts", x.r.Host), "", "host_not_allowed")
	case network.RefusedPage:
		x.failWith(http.StatusForbidden, "web pages of other sites may not ask this gateway", "", "origin_not_allowed")
	case network.RefusedOrigin:
		x.failWith(http.StatusForbidden, fmt.Sprintf("web pages of %q may not ask this gateway: start it with --cors-origin %s", origin, origin), "", "origin_not_allowed")
	case network.Admitted:
		return false
	}
	return true
}

// unsafe refuses what a replica may read otherwise than the gateway does; it is
// true when it has answered.
//
// A path with a segment "." or ".." is one: who resolves it arrives at another
// model, or at what no model is, past what was checked here. So is one with
// control characters. The method CONNECT asks for a tunnel, whose answer has no
// end that both sides agree on, and TRACE for the request's header back, with
// what the gateway has added.
//
// A request that has come through many proxies goes round in a circle: a pool may
// lead back to this gateway, or two gateways to each other.
func (x *exchange) unsafe() bool {
	if hops := forwards(x.r); hops > maxForwards {
		x.fail(http.StatusLoopDetected, fmt.Sprintf("the request has come through %d proxies, as X-Forwarded-For says: a pool leads back to this gateway", hops))
		return true
	}
	if m := x.r.Method; m == http.MethodConnect || m == http.MethodTrace {
		x.fail(http.StatusNotImplemented, m+" is not served")
		return true
	}
	if !httpguts.ValidHostHeader(x.r.Host) { // of HTTP/2, which net/http does not look at
		x.fail(http.StatusBadRequest, "the host has characters that no host has")
		return true
	}
	if !plainPath(x.r.URL.Path) {
		x.fail(http.StatusBadRequest, `the path has a segment "." or "..", or control characters, escaped or not`)
		return true
	}
	return false
}

// plainPath says whether a path, unescaped, means the same to all servers. An
// escaped slash separates segments for some.
func plainPath(path string) bool {
	for segment := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == '\\' }) {
		if segment == "." || segment == ".." {
			return false
		}
	}
	return strings.IndexFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
}

// maxForwards is how many proxies a request may have come through.
const maxForwards = 32

// forwards is how many proxies X-Forwarded-For names.
func forwards(r *http.Request) (n int) {
	for _, v := range r.Header["X-Forwarded-For"] {
		n += 1 + strings.Count(v, ",")
	}
	return n
}
