// Package kubernetes runs the product on a real Kubernetes node: `make
// e2e-kubernetes`. docs/kubernetes-testing.md says what it needs.
package kubernetes
