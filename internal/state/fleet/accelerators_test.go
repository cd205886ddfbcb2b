package fleet_test

import (
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func classYAML(name, spec string) string {
	return "apiVersion: ome.io/v1beta1\nkind: AcceleratorClass\nmetadata: {name: " + name + "}\nspec: {" + spec + "}\n---\n"
}

const classedRuntime = `apiVersion: ome.io/v1beta1
kind: ClusterServingRuntime
metadata: {name: engine}
spec:
  supportedModelFormats:
  - modelFormat: {name: safetensors}
    autoSelect: true
    acceleratorConfig:
      small: {tensorParallelismOverride: {tensorParallelSize: 4}}
      large: {runtimeArgsOverride: [--dtype=fp8]}
  acceleratorRequirements: {acceleratorClasses: [small, large, huge]}
  engineConfig: {runner: {image: lmsysorg/sglang, args: [--port=8080]}}
---
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: model}
spec:
  modelFormat: {name: safetensors}
  storage: {storageUri: "file:///m", nodeSelector: {disk: nvme}}
---
`

func classedService(selector string) string {
	return "apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec: {model: {name: model}, engine: {minReplicas: 1}, acceleratorSelector: " + selector + "}\n"
}

// TestAcceleratorClassOfAService: a class is chosen, stays although another would be
// chosen now, and its revision changes as it does. A class that is deleted changes
// nothing.
func TestAcceleratorClassOfAService(t *testing.T) {
	r := newRig(t)
	r.cluster, r.platform.cluster = true, true
	r.restart()
	args := func() string {
		r.t.Helper()
		r.reconcile("a")
		rev := r.platform.revisions[key("a")]
		c := rev.Component(service.RoleEngine)
		if c == nil {
			return ""
		}
		return strings.Join(c.Pod.Containers[0].Args, " ") + " on " + c.Pod.NodeSelector["gpu"] + c.Pod.NodeSelector["disk"]
	}
	r.apply(classedRuntime + classedService("{policy: Cheapest}"))
	if got := args(); got != "--port=8080 on nvme" {
		t.Fatalf("without any class: %s", got)
	}
	r.apply(classYAML("small", "discovery: {nodeSelector: {gpu: small-}}, cost: {tier: medium}"))
	if got := args(); got != "--port=8080 --tp-size=4 on small-nvme" {
		t.Errorf("a class is applied: %s", got)
	}
	if got := r.platform.revisions[key("a")].Runtime.Accelerators; got != (service.RoleClasses{Engine: "small"}) {
		t.Errorf("chosen is %+v", got)
	}
	r.apply(classYAML("large", "discovery: {nodeSelector: {gpu: large-}}, cost: {tier: low}"))
	if got := args(); !strings.HasSuffix(got, "small-nvme") {
		t.Errorf("a cheaper class moves a service: %s", got)
	}
	ex, err := r.Explain(t.Context(), parse(t, classedService("{policy: Cheapest}"))[0])
	if err != nil || ex.Result.Chosen == nil || ex.Result.Chosen.Classes.Engine != "large" {
		t.Errorf("explain: %v, %+v", err, ex.Result.Chosen)
	}
	before := r.platform.revisions[key("a")].Hash
	r.apply(classYAML("small", "discovery: {nodeSelector: {gpu: other-}}, cost: {tier: medium}"))
	if got := args(); !strings.HasSuffix(got, "other-nvme") || r.platform.revisions[key("a")].Hash == before {
		t.Errorf("another selector: %s", got)
	}
	before = r.platform.revisions[key("a")].Hash
	r.apply(classYAML("small", "discovery: {nodeSelector: {gpu: other-}}, cost: {tier: high}"))
	if args(); r.platform.revisions[key("a")].Hash != before {
		t.Error("what a class costs makes another revision")
	}
	r.restart()
	if got := args(); !strings.HasSuffix(got, "other-nvme") {
		t.Errorf("after a restart: %s", got)
	}
	r.apply(classedService("{acceleratorClass: large}"))
	if got := args(); got != "--port=8080 --dtype=fp8 on large-nvme" {
		t.Errorf("by name: %s", got)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "acceleratorclass", Key: service.Key{Name: "large"}}); err != nil {
		t.Fatal(err)
	}
	if got := args(); !strings.HasSuffix(got, "large-nvme") {
		t.Errorf("the class is deleted: %s", got)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "acceleratorclass", Key: service.Key{Name: "large"}}); err == nil || !strings.Contains(err.Error(), "get acceleratorclasses") {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestAcceleratorClassThatNoGPUIsOf: on one machine the reason says what is lacking,
// and the service starts once a class changes to one that is there.
func TestAcceleratorClassThatNoGPUIsOf(t *testing.T) {
	r := newRig(t)
	r.platform.gpus = []selection.GPU{{Name: "NVIDIA L4", Memory: 24 << 30}}
	const local = `apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: engine}
spec:
  supportedModelFormats: [{name: safetensors, autoSelect: true}]
  acceleratorClasses: [one]
  local: {command: [oak]}
---
`
	r.apply(strings.Replace(classedRuntime, "name: engine", "name: other", 1) + local + classYAML("one", "model: h100") + classedService("{acceleratorClass: one}"))
	r.reconcile("a")
	if got := r.ready("a"); !strings.Contains(got.Message, "engine could serve it, but class one is not on this machine, which has NVIDIA L4 (24 GB)") {
		t.Errorf("ready: %+v", got)
	}
	r.apply(classYAML("one", "model: l4, capabilities: {memoryGB: 24}"))
	r.reconcile("a")
	if got := r.runs("a"); got != "engine" {
		t.Errorf("runs %q: %+v", got, r.ready("a"))
	}
}
