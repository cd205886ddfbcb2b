//go:build peers

package modelserver

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/test/loopback"
)

// The variables that name the Pythons: one with the clients, one with MLServer,
// whose dependencies exclude each other.
const (
	peersPython    = "ROUNDHOUSE_PEERS_PYTHON"
	mlserverPython = "ROUNDHOUSE_MLSERVER_PYTHON"
)

// Waits, all bounded.
const (
	startTimeout  = 2 * time.Minute // MLServer imports for some seconds
	stopTimeout   = time.Minute
	scriptTimeout = 5 * time.Minute
	buildTimeout  = 10 * time.Minute
)

// interpreter is the Python that a variable names.
func interpreter(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set: `make test-peers` makes the environment and sets it", variable)
	}
	return path
}

// build compiles the binary once, into a folder that TestMain removes.
var build = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(scratch, "roundhouse")
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	output, err := exec.CommandContext(ctx, "go", "build", "-o", filepath.Dir(binary)+"/", "roundhouse.dev/roundhouse/cmd/roundhouse", "roundhouse.dev/roundhouse/cmd/roundhouse-server").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, output)
	}
	return binary, nil
})

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

// python runs a script beside this file and gives what it printed.
func python(t *testing.T, variable, script string, args ...string) string {
	t.Helper()
	return run(t, interpreter(t, variable), append([]string{script}, args...)...)
}

// run runs a program to its end, which must be a success.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scriptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput()
	if err != nil {
		// What a generated client says of a clash runs to megabytes.
		t.Fatalf("%s %s: %v\n%s", filepath.Base(program), strings.Join(args, " "), err, output[max(0, len(output)-8<<10):])
	}
	return string(output)
}

// repository makes the model repository that every server here reads; with
// "more" it has a model for everything that is compared.
func repository(t *testing.T, options ...string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "models")
	python(t, mlserverPython, "repository.py", append([]string{folder}, options...)...)
	return folder
}

// server is a running model server.
type server struct {
	name       string // for messages
	http, grpc string // host:port
	cmd        *exec.Cmd
	logs       bytes.Buffer
	done       chan struct{}
}

// startRoundhouse serves a folder with the binary under test. Its workers run in
// the clients' environment, which has scikit-learn and no MLServer.
func startRoundhouse(t *testing.T, folder string, env ...string) *server {
	t.Helper()
	return startServe(t, folder, nil, env...)
}

// startServe is startRoundhouse with flags.
func startServe(t *testing.T, folder string, flags []string, env ...string) *server {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	path := "PATH=" + filepath.Dir(interpreter(t, peersPython)) + string(os.PathListSeparator) + os.Getenv("PATH")
	return start(t, "roundhouse", append([]string{path}, env...), binary, append([]string{"serve", folder}, flags...)...)
}

// startMLServer serves a folder with MLServer.
func startMLServer(t *testing.T, folder string, env ...string) *server {
	t.Helper()
	program := filepath.Join(filepath.Dir(interpreter(t, mlserverPython)), "mlserver")
	return start(t, "MLServer", env, program, "start", folder)
}

// start starts a server on ports that are free, which it gets in MLServer's
// variables, and waits until it is ready. The test's end stops it.
func start(t *testing.T, name string, env []string, program string, args ...string) *server {
	t.Helper()
	ports := []string{loopback.Reserve(t), loopback.Reserve(t), loopback.Reserve(t)}
	s := &server{name: name, http: ports[0], grpc: ports[1], cmd: exec.Command(program, args...), done: make(chan struct{})}
	s.cmd.Dir = t.TempDir()
	s.cmd.Env = append(os.Environ(), "MLSERVER_HOST=127.0.0.1", "MLSERVER_HTTP_PORT="+port(ports[0]),
		"MLSERVER_GRPC_PORT="+port(ports[1]), "MLSERVER_METRICS_PORT="+port(ports[2]))
	s.cmd.Env = append(s.cmd.Env, env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.logs, &s.logs
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its workers end with it
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait()
	}()
	t.Cleanup(func() { s.stop(t) })
	s.await(t)
	return s
}

// await waits until the server answers on both ports and has tried to load
// every model.
func (s *server) await(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) {
		select {
		case <-s.done:
			t.Fatalf("%s ended: %s", s.name, s.logs.String())
		case <-time.After(50 * time.Millisecond):
		}
		if s.listens(t) && !slices.ContainsFunc(s.index(t), func(m indexed) bool { return m.state == "LOADING" || m.state == "UNKNOWN" }) {
			return
		}
	}
	t.Fatalf("%s does not answer after %s", s.name, startTimeout)
}

// listens tells whether both ports answer.
func (s *server) listens(t *testing.T) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+"/v2/health/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	connection, err := net.DialTimeout("tcp", s.grpc, 10*time.Second)
	if err != nil {
		return false
	}
	return answer.StatusCode == http.StatusOK && connection.Close() == nil
}

// stop ends the server and shows what it said if the test failed.
func (s *server) stop(t *testing.T) {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-s.done:
	case <-time.After(stopTimeout):
		t.Errorf("%s did not end within %s of SIGTERM", s.name, stopTimeout)
	}
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // what it left behind
	<-s.done
	if t.Failed() {
		said := s.logs.Bytes()
		t.Logf("%s said:\n%s", s.name, said[max(0, len(said)-4<<10):])
	}
}

func port(address string) string {
	_, p, _ := net.SplitHostPort(address)
	if _, err := strconv.Atoi(p); err != nil {
		panic(address) // it is ours
	}
	return p
}

// indexed is a model in a server's index.
type indexed struct{ name, state, reason string }

// index lists a server's models.
func (s *server) index(t *testing.T) (all []indexed) {
	t.Helper()
	a := s.ask(t, request{method: http.MethodPost, path: "/v2/repository/index", body: "{}", header: map[string]string{"Content-Type": "application/json"}})
	models, ok := a.body.([]any)
	if !ok || a.status != http.StatusOK {
		t.Fatalf("%s: index: %s", s.name, a)
	}
	for _, m := range models {
		m, ok := m.(map[string]any)
		if !ok {
			t.Fatalf("%s: index: %s", s.name, a)
		}
		all = append(all, indexed{fmt.Sprint(m["name"]), fmt.Sprint(m["state"]), fmt.Sprint(m["reason"])})
	}
	return all
}
