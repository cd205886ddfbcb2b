package front

import (
	"fmt"
	"net/netip"
)

// Refusal says that a gateway sends nothing to an internal address that a pool
// names, and what to do.
func Refusal(a netip.Addr) string {
	return fmt.Sprintf("%s is an internal address, where the gateway sends nothing: select pods by their labels, or start it with --allow-internal-addresses", a)
}
