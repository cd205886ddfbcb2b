//go:build tools

// Package gateway pins the conformance suite of the Gateway API and the server of the
// pods that it makes, in a module of its own: nothing of Roundhouse links them.
package gateway

import (
	_ "sigs.k8s.io/gateway-api/conformance"
	_ "sigs.k8s.io/gateway-api/conformance/echo-basic"
)
