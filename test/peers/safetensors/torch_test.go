//go:build peers

package safetensors

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTorchWeights loads tensors into torch with `roundhouse.load_safetensors`:
// torch's own types, and as bytes those that this torch does not have.
func TestTorchWeights(t *testing.T) {
	python := os.Getenv("ROUNDHOUSE_TORCH_PYTHON")
	if python == "" {
		t.Skip("ROUNDHOUSE_TORCH_PYTHON is not set: it names a Python with torch and numpy")
	}
	package_, err := filepath.Abs("../../../python")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), python, "torch_weights.py", filepath.Join(t.TempDir(), "m.safetensors"), package_).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"tensors": 10`) {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
