package main

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain has the test binary be the program, where a test runs it.
func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv("ROUNDHOUSE_PAUSE_ARGS"); ok {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func program(file, args string) *exec.Cmd {
	cmd := exec.Command(file)
	cmd.Env = append(os.Environ(), "ROUNDHOUSE_PAUSE_ARGS="+args)
	return cmd
}

// TestCopy: the copy runs, and ends at once when asked to.
func TestCopy(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pause")
	if out, err := program(self, "copy "+file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := program(file, "done").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestPause: it waits until it is told to end, and then ends without an error.
func TestPause(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, os.Interrupt) // the test itself goes on
	defer signal.Stop(caught)
	ended := make(chan error, 1)
	go func() { ended <- run(nil) }()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for again := time.NewTicker(10 * time.Millisecond); ; { // it may not listen yet
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return
		case <-again.C:
			if err := self.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAwait: it ends when the file is there, and not before.
func TestAwait(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "done")
	cmd := program(self, "await "+file)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		t.Fatal("it ended without the file:", err)
	case <-time.After(3 * lookEvery):
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	cmd = program(self, "await "+file+"/x") // below a file
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "not a directory") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestFind: a folder and a file of a model, a path that is not there, one below a file, and
// those that lead out of it. It writes nothing.
func TestFind(t *testing.T) {
	model := filepath.Join(t.TempDir(), "model")
	for _, err := range []error{os.MkdirAll(filepath.Join(model, "v1", "en"), 0o700), os.WriteFile(filepath.Join(model, "v1", "a.bin"), nil, 0o600),
		os.Symlink("v1", filepath.Join(model, "latest")), os.Symlink("..", filepath.Join(model, "out"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{"v1": "", "v1/en": "", "v1/a.bin": "", "latest/en": "", "v2": "the node keeps has no v2: ", "v1/fr/x": "no v1/fr/x: ",
		"v1/a.bin/x": "not a directory", "out": "escapes", "../model": "escapes", "/": "escapes"} {
		if err := run([]string{"find", model, path}); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(model, "v2")); err == nil {
		t.Error("it made v2")
	}
	if err := run([]string{"find", model + "x", "v1"}); err == nil {
		t.Error("found in a folder that is not there")
	}
}

// TestWrongUse names what may be written.
func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{{"copy"}, {"wait"}, {"find", "a"}, {"copy", "a", "b"}} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), "copy FILE") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
