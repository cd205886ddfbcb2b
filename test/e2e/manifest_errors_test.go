package e2e

import (
	"testing"
)

// TestBadManifests: each is refused with one line that says what, where and
// what to do, and nothing of the file is applied.
func TestBadManifests(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	head := "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: bad}\n"
	for name, c := range map[string]struct{ manifest, want string }{
		"not YAML":         {"apiVersion: [\n", `:\d+: is not YAML: .+`},
		"a list":           {"- a\n", `:1: is not a manifest: expected apiVersion`},
		"unknown kind":     {"apiVersion: roundhouse.dev/v1alpha1\nkind: ModelServise\nmetadata: {name: bad}\n", `:2: kind: unknown kind "ModelServise"; did you mean "ModelService"\?`},
		"unknown version":  {"apiVersion: serving.kserve.io/v1beta7\nkind: InferenceService\nmetadata: {name: bad}\n", `:1: apiVersion: .*did you mean "serving.kserve.io/v1beta1"\?`},
		"misspelt field":   {head + "spec:\n  model: {uri: file:///x}\n  scalling: {}\n", `:6: spec.scalling: unknown field; did you mean "scaling"\?`},
		"wrong type":       {head + "spec:\n  model: {uri: file:///x}\n  scaling: {minReplicas: few}\n", `:6: spec.scaling.minReplicas: expected an integer, got "few"`},
		"nothing to serve": {head + "spec: {}\n", `:4: spec.model: is missing: say what to serve`},
	} {
		t.Run(name, func(t *testing.T) {
			n := n.on(t)
			file := write(t, t.TempDir(), "bad.yaml", c.manifest)
			r := n.run("apply", "-f", file)
			fails(t, r, 1)
			matches(t, r.err, `^roundhouse: `+file+c.want)
		})
	}
	t.Run("all or none", func(t *testing.T) {
		n := n.on(t)
		dir := t.TempDir()
		write(t, dir, "a.yaml", irisManifest("a", "{minReplicas: 0}"))
		write(t, dir, "b.yaml", irisManifest("b", "{minReplicas: many}"))
		if r := n.run("apply", "-f", dir); r.code != 1 {
			t.Errorf("want a failure, got %s", r)
		}
		if got := n.do("get", "-o", "name"); got != "" {
			t.Errorf("a part was applied: %s", got)
		}
	})
	t.Run("the same name twice", func(t *testing.T) {
		n := n.on(t)
		dir := t.TempDir()
		write(t, dir, "a.yaml", irisManifest("a", "{minReplicas: 0}"))
		write(t, dir, "b.yaml", irisManifest("a", "{minReplicas: 1}"))
		fails(t, n.run("apply", "-f", dir), 1, "b.yaml:1: metadata.name: service default/a is also at", "a.yaml:1")
	})
	empty := write(t, t.TempDir(), "empty.yaml", "# nothing yet\n")
	for _, verb := range []string{"apply", "validate"} {
		r := n.run(verb, "-f", empty)
		if r.code != 1 {
			t.Errorf("%s of nothing: %s", verb, r)
		}
		contains(t, r.err, empty+":1: warning: no manifest in here", "the files contain no object")
	}
	fails(t, n.run("apply", "-f", "no-such.yaml"), 1, "no-such.yaml: no such file or directory")
	fails(t, n.run("apply"), 2, "-f FILE is required")
}

// TestBadModels: manifests that are right and ask for what cannot be.
func TestBadModels(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	notATree := write(t, t.TempDir(), "iris.ubj", "this is no model")
	runtime := func(name, format string) string {
		return `---
apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: ` + name + `}
spec:
  supportedModelFormats: [{name: ` + format + `, version: "1", autoSelect: true, priority: 5}]
  protocolVersions: [v2]
  local: {command: [roundhouse, serve, "{{.ModelPath}}"]}
`
	}
	service := func(name, rest string) string {
		return "---\napiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: " + name + "}\nspec: {scaling: {minReplicas: 1}, " + rest + "}\n"
	}
	for _, c := range []struct{ name, manifest, want string }{
		{"missing", service("missing", `model: {uri: "file:///no/such/model.ubj", format: {name: xgboost}}`), `no file or folder at /no/such/model.ubj`},
		{"unknown-format", service("unknown-format", `model: {uri: "`+modelURI("iris.ubj")+`", format: {name: xgbost}}`), `xgbost`},
		{"no-format", service("no-format", `model: {uri: "file://`+notATree+`"}`), `format`},
		{"unknown-runtime", service("unknown-runtime", `model: {uri: "`+modelURI("iris.ubj")+`"}, runtime: {name: nobody}`), `nobody`},
		{"broken", service("broken", `model: {uri: "file://`+notATree+`", format: {name: xgboost}}`), `iris.ubj|exit`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.on(t)
			r := n.run("apply", "-f", write(t, t.TempDir(), "m.yaml", c.manifest), "--wait", "--timeout", "1m")
			if r.code != 1 {
				t.Errorf("apply --wait of what cannot be ready: want exit code 1, got %s", r)
			}
			matches(t, r.out, `^service default/`+c.name+` created: .*not ready: .*`+c.want)
			a := n.post("/v2/models/"+c.name+"/infer", irisTensor)
			if a.status != 503 {
				t.Errorf("a request: want 503 with the cause, got %s", a)
			}
			matches(t, a.body, c.want)
			n.do("delete", c.name)
		})
	}
	t.Run("ambiguous", func(t *testing.T) {
		n := n.on(t)
		r := n.run("apply", "-f", write(t, t.TempDir(), "m.yaml", runtime("first", "twin")+runtime("second", "twin")))
		if r.code == 0 { // it may be the service that is refused
			r = n.run("apply", "--wait", "--timeout", "1m", "-f", write(t, t.TempDir(), "s.yaml", service("torn", `model: {uri: "`+modelURI("iris.ubj")+`", format: {name: twin}}`)))
		}
		if r.code != 1 {
			t.Errorf("two runtimes of one priority: %s", r)
		}
		contains(t, r.out+r.err, "first", "second", "priority")
	})
}
