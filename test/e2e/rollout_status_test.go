package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRolloutUndo: a service goes back to what it was, also after a restart of up, and
// without losing requests; what edits have set stays.
func TestRolloutUndo(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	if r := n.run("rollout", "undo", "chat"); r.code != 1 || !strings.Contains(r.err, "no service default/chat") {
		t.Error(r)
	}
	n.do("apply", "--wait", "-f", write(t, dir, "chat.yaml", "# the good one\n"+onPlain(1, `, --seed, "1"`)))
	if r := n.run("rollout", "undo", "chat"); r.code != 1 || !strings.Contains(r.err, "there is no earlier manifest") {
		t.Error(r)
	}
	answered, stop := n.load(2, func(int) (answer, error) {
		return try("POST", n.gateway+"/v1/completions", `{"model":"chat","prompt":"hello","max_tokens":4}`)
	}, ok)
	n.reach(answered, 5)
	n.do("apply", "-f", write(t, dir, "chat.yaml", onPlain(1, ", --nonsense")))
	if r := n.run("rollout", "status", "chat"); r.code != 1 {
		t.Error(r)
	}
	n.do("scale", "chat", "--max", "3")
	matches(t, n.do("rollout", "undo", "chat", "--wait"), `service default/chat undone: .*ready`)
	n.do("rollout", "status", "chat")
	contains(t, n.do("get", "chat", "-o", "yaml"), "# the good one", "--seed", "maxReplicas: 3")
	n.reach(answered, 5)
	if bad := stop(); len(bad) > 0 {
		t.Errorf("%d of %d requests failed: %s", len(bad), answered.Load(), bad[0])
	}
	if code := n.signal(syscall.SIGTERM); code != 0 {
		t.Fatal(code)
	}
	n.up()
	contains(t, n.do("rollout", "undo", "chat"), "service default/chat undone")
	contains(t, n.do("get", "chat", "-o", "yaml"), "--nonsense", "maxReplicas: 3")
}

// TestRolloutStatus: it waits for the newest revision and the end of the one before,
// tells the steps, and fails with the cause where the revision does, or the time is
// over.
func TestRolloutStatus(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	dir := t.TempDir()
	n.do("apply", "-f", write(t, dir, "chat.yaml", onPlain(1, ", --startup-delay, 500ms")))
	matches(t, n.do("rollout", "status", "chat"), `(?s)default/chat: .*engine: 0 of 1 ready.*default/chat: revision chat-\w+: .*ready; engine: 1 of 1 ready\n$`)

	before := n.service("default/chat").Replicas[0].ID
	n.do("apply", "-f", write(t, dir, "chat.yaml", onPlain(1, ", --startup-delay, 700ms")))
	matches(t, n.do("rollout", "status", "default/chat"), `; engine: 1 of 1 ready\n$`)
	if rs := n.service("default/chat").Replicas; len(rs) != 1 || rs[0].ID == before || rs[0].Phase != "Ready" {
		t.Errorf("%+v", rs)
	}
	began := time.Now()
	n.do("rollout", "status", "chat") // nothing to wait for
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a service that is rolled out is waited for: %s", took)
	}

	n.do("apply", "-f", write(t, dir, "chat.yaml", onPlain(1, ", --nonsense")))
	r := n.run("rollout", "status", "chat")
	if r.code != 1 || !strings.Contains(r.err, "default/chat: the rollout failed: ") || !strings.Contains(r.err, "nonsense") && !strings.Contains(r.err, "exit") {
		t.Error(r)
	}
	n.do("apply", "-f", write(t, dir, "chat.yaml", onPlain(1, ", --startup-delay, 1h")))
	if r := n.run("rollout", "status", "chat", "--timeout", "1s"); r.code != 1 || !strings.Contains(r.err, "default/chat: not rolled out within 1s: ") {
		t.Error(r)
	}
	n.do("stop", "chat")
	if r := n.run("rollout", "status", "chat"); r.code != 1 || !strings.Contains(r.err, "topped") {
		t.Error(r)
	}
	n.do("apply", "-f", write(t, dir, "asleep.yaml", strings.Replace(onPlain(0, ""), "name: chat", "name: other", 1)))
	contains(t, n.do("rollout", "status", "other"), "asleep")
	for args, want := range map[string]string{
		"rollout status":                         "the name of a service",
		"rollout status chat --timeout 0s":       "more than 0",
		"rollout status nosuch":                  "no service default/nosuch",
		"rollout undone":                         "has no command",
		"rollout status chat --server 0.0.0.0:1": "no server listens",
	} {
		if r := n.run(strings.Fields(args)...); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %s", args, r)
		}
	}
}
