package e2e

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
)

// TestJournal: what happened is told while it happens and after a restart; of
// requests how they ended, but neither bodies nor keys.
func TestJournal(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	const secret = "a-word-of-a-body"
	n.infer("/v2/models/iris/infer", irisTensor)
	if a := n.post("/v1/chat/completions", `{"model":"chat","max_tokens":5,"messages":[{"role":"user","content":"`+secret+`"}]}`); a.status != 200 {
		t.Fatal(a)
	}
	if a := n.post("/v1/chat/completions", `{"model":"absent","messages":[]}`); a.status != 404 {
		t.Fatal(a)
	}

	matches(t, n.do("requests"), `(?m)^TIME +MODEL +STATUS +QUEUE +FIRST +TOOK +TOKENS +RATE +REPLICA +NOTE\n.* iris +200 .*\n.* chat +200 .* chat-engine-\w+\n.* absent +404 `)
	failed := n.do("requests", "--failed", "-o", "json")
	var r struct {
		Model  string
		Status int
	}
	if err := json.Unmarshal([]byte(failed), &r); err != nil || r.Model != "absent" || r.Status != 404 {
		t.Errorf("%s (%v)", failed, err)
	}
	if all := n.do("requests", "-o", "json"); strings.Contains(all, secret) {
		t.Error("a body is kept: ", all)
	}

	happened := n.do("events", "iris")
	matches(t, happened, `(?s)RuntimeSelected +roundhouse-xgboost.*RevisionMade.*Scaled +engine: 0 to 1 replicas: .*ReplicaCreated.*ReplicaReady +replica iris-engine-\w+: ready`)
	if strings.Contains(happened, "chat") {
		t.Error("events of another service: ", happened)
	}
	contains(t, n.do("describe", "iris"), "Events:", "ReplicaReady")

	if code := n.signal(syscall.SIGTERM); code != 0 {
		t.Fatal(code)
	}
	n.up()
	n.do("delete", "service", "iris")
	eventually(t, "the deletion is told, after what was before the restart", func() (bool, string) {
		got := n.do("events")
		return strings.Contains(got, "UpStopped") && strings.Count(got, "UpStarted") == 2 && strings.Contains(got, "Deleted") &&
			strings.Count(got, "RevisionMade") == 3, got
	})
}
