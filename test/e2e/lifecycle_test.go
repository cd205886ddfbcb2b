package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestStopAndStart: a stopped service refuses requests and starts nothing, over a
// restart of `up` with the same manifest, until it is started.
func TestStopAndStart(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	contains(t, n.do("ps"), "No replica runs")
	matches(t, n.do("start", "iris", "--wait"), `service default/iris .*: on roundhouse-xgboost, ready`)
	matches(t, n.do("ps"), `(?m)^default/iris +iris-engine-\w+ +Ready +0 .* 127.0.0.1:\d+ +0 `)
	var replicas []struct{ ID, Phase string }
	if err := json.Unmarshal([]byte(n.do("ps", "iris", "-o", "json")), &replicas); err != nil || len(replicas) != 1 || replicas[0].Phase != "Ready" {
		t.Errorf("%+v, %v", replicas, err)
	}

	contains(t, n.do("stop", "iris", "--wait"), "service default/iris stopped")
	contains(t, n.do("ps"), "No replica runs")
	refused := func() {
		t.Helper()
		if a := n.post("/v2/models/iris/infer", irisTensor); a.status != 503 || !strings.Contains(a.body, "Stopped: stopped by its owner; `roundhouse start iris` starts it") {
			t.Errorf("%+v", a)
		}
		contains(t, n.do("get", "iris"), "roundhouse start iris")
		contains(t, n.do("describe", "iris"), "roundhouse start iris")
	}
	refused()
	contains(t, n.do("get", "iris", "-o", "yaml"), "stopped: true", "# Irises by their measurements")
	if code := n.signal(syscall.SIGTERM); code != 0 {
		t.Fatal(code)
	}
	n.up() // applies the manifest again, which says nothing of it
	refused()
	contains(t, n.do("apply", "-f", "examples/quickstart/iris.yaml"), "default/iris")
	refused()
	matches(t, n.do("start", "iris", "--wait"), `service default/iris started: on roundhouse-xgboost, ready`)
	n.infer("/v2/models/iris/infer", irisTensor)
}

// TestRestart: all replicas are replaced, and no request is lost meanwhile.
func TestRestart(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	n.do("start", "iris", "--wait")
	before := n.do("ps", "-o", "json")
	answered, stop := n.load(4, func(int) (answer, error) {
		return try("POST", n.gateway+"/v2/models/iris/infer", irisTensor, "Content-Type", "application/json")
	}, ok)
	n.reach(answered, 10)
	contains(t, n.do("restart", "iris", "--wait"), "service default/iris restarted: on roundhouse-xgboost, ready")
	n.reach(answered, 10)
	if bad := stop(); len(bad) > 0 {
		t.Errorf("%d of %d requests failed: %s", len(bad), answered.Load(), bad[0])
	}
	if after := n.do("ps", "-o", "json"); after == before {
		t.Error("the same replica runs still: ", after)
	}
}

// TestScale: bounds by a command hold until the manifest states them itself.
func TestScale(t *testing.T) {
	t.Parallel()
	n := startNode(t, "-f", "examples/quickstart")
	contains(t, n.do("scale", "iris", "--replicas", "2", "--wait"), "service default/iris scaled")
	if got := n.do("ps"); strings.Count(got, "default/iris") != 2 {
		t.Error(got)
	}
	text, err := os.ReadFile(filepath.Join(root, "examples/quickstart/iris.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "iris.yaml")
	stated := strings.ReplaceAll(string(text), "models/iris.ubj", filepath.Join(root, "examples/quickstart/models/iris.ubj")) + "  engine: {scaling: {minReplicas: 1, maxReplicas: 1}}\n"
	if err := os.WriteFile(own, []byte(stated), 0o600); err != nil {
		t.Fatal(err)
	}
	n.do("apply", "-f", own)
	eventually(t, "the manifest's count holds", func() (bool, string) {
		got := n.do("ps")
		return strings.Count(got, "default/iris") == 1, got
	})
	for args, want := range map[string]string{
		"scale iris":                             "say how many",
		"scale iris --replicas 0":                "ambiguous",
		"scale iris --replicas 1 --min 1":        "give it alone",
		"scale iris --min -1":                    "below 0",
		"scale iris --min 5 --max 2":             "--min 5 is more than --max 2",
		"scale iris --component decoder --max 2": "has no component decoder",
		"stop nosuch":                            "no service default/nosuch",
		"restart":                                "the name of a service",
	} {
		if r := n.run(strings.Fields(args)...); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %s", args, r)
		}
	}
}

// TestRun: a model's address is enough, and what comes of it is a service like any.
func TestRun(t *testing.T) {
	t.Parallel()
	const model = "examples/quickstart/models/iris.ubj"
	n := newNode(t)
	if r := n.run("run", model, "--server", "127.0.0.1:1"); r.code != 1 || !strings.Contains(r.err, "start `roundhouse up`") {
		t.Error(r)
	}
	n.up()
	contains(t, n.do("run", model), "/v1/models/iris:predict")
	contains(t, n.do("ps"), "default/iris")
	n.infer("/v2/models/iris/infer", irisTensor)
	n.do("run", model) // again: nothing changes

	text := n.do("run", model, "--as", "other", "--format", "xgboost", "--dry-run")
	contains(t, text, "name: other", "uri: \"file://", "minReplicas: 0")
	if same := n.do("run", model, "--as", "other", "--format", "xgboost", "--dry-run", "-o", "yaml"); same != text {
		t.Error(same)
	}
	contains(t, n.do("run", model, "--as", "other", "--dry-run", "-o", "json"), `"name": "other"`)
	file := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n.do("apply", "-f", file, "--wait")
	for args, want := range map[string]string{
		"run " + model + " --as other": "there is a service default/other already, from " + file,
		"run ./nosuch":                 "give a file, a folder, a URI",
		"run":                          "the address of a model",
		"run /":                        "give one with --as",
		"run " + model + " -o yaml":    "give both",
	} {
		if r := n.run(strings.Fields(args)...); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %s", args, r)
		}
	}
}

// TestDoctor: what can run here is told without a server, beside one, and as JSON.
func TestDoctor(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	type health struct {
		Machine []struct {
			Name string
			OK   bool
		}
		Runtimes []struct {
			Runtime string
			Runs    bool
		}
	}
	look := func(args ...string) (h health) {
		t.Helper()
		r := n.run(append([]string{"doctor", "-o", "json"}, args...)...)
		if err := json.Unmarshal([]byte(r.out), &h); err != nil {
			t.Fatal(err, r)
		}
		well := true
		for _, c := range h.Machine {
			well = well && c.OK // the ports may be another's
		}
		if (r.code == 0) != well {
			t.Error(r)
		}
		return h
	}
	runs := map[string]bool{}
	for _, d := range look().Runtimes {
		runs[d.Runtime] = runs[d.Runtime] || d.Runs
	}
	if !runs["roundhouse-xgboost"] || len(runs) < 20 {
		t.Error(runs)
	}
	n.up()
	beside := look("--server", n.admin, "--data-dir", n.dir)
	if last := beside.Machine[len(beside.Machine)-1]; last.Name != "up" || !last.OK {
		t.Errorf("%+v", beside.Machine)
	}
	matches(t, n.run("doctor", "--server", n.admin).out, `(?m)^ok +roundhouse-xgboost +xgboost: runs on this machine$`)
	if r := n.run("doctor", "--data-dir", "/proc/nowhere"); r.code != 1 || !strings.Contains(r.out, "NO  data directory") || !strings.Contains(r.err, "marked NO") {
		t.Error(r)
	}
}

// TestScaleDownCutsNoStream: replicas that go because fewer are wanted answer the
// streams that they have to the end.
func TestScaleDownCutsNoStream(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "--wait", "-f", write(t, t.TempDir(), "chat.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec:
  protocol: openAI
  scaling: {minReplicas: 3, maxReplicas: 3, targetConcurrency: 2}
  engine:
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, chat]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`))
	eventually(t, "three replicas are ready", func() (bool, string) {
		out := n.do("ps")
		return strings.Count(out, "Ready") == 3, out
	})
	var begun, ended sync.WaitGroup
	for i := range 6 {
		begun.Add(1)
		ended.Go(func() {
			begin := sync.OnceFunc(begun.Done)
			defer begin()
			resp, err := client.Post(n.gateway+"/v1/completions", "application/json",
				strings.NewReader(fmt.Sprintf(`{"model":"chat","prompt":"%d hello","stream":true,"max_tokens":240,"ignore_eos":true}`, i)))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			lines := bufio.NewReader(resp.Body)
			if _, err := lines.ReadString('\n'); err != nil {
				t.Error(err)
			}
			begin()
			if rest, err := io.ReadAll(lines); err != nil || !strings.HasSuffix(strings.TrimSpace(string(rest)), "data: [DONE]") {
				t.Errorf("stream %d was cut (%v): %.300s", i, err, rest)
			}
		})
	}
	begun.Wait()
	n.do("scale", "chat", "--replicas", "1")
	eventually(t, "two replicas go while they answer", func() (bool, string) {
		out := n.do("ps")
		return strings.Count(out, "Draining") == 2, out
	})
	ended.Wait()
	eventually(t, "one is left", func() (bool, string) {
		out := n.do("ps")
		return strings.Count(out, "default/chat") == 1, out
	})
}
