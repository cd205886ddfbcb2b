package e2e

import (
	"strings"
	"testing"
	"time"
)

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
