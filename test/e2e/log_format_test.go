package e2e

import (
	"encoding/json"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// records checks that a log has lines and that each is one object of JSON that says
// when, how bad and what.
func records(t *testing.T, log string) (messages []string) {
	t.Helper()
	for line := range strings.Lines(log) {
		var r struct {
			Time       time.Time
			Level, Msg string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil || r.Time.IsZero() || r.Level == "" || r.Msg == "" {
			t.Errorf("a line is no record of JSON: %s%v", line, err)
		}
		messages = append(messages, r.Msg)
	}
	if len(messages) == 0 {
		t.Error("nothing is logged")
	}
	return messages
}

// TestLogFormat: every process that logs does so in JSON when it is told to, to the
// error that it ends with; a flag wins over the variable.
func TestLogFormat(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := write(t, dir, "bad.yaml", "kind: Nothing\n")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() }) // after the subtests, which are parallel
	for _, c := range []struct {
		args string
		runs bool // until it is told to stop
		says string
	}{
		{"gateway --watch --listen 127.0.0.1:0 --grpc-listen= --metrics-listen= -f " + bad, true, "manifests are not applied; their objects stay as they were"},
		{"gateway", false, "-f FILE is required: the manifests of routes and pools"},
		{"endpoint-picker --watch --listen 127.0.0.1:0 --health-listen 127.0.0.1:0 --metrics-listen= -f " + bad, true, "manifests are not applied; their objects stay as they were"},
		{"simulate engine --port 0", true, "simulated engine listening"},
		{"serve examples/quickstart/models/iris.ubj --http-port 0", true, ""},
		{"hub-cache --dir " + filepath.Join(dir, "hub") + " --listen " + taken.Addr().String(), false, taken.Addr().String() + " is in use: stop what listens there, or choose another with --listen"},
		{"pull file:///nowhere/at/all --out " + filepath.Join(dir, "out"), false, ""},
		{"controller --image x --kubeconfig /nowhere/at/all", false, ""},
		{"controller gateway --kubeconfig /nowhere/at/all", false, ""},
		{"controller endpoint-picker --pool a/b --kubeconfig /nowhere/at/all", false, ""},
		{"up --log-format xml", false, `--log-format is "xml": want text or json`},
		{"up --listen nowhere --data-dir " + filepath.Join(dir, "data"), false, ""},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.env = []string{"ROUNDHOUSE_LOG_FORMAT=json", "GOTRACEBACK=none"}
			args := strings.Fields(c.args)
			if !c.runs {
				r := n.run(args...)
				if said := records(t, r.err); r.code == 0 || c.says != "" && said[len(said)-1] != c.says {
					t.Error(r)
				}
				return
			}
			logs := &capture{}
			cmd := exec.Command(binary, args...)
			cmd.Dir, cmd.Env, cmd.Stderr = root, n.environ(), logs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it logs", func() (bool, string) { s := logs.String(); return s != "", s })
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait()
			if said := records(t, logs.String()); c.says != "" && !strings.Contains(strings.Join(said, "\n"), c.says) {
				t.Error(said)
			}
		})
	}
	t.Run("up", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		n.env = []string{"ROUNDHOUSE_LOG_FORMAT=text"}
		n.up("--log-format", "json", "-v", "--access-log", "-", "-f", "examples/quickstart")
		n.infer("/v2/models/iris/infer", irisTensor)
		if code := n.signal(syscall.SIGTERM); code != 0 {
			t.Error(code)
		}
		for line := range strings.Lines(n.logs.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
		}
		contains(t, n.logs.String(), `"msg":"shutting down: requests in flight have 30s; press Ctrl-C again to stop now"`, `"model":"iris"`)
	})
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_LOG_FORMAT=xml"}
	if r := n.run("gateway", "-f", bad); r.code != 2 || !strings.Contains(r.err, `ROUNDHOUSE_LOG_FORMAT is "xml": want text or json`) {
		t.Error(r)
	}
}
