package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// modelURI is a model of the quickstart, as a URI.
func modelURI(name string) string {
	return "file://" + filepath.Join(root, "examples", "quickstart", "models", name)
}

// irisManifest is a service of ours over the quickstart's model; the scaling
// is YAML, one line.
func irisManifest(name, scaling string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: ` + name + `}
spec:
  model: {uri: "` + modelURI("iris.ubj") + `", format: {name: xgboost}}
  scaling: ` + scaling + "\n"
}

// fileServer is a manifest of a program that is no model server: Python's HTTP
// server, after a grandchild has been started.
func fileServer(name, dir, scaling string) string {
	return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: ` + name + `}
spec:
  protocol: v2
  scaling: ` + scaling + `
  engine:
    local:
      command: [sh, -c, "sleep 1000 & python3 -u -m http.server --bind 127.0.0.1 {{.Port}}"]
      workingDir: ` + dir + `
      readinessProbe: {tcpSocket: {port: "{{.Port}}"}}
`
}

// TestDialects applies manifests of every dialect as they are. Each serves, or
// says in one status line what this machine lacks.
func TestDialects(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	iris := modelURI("iris.ubj")
	serves := []struct{ name, manifest string }{
		{"ours", irisManifest("ours", "{minReplicas: 0}")},
		{"new-schema", `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: new-schema}
spec:
  predictor:
    minReplicas: 0
    model: {modelFormat: {name: xgboost}, protocolVersion: v2, storageUri: "` + iris + `"}
`},
		{"kserve-runtime", `apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: trees, namespace: default}
spec:
  supportedModelFormats: [{name: trees, version: "1", autoSelect: true}]
  protocolVersions: [v2]
  containers:
  - name: kserve-container
    image: example.org/trees:1
    command: [roundhouse]
    args: [serve, /mnt/models, "--name={{.Name}}", --format=xgboost, --http-port=8080]
    ports: [{containerPort: 8080, protocol: TCP}]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: kserve-runtime}
spec:
  predictor:
    minReplicas: 0
    model: {modelFormat: {name: trees}, protocolVersion: v2, storageUri: "` + iris + `"}
`},
		{"cluster-runtime", `apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: cluster-trees}
spec:
  supportedModelFormats: [{name: shrubs, version: "1", autoSelect: true}]
  protocolVersions: [v2]
  containers:
  - name: kserve-container
    image: example.org/shrubs:1
    command: [roundhouse, serve, /mnt/models]
    args: ["--name={{.Name}}", --format, xgboost, --http-port, "8080"]
    ports: [{containerPort: 8080}]
---
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: cluster-runtime}
spec:
  predictor:
    minReplicas: 0
    model: {modelFormat: {name: shrubs}, runtime: cluster-trees, protocolVersion: v2, storageUri: "` + iris + `"}
`},
		{"ome", `apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: iris-model}
spec:
  modelFormat: {name: bush, version: "1"}
  storage: {storageUri: "` + iris + `"}
---
apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: ome-trees}
spec:
  supportedModelFormats:
  - {modelFormat: {name: bush, version: "1"}, autoSelect: true, priority: 1}
  protocolVersions: [openAI]
  engineConfig:
    runner:
      name: ome-container
      image: example.org/bushes:1
      command: [roundhouse, simulate, engine]
      args: ["--model={{.Name}}", --port=8080]
      ports: [{containerPort: 8080}]
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: ome}
spec:
  model: {name: iris-model}
  engine: {minReplicas: 0, maxReplicas: 1}
`},
	}
	for _, c := range serves {
		t.Run(c.name, func(t *testing.T) {
			n := n.on(t)
			file := write(t, t.TempDir(), "manifest.yaml", c.manifest)
			out := n.do("apply", "-f", file)
			matches(t, out, `service default/`+c.name+` created: on \S+, asleep`)
			if c.name == "ome" { // whose services speak OpenAI's protocol
				contains(t, n.post("/v1/completions", `{"model":"ome","prompt":"Hello"}`).body, "simulator")
				return
			}
			if row := n.infer("/v2/models/"+c.name+"/infer", irisTensor); argmax(t, row) != 0 {
				t.Errorf("want class 0, got %v", row)
			}
		})
	}
	t.Run("lacking", func(t *testing.T) { n.lacking(t) })
}

// lacking applies what this machine cannot serve.
func (n *node) lacking(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, "config.json", `{"architectures":["Qwen2ForCausalLM"],"torch_dtype":"bfloat16","hidden_size":8}`)
	for _, c := range []struct{ name, manifest, want string }{
		{"vllm", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: vllm}
spec:
  model: {uri: "file://` + folder + `", format: {name: safetensors}}
  runtime: {name: vllm}
  scaling: {minReplicas: 1}
`, `not ready: .*(vllm is not on PATH: pip install vllm|needs 1 GPU)`},
		{"custom", `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: custom}
spec:
  predictor:
    containers:
    - {name: kserve-container, image: "example.org/no-such-image:1"}
`, `not ready: .*example.org/no-such-image`},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.on(t)
			out := n.do("apply", "-f", write(t, t.TempDir(), c.name+".yaml", c.manifest))
			if strings.Count(out, "\n") != 1 {
				t.Errorf("want one line, got:\n%s", out)
			}
			matches(t, out, c.want)
			if a := n.post("/v2/models/"+c.name+"/infer", irisTensor); a.status != 503 {
				t.Errorf("a request to what cannot run: want 503 with the cause, got %s", a)
			}
		})
	}
}
