package gateway

import (
	"net"
	"net/http"
	"net/textproto"
	"strings"

	"roundhouse.dev/roundhouse/internal/edge/gateway/http1"
	"roundhouse.dev/roundhouse/internal/edge/gateway/observe"
	"roundhouse.dev/roundhouse/internal/edge/gateway/surface"
)

const (
	// What a browser tells of the page that asks. The gateway has judged it, and a
	// replica on loopback would take it for a page that asks the replica.
	headerOrigin    = "Origin"
	headerFetchSite = "Sec-Fetch-Site"
)

// scheme is how the client asked.
func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// requestFields is the header to send to a replica, encoded. It is the same for
// every replica.
func (x *exchange) requestFields() []byte {
	if len(x.fields) == 0 {
		x.fields = appendHeader(x.fields, x.r, x.id, x.call.Kind == surface.AsIs)
	}
	return x.fields
}

// appendHeader appends a request's header as replicas get it, encoded. asIs
// leaves in what a browser tells of the page that asks.
func appendHeader(b []byte, r *http.Request, id string, asIs bool) []byte {
	in := r.Header
	dropped := in["Connection"]
	for name, values := range in {
		if !passedOn(name, asIs) || len(dropped) > 0 && listed(dropped, name) {
			continue
		}
		for _, v := range values {
			b = http1.AppendField(b, name, v)
		}
	}
	b = http1.AppendField(b, observe.HeaderRequestID, id)
	if in.Get(observe.HeaderTraceparent) == "" || listed(dropped, observe.HeaderTraceparent) {
		b = observe.AppendTraceparent(append(b, observe.HeaderTraceparent+": "...))
		b = append(b, "\r\n"...)
	}
	return appendForwarded(b, r, dropped)
}

// appendForwarded appends who asked the gateway, and how. dropped are the values
// of the request's Connection field.
func appendForwarded(b []byte, r *http.Request, dropped []string) []byte {
	before := r.Header["X-Forwarded-For"]
	if listed(dropped, "X-Forwarded-For") {
		before = nil
	}
	if ip, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if len(before) > 0 {
			ip = strings.Join(before, ", ") + ", " + ip
		}
		b = http1.AppendField(b, "X-Forwarded-For", ip)
	} else {
		for _, v := range before {
			b = http1.AppendField(b, "X-Forwarded-For", v)
		}
	}
	if r.Header.Get("X-Forwarded-Host") == "" || listed(dropped, "X-Forwarded-Host") {
		b = http1.AppendField(b, "X-Forwarded-Host", r.Host)
	}
	if r.Header.Get("X-Forwarded-Proto") == "" || listed(dropped, "X-Forwarded-Proto") {
		b = http1.AppendField(b, "X-Forwarded-Proto", scheme(r))
	}
	return b
}

// passedOn is false for fields of one connection, for those the upstream's
// client writes, and for those that appendHeader makes anew.
func passedOn(name string, asIs bool) bool {
	switch name {
	case headerOrigin, headerFetchSite:
		return asIs
	case "Expect", "Host", "Content-Length", observe.HeaderRequestID, "X-Forwarded-For":
		return false
	}
	return !http1.HopByHop(name)
}

// listed says whether the values of a Connection field name a field.
func listed(connection []string, name string) bool {
	for _, list := range connection {
		for token := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(textproto.TrimString(token), name) {
				return true
			}
		}
	}
	return false
}

// named reports whether one of the fields has the name.
func named(fields []http1.Field, name string) bool {
	for i := range fields {
		if fields[i].Name == name {
			return true
		}
	}
	return false
}
