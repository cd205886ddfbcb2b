//go:build tools

// Package inference pins the conformance suite of the Gateway API Inference
// Extension and the programs of the pods that it makes, in a module of its own:
// nothing of Roundhouse links them.
package inference

import (
	_ "sigs.k8s.io/gateway-api-inference-extension/cmd/epp"
	_ "sigs.k8s.io/gateway-api-inference-extension/conformance"
	_ "sigs.k8s.io/gateway-api/conformance/echo-basic"
)
