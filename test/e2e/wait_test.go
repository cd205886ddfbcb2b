package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// eventually polls until cond holds, and fails the test with its last state
// when patience ends.
func eventually(t *testing.T, what string, cond func() (ok bool, state string)) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		ok, state := cond()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s; last seen:\n%s", patience, what, state)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

// process is one of the machine's.
type process struct {
	pid     int
	command string
}

// processes are those that carry the node's mark, up itself included. Where
// there is no /proc, none are seen.
func (n *node) processes() []process {
	var out []process
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !strings.Contains("\x00"+string(env), "\x00"+n.mark+"\x00") {
			continue
		}
		raw, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		pid, _ := strconv.Atoi(filepath.Base(dir))
		out = append(out, process{pid, strings.ReplaceAll(string(raw), "\x00", " ")})
	}
	return out
}

// alive reports whether a process runs; one that nobody has waited for yet does
// not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + itoa(pid) + "/stat")
	if err != nil {
		return !os.IsNotExist(err) || !exists("/proc/self")
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	eventually(t, "process "+itoa(pid)+" ends", func() (bool, string) { return !alive(pid), "it runs" })
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// listed is what the admin API says of a service, as far as tests look.
type listed struct {
	Status struct {
		Runtime  struct{ Name string }
		Revision string
		URL      string
	}
	Replicas []listedReplica
}

// listedReplica is what it says of a replica.
type listedReplica struct {
	ID, Revision, Phase, Message string
	HTTP, GRPC, Metrics          string
	PID, Restarts                int
	GPUs                         []int
	Woke                         struct{ Level int }
	Guests                       map[string]replica.Guest
}

// service asks the admin API for "namespace/name".
func (n *node) service(name string) (s listed) {
	n.t.Helper()
	raw := n.get(n.admin+"/api/v1/services/"+name, "Authorization", "Bearer "+n.token())
	if raw.status != 200 {
		n.t.Fatalf("service %s: %s", name, raw)
	}
	if err := json.Unmarshal([]byte(raw.body), &s); err != nil {
		n.t.Fatalf("service %s: %v in %s", name, err, raw.body)
	}
	return s
}

func (n *node) token() string {
	n.t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.dir, "admin-token"))
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// pid waits until a service of the default namespace has exactly one replica,
// ready, and returns its process.
func (n *node) pid(name string) (pid int) {
	n.t.Helper()
	eventually(n.t, name+" has one ready replica", func() (bool, string) {
		s := n.service("default/" + name)
		if len(s.Replicas) != 1 || s.Replicas[0].Phase != "Ready" {
			return false, n.run("describe", name).out
		}
		pid = s.Replicas[0].PID
		return pid != 0, "no PID"
	})
	return pid
}

// status is a service's status line as `get` prints it.
func (n *node) status(name string) string {
	n.t.Helper()
	lines := strings.Split(strings.TrimSpace(n.do("get", name)), "\n")
	return lines[len(lines)-1]
}

// write puts a file below a folder made for the test and returns its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
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

// matches fails unless text matches a regular expression.
func matches(t *testing.T, text, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("want a match of %s in:\n%s", pattern, text)
	}
}

// after is the rest of the line that starts with a prefix.
func after(text, prefix string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, prefix); ok && strings.HasSuffix(rest, "\n") {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// fails checks a command that has to fail with one line that says what is
// wrong.
func fails(t *testing.T, r result, code int, parts ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("want exit code %d, got %s", code, r)
		return
	}
	contains(t, r.err, parts...)
	lines := strings.Split(strings.TrimSpace(r.err), "\n")
	if code == 2 { // wrong usage points at the help
		lines = lines[:len(lines)-1]
	}
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "roundhouse: ") {
		t.Errorf("want one line of error, got:\n%s", r.err)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
