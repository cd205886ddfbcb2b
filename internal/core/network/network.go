// Package network decides which addresses and names of hosts are internal: the
// machine itself, its cluster or its network, not the internet.
package network

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// reserved are networks beyond those that netip knows as private which are not
// public either: RFC 6598, 2544, 6890, and IPv4 inside IPv6 by RFC 6052, 3056,
// 4291, 4380 and 7915.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("::ffff:0:0:0/96"),
}

// Internal reports whether an address is of the machine, the link, the cluster or
// its neighbours.
func Internal(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if !a.IsGlobalUnicast() || a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() {
		return true
	}
	for _, p := range reserved {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// inside are the endings of names that no public zone has: RFC 6761, 6762, 8375,
// ICANN's for private use, and Kubernetes' own.
var inside = []string{"localhost", "local", "internal", "home.arpa", "svc"}

// InternalHost reports whether the host of a URL, without its port, can be nothing
// but internal: by its address, or as a name that a cluster or a local network
// alone resolves, such as minio, minio.team.svc and minio.team.svc.cluster.local.
// For other names only their addresses tell.
func InternalHost(host string) bool {
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if a, err := netip.ParseAddr(host); err == nil {
		return Internal(a)
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	if last == host {
		return true // one word is looked up in the resolver's own domains
	}
	if number(last) {
		return true // "127.1" and "0x7f.1": resolvers read them as addresses
	}
	for _, end := range inside {
		if strings.HasSuffix(host, "."+end) {
			return true
		}
	}
	return strings.Contains(host, ".svc.") && strings.HasPrefix(host[strings.Index(host, ".svc.")+len(".svc."):], "cluster.")
}

// number reports whether a name's last label is one that no zone can have, being
// all of digits or hexadecimal.
func number(label string) bool {
	hex, ok := strings.CutPrefix(label, "0x")
	digits := "0123456789"
	if ok {
		label, digits = hex, digits+"abcdef"
	}
	return strings.Trim(label, digits) == ""
}

// LocalHost reports whether the host of a request, with or without a port, can
// only mean this machine: localhost, a name below it (RFC 6761), or a loopback
// address. A web page cannot have such a name resolve for its own origin, so
// other names on a loopback listener may be DNS rebinding.
func LocalHost(hostport string) bool {
	host := WithoutPort(hostport)
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	if host == "" || (host[0] < '0' || host[0] > '9') && strings.IndexByte(host, ':') < 0 {
		return false // a name: parsing it as an address would allocate an error
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}

// WithoutPort is the host of "host", "host:port", "[::1]" or "[::1]:port",
// without brackets.
func WithoutPort(hostport string) string {
	i := strings.LastIndexByte(hostport, ':')
	if i >= 0 && strings.IndexByte(hostport[i:], ']') < 0 && (strings.IndexByte(hostport, ':') == i || hostport[0] == '[') {
		hostport = hostport[:i]
	}
	return strings.Trim(hostport, "[]")
}

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

// ServiceHost returns which Kubernetes Service the host of a URL names, as pods of a
// namespace write it: NAME, NAME.NAMESPACE, and that with .svc or .svc.cluster.local
// after it. A name of two parts is one of the namespace given or none: it may as well
// be of the internet.
func ServiceHost(host, namespace string) (name, of string, ok bool) {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	rest, qualified := strings.CutSuffix(strings.TrimSuffix(host, ".cluster.local"), ".svc")
	name, of, two := strings.Cut(rest, ".")
	switch {
	case name == "" || strings.Contains(of, ".") || LocalHost(host) || number(host) || strings.Contains(host, ":"):
		return "", "", false
	case !two && !qualified:
		return name, namespace, true
	case two && of != "" && (qualified || of == namespace && rest == host):
		return name, of, true
	}
	return "", "", false
}
