//go:build tools

// Package lws pins the controller of LeaderWorkerSets that the cluster's tests
// run groups of pods with.
package lws

import _ "sigs.k8s.io/lws/cmd"
