package engines

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// environment is a folder of installed engines, which a variable names and a
// target of the Makefile makes.
type environment struct{ variable, target string }

// The environments: the engines of every run, and those of runs by hand.
var (
	small    = environment{"ROUNDHOUSE_ENGINES", "test-engines"}
	mlserver = environment{"ROUNDHOUSE_ENGINES_MLSERVER", "test-engines"}
	vllm     = environment{"ROUNDHOUSE_ENGINES_VLLM", "test-engines-vllm"}
	sglang   = environment{"ROUNDHOUSE_ENGINES_SGLANG", "test-engines-sglang"}
)

var environments = []environment{small, mlserver, vllm, sglang}

func anyInstalled() bool {
	for _, e := range environments {
		if os.Getenv(e.variable) != "" {
			return true
		}
	}
	return false
}

// needs returns the environment's folder of programs. Where the variable is not
// set it skips the test, where it names a folder that lacks a program the test
// fails: that the engine is absent is never silent.
func (e environment) needs(t *testing.T, programs ...string) (bin string) {
	t.Helper()
	dir := os.Getenv(e.variable)
	if dir == "" {
		t.Skipf("%s is not set: `make %s` installs %s and sets it", e.variable, e.target, strings.Join(programs, ", "))
	}
	bin = filepath.Join(dir, "bin")
	for _, p := range programs {
		if _, err := exec.LookPath(filepath.Join(bin, p)); err != nil {
			t.Fatalf("%v: `make %s` installs it", err, e.target)
		}
	}
	return bin
}

// skipped is the exit code of a script that cannot run and printed why.
const skipped = 77

// python runs a script beside this file with an environment's interpreter; it
// must succeed.
func python(t *testing.T, bin, script string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "python"), append([]string{script}, args...)...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == skipped {
		t.Skipf("%s: %s", script, out)
	}
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", script, strings.Join(args, " "), err, out[max(0, len(out)-12<<10):])
	}
	return string(out)
}
