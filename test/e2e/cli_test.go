package e2e

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCommands drives every command about what is served, through pipes.
func TestCommands(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	n.infer("/v2/models/iris/infer", irisTensor)
	for name, check := range map[string]func(*node){
		"get": (*node).gets, "describe": (*node).describes, "infer": (*node).infers,
		"chat": (*node).chats, "logs": (*node).follows, "validate": (*node).validates,
	} {
		t.Run(name, func(t *testing.T) { check(n.on(t)) })
	}
	t.Run("delete", func(t *testing.T) { n.on(t).deletes() })
}

func (n *node) gets() {
	t := n.t
	table := n.do("get")
	matches(t, table, `^NAMESPACE +NAME +READY +REPLICAS +RUNTIME +RESTARTS +LAST-FAILURE +AGE +STATUS\n`)
	matches(t, table, `(?m)^default +iris +True +1/1 +roundhouse-xgboost +0 +- +\S+ +Serving`)
	matches(t, n.do("get", "-o", "wide"), `(?m)^default +iris +True +1/1 +roundhouse-xgboost +v1 +- +\d+ +\d+ +0\.\d\d +http://iris\.default\.localhost:\d+`)
	if got := n.do("get", "-o", "name"); got != "default/chat\ndefault/digits\ndefault/iris\n" {
		t.Errorf("-o name: %q", got)
	}
	yaml := n.do("get", "digits", "-o", "yaml")
	contains(t, yaml, "# Handwritten digits", "apiVersion: serving.kserve.io/v1beta1", "modelStatus:", "type: PredictorReady")
	var object struct {
		Kind   string
		Status struct{ Conditions []any }
	}
	if err := json.Unmarshal([]byte(n.do("get", "iris", "-o", "json")), &object); err != nil || object.Kind != "ModelService" || len(object.Status.Conditions) == 0 {
		t.Errorf("-o json: %+v (%v)", object, err)
	}
	var list struct{ Items []any }
	if err := json.Unmarshal([]byte(n.do("get", "-o", "json")), &list); err != nil || len(list.Items) != 3 {
		t.Errorf("-o json of all: %d items (%v)", len(list.Items), err)
	}
	// What get prints, apply reads: nothing has changed.
	r := n.runWith(n.do("get", "iris", "-o", "yaml"), "validate", "-")
	if r.code != 0 {
		t.Errorf("what get prints is not valid: %s", r)
	}
	contains(t, n.do("get", "runtimes"), "roundhouse-xgboost", "roundhouse-lightgbm")
}

func (n *node) describes() {
	matches(n.t, n.do("describe", "iris"), `(?s)Name: +default/iris.*Runtime: +roundhouse-xgboost.*Ready +True +Serving.*1 of 1 ready, 0 to 3 replicas.*Replicas:.*PHASE +REQUESTS +WAITING +KV +MEMORY.*iris-engine-\S+ +engine +iris-\S+ +Ready +0 +- +- +`)
	for args, says := range map[string]string{"weight x": "use `roundhouse get weights x -o yaml`", "services": "give the name of a service"} {
		if r := n.run(append([]string{"describe"}, strings.Fields(args)...)...); r.code != 2 || !strings.Contains(r.err, says) {
			n.t.Errorf("describe %s: %s", args, r)
		}
	}
}

func (n *node) infers() {
	t := n.t
	request := filepath.Join("examples", "quickstart", "iris-request.json")
	contains(t, n.do("infer", "iris", "-d", "@"+request), `"outputs"`)
	contains(t, n.do("infer", "iris", "-d", irisRow), `"predictions"`)
	r := n.runWith(irisTensor, "infer", "iris")
	if r.code != 0 {
		t.Errorf("from standard input: %s", r)
	}
	contains(t, r.out, `"outputs"`)
	contains(t, n.do("infer", "chat", "-d", `{"prompt":"Hello","max_tokens":5}`), `"text_completion"`)
	fails(t, n.run("infer", "iris", "-d", "@no-such.json"), 1, "no-such.json", "no such file")
	fails(t, n.run("infer", "iris", "-d", "{"), 1, "the request is not JSON")
	fails(t, n.run("infer", "iris", "-d", `{"rows":[]}`), 1, "inputs, instances, messages, prompt and input")
	fails(t, n.run("infer", "iris", "-d", `{"instances":[[1,2]]}`), 1, "400", "expected 4 features per row, got 2")
	fails(t, n.run("infer", "nobody", "-d", irisRow), 1, "404", `"nobody" is not served here`, "iris")
	fails(t, n.run("infer"), 2, "give the name of the model")
}

func (n *node) chats() {
	t := n.t
	contains(t, n.do("chat", "chat", "Hello"), "simulator")
	r := n.runWith("Hello there\n", "chat", "chat", "--max-tokens", "12")
	if r.code != 0 || !strings.Contains(r.out, "simulator") || !strings.HasSuffix(r.out, "\n") {
		t.Errorf("through a pipe: %s", r)
	}
	fails(t, n.runWith("", "chat", "chat"), 1, "the message is empty")
}

// follows checks that logs -f prints what is written while it runs, and that
// an interrupt ends it well.
func (n *node) follows() {
	t := n.t
	dir := t.TempDir()
	n.do("apply", "--wait", "-f", write(t, dir, "files.yaml", fileServer("files", dir, "{minReplicas: 1, maxReplicas: 1}")))
	cmd := exec.Command(binary, "logs", "-f", "files")
	cmd.Env = n.environ()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	n.get(n.gateway + "/v2/models/files?first")
	awaitLine(t, lines, "GET /v2/models/files?first")
	n.get(n.gateway + "/v2/models/files?second")
	awaitLine(t, lines, "GET /v2/models/files?second")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for range lines {
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C ends logs -f with %v", err)
	}
	contains(t, n.do("logs", "files"), "?first", "?second")
	if tail := n.do("logs", "--tail", "1", "files"); strings.Count(tail, "\n") != 1 || !strings.Contains(tail, "?second") {
		t.Errorf("--tail 1: %q", tail)
	}
	fails(t, n.run("logs", "digits"), 1, "has had no replica")
	n.do("delete", "files")
}

func awaitLine(t *testing.T, lines <-chan string, part string) {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				t.Fatalf("the log ended before %q", part)
			}
			if strings.Contains(line, part) {
				return
			}
		case <-limit:
			t.Fatalf("no line with %q within %s", part, patience)
		}
	}
}

func (n *node) validates() {
	t := n.t
	matches(t, n.do("validate", "examples/quickstart"), `(?m)^examples/quickstart/iris.yaml:\d+: service default/iris is valid$`)
	bad := write(t, t.TempDir(), "bad.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: Iris_1}
spec:
  modle: {}
  scaling: {minReplicas: two}
`)
	r := n.run("validate", bad)
	if r.code != 1 {
		t.Errorf("want exit code 1, got %s", r)
	}
	contains(t, r.err, bad+":3: metadata.name:", bad+`:5: spec.modle: unknown field; did you mean "model"?`,
		bad+":6: spec.scaling.minReplicas: expected an integer", "roundhouse: 3 problems in 1 file\n")
	odd := n.run("validate", write(t, t.TempDir(), "odd.yaml", strings.Replace(irisManifest("odd", "{minReplicas: 0}"), "name: xgboost", "name: xgbost", 1)))
	if odd.code != 0 {
		t.Error(odd)
	}
	contains(t, odd.err, `odd.yaml:1: warning: service default/odd: no enabled runtime lists the format "xgbost": did you mean "xgboost"?`)
	fails(t, n.run("validate"), 2, "give a manifest file")
	fails(t, n.run("validate", "no-such.yaml"), 1, "no-such.yaml: no such file")
}

func (n *node) deletes() {
	t := n.t
	n.infer("/v2/models/iris/infer", irisTensor)
	pid := n.pid("iris")
	contains(t, n.do("delete", "iris"), "service default/iris deleted")
	gone(t, pid)
	fails(t, n.run("get", "iris"), 1, "no service default/iris")
	fails(t, n.run("delete", "iris"), 1, "no service default/iris")
	if a := n.post("/v2/models/iris/infer", irisTensor); a.status != 404 {
		t.Errorf("deleted, it answers %s", a)
	}
	missing := write(t, t.TempDir(), "missing.yaml", irisManifest("gone", "{minReplicas: 0}"))
	r := n.run("delete", "-f", missing, "-f", "examples/quickstart/digits.yaml")
	fails(t, r, 1, "no service default/gone")
	contains(t, r.out, "service default/digits deleted")
	fails(t, n.run("delete", "runtime", "roundhouse-xgboost"), 1, "belongs to the catalog")
	fails(t, n.run("delete"), 2, "give the names of objects to delete")
}
