package objects_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

const picking = `
apiVersion: v1
kind: ConfigMap
metadata: {name: %s}
data:
  epp: |
    apiVersion: llm-d.ai/v1alpha1
    kind: EndpointPickerConfig
    plugins: [{type: %s}]
    schedulingProfiles: [{name: default, plugins: [{pluginRef: %[2]s}]}]
`

const scheduled = `
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: llm}
spec:
  model: {uri: "hf://acme/tiny"}
  router: {scheduler: {config: {ref: {name: %s}}}}
`

// TestConfigMaps: those that manifests name are read, before and after, as they change
// and go; no other is.
func TestConfigMaps(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	apply := func(manifest string) client.Object { t.Helper(); return kubetest.Apply(t, c, ns, manifest)[0] }
	first := apply(fmt.Sprintf(picking, "first", "queue-scorer"))
	apply(fmt.Sprintf(picking, "second", "queue-scorer"))
	apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: third}\ndata: {epp: none}\n")
	apply(fmt.Sprintf(scheduled, "first"))

	s, _ := start(t, service.DialectKServe)
	if got := s.origin("configmap", ns, "first"); got != "v1 ConfigMap" { // with the first manifests
		t.Fatalf("the ConfigMap is %q", got)
	}
	scorer := func(name, want string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			s.mu.Lock()
			defer s.mu.Unlock()
			// One that a service names is kept, with a configuration or without.
			o, ok := s.objects[fleet.ID{Kind: "configmap", Key: service.Key{Namespace: ns, Name: name}}]
			got := ""
			if ok && o.ConfigMap.Schedulings["epp"] != nil {
				got = o.ConfigMap.Schedulings["epp"].Picker.Scorers[0].Name
			}
			if got != want {
				return fmt.Sprintf("%s has the scorer %q, not %q", name, got, want)
			}
			return ""
		})
	}
	scorer("first", "queue")
	apply(fmt.Sprintf(picking, "first", "kv-cache-utilization-scorer"))
	scorer("first", "kv")
	if got := s.origin("configmap", ns, "second"); got != "" {
		t.Errorf("a ConfigMap that nobody names is read as %s", got)
	}
	apply(fmt.Sprintf(scheduled, "second"))
	scorer("second", "queue")
	apply(fmt.Sprintf(scheduled, "third")) // without a configuration yet
	apply(fmt.Sprintf(picking, "third", "lora-affinity-scorer"))
	scorer("third", "lora")
	apply(fmt.Sprintf(scheduled, "first"))
	// What the one before last named is forgotten at its next change.
	scorer("first", "kv")
	if err := c.Delete(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	scorer("first", "")
	apply(fmt.Sprintf(picking, "first", "queue-scorer"))
	scorer("first", "queue")
	// One that loses its configuration is no longer one.
	apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first}\ndata: {epp: none}\n")
	scorer("first", "")
	if r := s.refusal("ConfigMap " + ns + "/third"); r.Reason != "" {
		t.Errorf("a ConfigMap of somebody else's is refused: %+v", r)
	}
}
