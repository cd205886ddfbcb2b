package front

import (
	"fmt"
	"net/netip"
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

// Internal says whether an address is of the machine, the link, the
// cluster or its neighbours.
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

// Refusal says that a gateway sends nothing to an internal address that a pool
// names, and what to do.
func Refusal(a netip.Addr) string {
	return fmt.Sprintf("%s is an internal address, where the gateway sends nothing: select pods by their labels, or start it with --allow-internal-addresses", a)
}
