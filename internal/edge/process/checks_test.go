package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// script makes a program of a shell line.
func script(t *testing.T, dir, name, line string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+line+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestChecksAreAnswered: interpreters are asked for modules and programs whether
// they succeed, in the environment that a replica would have.
func TestChecksAreAnswered(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not on PATH")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+filepath.Dir(python)+":/usr/bin:/bin")
	t.Setenv("ROUNDHOUSE_PYTHON", "")
	if err := os.WriteFile(filepath.Join(dir, "here.py"), []byte("raise SystemExit('imported')"), 0o644); err != nil {
		t.Fatal(err)
	}
	works := script(t, dir, "works", "exit 0")
	fails := script(t, dir, "fails", "echo first >&2; echo no library >&2; exit 3")
	beside := script(t, t.TempDir(), "roundhouse-part", `test "$1" = --check && test -z "$AWS_SECRET_ACCESS_KEY"`)
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	c := checks{executable: filepath.Join(filepath.Dir(beside), "roundhouse")}
	path := "PYTHONPATH=" + dir
	for check, want := range map[selection.Check]selection.Answer{
		{Modules: "json here", Env: path}:                          {Program: python},
		{Modules: "json here nowhere1 nowhere2"}:                   {Program: python, Lacks: "lacks here, nowhere1, nowhere2"},
		{Modules: "json", Env: "ROUNDHOUSE_PYTHON=" + python}:      {Program: python},
		{Modules: "json", Env: "ROUNDHOUSE_PYTHON=/no/such/thing"}: {Lacks: "/no/such/thing is not on PATH"},
		{Modules: "json", Env: "PATH=/nowhere"}:                    {Lacks: "python3 is not on PATH"},
		{Command: "works"}:                                         {Program: works},
		{Command: "fails"}:                                         {Program: fails}, // it is not run
		{Command: "fails --check"}:                                 {Program: fails, Lacks: "fails: no library"},
		{Command: "roundhouse-part --check"}:                       {Program: beside},
		{Command: "nothing --check"}:                               {Lacks: "nothing is not on PATH"},
	} {
		if got := c.answer(t.Context(), []selection.Check{check})[check]; got != want {
			t.Errorf("%+v: %+v, want %+v", check, got, want)
		}
	}
}

// TestAnswersAreKept: a good answer is given again without a run, until the
// program's file changes; what is lacking is looked for again.
func TestAnswersAreKept(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	runs := filepath.Join(dir, "runs")
	count := func() int {
		b, _ := os.ReadFile(runs)
		return strings.Count(string(b), "x")
	}
	file := script(t, dir, "asked", "printf x >> "+runs)
	var c checks
	q := selection.Check{Command: "asked --check"}
	for range 3 {
		if a := c.answer(t.Context(), []selection.Check{q, q})[q]; a.Lacks != "" {
			t.Fatal(a)
		}
	}
	if n := count(); n != 1 {
		t.Errorf("%d runs for one answer", n)
	}
	script(t, dir, "asked", "printf x >> "+runs+"; exit 1")
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(file, later, later); err != nil {
		t.Fatal(err)
	}
	if a := c.answer(t.Context(), []selection.Check{q})[q]; a.Lacks == "" || count() != 2 {
		t.Errorf("a changed program: %+v after %d runs", a, count())
	}
	c.answers[q].at = time.Now().Add(-lackingAge)
	if c.answer(t.Context(), []selection.Check{q}); count() != 3 {
		t.Errorf("what was lacking is not looked for again: %d runs", count())
	}
}
