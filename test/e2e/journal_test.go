package e2e

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
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

	matches(t, n.do("requests"), `(?m)^TIME +MODEL +STATUS +QUEUE +FIRST +TOOK +TOKENS +RATE +REPLICA +NOTE\n.* iris +200 .*\n.* chat +200 .* chat-engine-\w+\n.* absent +404 .* model "absent" is not served here`)
	refused := n.do("requests", "--client-errors", "-o", "json")
	var r struct {
		Model, Reason string
		Status        int
		BytesOut      int
	}
	if err := json.Unmarshal([]byte(refused), &r); err != nil || r.Model != "absent" || r.Status != 404 || r.BytesOut == 0 || !strings.Contains(r.Reason, "not served here") {
		t.Errorf("%s (%v)", refused, err)
	}
	contains(t, n.do("requests", "--failed"), "There were no such requests.")
	if all := n.do("requests", "-o", "json"); strings.Contains(all, secret) {
		t.Error("a body is kept: ", all)
	}

	happened := n.do("events", "iris")
	matches(t, happened, `(?s)RuntimeSelected +roundhouse-xgboost.*RevisionMade.*Scaled +engine: 0 to 1 replicas: .*ReplicaCreated.*ReplicaReady +replica iris-engine-\w+: ready`)
	if strings.Contains(happened, "chat") {
		t.Error("events of another service: ", happened)
	}
	contains(t, n.do("describe", "svc", "iris"), "Events:", "ReplicaReady")
	if r := n.run("events", "irsi"); r.code != 1 || !strings.Contains(r.err, "no service default/irsi") {
		t.Errorf("events of a service that never was: %s", r)
	}
	n.do("apply", "-f", write(t, t.TempDir(), "route.yaml", "apiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: flowers}\nspec: {models: [flowers], targets: [{service: iris}]}\n"))
	matches(t, n.do("events"), `(?s)Applied +route flowers: flowers → iris\n.*Ready +route flowers: `)

	// What iris may be resolved with changes, and then its manifest: to what get prints,
	// with another path of the same file, and in its counts. None makes a revision.
	n.do("apply", "-f", write(t, t.TempDir(), "secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: nobodys}\nstringData: {a: b}\n"))
	if r := n.runWith(n.do("get", "iris", "-o", "yaml"), "apply", "-f", "-", "--wait"); r.code != 0 {
		t.Fatal(r)
	}
	n.do("scale", "iris", "--min", "0", "--max", "2")
	eventually(t, "both changes are told", func() (bool, string) {
		got := n.do("events", "iris")
		return strings.Count(got, "ManifestChanged") == 2 && strings.Count(got, "RevisionMade") == 1, got
	})

	if code := n.signal(syscall.SIGTERM); code != 0 {
		t.Fatal(code)
	}
	n.up()
	n.do("delete", "service", "iris")
	eventually(t, "the deletion is told, after what was before the restart", func() (bool, string) {
		got := n.do("events")
		return strings.Contains(got, "UpStopped") && strings.Count(got, "route flowers: flowers → iris") == 1 && strings.Contains(got, "there is no service default/iris") && strings.Count(got, "UpStarted") == 2 && strings.Contains(got, "Deleted") &&
			strings.Count(got, "RevisionMade") == 3, got
	})
}

// TestReplicaMetrics reads what Prometheus reads of services and replicas: after a
// start, a crash without requests, and a deletion.
func TestReplicaMetrics(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	page := n.admin + "/metrics"
	iris := `service="iris"`
	eventually(t, "all three sleep", func() (bool, string) {
		return n.figure(page, "roundhouse_services", `reason="asleep"`) == 3, n.get(page).body
	})
	n.do("start", "iris", "--wait")
	eventually(t, "a replica is ready, and was counted", func() (bool, string) {
		return n.figure(page, "roundhouse_replicas", iris, `phase="Ready"`) == 1 && n.figure(page, "roundhouse_services", `reason="serving"`) == 1 &&
			n.figure(page, "roundhouse_replica_start_seconds_count", iris, `from="process"`) == 1, n.get(page).body
	})
	pid := n.pid("iris")
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its crash and restart are counted", func() (bool, string) {
		return n.figure(page, "roundhouse_replica_restarts_total", iris, `component="engine"`) == 1 && n.figure(page, "roundhouse_replica_failures_total", iris, `reason="Killed"`) == 1 &&
			n.figure(page, "roundhouse_replicas", iris, `phase="Ready"`) == 1, n.get(page).body
	})
	eventually(t, "its memory is measured", func() (bool, string) {
		return n.figure(page, "roundhouse_replica_memory_bytes", iris) > 1<<20 || runtime.GOOS != "linux", n.get(page).body
	})
	if free, all := n.figure(page, "roundhouse_data_disk_free_bytes"), n.figure(page, "roundhouse_data_disk_bytes"); free <= 0 || free > all {
		t.Errorf("%v of %v bytes are free", free, all)
	}
	if n.figure(page, "roundhouse_build_info", `version="`) != 1 || n.figure(page, "process_resident_memory_bytes") == 0 {
		t.Error("nothing of the process itself")
	}
	n.do("delete", "service", "iris")
	eventually(t, "its series are gone", func() (bool, string) {
		body := n.get(page).body
		return !strings.Contains(body, "roundhouse_replica_restarts_total{") && !strings.Contains(body, `roundhouse_replicas{component="engine",namespace="default",phase="Ready",service="iris"`), body
	})
}

// TestKeptBodies: of a service that asks for it the beginning of bodies can be read, by
// the owner alone; no header is kept, and nothing of it is written to the disk.
func TestKeptBodies(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	file := filepath.Join(t.TempDir(), "kept.yaml")
	manifest := `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: kept, annotations: {roundhouse.dev/keep-bodies: "120"}}
spec: {model: {format: {name: simulator}}, scaling: {minReplicas: 0}}
`
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	n.do("apply", "-f", file)
	const mine, other, header = "a-word-to-keep", "a-word-of-another", "a-word-of-a-header"
	ask := func(model, word string) {
		t.Helper()
		if a := n.post("/v1/chat/completions", `{"model":"`+model+`","max_tokens":5,"messages":[{"role":"user","content":"`+word+`"}],"user":"`+strings.Repeat("u", 200)+`"}`, "X-Secret", header); a.status != 200 {
			t.Fatal(a)
		}
	}
	ask("kept", mine)
	ask("chat", other)
	text := n.do("requests", "--bodies")
	contains(t, text, `    request: {"model":"kept"`, mine, "… (cut)", `    answer: {`)
	var r struct {
		RequestBody, AnswerBody *struct {
			Text string
			Cut  bool
		}
	}
	if err := json.Unmarshal([]byte(n.do("requests", "kept", "--bodies", "-o", "json")), &r); err != nil || r.RequestBody == nil || r.AnswerBody == nil || len(r.RequestBody.Text) != 120 || !r.RequestBody.Cut {
		t.Errorf("%+v %v", r, err)
	}
	for _, absent := range []string{other, header} {
		if strings.Contains(text, absent) {
			t.Errorf("%q is kept:\n%s", absent, text)
		}
	}
	if all := n.do("requests", "-o", "json"); strings.Contains(all, mine) {
		t.Error("a body is told unasked: ", all)
	}
	viewer := signIn(t, strings.TrimSpace(n.do("console", "--read-only")))
	if text, status := viewer.send(http.MethodGet, "/api/v1/requests?bodies=true", ""); status != http.StatusForbidden || !strings.Contains(text, "owner alone") {
		t.Error("a viewer reads bodies: ", status, text)
	}
	err := filepath.WalkDir(n.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), mine) {
			t.Errorf("%s has the body", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
