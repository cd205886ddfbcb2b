package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// engineOf is the container of a service's engine, and what brings its files.
func engineOf(t *testing.T, c client.Client, ns, name string) (args string, fetched []string) {
	t.Helper()
	var d appsv1.Deployment
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: shape.Name(service.Key{Namespace: ns, Name: name}, service.RoleEngine)}, &d); err != nil {
		return err.Error(), nil
	}
	for _, init := range d.Spec.Template.Spec.InitContainers {
		fetched = append(fetched, strings.Join(init.Args, " "))
	}
	at := slices.IndexFunc(d.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return len(c.Args) > 0 })
	return strings.Join(d.Spec.Template.Spec.Containers[at].Args, " "), fetched
}

const omeWeight = `
apiVersion: ome.io/v1beta1
kind: FineTunedWeight
metadata: {name: NAME}
spec:
  baseModelRef: {name: BASE}
  modelType: LoRA
  hyperParameters: {strategy: lora, lora_rank: 20}
  configuration: {}
  storage: {storageUri: "URI"}
`

// TestFineTunedWeights serves OME's kind of adapters in pods: weights that come
// later, of another model, that move and that go.
func TestFineTunedWeights(t *testing.T) {
	c := kubetest.Client(t, "ome")
	ns := kubetest.Namespace(t, c, nil)
	base, weight := ns+"-base", ns+"-finance" // cluster-scoped, so by names of this test's
	named := func(text, base, uri string) string {
		return strings.NewReplacer("NAME", weight, "BASE", base, "URI", uri).Replace(text)
	}
	begin(t, options(t, ns), kubetest.Server(t))
	const text = `
apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: BASE}
spec:
  modelArchitecture: SomeForCausalLM
  modelParameterSize: 7B
  modelFormat: {name: safetensors, version: "1.0.0"}
  storage: {storageUri: "pvc://models/base"}
---
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: chat}
spec:
  model: {name: BASE, fineTunedWeights: [NAME]}
  runtime: {name: vllm}
  engine: {minReplicas: 1, maxReplicas: 1}
`
	applied := kubetest.Apply(t, c, ns, named(text, base, ""))
	u := applied[len(applied)-1]
	says := func(want string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if got := fmt.Sprint(get(t, c, u).Object["status"]); !strings.Contains(got, want) {
				return want + " in " + got
			}
			return ""
		})
	}
	says(fmt.Sprintf("no FineTunedWeight named %q: apply it", weight))
	kubetest.Apply(t, c, ns, named(omeWeight, "mistral", "pvc://weights/finance"))
	says(fmt.Sprintf(`of base model "mistral", and the service serves %q`, base))
	kubetest.Apply(t, c, ns, named(omeWeight, base, "pvc://weights/finance"))
	runs := func(want string, fetches ...string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			args, fetched := engineOf(t, c, ns, "chat")
			if !strings.HasSuffix(args, want) || !slices.Equal(fetched, fetches) {
				return fmt.Sprintf("%s, not %s; %q", want, args, fetched)
			}
			return ""
		})
	}
	lora := "--max-lora-rank 32 --enable-lora --max-loras 1 --lora-modules " + weight + "=/mnt/adapters/" + weight
	runs(lora)
	w := kubetest.Apply(t, c, ns, named(omeWeight, base, "s3://weights/finance"))[0]
	runs(lora, "pull s3://weights/finance --out /mnt/adapters/"+weight)
	// A weight that goes leaves the revision that has it; the next change of the
	// service says that it is gone.
	if err := c.Delete(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	counts := 1
	kubetest.Eventually(t, func() string {
		counts++
		kubetest.Apply(t, c, ns, strings.Replace(named(text, base, ""), "maxReplicas: 1", fmt.Sprint("maxReplicas: ", counts), 1))
		status := fmt.Sprint(get(t, c, u).Object["status"])
		if want := fmt.Sprintf("no FineTunedWeight named %q: apply it", weight); !strings.Contains(status, want) {
			return want + " in " + status
		}
		return ""
	})
	runs(lora, "pull s3://weights/finance --out /mnt/adapters/"+weight)
	for _, o := range []*unstructured.Unstructured{u, applied[0]} {
		if err := c.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAdaptersAtTheGateway: a gateway knows a service's adapters by its record.
func TestAdaptersAtTheGateway(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t, ns), kubetest.Server(t))
	f := follow(t, ns)
	k := service.Key{Namespace: ns, Name: "llama"}
	const text = `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: llama}
spec:
  model:
    format: {name: simulator}
    adapters: [ADAPTERS]
  scaling: {minReplicas: 0, maxReplicas: 1}
`
	for _, step := range []struct {
		manifest string
		want     []workload.Adapter
		args     string
	}{
		{`{name: sql, uri: "pvc://weights/sql"}`, []workload.Adapter{{Name: "sql", URI: "pvc://weights/sql"}}, "--max-loras 1 --lora sql"},
		{`{name: sql, uri: "pvc://weights/sql"}, {name: chat, uri: "pvc://weights/chat"}`,
			[]workload.Adapter{{Name: "sql", URI: "pvc://weights/sql"}, {Name: "chat", URI: "pvc://weights/chat"}}, "--max-loras 2 --lora sql --lora chat"},
		{"", nil, "--port 8080"},
	} {
		kubetest.Apply(t, c, ns, strings.Replace(text, "ADAPTERS", step.manifest, 1))
		kubetest.Eventually(t, func() string {
			f.mu.Lock()
			got := f.views[k].Adapters
			f.mu.Unlock()
			args, _ := engineOf(t, c, ns, "llama")
			if !slices.Equal(got, step.want) || !strings.HasSuffix(args, step.args) {
				return fmt.Sprintf("%v, not %v; %s", step.want, got, args)
			}
			return ""
		})
	}
}
