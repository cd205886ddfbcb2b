// Package conformance runs the published conformance suites of the Gateway API
// and of its Inference Extension against our gateway on a real node: `make
// conformance-kubernetes`. docs/kubernetes-testing.md says what it needs.
package conformance
