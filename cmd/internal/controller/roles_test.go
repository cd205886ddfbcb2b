package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestTransformerAwakePredictorAsleep: each role scales by itself, so that a
// transformer may be up while its predictor sleeps. A gateway knows that the one
// needs the other, and wakes it; the controller then keeps it.
func TestTransformerAwakePredictorAsleep(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t, ns), kubetest.Server(t))
	f := follow(t, ns)
	n := &nodes{t: t, c: c, ns: ns}
	k := service.Key{Namespace: ns, Name: "iris"}
	kubetest.Apply(t, c, ns, `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec:
  predictor:
    minReplicas: 0
    model: {modelFormat: {name: sklearn}, storageUri: s3://bucket/iris, runtime: kserve-mlserver}
  transformer:
    minReplicas: 1
    containers: [{name: kserve-container, image: transformer}]
`)
	count := func(r service.Role) func() string {
		return func() string { return fmt.Sprint(n.count(k, r)) }
	}
	eventuallyIs(t, "the transformer", count(service.RoleTransformer), "1")
	eventuallyIs(t, "the predictor", count(service.RoleEngine), "0")
	n.becomes(n.pod(k, service.RoleTransformer), "", "")
	eventuallyIs(t, "at the gateway", func() string { return f.is(k) }, "1 of 1 ready, canary 0 %")
	f.mu.Lock()
	if v := f.views[k]; v.Role != service.RoleTransformer || !slices.Equal(v.Needs, []service.Role{service.RoleEngine}) {
		t.Errorf("enters through the %s, which needs %v", v.Role, v.Needs)
	}
	f.mu.Unlock()
	if err := f.waker.Wake(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	eventuallyIs(t, "woken", count(service.RoleEngine), "1")
	n.becomes(n.pod(k, service.RoleEngine), "", "")
	eventuallyIs(t, "woken", func() string { return f.is(k) }, "2 of 2 ready, canary 0 %")
	if got := count(service.RoleEngine)(); got != "1" {
		t.Errorf("the controller set the count that a gateway raised to %s", got)
	}
}

// TestCountOfSomebodyElse: where another autoscaler sets the count, the status
// says its count, and not what we would have.
func TestCountOfSomebodyElse(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t, ns), kubetest.Server(t))
	n := &nodes{t: t, c: c, ns: ns}
	k := service.Key{Namespace: ns, Name: "iris"}
	u := kubetest.Apply(t, c, ns, strings.NewReplacer("{name: iris}", "{name: iris, annotations: {roundhouse.dev/autoscalerClass: external}}", "minReplicas: 1", "minReplicas: 0").Replace(iris))[0]
	desired := func() string {
		parts, _, _ := unstructured.NestedSlice(get(t, c, u).Object, "status", "components")
		if len(parts) != 1 {
			return "nothing"
		}
		return fmt.Sprint(parts[0].(map[string]any)["desired"])
	}
	state := func() string { return field(get(t, c, u), "status", "model", "state") }
	eventuallyIs(t, "applied", desired, "0")
	eventuallyIs(t, "applied", state, "Standby")
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = ns, shape.Name(k, service.RoleEngine)
	scale := func(to int) {
		t.Helper()
		if err := c.Patch(t.Context(), d.DeepCopy(), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, to))); err != nil {
			t.Fatal(err)
		}
	}
	scale(3)
	eventuallyIs(t, "scaled by somebody else", desired, "3")
	eventuallyIs(t, "scaled by somebody else", state, "Pending")
	scale(2)
	eventuallyIs(t, "scaled down by somebody else", desired, "2")
	if got := n.count(k, service.RoleEngine); got != 2 {
		t.Errorf("the count that is somebody else's was set to %d", got)
	}
}

// TestQuotaAtTheGateway: why no pod can be made reaches the request path of a gateway, and
// goes when it no longer holds.
func TestQuotaAtTheGateway(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t, ns), kubetest.Server(t))
	f := follow(t, ns)
	n := &nodes{t: t, c: c, ns: ns}
	for name, manifest := range map[string]string{"iris": iris, "example-sklearn-isvc": strings.Replace(kserveSklearn, "predictor:", "predictor:\n    minReplicas: 1", 1)} {
		k := service.Key{Namespace: ns, Name: name}
		kubetest.Apply(t, c, ns, manifest)
		eventuallyIs(t, "applied", func() string { return fmt.Sprint(n.count(k, service.RoleEngine)) }, "1")
		refused := func(status string) {
			d := &appsv1.Deployment{}
			d.Namespace, d.Name = ns, shape.Name(k, service.RoleEngine)
			n.patch(c.SubResource("status").Patch, d, map[string]any{"status": map[string]any{"conditions": []any{map[string]any{
				"type": "ReplicaFailure", "status": status, "reason": "FailedCreate", "message": `pods "x" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=2, limited: pods=2`}}}})
		}
		cause := func() string {
			f.mu.Lock()
			defer f.mu.Unlock()
			v := f.views[k]
			return fmt.Sprintf("%s %s %v", v.Reason, v.Cause, v.Blocked)
		}
		eventuallyIs(t, "awaited", cause, "  false")
		refused("True")
		eventuallyIs(t, "refused", cause, "QuotaExceeded the namespace's quota is used up: gpus, requested: pods=1, used: pods=2, limited: pods=2: raise it, or end something; Kubernetes tries again by itself, the longer it waits the later, up to 17 minutes false")
		refused("False")
		eventuallyIs(t, "no longer refused", cause, "  false")
	}
}

// TestRuntimeRefused: what is wrong with a runtime is in its status, also with
// a runtime of the cluster, until it is mended.
func TestRuntimeRefused(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t, ns), kubetest.Server(t))
	for _, kind := range []string{"ServingRuntime", "ClusterServingRuntime"} {
		manifest := func(priority int) string {
			return fmt.Sprintf(`{apiVersion: roundhouse.dev/v1alpha1, kind: %s, metadata: {name: %s-twice}, spec: {engine: {image: i}, supportedModelFormats: [{name: odd, version: "1", autoSelect: true, priority: 1}, {name: odd, version: "2", autoSelect: true, priority: %d}]}}`, kind, ns, priority)
		}
		u := kubetest.Apply(t, c, ns, manifest(2))[0]
		said := func() string {
			list, _, _ := unstructured.NestedSlice(get(t, c, u).Object, "status", "conditions")
			for _, raw := range list {
				m := raw.(map[string]any)
				return fmt.Sprint(m["type"], " ", m["status"], " ", m["reason"])
			}
			return "nothing"
		}
		eventuallyIs(t, kind+" refused", said, "Ready False Refused")
		kubetest.Apply(t, c, ns, manifest(1))
		eventuallyIs(t, kind+" mended", said, "Ready True Accepted")
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
}
