package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vllm is a stand-in for the program: it refuses a flag that vLLM's source does not
// have ($FLAGS lists those), notes its arguments, and answers as a simulated engine.
const vllm = `#!/bin/sh
printf '%s\n' "$*" >>"$FOLDER/calls"
[ "$1" = serve ] || { echo "vllm: unexpected $1" >&2; exit 2; }
[ -f "$2/config.json" ] || { echo "vllm: no model at $2" >&2; exit 2; }
shift 2
while [ $# -gt 0 ]; do
  case "$1" in
  --*) grep -qxe "$1" "$FLAGS" || { echo "vllm: unrecognized arguments: $1" >&2; exit 2; } ;;
  esac
  case "$1" in
  --served-model-name) name=$2 ;;
  --port) port=$2 ;;
  esac
  shift
done
exec "$ENGINE" simulate engine --model "$name" --host 127.0.0.1 --port "$port" --speed 1000
`

// withVLLM is a node whose PATH has the stand-in first, and where it notes its calls.
func withVLLM(t *testing.T) (n *node, calls func() string) {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "vllm"), []byte(vllm), 0o700); err != nil {
		t.Fatal(err)
	}
	n = newNode(t)
	n.env = []string{"PATH=" + folder + ":" + os.Getenv("PATH"), "FOLDER=" + folder, "ENGINE=" + binary,
		"FLAGS=" + filepath.Join(root, "test/engines/testdata/published/vllm.txt")}
	return n, func() string {
		text, _ := os.ReadFile(filepath.Join(folder, "calls"))
		return string(text)
	}
}

// tinyModel is a folder that looks like a model of Hugging Face's.
func tinyModel(t *testing.T) string {
	t.Helper()
	return filepath.Dir(write(t, t.TempDir(), "config.json", `{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}`))
}

// TestLLMInferenceService: a service laid over a Config runs vLLM with the arguments
// of its fields, is asked by all its names and at its path, follows its Config, and is
// there again after a restart.
func TestLLMInferenceService(t *testing.T) {
	t.Parallel()
	n, calls := withVLLM(t)
	n.up()
	model, files := tinyModel(t), t.TempDir()
	config := `apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceServiceConfig
metadata: {name: house}
spec:
  model: {uri: "file://` + model + `"}
  router: {route: {}, gateway: {}, scheduler: {}}
  template:
    containers:
      - name: main
        env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-model-len %d"}]
`
	service := `apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: tiny}
spec:
  baseRefs: [{name: house}]
  model: {name: Acme/Tiny-1B, criticality: Critical}
  parallelism: {tensor: 2}
  template:
    containers:
      - name: main
        livenessProbe: {httpGet: {path: /health, port: 8000, scheme: HTTPS}, periodSeconds: 5}
`
	n.do("apply", "-f", write(t, files, "service.yaml", service))
	n.says("tiny", `no LLMInferenceServiceConfig named "house" in namespace default or kserve: apply it`)
	n.do("apply", "-f", write(t, files, "config.yaml", fmt.Sprintf(config, 4096)))
	n.part("tiny", "engine", 0)
	if got, want := calls(), " --tensor-parallel-size 2 --max-model-len 4096\n"; !strings.HasPrefix(got, "serve "+model+" --served-model-name Acme/Tiny-1B --host 127.0.0.1 --port ") || !strings.HasSuffix(got, want) {
		t.Errorf("vllm was called with %q; want at its end %q", got, want)
	}
	for _, at := range []struct{ path, model string }{
		{"/v1", "Acme/Tiny-1B"}, {"/v1", "tiny"}, {"/v1", "default/Acme/Tiny-1B"}, {"/v1", "publishers/default/models/Acme/Tiny-1B"},
		{"/default/tiny/v1", "Acme/Tiny-1B"}, {"/publishers/default/models/Acme/Tiny-1B/v1", "Acme/Tiny-1B"},
	} {
		a := n.post(at.path+"/chat/completions", `{"model": "`+at.model+`", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}`)
		var answer struct{ Model string }
		if err := json.Unmarshal([]byte(a.body), &answer); err != nil || a.status != 200 || answer.Model != "Acme/Tiny-1B" {
			t.Errorf("%s of %s: %s", at.path, at.model, a)
		}
	}
	if a := n.post("/default/other/v1/chat/completions", `{"model": "tiny"}`); a.status != 404 {
		t.Errorf("at the path of no service: %s", a)
	}
	if list := n.get(n.gateway + "/v1/models").body; !strings.Contains(list, `"Acme/Tiny-1B"`) {
		t.Errorf("the models are %s", list)
	}
	if out := n.do("get", "llmisvc", "tiny", "-o", "yaml"); !strings.Contains(out, "type: MainWorkloadReady") || !strings.Contains(out, "addresses:") {
		t.Errorf("its status is not KServe's:\n%s", out)
	}
	n.do("apply", "-f", write(t, files, "config.yaml", fmt.Sprintf(config, 8192)))
	eventually(t, "the Config's change reaches vLLM", func() (bool, string) {
		return strings.HasSuffix(calls(), "--max-model-len 8192\n"), calls()
	})
	if out := n.do("get", "bases"); !strings.Contains(out, "house") {
		t.Errorf("get bases says %s", out)
	}
	n.part("tiny", "engine", 0)
	n.end()
	n.up()
	n.part("tiny", "engine", 0)
	if a := n.post("/v1/completions", `{"model": "Acme/Tiny-1B", "prompt": "Hello", "max_tokens": 2}`); a.status != 200 {
		t.Errorf("after a restart: %s", a)
	}
}

// says waits until a service's state has a text in it.
func (n *node) says(service, want string) {
	n.t.Helper()
	eventually(n.t, service+" says "+want, func() (bool, string) {
		out := n.run("describe", service).out
		return strings.Contains(out, want), out
	})
}

// TestLLMInferenceServiceCommands: a Config of KServe's own namespace has a shell start
// vLLM, with KServe's templates; prefill and decode are apart; a group shares the
// requests for one name.
func TestLLMInferenceServiceCommands(t *testing.T) {
	t.Parallel()
	n, calls := withVLLM(t)
	n.up()
	model := tinyModel(t)
	one := func(name, rest string) string {
		return "---\napiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata: {name: " + name + "}\nspec:\n  model: {uri: \"file://" + model + "\", name: Acme/" + name + "}\n" + rest
	}
	n.do("apply", "-f", write(t, t.TempDir(), "all.yaml", `apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceServiceConfig
metadata: {name: shell, namespace: kserve}
spec:
  template:
    containers:
      - name: main
        image: registry.example.com/engine:1
        command: [/bin/sh, -c]
        args:
          - >
            exec vllm serve /mnt/models --served-model-name "{{ .Spec.Model.Name }}" --port 8000
            {{- if .GlobalConfig.EnableTLS }} --ssl-certfile /tls{{ end }} $VLLM_ADDITIONAL_ARGS
`+one("shell", "  baseRefs: [{name: shell}]\n  template: {containers: [{name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: --enforce-eager}]}]}\n")+
		one("apart", "  prefill:\n    template: {containers: [{name: main, args: [--enforce-eager]}]}\n")+
		strings.ReplaceAll(one("blue", "  router: {route: {group: both, weight: 1}}\n"), "Acme/blue", "Acme/both")+
		strings.ReplaceAll(one("green", "  router: {route: {group: both, weight: 0}}\n"), "Acme/green", "Acme/both")))
	for _, s := range []string{"shell", "apart", "blue", "green"} {
		n.part(s, "engine", 0)
	}
	n.part("apart", "decoder", 0)
	for _, want := range []string{"--served-model-name Acme/shell --port ", "--enforce-eager\n", "--served-model-name Acme/apart --host"} {
		if !strings.Contains(calls(), want) {
			t.Errorf("vllm was not called with %q:\n%s", want, calls())
		}
	}
	if strings.Contains(calls(), "--port 8000") || strings.Contains(calls(), "--ssl") {
		t.Errorf("vllm was called with a port or a certificate of the container:\n%s", calls())
	}
	for _, name := range []string{"Acme/shell", "Acme/apart", "Acme/both"} {
		for range 4 {
			if a := n.post("/v1/completions", `{"model": "`+name+`", "prompt": "Hello", "max_tokens": 2}`); a.status != 200 {
				t.Errorf("%s: %s", name, a)
			}
		}
	}
}
