//go:build linux

package main

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

const (
	pythonExample = "../../examples/python-runtimes"
	// pythonImage is the image that the example's runtimes name.
	pythonImage = "registry.example/roundhouse-python:1"
	pythonBase  = "localhost/roundhouse-test/python:base"
)

// pythonRuntime is what a kubelet reads of a runtime.
type pythonRuntime struct {
	Metadata struct{ Name string }
	Spec     struct {
		Engine struct {
			Containers []struct {
				Image         string
				Command, Args []string
			}
		}
	}
}

// TestServePython builds the image of examples/python-runtimes with the base that
// `make test-image-python` prepared, and serves a model of each runtime whose
// packages it has, by the runtime's own command, with nothing that a pod of it lacks.
func TestServePython(t *testing.T) {
	base := os.Getenv("ROUNDHOUSE_PYTHON_BASE")
	if base == "" {
		t.Skip("ROUNDHOUSE_PYTHON_BASE names no folder of a base image: make test-image-python")
	}
	t.Cleanup(func() {
		_ = exec.Command("podman", "rmi", "--force", pythonImage, pythonBase).Run() // it may not be there
	})
	tool(t, "buildah", "build", "--layers", "--tag", pythonBase, base)
	// A docker without a daemon leaves the build to buildah, which has the base.
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	tool(t, "../../bin/roundhouse", "build", pythonExample, "-t", pythonImage, "--base-image", pythonBase)
	models := trainPython(t)
	tests := map[string]struct{ folder, user string }{
		"roundhouse-sklearn":  {"sklearn", ""}, // the image's own
		"roundhouse-catboost": {"catboost", "65532:65532"},
		"roundhouse-mlflow":   {"mlflow/model", "65532:65532"},
	}
	found := 0
	for _, runtime := range pythonRuntimes(t) {
		test, has := tests[runtime.Metadata.Name]
		if !has {
			continue
		}
		found++
		t.Run(runtime.Metadata.Name, func(t *testing.T) {
			servePython(t, runtime, filepath.Join(models, test.folder), test.user)
		})
	}
	if found != len(tests) {
		t.Errorf("%d of the %d runtimes are in the example", found, len(tests))
	}
}

// pythonRuntimes are the example's.
func pythonRuntimes(t *testing.T) (out []pythonRuntime) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(pythonExample, "runtimes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		var r pythonRuntime
		if err := yaml.Unmarshal([]byte(document), &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// trainPython makes the models with the image's own packages.
func trainPython(t *testing.T) string {
	t.Helper()
	models, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"sklearn", "catboost", "mlflow"} {
		if err := os.Mkdir(filepath.Join(models, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script, err := filepath.Abs("testdata/train.py")
	if err != nil {
		t.Fatal(err)
	}
	args := append(confined(t), "--rm", "--user=0:0", "--entrypoint=python", "--volume="+models+":/out", "--volume="+script+":/train.py:ro", pythonImage, "/train.py", "/out")
	tool(t, "podman", append([]string{"run"}, args...)...)
	return models
}

// pythonClient asks the server in its own network for the sums of (1, 1) and (2, 3),
// as soon as it is ready.
const pythonClient = `
import time, urllib.error, urllib.request
server = "http://127.0.0.1:8080/v2/"
end = time.monotonic() + 120
while True:
    try:
        urllib.request.urlopen(server + "health/ready", timeout=5)
        break
    except OSError:
        if time.monotonic() > end:
            raise
        time.sleep(0.05)  # it tells nobody that it is ready
body = b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [2, 2], "data": [1, 1, 2, 3]}]}'
try:
    print(urllib.request.urlopen(server + "models/sum/infer", body, timeout=60).read().decode())
except urllib.error.HTTPError as error:
    raise SystemExit(error.read().decode())
`

func servePython(t *testing.T, runtime pythonRuntime, model, user string) {
	container := runtime.Spec.Engine.Containers[0]
	if container.Image != pythonImage {
		t.Fatalf("image %s, want %s", container.Image, pythonImage)
	}
	entrypoint, err := json.Marshal(container.Command)
	if err != nil {
		t.Fatal(err)
	}
	// The runtime's security context.
	args := append(confined(t), "--detach", "--cap-drop=ALL", "--security-opt=no-new-privileges",
		"--entrypoint="+string(entrypoint), "--volume="+model+":/mnt/models:ro")
	if user != "" {
		args = append(args, "--user="+user)
	}
	args = append(args, container.Image)
	for _, arg := range container.Args {
		args = append(args, strings.ReplaceAll(arg, "{{.Name}}", "sum"))
	}
	id := tool(t, "podman", append([]string{"run"}, args...)...)
	defer func() {
		if t.Failed() {
			t.Log(tool(t, "podman", "logs", id))
		}
		tool(t, "podman", "rm", "--force", "--time=5", id)
	}()
	if tool(t, "podman", "exec", id, "id", "-u") == "0" {
		t.Errorf("it runs as root, and a pod of it would not")
	}
	out, err := exec.Command("podman", "exec", id, "python", "-c", pythonClient).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
		return
	}
	var answer struct {
		Outputs []struct{ Data []float64 }
	}
	if err := json.Unmarshal(out, &answer); err != nil || len(answer.Outputs) != 1 || len(answer.Outputs[0].Data) != 2 {
		t.Errorf("%s %v", out, err)
		return
	}
	for i, want := range []float64{6, 14} { // 2a + 3b + 1
		if got := answer.Outputs[0].Data[i]; math.Abs(got-want) > 1e-6 {
			t.Errorf("output %d is %g, want %g", i, got, want)
		}
	}
}

// confined are flags of podman for a container without a network, and with no limit
// above those of this process, which it may not raise.
func confined(t *testing.T) []string {
	t.Helper()
	args := []string{"--network=none"}
	for name, kind := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC} {
		var limit unix.Rlimit
		if err := unix.Getrlimit(kind, &limit); err != nil {
			t.Fatal(err)
		}
		n := strconv.FormatUint(min(limit.Max, 1<<15), 10)
		args = append(args, "--ulimit="+name+"="+n+":"+n)
	}
	return args
}

// tool runs a program and returns what it prints to its standard output.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, log.String())
	}
	return strings.TrimSpace(string(out))
}
