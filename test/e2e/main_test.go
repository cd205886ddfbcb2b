// Package e2e drives the real binary as a person would: it builds roundhouse
// once, starts `roundhouse up` on free ports over a data directory of the
// test's own, speaks to it over HTTP and through the CLI, and fails when a
// process it caused outlives it.
//
// ROUNDHOUSE_BINARY names a binary to test instead of building one.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the program under test; root is the repository.
var binary, root string

func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "router" {
		runRouter(os.Args[2], os.Args[3])
	}
	// What this machine runs images with is not what is tested here.
	_ = os.Setenv("ROUNDHOUSE_CONTAINERS", "off")
	if len(os.Args) > 2 && os.Args[1] == "beside" {
		runBeside(os.Args[2:])
	}
	flag.Parse()
	code, err := runWithBinary(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runWithBinary(m *testing.M) (code int, err error) {
	if root, err = filepath.Abs(filepath.Join("..", "..")); err != nil {
		return 1, err
	}
	if binary = os.Getenv("ROUNDHOUSE_BINARY"); binary != "" {
		return m.Run(), nil
	}
	tmp, err := os.MkdirTemp("", "roundhouse-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	binary = filepath.Join(tmp, "roundhouse")
	build := exec.Command("go", "build", "-o", tmp+"/", "./cmd/roundhouse", "./cmd/roundhouse-server")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	return m.Run(), nil
}
