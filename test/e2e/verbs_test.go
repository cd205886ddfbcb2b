package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// TestWatchServices: get --watch shows what there is, what changes, why something failed
// and when it is tried again, and what is gone; in colours on a terminal.
func TestWatchServices(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", onPlain(1, "")))
	watch := exec.Command(binary, "get", "--watch")
	watch.Env = append(n.environ(), "NO_COLOR=1")
	var out capture
	watch.Stdout, watch.Stderr = &out, &out
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Process.Kill() }()
	shows := func(what, pattern string) {
		t.Helper()
		eventually(t, what, func() (bool, string) { return regexp.MustCompile(pattern).MatchString(out.String()), out.String() })
	}
	shows("what there is", `(?m)^NAMESPACE .*RESTARTS +LAST-FAILURE +AGE +STATUS\ndefault +chat +True +1/1 +\S+ +0 +- `)
	if err := syscall.Kill(n.pid("chat"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	shows("a failure, and when it is tried again", `(?m)^default +chat +False +0/1 +\S+ +0 +Killed .*retry(ing now| in)`)
	shows("the restart, and still why", `(?m)^default +chat +True +1/1 +\S+ +1 +Killed \d+s ago +`)
	n.do("delete", "service", "chat")
	shows("that it is gone", `(?m)^default +chat +- .*Deleted\n`)
	_ = watch.Process.Signal(syscall.SIGINT)
	if err := watch.Wait(); err != nil {
		t.Errorf("at Ctrl-C: %v\n%s", err, out.String())
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("colours through a pipe: %q", out.String())
	}
	if r := n.run("get", "pools", "--watch"); r.code != 2 || !strings.Contains(r.err, "--watch shows services") {
		t.Errorf("%+v", r)
	}

	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", onPlain(1, "")))
	for variable, want := range map[string]bool{"COLOURS=yes": true, "NO_COLOR=1": false} {
		cmd := exec.Command(binary, "get")
		cmd.Env = append(n.environ(), "TERM=xterm", variable)
		screen := onTerminal(t, cmd)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		<-screen.closed
		if got := strings.Contains(screen.String(), "\x1b[32mTrue\x1b[0m"); got != want {
			t.Errorf("with %s: %q", variable, screen)
		}
	}
}

// TestTop: what services do now and did in the last minute.
func TestTop(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", onPlain(1, "")))
	for range 6 {
		n.complete("chat", 10)
	}
	if a := n.complete("nobody", 1); a.status != 404 {
		t.Errorf("%+v", a)
	}
	matches(t, n.do("top"), `^1 service, 1 replica ready, 0 requests in flight, 0\.1 requests/s, 1\.0 tokens/s, memory \S+.*\nSERVICE +STATUS .*\ndefault/chat +Serving +1/1 +0 +0\.1 +0 +0 +1\.0 +\d`)
	matches(t, n.get(n.admin+"/metrics").body, `roundhouse_gateway_endpoint_results_total\{endpoint="chat-engine-\w+",result="answered",service="default/chat"\} 6\n`)
	matches(t, n.get(n.admin+"/metrics").body, `roundhouse_gateway_endpoint_first_byte_seconds_count\{endpoint="chat-engine-\w+",service="default/chat"\} 6\n`)
	contains(t, n.get(n.admin+"/metrics").body, `roundhouse_gateway_endpoints{service="default/chat",state="ready"} 1`)

	cmd := exec.Command(binary, "top", "--interval", "100ms")
	cmd.Env = append(n.environ(), "TERM=xterm")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	screen := onTerminal(t, cmd)
	eventually(t, "it is drawn again and again", func() (bool, string) {
		return strings.Count(screen.String(), "default/chat") > 2, screen.String()
	})
	screen.say(t, "\x03")
	if err := cmd.Wait(); err != nil {
		t.Errorf("at Ctrl-C: %v", err)
	}
}

// TestCompletion: shells complete what the running up has.
func TestCompletion(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"describe", ""}, "chat\ndigits\niris\nservices\n"},
		{[]string{"logs", ""}, "chat\ndigits\niris\n:4"},
		{[]string{"logs", "iris", ""}, ":4"},
		{[]string{"stop", "iris", ""}, "chat\ndigits\n:4"},
		{[]string{"rollout", "status", "i"}, "iris\n:4"},
		{[]string{"get", "runtimes", "roundhouse-x"}, "roundhouse-xgboost\n"},
		{[]string{"get", "-o", ""}, "wide\njson\nyaml\nname\n:4"},
		{[]string{"get", "-n", ""}, "default\n:4"},
		{[]string{"logs", "--server", "127.0.0.1:1", ""}, ":4"},
	} {
		r := n.run(append([]string{"__complete"}, c.args...)...)
		if r.code != 0 || !strings.HasPrefix(r.out, c.want) {
			t.Errorf("%v: %s, want %q", c.args, r, c.want)
		}
	}
}

// TestConfigFile: up reads its flags from a file, and the command line has precedence.
func TestConfigFile(t *testing.T) {
	t.Parallel()
	file := write(t, t.TempDir(), "up.yaml", "filename: ["+filepath.Join(root, "examples/quickstart")+"]\nwatch: true\nlisten: 127.0.0.1:1\n")
	n := startNode(t, "--config", file)
	contains(t, n.do("get"), "iris", "digits", "chat")
	bad := write(t, t.TempDir(), "bad.yaml", "lisen: 127.0.0.1:1\n")
	if r := n.run("up", "--config", bad); r.code != 2 || !strings.Contains(r.err, "bad.yaml:1: lisen: is no flag of this command; did you mean listen?") {
		t.Errorf("%+v", r)
	}
	var schema struct{ Properties map[string]any }
	if err := json.Unmarshal([]byte(n.do("schema", "up-config")), &schema); err != nil || schema.Properties["listen"] == nil || schema.Properties["config"] != nil {
		t.Errorf("%v, %v", schema, err)
	}
	if r := n.run("schema", "Nothing"); r.code != 2 || !strings.Contains(r.err, "write one of ") {
		t.Errorf("%+v", r)
	}
}
