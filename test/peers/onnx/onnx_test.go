//go:build peers

// Package onnx compares the ONNX worker with onnxruntime's own Python package
// on models that skl2onnx converts during the test, and with scikit-learn,
// which trained them.
package onnx

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/engine/onnx/onnxtest"
)

// TestPeers trains and converts every model and compares all answers.
func TestPeers(t *testing.T) {
	interpreter := os.Getenv(onnxtest.Python)
	if interpreter == "" {
		t.Fatalf("%s is not set: python3 -m venv VENV && VENV/bin/pip install -r test/peers/requirements.txt, "+
			"then %s=$PWD/VENV/bin/python (an absolute path; make test-peers does both)", onnxtest.Python, onnxtest.Python)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if output, err := exec.CommandContext(ctx, interpreter, "convert.py", dir).CombinedOutput(); err != nil {
		t.Fatalf("convert.py: %v\n%s", err, output)
	}
	t.Setenv("ROUNDHOUSE_ONNXRUNTIME", "") // the peers' own library is there: a skip would hide a fault
	l, err := onnxtest.Search().Open(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ONNX Runtime %s of %s", l.Version, l.Path)
	onnxtest.Run(t, dir)
}
