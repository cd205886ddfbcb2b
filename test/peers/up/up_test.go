//go:build peers

package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// peersPython names the Python with the clients.
const peersPython = "ROUNDHOUSE_PEERS_PYTHON"

// Waits, all bounded.
const (
	startTimeout  = 2 * time.Minute
	stopTimeout   = time.Minute
	scriptTimeout = 5 * time.Minute
	buildTimeout  = 10 * time.Minute
)

// scratch is the folder of what all tests share.
var scratch string

func TestMain(m *testing.M) {
	// What this machine runs images with is not what is tested here.
	_ = os.Setenv("ROUNDHOUSE_CONTAINERS", "off")
	var err error
	if scratch, err = os.MkdirTemp("", "roundhouse-peers-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(scratch)
	os.Exit(code)
}

// build compiles the binary once; ROUNDHOUSE_BINARY names one to test instead.
var build = sync.OnceValues(func() (string, error) {
	if binary := os.Getenv("ROUNDHOUSE_BINARY"); binary != "" {
		return binary, nil
	}
	binary := filepath.Join(scratch, "roundhouse")
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	output, err := exec.CommandContext(ctx, "go", "build", "-o", filepath.Dir(binary)+"/", "roundhouse.dev/roundhouse/cmd/roundhouse", "roundhouse.dev/roundhouse/cmd/roundhouse-server").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return binary, nil
})

// capture is what a process prints, to be read while it runs.
type capture struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.Write(p)
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.b.String()
}

// server is a running `roundhouse up`.
type server struct {
	http, grpc string // host:port
	cmd        *exec.Cmd
	out, logs  capture
	done       chan struct{}
}

// startUp serves the quickstart's models: iris and digits by trees, chat by the
// simulator. The test's end stops it.
func startUp(t *testing.T) *server {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	s := &server{done: make(chan struct{})}
	s.cmd = exec.Command(binary, "up", "-f", quickstart(t), "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0",
		"--admin-listen", "127.0.0.1:0", "--hub-cache", "off", "--data-dir", filepath.Join(t.TempDir(), "data"))
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.logs
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() { s.stop(t) })
	deadline := time.Now().Add(startTimeout)
	for s.grpc == "" || s.http == "" {
		select {
		case <-s.done:
			t.Fatalf("up ended: %s", s.logs.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("up does not say its addresses after %s", startTimeout)
		}
		s.http, s.grpc = after(s.out.String(), "Roundhouse answers at  http://"), after(s.out.String(), "gRPC                   ")
	}
	return s
}

// after is the rest of the line of text that begins so, once it is whole.
func after(text, prefix string) string {
	_, rest, found := strings.Cut(text, prefix)
	line, _, whole := strings.Cut(rest, "\n")
	if !found || !whole {
		return ""
	}
	return line
}

// stop ends up and shows what it said if the test failed.
func (s *server) stop(t *testing.T) {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.done:
	case <-time.After(stopTimeout):
		t.Errorf("up did not end within %s of SIGTERM", stopTimeout)
		_ = s.cmd.Process.Kill()
		<-s.done
	}
	if t.Failed() {
		said := s.logs.String()
		t.Logf("up said:\n%s", said[max(0, len(said)-8<<10):])
	}
}

func quickstart(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../examples/quickstart")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// python runs a script beside this file, which must succeed.
func python(t *testing.T, script string, args ...string) {
	t.Helper()
	program := os.Getenv(peersPython)
	if program == "" {
		t.Fatalf("%s is not set: `make test-peers` makes the environment and sets it", peersPython)
	}
	ctx, cancel := context.WithTimeout(t.Context(), scriptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{script}, args...)...)
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == skipped {
		t.Skipf("%s: %s", script, bytes.TrimSpace(output))
	}
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", script, strings.Join(args, " "), err, output[max(0, len(output)-8<<10):])
	}
}

// skipped is with what a script exits that cannot be run, and says why.
const skipped = 77

// TestClients asks up with each client in turn, every one of them from
// services that are asleep or awake as the one before left them.
func TestClients(t *testing.T) {
	s := startUp(t)
	for _, client := range []struct{ script, address string }{
		{"openai_client.py", s.http},
		{"triton_http.py", s.http},
		{"triton_grpc.py", s.grpc},
		{"kserve_clients.py", s.http + "," + s.grpc},
	} {
		t.Run(client.script, func(t *testing.T) { python(t, client.script, client.address, quickstart(t)) })
	}
}
