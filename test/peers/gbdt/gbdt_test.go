//go:build peers

// Package gbdt compares the native tree engines with the real xgboost and
// lightgbm, which train the models during the test.
package gbdt

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/engine/gbdt/gbdttest"
	"roundhouse.dev/roundhouse/internal/edge/engine/lightgbm"
	"roundhouse.dev/roundhouse/internal/edge/engine/xgboost"
)

// python is the variable that names the Python with the real packages.
const python = "ROUNDHOUSE_PEERS_PYTHON"

// TestPeers trains every case and compares all predictions to gbdttest's
// tolerance.
func TestPeers(t *testing.T) {
	interpreter := os.Getenv(python)
	if interpreter == "" {
		t.Fatalf("%s is not set: python3 -m venv VENV && VENV/bin/pip install -r test/peers/requirements.txt, "+
			"then %s=$PWD/VENV/bin/python (an absolute path; make test-peers does both)", python, python)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if output, err := exec.CommandContext(ctx, interpreter, "train.py", dir).CombinedOutput(); err != nil {
		t.Fatalf("train.py: %v\n%s", err, output)
	}
	t.Run("xgboost", func(t *testing.T) { gbdttest.Run(t, filepath.Join(dir, "xgboost"), xgboost.Load) })
	t.Run("lightgbm", func(t *testing.T) { gbdttest.Run(t, filepath.Join(dir, "lightgbm"), lightgbm.Load) })
}
