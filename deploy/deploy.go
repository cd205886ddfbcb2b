// Package deploy holds what a cluster is given: the CRDs, the Helm chart, the
// dashboard.
package deploy

import "embed"

// CRDs are the definitions of our kinds, generated from api/v1alpha1.
//
//go:embed crds/*.yaml
var CRDs embed.FS
