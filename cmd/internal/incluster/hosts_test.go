package incluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestGatewayWithoutHost: a Gateway that claims no host, in a namespace that
// the operator has not named, has what is no one else's; with the operator's
// word it has all.
func TestGatewayWithoutHost(t *testing.T) {
	r := newRig(t)
	kubetest.Published(t, r.api, kubetest.GatewayAPI, kubetest.InferenceExtension)
	m := newModel(t)
	tenant := kubetest.Namespace(t, r.api, nil)
	apply := func(annotations string) {
		t.Helper()
		for _, u := range kubetest.Parse(t, strings.NewReplacer("NS", tenant, "OTHER", r.ns, "PORT", fmt.Sprint(m.port()), "NOTES", annotations).Replace(`
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: NS, annotations: {NOTES}}
spec: {controllerName: roundhouse.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: all, namespace: NS}
spec: {gatewayClassName: NS, listeners: [{name: web, port: 80, protocol: HTTP}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool, namespace: NS}
spec: {selector: {matchLabels: {app: vllm}}, targetPorts: [{number: PORT}], endpointPickerRef: {name: picker, port: {number: 9002}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: all, namespace: NS}
spec:
  parentRefs: [{name: all}]
  rules: [{matches: [{path: {type: PathPrefix, value: /v1}}], backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]}]
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: names, namespace: OTHER}
spec: {models: [theirs], targets: [{service: nobody}]}
`)) {
			if err := r.api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
				t.Fatal(err)
			}
			if u.GetKind() == "GatewayClass" {
				t.Cleanup(func() { _ = r.api.Delete(context.Background(), u) })
			}
		}
	}
	apply("")
	mine := *r
	mine.ns = tenant
	mine.pod("vllm-1", map[string]string{"app": "vllm"}, corev1.ConditionTrue)
	g := r.gateway(func(o *Options) {
		o.Adopt, o.transform, o.Pickers, o.Namespaces = []string{"gateway"}, podsToo, PickersIgnore, []string{r.ns, tenant}
	})
	answers := func(want map[string]int) {
		t.Helper()
		for at, status := range want {
			host, model, _ := strings.Cut(at, " ")
			kubetest.Eventually(t, func() string {
				if got, body := g.complete(t.Context(), host, "/v1/completions", model); got != status {
					return fmt.Sprintf("%s: %d %s, want %d", at, got, body, status)
				}
				return ""
			})
		}
	}
	gone := "gone." + r.ns + ".models.test"
	answers(map[string]int{"some.test llama": 200, "x." + tenant + ".models.test llama": 200})
	answers(map[string]int{gone + " llama": 404, "models.test llama": 404, "some.test theirs": 500})
	apply("roundhouse.dev/any-host: " + tenant)
	answers(map[string]int{gone + " llama": 200, "models.test llama": 200, "some.test theirs": 200})
}
