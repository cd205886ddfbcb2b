package gateway

import (
	"net"
	"net/http"
	"net/textproto"
	"strings"
)

const (
	headerRequestID   = "X-Request-Id"
	headerTraceparent = "Traceparent"
)

// hopByHop are the headers of one connection (RFC 9110 7.6.1), and Expect,
// which the gateway's own server answers.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect",
}

// dropHopByHop removes from h what must not be passed on.
func dropHopByHop(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = textproto.TrimString(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range hopByHop {
		delete(h, name)
	}
}

// requestHeader is the header to send to a replica.
func (x *exchange) requestHeader() http.Header {
	h := x.r.Header.Clone()
	dropHopByHop(h)
	h.Set(headerRequestID, x.id)
	if h.Get(headerTraceparent) == "" {
		// W3C trace context: version, trace, parent, not sampled.
		h.Set(headerTraceparent, "00-"+randomHex(16)+"-"+randomHex(8)+"-00")
	}
	if ip, _, err := net.SplitHostPort(x.r.RemoteAddr); err == nil {
		if before := h["X-Forwarded-For"]; len(before) > 0 {
			ip = strings.Join(before, ", ") + ", " + ip
		}
		h.Set("X-Forwarded-For", ip)
	}
	if h.Get("X-Forwarded-Host") == "" {
		h.Set("X-Forwarded-Host", x.r.Host)
	}
	if h.Get("X-Forwarded-Proto") == "" {
		proto := "http"
		if x.r.TLS != nil {
			proto = "https"
		}
		h.Set("X-Forwarded-Proto", proto)
	}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // else net/http adds its own
	}
	return h
}

// copyHeader copies a replica's answer header, announcing its trailers.
func (x *exchange) copyHeader(resp *http.Response) {
	dropHopByHop(resp.Header)
	to := x.w.Header()
	for name, values := range resp.Header {
		to[name] = values
	}
	if to.Get(headerRequestID) == "" {
		to.Set(headerRequestID, x.id)
	}
	for name := range resp.Trailer {
		to.Add("Trailer", name)
	}
}

// copyTrailer passes on the trailers that followed the body; announced is how
// many were announced before it.
func (x *exchange) copyTrailer(resp *http.Response, announced int) {
	if len(resp.Trailer) == 0 {
		return
	}
	to := x.w.Header()
	for name, values := range resp.Trailer {
		if announced != len(resp.Trailer) {
			name = http.TrailerPrefix + name
		}
		to[name] = values
	}
}
