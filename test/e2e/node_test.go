package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait for something that should take a moment: the
// machine may be busy.
const patience = time.Minute

// node is one data directory and the `roundhouse up` over it, which may be
// stopped, killed and started again.
type node struct {
	t       *testing.T
	dir     string // the data directory
	cwd     string // where up and the CLI run
	mark    string // in the environment of every process it caused
	program string // what up is run from
	as      *syscall.SysProcAttr
	env     []string // besides
	gateway string   // base URLs, while up
	admin   string

	cmd    *exec.Cmd
	out    *capture
	logs   *capture
	pipe   *os.File // where up writes instead of out and logs, unless nil
	exited chan struct{}
}

// newNode is a node that has not been started. When the test ends, up is
// stopped, and nothing it started may be left.
func newNode(t *testing.T) *node {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	n := &node{t: t, dir: dir, cwd: root, mark: "E2E_DATA_DIR=" + dir, program: binary}
	t.Cleanup(n.end)
	return n
}

// startNode is a running node with manifests loaded.
func startNode(t *testing.T, args ...string) *node {
	t.Helper()
	n := newNode(t)
	n.up(args...)
	return n
}

// on is the node for a subtest, which fails instead of the whole.
func (n *node) on(t *testing.T) *node {
	sub := *n
	sub.t = t
	return &sub
}

// up starts `roundhouse up` on free ports and waits until it serves.
func (n *node) up(args ...string) {
	n.t.Helper()
	n.launch(args...)
	n.serves()
}

// serves waits until up has printed where it serves.
func (n *node) serves() {
	n.t.Helper()
	n.t.Logf("up: pid %d over %s", n.cmd.Process.Pid, n.dir)
	eventually(n.t, "up prints its addresses", func() (bool, string) {
		select {
		case <-n.exited:
			n.t.Fatalf("up ended at once, %v:\n%s", n.cmd.ProcessState, n.logs)
		default:
		}
		n.gateway = after(n.out.String(), "Roundhouse answers at  ")
		n.admin = after(n.out.String(), "Admin API and metrics  ")
		return n.gateway != "" && n.admin != "", n.out.String() + n.logs.String()
	})
	if r := n.get(n.admin + "/healthz"); r.status != http.StatusOK {
		n.t.Fatalf("/healthz answers %s", r)
	}
}

// launch starts `roundhouse up` and waits for nothing.
func (n *node) launch(args ...string) {
	n.t.Helper()
	n.out, n.logs, n.exited = &capture{}, &capture{}, make(chan struct{})
	n.gateway, n.admin = "", ""
	args = append([]string{"up", "--listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--hub-cache", "off", "--data-dir", n.dir}, args...)
	n.cmd = exec.Command(n.program, args...)
	n.cmd.SysProcAttr = n.as
	n.cmd.Dir, n.cmd.Stdout, n.cmd.Stderr, n.cmd.Env = n.cwd, n.out, n.logs, n.environ()
	if n.pipe != nil {
		n.cmd.Stdout, n.cmd.Stderr = n.pipe, n.pipe
	}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, exited chan struct{}) {
		// Its state is read from ProcessState once exited is closed.
		_ = cmd.Wait()
		close(exited)
	}(n.cmd, n.exited)
}

// nobody is where no server is: a CLI that is not told of one would ask the machine's
// own, if it has one.
const nobody = "http://127.0.0.1:9"

func (n *node) environ() []string {
	return append(append(os.Environ(), n.env...), n.mark, "ROUNDHOUSE_SERVER="+cmp.Or(n.admin, nobody), "ROUNDHOUSE_GATEWAY="+cmp.Or(n.gateway, nobody), "ROUNDHOUSE_DATA_DIR="+n.dir)
}

// signal sends one to up and waits until it has ended; it returns the exit
// code, -1 when the signal ended it.
func (n *node) signal(s syscall.Signal) int {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
	return n.wait()
}

// wait is for an up that ends by itself.
func (n *node) wait() int {
	n.t.Helper()
	select {
	case <-n.exited:
	case <-time.After(patience):
		n.t.Fatalf("up has not ended after %s:\n%s", patience, n.logs)
	}
	return n.cmd.ProcessState.ExitCode()
}

func (n *node) running() bool {
	if n.cmd == nil {
		return false
	}
	select {
	case <-n.exited:
		return false
	default:
		return true
	}
}

// end stops up and looks for what it left behind.
func (n *node) end() {
	if n.running() {
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-n.exited:
		case <-time.After(patience):
			n.t.Errorf("up has not ended %s after SIGTERM", patience)
			_ = n.cmd.Process.Kill()
			<-n.exited
		}
	}
	for _, p := range n.processes() {
		n.t.Errorf("leaked process %d: %s", p.pid, p.command)
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	if n.t.Failed() && n.logs != nil {
		n.t.Logf("up printed:\n%s\nand logged:\n%s", n.out, n.logs)
	}
}

// result is what a command line came to.
type result struct {
	out, err string
	code     int
}

func (r result) String() string {
	return "exit code " + itoa(r.code) + "\nstdout: " + r.out + "\nstderr: " + r.err
}

// run runs a command line of roundhouse to its end.
func (n *node) run(args ...string) result {
	n.t.Helper()
	return n.runWith("", args...)
}

// runWith is run with a text on standard input.
func (n *node) runWith(stdin string, args ...string) result {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = n.cwd, strings.NewReader(stdin), &out, &errs, n.environ()
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatalf("roundhouse %s: %v", strings.Join(args, " "), err)
	}
	if ctx.Err() != nil {
		n.t.Fatalf("roundhouse %s hangs:\n%s%s", strings.Join(args, " "), &out, &errs)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// do runs a command line that has to succeed, and returns its output.
func (n *node) do(args ...string) string {
	n.t.Helper()
	r := n.run(args...)
	if r.code != 0 {
		n.t.Fatalf("roundhouse %s: %s", strings.Join(args, " "), r)
	}
	return r.out
}

// answer is what a request came to.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return itoa(a.status) + " " + a.body }

func (n *node) get(url string, header ...string) answer {
	n.t.Helper()
	return n.send(http.MethodGet, url, "", header...)
}

func (n *node) post(path, body string, header ...string) answer {
	n.t.Helper()
	return n.send(http.MethodPost, n.gateway+path, body, header...)
}

// send makes one request on a connection of its own. header is pairs of name
// and value.
func (n *node) send(method, url, body string, header ...string) answer {
	n.t.Helper()
	a, err := try(method, url, body, header...)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, url, err)
	}
	return a
}

// try is send without a test that fails, for requests made aside.
func try(method, url, body string, header ...string) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Host = cmp.Or(req.Header.Get("Host"), req.Host)
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(raw)}, err
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: patience}}

// capture holds what a process writes; its bound is the test's length.
type capture struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

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
