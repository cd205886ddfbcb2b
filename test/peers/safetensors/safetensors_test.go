//go:build peers

// Package safetensors compares the reader of safetensors headers with the real
// package.
package safetensors

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

// python is the variable that names the Python with the real packages.
const python = "ROUNDHOUSE_PEERS_PYTHON"

// TestPeers: of 4000 files, whole and broken, the same are read, with the same
// tensors. Files where a name is there twice are read by the real package
// alone; the generator makes none.
func TestPeers(t *testing.T) {
	interpreter := os.Getenv(python)
	if interpreter == "" {
		t.Fatalf("%s is not set: make test-peers sets it", python)
	}
	for _, seed := range []string{"1", "2"} {
		out, err := exec.CommandContext(t.Context(), interpreter, "verdicts.py", seed).Output()
		if err != nil {
			t.Fatalf("verdicts.py: %v", err)
		}
		accepted, lines := 0, bytes.Split(bytes.TrimSpace(out), []byte("\n"))
		for _, line := range lines {
			accepted += compare(t, line)
		}
		if len(lines) != 4000 || accepted < 500 || accepted > 3500 {
			t.Errorf("%d of %d files were read", accepted, len(lines))
		}
	}
}

func compare(t *testing.T, line []byte) (accepted int) {
	var c struct {
		File    string
		Tensors map[string][3]any // null: refused
	}
	if err := json.Unmarshal(line, &c); err != nil {
		t.Fatal(err)
	}
	file, err := hex.DecodeString(c.File)
	if err != nil {
		t.Fatal(err)
	}
	h, err := artifact.ReadSafetensors(bytes.NewReader(file), int64(len(file)))
	if (err == nil) != (c.Tensors != nil) {
		t.Errorf("%q: %v; the real package reads %v", file[8:], err, c.Tensors)
	}
	if err != nil || c.Tensors == nil {
		return 0
	}
	got := map[string][3]any{}
	for _, x := range h.Tensors {
		shape := []any{}
		for _, d := range x.Shape {
			shape = append(shape, float64(d))
		}
		got[x.Name] = [3]any{string(x.Dtype), shape, float64(x.Bytes())}
	}
	if !reflect.DeepEqual(got, c.Tensors) {
		t.Errorf("%q: %v, want %v", file[8:], got, c.Tensors)
	}
	return 1
}
