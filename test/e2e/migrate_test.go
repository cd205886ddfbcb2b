package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// llamaServer puts a llama-server on the PATH of a node, which is a simulated engine
// that writes its arguments beside itself.
func llamaServer(t *testing.T, n *node) (bin string) {
	t.Helper()
	bin = t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
echo "$*" >> %[2]s/arguments
name=model
while [ $# -gt 0 ]; do
  case $1 in --port) port=$2; shift ;; --alias) name=$2; shift ;; esac
  shift
done
exec %[1]s simulate engine --port "$port" --model "$name"
`, binary, bin)
	if err := os.WriteFile(filepath.Join(bin, "llama-server"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n.env = append(n.env, "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return bin
}

// migrated is what `roundhouse migrate` prints, in a file that validates.
func migrated(t *testing.T, n *node, args ...string) (file, notes string) {
	t.Helper()
	r := n.run(append([]string{"migrate"}, args...)...)
	if r.code != 0 {
		t.Fatalf("migrate %v: %v", args, r)
	}
	file = write(t, t.TempDir(), "migrated.yaml", r.out)
	n.do("validate", file)
	return file, r.err
}

// TestMigrateLlamaSwap: the models of a configuration answer by their names and
// aliases, one at a time, and a variable goes nowhere unless it is named.
func TestMigrateLlamaSwap(t *testing.T) {
	t.Parallel()
	config := write(t, t.TempDir(), "config.yaml", `
macros:
  server: llama-server --port ${PORT}
models:
  Qwen/Small:
    cmd: |
      # ${nothing} in a comment
      ${server} -m '/models/a b.gguf' --alias ${MODEL_ID}
    aliases: [gpt-4o-mini]
    ttl: 60
  second:
    cmd: ${server} --alias second
    env: ["TOKEN=${env.SECRET_TOKEN}"]
  fixed:
    cmd: llama-server --port 5999 --alias fixed
    proxy: http://127.0.0.1:5999
    filters: {stripParams: temperature}
`)
	n := newNode(t)
	bin := llamaServer(t, n)
	n.env = append(n.env, "SECRET_TOKEN=do-not-print-me")
	r := n.run("migrate", "llama-swap", config)
	if r.code != 1 || strings.Contains(r.out+r.err, "do-not-print-me") || !strings.Contains(r.err, "give --env SECRET_TOKEN") || strings.Contains(r.out, "name: second") {
		t.Fatalf("a variable that is not named: %v", r)
	}
	file, notes := migrated(t, n, "llama-swap", config, "--env", "SECRET_TOKEN")
	contains(t, notes, "filters: the gateway changes no request's parameters", "the port 5999 became the port that the replica is given")
	n.up("-f", file)
	for _, model := range []string{"Qwen/Small", "gpt-4o-mini", "second", "fixed"} {
		if a := n.complete(model, 4); a.status != 200 {
			t.Errorf("%s: %s", model, a)
		}
	}
	contains(t, read(t, filepath.Join(bin, "arguments")), "-m /models/a b.gguf --alias Qwen/Small")
	contains(t, n.logs.String(), "an idle service makes room")
}

// TestMigrateOllama: a model answers by the names that Ollama's clients use, with the
// parameters of its Modelfile.
func TestMigrateOllama(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	blob := func(content string) string {
		sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content)))
		if err := os.MkdirAll(filepath.Join(dir, "blobs"), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "blobs"), strings.Replace(sum, ":", "-", 1), content)
		return sum
	}
	layer := func(kind, content string) map[string]any {
		return map[string]any{"mediaType": "application/vnd.ollama.image." + kind, "digest": blob(content)}
	}
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2, "layers": []any{
		layer("model", tinyGGUF), layer("params", `{"num_ctx":4096,"temperature":0.5,"stop":["<end>"]}`), layer("template", "{{ .Prompt }}"), layer("system", "Be kind."),
	}})
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "manifests/registry.ollama.ai/library/llama3.2")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, folder, "latest", string(manifest))
	n := newNode(t)
	bin := llamaServer(t, n)
	file, notes := migrated(t, n, "ollama", dir)
	contains(t, notes, "system prompt", "template of prompts", "parameter stop", "give --gpu")
	n.up("-f", file)
	for _, model := range []string{"llama3.2", "llama3.2:latest", "llama3-2"} {
		if a := n.complete(model, 4); a.status != 200 {
			t.Errorf("%s: %s", model, a)
		}
	}
	contains(t, read(t, filepath.Join(bin, "arguments")), dir+"/blobs/sha256-", "--ctx-size 4096", "--temp 0.5")
}

// tinyGGUF is the header of a model without tensors and metadata.
const tinyGGUF = "GGUF\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// TestMigrateMLServer: the models of a folder answer by their own names, and the
// settings of the server reach each.
func TestMigrateMLServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder := filepath.Join(dir, "iris")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "settings.json", `{"parallel_workers": 0, "http_port": 9999, "cache_enabled": true}`)
	write(t, folder, "model-settings.json", `{"name": "Iris_Model", "implementation": "mlserver_xgboost.XGBoostModel", "parameters": {"uri": "./iris.ubj", "version": "v1"}}`)
	write(t, folder, "iris.ubj", read(t, filepath.Join(root, "examples/quickstart/models/iris.ubj")))
	n := newNode(t)
	out := filepath.Join(t.TempDir(), "services")
	r := n.run("migrate", "mlserver", dir, "--output", out)
	if r.code != 0 || r.out != "" {
		t.Fatalf("%v", r)
	}
	contains(t, r.err, "http_port has no counterpart")
	contains(t, read(t, filepath.Join(out, "iris-model.yaml")), "MLSERVER_CACHE_ENABLED", "name: xgboost", "minReplicas: 1", "# From MLServer's iris/model-settings.json.")
	if r := n.run("migrate", "mlserver", dir, "--output", out); r.code != 1 || !strings.Contains(r.err, "is there already") {
		t.Errorf("a file that is there: %v", r)
	}
	n.up("-f", out)
	for _, model := range []string{"Iris_Model", "iris-model"} {
		row := n.infer("/v2/models/"+model+"/infer", irisTensor)
		if len(row) != 3 || argmax(t, row) != 0 {
			t.Errorf("%s: %v", model, row)
		}
	}
}

// TestMigrateKServe: the service of KServe's manifest becomes one of ours that answers
// as it did; what ours cannot say stays KServe's.
func TestMigrateKServe(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	r := n.run("migrate", "kserve", filepath.Join(root, "examples/quickstart/digits.yaml"))
	if r.code != 0 {
		t.Fatal(r)
	}
	contains(t, r.out, "kind: ModelService", "name: lightgbm", "file://"+root)
	n.up("-f", write(t, t.TempDir(), "digits.yaml", r.out))
	row := n.infer("/v2/models/digits/infer", read(t, filepath.Join(root, "examples/quickstart/digits-request.json")))
	if len(row) != 10 || argmax(t, row) != 0 {
		t.Errorf("digits: %v", row)
	}
	r = n.run("migrate", "kserve", filepath.Join(root, "examples/manifests/kserve-custom.yaml"))
	contains(t, r.out, "it stays as it is", "serving.kserve.io/v1beta1")
	if r = n.run("migrate", "kserve"); r.code != 2 {
		t.Errorf("nothing given: %v", r)
	}
}
