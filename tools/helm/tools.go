//go:build tools

// Package helm pins Helm, which renders the chart for `roundhouse manifests`
// and for tests.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
