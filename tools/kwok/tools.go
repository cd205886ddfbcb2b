//go:build tools

// Package kwok pins KWOK, whose nodes and pods exist in the API server alone,
// in a module of its own: its dependencies are not those of Kubernetes.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
