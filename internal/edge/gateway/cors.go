package gateway

import (
	"net/http"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/network"
	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
)

// corsOf lets pages of these origins use every API: they may send any header, and
// read what tells them how to go on.
func corsOf(origins []string) network.CORS {
	return network.CORS{Origins: origins, Methods: []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodOptions}, Headers: []string{"*"},
		Exposed: []string{"X-Request-Id", "Retry-After", "Www-Authenticate"}, MaxAge: 600}
}

// answerCORS lets an allowed page read the answer. It reports whether the request
// was a preflight, which it has answered.
func (x *exchange) answerCORS() bool {
	if len(x.gw.cfg.CORSOrigins) == 0 {
		return false
	}
	h := x.r.Header
	r := network.CORSRequest{Method: x.r.Method, Origin: h.Get("Origin"),
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
