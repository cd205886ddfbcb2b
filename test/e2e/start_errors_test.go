package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestUpRefuses: what up cannot start with.
func TestUpRefuses(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := taken.Addr().String()
	free := []string{"--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}
	up := func(dir string, args ...string) result {
		return n.run(append(append([]string{"up", "--data-dir", dir}, free...), args...)...)
	}
	fails(t, up(t.TempDir(), "--listen", port), 1, port+" is in use", "--listen")
	fails(t, up(t.TempDir(), "--grpc-listen", port), 1, port+" is in use", "--grpc-listen")
	fails(t, up(t.TempDir(), "--admin-listen", port), 1, port+" is in use", "--admin-listen")
	fails(t, up(n.dir), 1, "data directory "+n.dir+" is in use by the roundhouse with pid "+itoa(n.cmd.Process.Pid), "--data-dir")
	newer := t.TempDir()
	write(t, newer, "VERSION", "99\n")
	fails(t, up(newer), 1, "version 99", "--data-dir")
	foreign := t.TempDir()
	write(t, foreign, "VERSION", "v8 engine\n")
	fails(t, up(foreign), 1, "VERSION", "--data-dir")
	fails(t, up(write(t, t.TempDir(), "file", "x")), 1, "not a directory", "--data-dir")
	fails(t, up(t.TempDir(), "-f", "no-such"), 1, "no-such: no such file")
	fails(t, up(t.TempDir(), "-f", t.TempDir()), 1, "no manifest in this folder")
	fails(t, up(t.TempDir(), "--watch"), 2, "--watch needs -f")
	fails(t, up(t.TempDir(), "--listen", "nonsense"), 2, "--listen")
	fails(t, up(t.TempDir(), "--no-such-flag"), 2, "--no-such-flag")
	fails(t, n.run("frobnicate"), 2, "frobnicate")
	bad := write(t, t.TempDir(), "bad.yaml", "kind: ModelService\n")
	fails(t, up(t.TempDir(), "-f", bad), 1, bad+":1: apiVersion: is missing")
	if !strings.Contains(n.do("get"), "No services found") {
		t.Error("the running up was disturbed")
	}
}

// TestFullDisk fills the data directory's own file system: the apply says so
// and nothing is lost.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	mount(t, n.dir, "256k")
	n.up()
	n.do("apply", "-f", write(t, t.TempDir(), "iris.yaml", irisManifest("iris", "{minReplicas: 0}")))
	filler := filepath.Join(n.dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the file system did not fill")
	}
	file := write(t, t.TempDir(), "more.yaml", irisManifest("more", "{minReplicas: 0}"))
	fails(t, n.run("apply", "-f", file), 1, "no space left on device", "more")
	fails(t, n.run("get", "more"), 1, "no service default/more")
	contains(t, n.do("get", "-o", "name"), "default/iris")
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	n.do("apply", "-f", file)
	n.infer("/v2/models/more/infer", irisTensor)
	n.signal(syscall.SIGTERM)
	n.up()
	if got := n.do("get", "-o", "name"); got != "default/iris\ndefault/more\n" {
		t.Errorf("after a return: %q", got)
	}
	n.signal(syscall.SIGTERM)
}

// mount puts a small file system at dir, or skips the test.
func mount(t *testing.T, dir, size string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a full disk needs root, to mount a small file system")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := mountTmpfs(dir, fmt.Sprintf("size=%s,mode=0700", size)); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount(dir); err != nil {
			t.Error(err)
		}
	})
}

// TestProgramThatCannotBeExecuted: a request for a service whose program is
// there and cannot be executed is told so at once, and get says so too.
func TestProgramThatCannotBeExecuted(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	for name, c := range map[string]struct{ program, cause string }{
		"headless": {"no program\n", "exec format error"},
		"orphan":   {"#!/no/such/interpreter\n", "the interpreter that its first line names"},
	} {
		dir := t.TempDir()
		program := write(t, dir, "engine", c.program)
		if err := os.Chmod(program, 0o700); err != nil {
			t.Fatal(err)
		}
		n.do("apply", "-f", write(t, dir, name+".yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: `+name+`}
spec:
  protocol: v2
  scaling: {minReplicas: 0}
  engine: {local: {command: [`+program+`]}}
`))
		begun := time.Now()
		a := n.post("/v2/models/"+name+"/infer", `{"inputs":[]}`)
		if took := time.Since(begun); a.status != 503 || took > 3*time.Second {
			t.Errorf("%s: answered after %s: %s", name, took, a)
		}
		contains(t, a.body, program+" cannot be executed", c.cause)
		contains(t, n.do("get", name), "cannot be executed")
		if r := n.service("default/" + name).Replicas; len(r) != 1 || r[0].Restarts > 1 {
			t.Errorf("%s: more than its first start was waited for: %+v", name, r)
		}
	}
}
