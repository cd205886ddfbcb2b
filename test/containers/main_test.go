package containers

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/image"
)

// engineVariable names the engine that the tests run on: podman or docker.
const engineVariable = "ROUNDHOUSE_TEST_CONTAINERS"

// engine is the engine, or a reason to skip.
func engine(t *testing.T) string {
	t.Helper()
	name := os.Getenv(engineVariable)
	if name == "" {
		t.Skipf("%s is not set: `make test-containers` runs these tests, on a machine with podman or Docker", engineVariable)
	}
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%s: %v", engineVariable, err)
	}
	return name
}

// ask runs the engine and returns what it prints.
func ask(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(engine(t), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", engine(t), strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// temporary is a folder for programs that all tests share.
var temporary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "roundhouse-containers-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	temporary = dir
	code := m.Run()
	for name := range built.images {
		_ = exec.Command(os.Getenv(engineVariable), "rmi", "--force", name).Run()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// built are the programs and images made so far.
var built struct {
	sync.Mutex
	programs map[string]string
	images   map[string]bool
}

// program builds a package of this source.
func program(t *testing.T, pkg string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if at, ok := built.programs[pkg]; ok {
		return at
	}
	at := filepath.Join(temporary, filepath.Base(pkg))
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", at, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	if built.programs == nil {
		built.programs = map[string]string{}
	}
	built.programs[pkg] = at
	return at
}

// made is the image of a program, at the root of an image that has nothing else,
// which is its entrypoint. It is loaded into the engine under the name.
func made(t *testing.T, name, pkg string) string {
	t.Helper()
	at := program(t, pkg)
	name = "localhost/roundhouse-test/" + name
	built.Lock()
	defer built.Unlock()
	if built.images[name] {
		return name
	}
	var tar bytes.Buffer
	if err := image.WriteRelease(context.Background(), &tar, image.Release{Tag: name, Programs: [][]string{{at}}, Roots: []byte("-")}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(engine(t), "load")
	cmd.Stdin = &tar
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("load: %v\n%s", err, out)
	}
	if built.images == nil {
		built.images = map[string]bool{}
	}
	built.images[name] = true
	return name
}
