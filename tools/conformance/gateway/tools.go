//go:build tools

// Package gateway pins the conformance suite of the Gateway API, in a module of
// its own: nothing of Roundhouse links it.
package gateway

import _ "sigs.k8s.io/gateway-api/conformance"
