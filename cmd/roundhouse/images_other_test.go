//go:build !linux

package main

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/image/imagetest"
)

// runImage cannot run an image here: they are for Linux.
func runImage(t *testing.T, _ *imagetest.Image, _ string) string {
	t.Helper()
	t.Skip("images are for Linux")
	return ""
}
