package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/cmd/internal/command"
)

// programs builds the command line as version have and the model server as
// version want, side by side.
func programs(t *testing.T, have, want string) (roundhouse, server string) {
	t.Helper()
	dir := t.TempDir()
	for name, version := range map[string]string{"roundhouse": have, command.ServerProgram: want} {
		build := exec.Command("go", "build", "-ldflags", "-X main.version="+version, "-o", filepath.Join(dir, name), "../"+name)
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return filepath.Join(dir, "roundhouse"), filepath.Join(dir, command.ServerProgram)
}

// TestServeIsTheServer: `roundhouse serve` becomes the model server beside it: the
// process, its help, its exit codes and what it says of wrong usage.
func TestServeIsTheServer(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs")
	}
	roundhouse, server := programs(t, "v1", "v1")
	say := func(args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(roundhouse, args...)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	help, err := exec.Command(server, "--help").CombinedOutput()
	if err != nil || !strings.Contains(string(help), "--max-concurrency") {
		t.Fatalf("%v: %s", err, help)
	}
	typed := strings.ReplaceAll(string(help), command.ServerProgram, command.ServeCommand)
	for _, args := range [][]string{{"serve", "--help"}, {"help", "serve"}} {
		if got, code := say(args...); got != typed || code != 0 {
			t.Errorf("%v: exit %d: %s\nwant the server's: %s", args, code, got, typed)
		}
	}
	if got, code := say("serve", "--no-such"); code != 2 || got != "roundhouse serve: unknown flag: --no-such\nSee `roundhouse serve --help`.\n" {
		t.Errorf("wrong usage: exit %d: %s", code, got)
	}
	if got, code := say("serve"); code != 2 || !strings.HasPrefix(got, "roundhouse serve: give a FOLDER or FILE, or set MLSERVER_MODELS_DIR to a folder\n") {
		t.Errorf("without an argument: exit %d: %s", code, got)
	}
	if got, code := say("serve", "none.ubj"); code != 1 || !strings.Contains(got, "none.ubj") {
		t.Errorf("nothing to serve: exit %d: %s", code, got)
	}
	// Through a link to it, too, and a signal reaches the server: it is the process.
	link := filepath.Join(t.TempDir(), "roundhouse")
	if err := os.Symlink(roundhouse, link); err != nil {
		t.Fatal(err)
	}
	model, err := filepath.Abs(filepath.Join(models, "iris.ubj"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(link, "serve", model, "--host", "127.0.0.1", "--http-port", "0", "--grpc-port", "0")
	greeting, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	logs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1000)
	if n, err := logs.Read(first); err != nil { // it logs once it listens
		t.Fatalf("%v: %s", err, first[:n])
	}
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop() // a line that does not come
	lines := bufio.NewScanner(greeting)
	for _, want := range []string{"Serving " + model, "  REST       http://127.0.0.1:", "  gRPC       127.0.0.1:", "  metrics    http://127.0.0.1:"} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Errorf("prints %q, want %q", lines.Text(), want)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for buffer := make([]byte, 1000); err == nil; {
		_, err = logs.Read(buffer)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("asked to stop: %v", err)
	}

	if err := os.Remove(server); err != nil {
		t.Fatal(err)
	}
	if got, code := say("serve", "x"); code != 1 || !strings.HasPrefix(got, "roundhouse: "+server+" is not there") || !strings.Contains(got, "belongs beside it") {
		t.Errorf("without the server: exit %d: %s", code, got)
	}
}

// TestServersOfAnotherRelease are refused, by a message that names both versions.
func TestServersOfAnotherRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the programs")
	}
	roundhouse, server := programs(t, "v2", "v1")
	out, err := exec.Command(roundhouse, "serve", "x").CombinedOutput()
	if err == nil || !strings.Contains(string(out), server+" is version v1, and the roundhouse that starts it is version v2: install both from one release") {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := exec.Command(server, "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), "v1") {
		t.Errorf("by itself: %v: %s", err, out)
	}
}

func TestEndpointPickerUsage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: a}\nspec: {addresses: [\"127.0.0.1:1\"]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"-f FILE is required":   {},
		"--fallbacks is -1":     {"-f", file, "--fallbacks", "-1"},
		"go together":           {"-f", file, "--tls-cert", "x"},
		"want NAMESPACE/NAME":   {"-f", file, "--pool", "/x"},
		"no such file":          {"-f", file + ".not"},
		"is not host:port":      {"-f", file, "--listen", "x", "--metrics-listen", ""},
		"TLS certificate: stat": {"-f", file, "--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"},
	} {
		cmd := newRootCommand()
		cmd.SetArgs(append([]string{"endpoint-picker"}, args...))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
