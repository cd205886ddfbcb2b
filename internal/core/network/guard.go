package network

import (
	"net/url"
	"slices"
	"strings"
)

// Guard tells requests of this machine's users from those of web pages that they
// look at, where a server on loopback takes whoever asks for such a user. The host
// stands against DNS rebinding: a page whose own name was made to resolve to
// loopback. The origin stands against a page that posts here as it may to any
// address.
type Guard struct {
	// Hosts are names that requests may give besides this machine's own; * is any.
	Hosts []string
	// Origins are the pages that may ask besides this machine's own; * is any.
	Origins []string
	// KnowsHost and KnowsOrigin report further ones; nil: none.
	KnowsHost, KnowsOrigin func(string) bool
}

// Refusal is why a Guard refuses a request.
type Refusal int

// The reasons.
const (
	Admitted      Refusal = iota
	RefusedHost           // the host is none of the server's
	RefusedPage           // a page of another site sent it: an image, or a link
	RefusedOrigin         // the origin is another site's
)

// Check judges a request by its Host, Origin and Sec-Fetch-Site, each "" where it
// has none.
func (g *Guard) Check(host, origin, site string) Refusal {
	switch {
	case !g.host(host):
		return RefusedHost
	case origin == "" && site == "cross-site":
		return RefusedPage
	case origin != "" && !g.origin(host, origin, site):
		return RefusedOrigin
	}
	return Admitted
}

func (g *Guard) host(hostport string) bool {
	return LocalHost(hostport) || slices.Contains(g.Hosts, "*") ||
		slices.ContainsFunc(g.Hosts, func(h string) bool { return strings.EqualFold(h, WithoutPort(hostport)) }) ||
		g.KnowsHost != nil && g.KnowsHost(hostport)
}

// origin reports whether a page of this origin may ask: one of this machine's, one
// that is listed, or one that the server's own host served, which a browser tells
// by Sec-Fetch-Site where a proxy has changed the Host.
func (g *Guard) origin(host, origin, site string) bool {
	if slices.Contains(g.Origins, "*") || slices.Contains(g.Origins, origin) || site == "same-origin" || g.KnowsOrigin != nil && g.KnowsOrigin(origin) {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && (LocalHost(u.Host) || strings.EqualFold(u.Host, host))
}
