package engines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait: engines start in seconds, on a busy machine in
// tens of them, and those of gigabytes in minutes.
var patience = 3 * time.Minute

// binary is the program under test.
var binary string

func TestMain(m *testing.M) {
	// What this machine runs images with is not what is tested here.
	_ = os.Setenv("ROUNDHOUSE_CONTAINERS", "off")
	if os.Getenv(vllm.variable)+os.Getenv(sglang.variable) != "" {
		patience = 20 * time.Minute
		client.Timeout = patience
	}
	code, err := runWithBinary(m)
	if tiny.folder != "" {
		err = errors.Join(err, os.RemoveAll(tiny.folder))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "engines:", err)
		code = 1
	}
	os.Exit(code)
}

// runWithBinary builds roundhouse, if anything will run; ROUNDHOUSE_BINARY names
// one to test instead.
func runWithBinary(m *testing.M) (code int, err error) {
	if binary = os.Getenv("ROUNDHOUSE_BINARY"); binary != "" || !anyInstalled() {
		return m.Run(), nil
	}
	tmp, err := os.MkdirTemp("", "roundhouse-engines-")
	if err != nil {
		return 1, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	binary = filepath.Join(tmp, "roundhouse")
	build := exec.Command("go", "build", "-o", tmp+"/", "roundhouse.dev/roundhouse/cmd/roundhouse", "roundhouse.dev/roundhouse/cmd/roundhouse-server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// node is a running `roundhouse up`.
type node struct {
	t       *testing.T
	dir     string // of data
	mark    string // in the environment of every process that it caused
	path    string // PATH, with the engines' programs
	gateway string // base URLs
	admin   string
	grpc    string // host:port
	cmd     *exec.Cmd
	out     capture
	logs    capture
	exited  chan struct{}
}

// startNode starts up, which finds the engines' programs in the folders. The
// test's end stops it, and nothing that it started may be left.
func startNode(t *testing.T, programs ...string) *node {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	n := &node{t: t, dir: dir, mark: "ENGINES_DATA_DIR=" + dir, exited: make(chan struct{}),
		path: strings.Join(append(programs, os.Getenv("PATH")), ":")}
	n.cmd = exec.Command(binary, "up", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--hub-cache", "off", "--data-dir", dir)
	n.launch(func(out string) bool {
		n.gateway = after(out, "Roundhouse answers at  ")
		n.grpc = after(out, "gRPC                   ")
		n.admin = after(out, "Admin API and metrics  ")
		return n.gateway != "" && n.grpc != "" && n.admin != ""
	})
	return n
}

// launch starts the node's command, which prints its addresses.
func (n *node) launch(addresses func(out string) (all bool)) {
	n.t.Helper()
	n.cmd.Stdout, n.cmd.Stderr, n.cmd.Env, n.cmd.WaitDelay = &n.out, &n.logs, n.environ(), time.Second
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		_ = n.cmd.Wait()
		close(n.exited)
	}()
	n.t.Cleanup(n.end)
	n.eventually("the addresses are printed", func() (bool, string) {
		select {
		case <-n.exited:
			n.t.Fatalf("roundhouse ended at once:\n%s", n.logs.String())
		default:
		}
		return addresses(n.out.String()), n.out.String()
	})
}

func (n *node) environ() []string {
	return append(os.Environ(), "PATH="+n.path, n.mark, "ROUNDHOUSE_SERVER="+n.admin, "ROUNDHOUSE_GATEWAY="+n.gateway, "ROUNDHOUSE_DATA_DIR="+n.dir)
}

// end stops up and looks for what it left behind.
func (n *node) end() {
	_ = n.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-n.exited:
	case <-time.After(patience):
		n.t.Errorf("it has not ended %s after SIGTERM", patience)
		_ = n.cmd.Process.Kill()
		<-n.exited
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !strings.Contains("\x00"+string(env), "\x00"+n.mark+"\x00") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		n.t.Errorf("leaked process %d", pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if n.t.Failed() {
		logs := n.logs.String()
		n.t.Logf("%s logged:\n%s", n.cmd.Args[1], logs[max(0, len(logs)-12<<10):])
	}
}

// run runs a command line of roundhouse to its end and returns what it printed.
func (n *node) run(args ...string) (string, error) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = n.environ()
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		n.t.Fatalf("roundhouse %s: %v", strings.Join(args, " "), err)
	}
	return string(out), err
}

// do runs a command line that must succeed.
func (n *node) do(args ...string) string {
	n.t.Helper()
	out, err := n.run(args...)
	if err != nil {
		n.t.Fatalf("roundhouse %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// apply applies a manifest.
func (n *node) apply(manifest string, flags ...string) {
	n.t.Helper()
	file := filepath.Join(n.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		n.t.Fatal(err)
	}
	n.do(append([]string{"apply", "-f", file}, flags...)...)
}

// part is a replica, as the admin API lists it.
type part struct {
	ID, Revision, Phase, Message string
	HTTP, GRPC, Metrics          string
	PID, Restarts                int
}

// service is what the admin API answers for a service.
type service struct {
	Status   struct{ Runtime struct{ Name string } }
	Replicas []part
}

// service returns the state of a service of the default namespace.
func (n *node) service(name string) (s service) {
	n.t.Helper()
	token, err := os.ReadFile(filepath.Join(n.dir, "admin-token"))
	if err != nil {
		n.t.Fatal(err)
	}
	a := n.send("GET", n.admin+"/api/v1/services/default/"+name, "", "Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if a.status != 200 {
		n.t.Fatalf("service %s: %s", name, a)
	}
	if err := json.Unmarshal([]byte(a.body), &s); err != nil {
		n.t.Fatalf("service %s: %v in %s", name, err, a.body)
	}
	return s
}

// ready waits until a service has exactly so many replicas and all are ready.
func (n *node) ready(name string, count int) (parts []part) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%s has %d ready replicas", name, count), func() (bool, string) {
		parts = n.service(name).Replicas
		for _, p := range parts {
			if p.Phase != "Ready" || p.PID == 0 {
				return false, fmt.Sprintf("%+v", parts)
			}
		}
		return len(parts) == count, fmt.Sprintf("%+v", parts)
	})
	return parts
}

// restarted waits until the only replica of a service has another process than
// the one that was killed, and is ready.
func (n *node) restarted(name string, pid int) {
	n.t.Helper()
	n.eventually(name+" is started again", func() (bool, string) {
		parts := n.service(name).Replicas
		ok := len(parts) == 1 && parts[0].Phase == "Ready" && parts[0].PID != pid
		return ok, fmt.Sprintf("%+v", parts)
	})
}

// replaced waits until another revision's replica serves while the old one drains.
func (n *node) replaced(name string, old part) {
	n.t.Helper()
	n.eventually("the old replica drains and the new one serves", func() (bool, string) {
		phases := map[string]string{}
		for _, p := range n.service(name).Replicas {
			phases[p.ID] = p.Phase
		}
		was := phases[old.ID]
		delete(phases, old.ID)
		for _, now := range phases {
			return was == "Draining" && now == "Ready", was + ", " + now
		}
		return false, was
	})
}

// edited applies another revision of a service that streams without end: the
// stream goes on until its client leaves, and then the old replica ends.
func (n *node) edited(name, manifest string, s *stream) {
	n.t.Helper()
	old := n.ready(name, 1)[0]
	n.apply(manifest)
	n.replaced(name, old)
	s.goesOn(40)
	s.cancel()
	if now := n.ready(name, 1)[0]; now.ID == old.ID {
		n.t.Errorf("the old replica of %s stays", name)
	}
}

// killedUnanswered kills a service's only replica while it has a request of which it
// has not read anything: the next process answers.
func (n *node) killedUnanswered(name string, ask func() answer) {
	n.t.Helper()
	was := n.ready(name, 1)[0]
	if err := syscall.Kill(was.PID, syscall.SIGSTOP); err != nil {
		n.t.Fatal(err)
	}
	waiting := make(chan answer)
	go func() { waiting <- ask() }()
	n.eventually("the replica has the request", func() (bool, string) {
		sum := n.figures(n.admin + "/metrics")["roundhouse_gateway_endpoint_in_flight"]
		return sum == 1, strconv.FormatFloat(sum, 'g', -1, 64)
	})
	kill(n.t, was.PID)
	if a := <-waiting; a.status != http.StatusOK {
		n.t.Errorf("%s was killed before it answered, and the next process: %s", name, a)
	}
	n.restarted(name, was.PID)
}

// eventually polls until a condition holds, and fails with its last state when
// patience ends.
func (n *node) eventually(what string, cond func() (ok bool, state string)) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		ok, state := cond()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("not within %s: %s; last seen:\n%s", patience, what, state)
		}
		time.Sleep(20 * time.Millisecond) // between two looks
	}
}

// answer is what a request came to.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return strconv.Itoa(a.status) + " " + a.body }

// post asks the gateway with JSON.
func (n *node) post(path, body string, header ...string) answer {
	n.t.Helper()
	return n.send("POST", n.gateway+path, body, append([]string{"Content-Type", "application/json"}, header...)...)
}

// send makes one request on a connection of its own; header is pairs of name and
// value.
func (n *node) send(method, url, body string, header ...string) answer {
	n.t.Helper()
	resp, err := begin(n.t.Context(), method, url, body, header...)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatalf("%s %s: %v after %q", method, url, err, raw)
	}
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

// begin makes a request and returns its answer with the body unread.
func begin(ctx context.Context, method, url, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		if req.Header.Set(header[i], header[i+1]); header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	return client.Do(req)
}

var client = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// capture holds what a process writes; its bound is the test's length.
type capture struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.Write(p)
}

func (c *capture) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}

// after is the rest of the line that starts with a prefix, once it is whole.
func after(text, prefix string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, prefix); ok && strings.HasSuffix(rest, "\n") {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// contains fails unless text holds every part.
func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("want %q in:\n%s", p, text)
		}
	}
}

// kill ends a process at once.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// children are the processes below another that have a name, of which the system
// knows 15 letters; there is at least one.
func children(t *testing.T, parent int, name string) (pids []int) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		stat, _ := os.ReadFile(filepath.Join(dir, "stat")) // it may have ended
		_, rest, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(rest); len(f) > 1 && f[1] == strconv.Itoa(parent) && strings.Contains(string(stat), "("+name) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		t.Fatalf("process %d has no child %s", parent, name)
	}
	return pids
}
