package onnx_test

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/onnxtest"
)

// TestCases compares with what onnxruntime's Python package answered:
// testdata/generate.py.
func TestCases(t *testing.T) { onnxtest.Run(t, "testdata") }
