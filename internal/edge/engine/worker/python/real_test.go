package python

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/edge/engine/worker"
)

// realPython is an interpreter that can run the roundhouse package.
func realPython(t *testing.T) string {
	t.Helper()
	name := os.Getenv("ROUNDHOUSE_PYTHON")
	if name == "" {
		name = "python3"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s: %v; set ROUNDHOUSE_PYTHON", name, err)
	}
	if out, err := exec.Command(path, "-c", "import numpy, pydantic").CombinedOutput(); err != nil {
		t.Skipf("%s lacks numpy or pydantic; set ROUNDHOUSE_PYTHON to one that has them: %s", path, out)
	}
	return path
}

// newEngine is an engine of Python workers, and where it unpacks environments.
func newEngine(t *testing.T, interpreter string) (*worker.Engine, string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	envs := filepath.Join(t.TempDir(), "envs")
	e, err := New(Config{Interpreter: interpreter, Environ: os.Environ(), Package: os.DirFS(filepath.Join("..", "..", "..", "..", "..", "python")),
		CacheDir: t.TempDir(), EnvironmentsDir: envs}, log)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := worker.New(worker.DefaultConfig(), e.Program, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return engine, envs
}

// code writes models.py into a folder of its own and gives the settings of its
// class Model.
func code(t *testing.T, name, text string) worker.Settings {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "models.py"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(map[string]any{"name": name, "implementation": "models.Model"})
	if err != nil {
		t.Fatal(err)
	}
	return worker.Settings{Name: name, Document: document, Folder: folder}
}

// TestRealEnvironment runs a model in a venv of its own, which sees the
// packages of the interpreter.
func TestRealEnvironment(t *testing.T) {
	python := realPython(t)
	env := filepath.Join(t.TempDir(), "env")
	if out, err := exec.Command(python, "-m", "venv", "--without-pip", env).CombinedOutput(); err != nil {
		t.Skipf("no venv: %s", out)
	}
	where, err := exec.Command(python, "-c", "import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))").Output()
	if err != nil {
		t.Fatal(err)
	}
	lib, err := filepath.Glob(filepath.Join(env, "lib", "python3*", "site-packages"))
	if err != nil || len(lib) != 1 {
		t.Fatal(lib, err)
	}
	if err := os.WriteFile(filepath.Join(lib[0], "outside.pth"), where, 0o600); err != nil {
		t.Fatal(err)
	}
	engine, envs := newEngine(t, python)
	s := code(t, "prefix", `
import sys
from mlserver import MLModel, types
class Model(MLModel):
    async def predict(self, payload):
        return types.InferenceResponse(model_name=self.name, parameters=types.Parameters(prefix=sys.prefix), outputs=[])
`)
	prefix := func() string {
		m, err := engine.Load(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m.Close(context.Background()) }()
		got, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{{Name: "x", Datatype: tensor.FP32, Shape: []int64{1}, Data: tensor.Values{Float32: []float32{1}}}}})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(got.Parameters["prefix"])
	}
	s.EnvironmentPath = env
	if got := prefix(); got != env {
		t.Errorf("prefix %s, want %s", got, env)
	}
	archive := filepath.Join(t.TempDir(), "env.tar.gz")
	if out, err := exec.Command("tar", "-czf", archive, "-C", env, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %s", out)
	}
	s.EnvironmentPath, s.EnvironmentTarball = "", archive
	got := prefix()
	if !strings.HasPrefix(got, envs) {
		t.Errorf("prefix %s, want one below %s", got, envs)
	}
	if err := engine.Close(context.Background()); err != nil { // the pool's end is in the background
		t.Error(err)
	}
	if left, err := os.ReadDir(envs); err != nil || len(left) > 0 {
		t.Errorf("left of the environment: %v, %v", left, err)
	}
}

func TestRealWithout(t *testing.T) {
	python := realPython(t)
	env := filepath.Join(t.TempDir(), "bare")
	if out, err := exec.Command(python, "-m", "venv", "--without-pip", env).CombinedOutput(); err != nil {
		t.Skipf("no venv: %s", out)
	}
	engine, _ := newEngine(t, python)
	s := code(t, "bare", "")
	s.EnvironmentPath = env
	_, err := engine.Load(t.Context(), s)
	wantError(t, err, worker.KindMissing, 500, filepath.Join(env, "bin", "python")+" -m pip install numpy pydantic")
}
