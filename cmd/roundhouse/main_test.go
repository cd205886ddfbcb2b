package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/test/loopback"
)

// TestHelp: every command says what it does and shows how it is called.
func TestHelp(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if shown := c.HasSubCommands() || strings.Contains(c.Example, c.CommandPath()); c.Short == "" || !shown {
			t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
}

// TestWrongCommandLines: what is wrong, and what to write instead; wrong usage
// is no failure of the work.
func TestWrongCommandLines(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	nobody := "--server=http://127.0.0.1:1"
	for _, c := range []struct {
		args  []string
		usage bool
		says  []string
	}{
		{[]string{"ups"}, true, []string{`no command "ups"`, "did you mean ps or up?"}},
		{[]string{"keys", "lst"}, true, []string{`no command "lst"`, "did you mean list?"}},
		{[]string{"simulate", "weather"}, true, []string{`no command "weather"`}},
		{[]string{"apply", "iris.yaml"}, true, []string{"-f iris.yaml"}},
		{[]string{"up", "models/"}, true, []string{"-f models/"}},
		{[]string{"keys", "list", "all"}, true, []string{`no "all"`}},
		{[]string{"logs"}, true, []string{"the name of a service", "roundhouse logs NAME"}},
		{[]string{"logs", "a", "b"}, true, []string{`"b" is one argument too many`}},
		{[]string{"get", "--server", "127.0.0.1:1"}, false, []string{"no server listens at http://127.0.0.1:1", "--server"}},
		{[]string{"get", "--server", "ftp://x"}, true, []string{"--server", "want http://HOST:PORT"}},
		{[]string{"infer", "iris", "-d", "{\"instances\":[]}", "--gateway", "127.0.0.1:1", nobody}, false, []string{"no server listens at http://127.0.0.1:1", "--gateway"}},
		{[]string{"infer", "iris", "-d", " "}, false, []string{"is empty", "-d @FILE"}},
		{[]string{"infer", "iris", "-d", "[1]"}, false, []string{"of kind array"}},
		{[]string{"explain", "missing.yaml", nobody}, false, []string{"missing.yaml: no such file"}},
		{[]string{"explain", "./missing", nobody}, false, []string{"./missing: no such file"}},
		{[]string{"keys", "list", "--file", missing}, false, []string{missing, "no such file"}},
		{[]string{"gateway", "-f", ".", "--session-header", "a b", "--listen=127.0.0.1:0", "--grpc-listen=", "--metrics-listen="}, true, []string{"--session-header", "X-Session-Id"}},
		{[]string{"endpoint-picker", "-f", ".", "--session-header", "a:b"}, true, []string{"--session-header"}},
		{[]string{"simulate", "routing", "--policy", "best"}, true, []string{`"best"`, "round-robin"}},
		{[]string{"simulate", "routing", "--workload", "best"}, true, []string{`"best"`, "shared-prefix"}},
		{[]string{"simulate", "routing", "--trace", missing}, false, []string{"--trace " + missing + ": no such file"}},
		{[]string{"simulate", "engine", "--role", "king"}, true, []string{`"king"`, "prefill"}},
	} {
		root := newRootCommand()
		root.SetArgs(c.args)
		root.SetIn(strings.NewReader(""))
		root.SetOut(&bytes.Buffer{})
		root.SetErr(&bytes.Buffer{})
		err := root.ExecuteContext(t.Context())
		if err == nil {
			t.Errorf("%q: no error", c.args)
			continue
		}
		if usage := command.WrongUsage(err); usage != c.usage {
			t.Errorf("%q: wrong usage is %t: %v", c.args, usage, err)
		}
		for _, s := range c.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%q: %q does not say %q", c.args, err, s)
			}
		}
	}
}

// TestSimulateRoutingInterrupted ends a replay at a signal.
func TestSimulateRoutingInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	root := newRootCommand()
	root.SetArgs([]string{"simulate", "routing"})
	root.SetOut(io.Discard)
	if err := root.ExecuteContext(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestValidateFindsConflicts: runtimes that `apply` refuses together are
// refused by `validate`, and those that it takes are not.
func TestValidateFindsConflicts(t *testing.T) {
	runtime := func(version, name, sizes, runs string) string {
		return fmt.Sprintf(`---
apiVersion: %s
kind: ClusterServingRuntime
metadata: {name: %s}
spec:
  supportedModelFormats:
  - {modelFormat: {name: safetensors, version: 1.0.0}, modelArchitecture: LlamaForCausalLM, autoSelect: true, priority: 1}
  protocolVersions: [openAI]
  modelSizeRange: {%s}
  %s
`, version, name, sizes, runs)
	}
	const own, ome = "roundhouse.dev/v1alpha1", "ome.io/v1beta1"
	runs := map[string]string{own: "local: {command: [engine]}", ome: "engineConfig: {runner: {name: ome-container, image: example.com/engine}}"}
	for _, c := range []struct {
		name, version, second string
		want                  string
		refused               bool
	}{
		{"equal ranges", own, "min: 5B, max: 9000M", "b.yaml:2: b: spec.supportedModelFormats[0].priority: priority 1 for safetensors 1.0.0, LlamaForCausalLM is also that of a", true},
		{"equal ranges in OME, which takes them", ome, "min: 5B, max: 9000M", "b.yaml:2: warning: b: spec.supportedModelFormats[0].priority: priority 1 for", false},
		{"overlapping ranges", own, "min: 6B, max: 9B", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"a.yaml": runtime(c.version, "a", "min: 5B, max: 9B", runs[c.version]), "b.yaml": runtime(c.version, "b", c.second, runs[c.version])} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			out, err := runHere(t, "validate", dir)
			if refused := err != nil && strings.Contains(err.Error(), "1 problem in 2 files"); refused != c.refused || (strings.Count(out, "is valid") == 2) == c.refused {
				t.Errorf("%v\n%s", err, out)
			}
			if !strings.Contains(out, c.want) || c.want == "" && strings.Contains(out, "priority") {
				t.Errorf("want %q in\n%s", c.want, out)
			}
		})
	}
}

// TestStatusIsVisible: what a status says neither moves the cursor nor looks like
// another service's line.
func TestStatusIsVisible(t *testing.T) {
	const bad = "\x1b]0;owned\x07\x1b[2J down\nprod  other  True\fprod\vx\u009b1m"
	s := admin.Service{Namespace: "prod", Name: "iris", Rendered: "a: b\n", Status: service.Status{Conditions: []service.Condition{
		{Type: service.ConditionReady, Status: "False", Reason: "Failed", Message: bad}}, Model: service.ModelStatus{LastFailure: &service.Failure{Reason: "Failed", Message: bad}}}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/iris"):
			_ = json.NewEncoder(w).Encode(s)
		default:
			_ = json.NewEncoder(w).Encode([]admin.Service{s})
		}
	}))
	t.Cleanup(server.Close)
	for _, args := range [][]string{{"get"}, {"get", "-o", "wide"}, {"get", "iris"}, {"describe", "iris"}} {
		text, err := runHere(t, append(args, "--server", server.URL, "--data-dir", t.TempDir())...)
		if err != nil {
			t.Fatal(args, err)
		}
		if !strings.Contains(text, "down prod other") || strings.ContainsAny(text, "\x1b\x07\f\v\u009b") {
			t.Errorf("%v: %q", args, text)
		}
	}
}

// TestExamplesAreValidTogether: one command serves all of them.
func TestExamplesAreValidTogether(t *testing.T) {
	out, err := runHere(t, "validate", filepath.Join("..", "..", "examples"))
	if err != nil || strings.Count(out, " is valid\n") < 50 {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestVersion names the version and the Go that built it.
func TestVersion(t *testing.T) {
	out, err := runHere(t, "version", "--client")
	if err != nil || !strings.HasPrefix(out, "Version  "+version+"\n") || !strings.HasSuffix(out, "Go       "+runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH+"\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestAnswersEndWithANewline: two answers in a pipe are two lines; what is not
// JSON, and what has a newline, is as it came.
func TestAnswersEndWithANewline(t *testing.T) {
	for _, c := range []struct{ kind, body, want string }{
		{"application/json", "{}", "{}\n"},
		{"application/json; charset=utf-8", "{}\n", "{}\n"},
		{"application/octet-stream", "\x00\x01", "\x00\x01"},
	} {
		var out bytes.Buffer
		resp := &http.Response{Header: http.Header{"Content-Type": {c.kind}}, Body: io.NopCloser(strings.NewReader(c.body))}
		if err := printAnswer(&out, resp); err != nil || out.String() != c.want {
			t.Errorf("%s %q: %v, %q", c.kind, c.body, err, out.String())
		}
	}
}

// TestKeyOfAKnownName: a second key for a name is made, and the first is told of.
func TestKeyOfAKnownName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.yaml")
	first, err := runHere(t, "keys", "create", "alice", "--file", file)
	if err != nil || strings.Contains(first, "note:") {
		t.Fatalf("%v: %s", err, first)
	}
	id := strings.Fields(first)[1]
	second, err := runHere(t, "keys", "create", "alice", "--file", file, "--expires", "1h")
	if want := "note: key " + id + " is also of alice and stays valid: `roundhouse keys revoke " + id + "` ends it\n"; err != nil || !strings.Contains(second, want) {
		t.Errorf("%v: want %s in\n%s", err, want, second)
	}
	list, err := runHere(t, "keys", "list", "--file", file)
	if zone, _ := time.Now().Zone(); err != nil || !regexp.MustCompile(`until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d `+regexp.QuoteMeta(zone)).MatchString(list) {
		t.Errorf("%v: no time with its zone in\n%s", err, list)
	}
}

// TestNoLogs: that there is nothing to print is told, but not as output.
func TestNoLogs(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/logs") {
			_ = json.NewEncoder(w).Encode(admin.Service{Namespace: "default", Name: "iris"})
		}
	}))
	t.Cleanup(server.Close)
	for want, args := range map[string][]string{
		"default/iris has written nothing yet\n":                     {"logs", "iris"},
		"default/iris has no previous process that wrote anything\n": {"logs", "iris", "--previous"},
	} {
		if out, err := runHere(t, append(args, "--server", server.URL, "--data-dir", t.TempDir())...); err != nil || out != want {
			t.Errorf("%v: %v: %q", args, err, out)
		}
	}
}

// TestValidateWarnsOfAMissingFile: the manifest stays valid, as its model may be
// put there later, or be on the machine that serves.
func TestValidateWarnsOfAMissingFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "there.ubj"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for uri, missing := range map[string]string{
		"there.ubj": "", "file://there.ubj#sha256=" + strings.Repeat("0", 64): "", "s3://bucket/m.ubj": "",
		"m.ubj": filepath.Join(dir, "m.ubj"), "file://m.ubj": filepath.Join(dir, "m.ubj"), "file:///nope/m.ubj": "/nope/m.ubj",
	} {
		file := filepath.Join(dir, "a.yaml")
		text := "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: a}\nspec: {model: {uri: \"" + uri + "\"}}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := runHere(t, "validate", file)
		want := file + ":1: warning: service default/a: no file or folder at " + missing + " on this machine\n"
		if err != nil || !strings.Contains(out, "is valid") || strings.Contains(out, want) != (missing != "") || strings.Contains(out, "warning") != (missing != "") {
			t.Errorf("%s: %v, want %q in\n%s", uri, err, missing, out)
		}
	}
}

// TestExplainNamesTheMissingFile: a format that is not known because there is no
// file to read it from is no reason to state one.
func TestExplainNamesTheMissingFile(t *testing.T) {
	dir := t.TempDir()
	nobody := "http://" + loopback.Reserve(t)
	for _, uri := range []string{"m.ubj", "file://m.ubj"} {
		file := filepath.Join(dir, "a.yaml")
		text := "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: a}\nspec: {model: {uri: " + uri + "}}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := runHere(t, "explain", file, "--server", nobody)
		if want := "because   no file or folder at " + filepath.Join(dir, "m.ubj") + "\n"; err != nil || !strings.Contains(out, want) || strings.Contains(out, "spec.model.format.name") {
			t.Errorf("%s: %v, want %q in\n%s", uri, err, want, out)
		}
	}
}

// TestExplainTellsNoSecrets: neither a password nor a signature of a URI is in
// what explain prints, for people or for programs.
func TestExplainTellsNoSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: a}
spec:
  model:
    uri: https://user:hunter2@models.invalid/a.ubj?X-Amz-Signature=deadbeef&X-Amz-Date=20260101
    format: {name: xgboost}
    adapters: [{name: b, uri: "https://user:hunter2@models.invalid/b?sig=deadbeef", rank: 8}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + loopback.Reserve(t)
	for _, args := range [][]string{{}, {"--all"}, {"-o", "json"}} {
		out, err := runHere(t, append([]string{"explain", file, "--server", nobody}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"hunter2", "deadbeef", "user:"} {
			if strings.Contains(out, secret) {
				t.Errorf("%v: %q is in\n%s", args, secret, out)
			}
		}
		if !strings.Contains(out, "https://models.invalid/a.ubj?…") || !strings.Contains(out, "https://models.invalid/b?…") {
			t.Errorf("%v: the URIs are not in\n%s", args, out)
		}
	}
}
