package controller

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// gatewayRig is a namespace with the Gateway API installed as it is published.
type gatewayRig struct {
	t  *testing.T
	c  client.Client
	ns string
}

func newGatewayRig(t *testing.T) *gatewayRig {
	c := kubetest.Client(t)
	kubetest.Published(t, c, kubetest.GatewayAPI, kubetest.InferenceExtension)
	return &gatewayRig{t, c, kubetest.Namespace(t, c, map[string]string{"roundhouse.dev/adopt": "gateway"})}
}

// apply applies manifests to the rig's namespace; NS in them is its name.
func (r *gatewayRig) apply(text string) {
	r.t.Helper()
	kubetest.Place(r.t, r.c, r.ns, text)
}

func (r *gatewayRig) get(kind, name string) *unstructured.Unstructured {
	r.t.Helper()
	u := &unstructured.Unstructured{}
	gvk := schema.GroupVersionKind{Group: "gateway.networking.k8s.io", Version: "v1", Kind: kind}
	if kind == "InferencePool" {
		gvk.Group = "inference.networking.k8s.io"
	}
	u.SetGroupVersionKind(gvk)
	key := client.ObjectKey{Namespace: r.ns, Name: name}
	if kind == "GatewayClass" {
		key.Namespace = ""
	}
	if err := r.c.Get(r.t.Context(), key, u); err != nil {
		r.t.Fatal(err)
	}
	return u
}

// said are the conditions of a list, "Type=Status/Reason".
func said(list any) string {
	var out []string
	all, _ := list.([]any)
	for _, c := range all {
		c := c.(map[string]any)
		out = append(out, fmt.Sprintf("%s=%s/%s", c["type"], c["status"], c["reason"]))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// parents are the conditions by parent and controller.
func (r *gatewayRig) parents(kind, name string) string {
	r.t.Helper()
	all, _, _ := unstructured.NestedSlice(r.get(kind, name).Object, "status", "parents")
	var out []string
	for _, p := range all {
		p := p.(map[string]any)
		out = append(out, fmt.Sprintf("%s by %s: %s", p["parentRef"].(map[string]any)["name"], p["controllerName"], said(p["conditions"])))
	}
	return strings.Join(out, "; ")
}

func (r *gatewayRig) await(what func() string, want string) {
	r.t.Helper()
	kubetest.Eventually(r.t, func() string {
		if got := what(); got != want {
			return fmt.Sprintf("%q, want %q", got, want)
		}
		return ""
	})
}

const gatewayManifests = kubetest.GatewayClasses + `
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: ours}
spec:
  gatewayClassName: NS
  listeners:
  - {name: web, port: 80, protocol: HTTP, hostname: "*.models.test"}
  - {name: far, port: 81, protocol: HTTP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: theirs}
spec: {gatewayClassName: NS-other, listeners: [{name: web, port: 80, protocol: HTTP}]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: chat}
spec: {model: {uri: "https://models.test/x", format: {name: unheard}}}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: pool}
spec: {selector: {matchLabels: {app: x}}, targetPorts: [{number: 8000}], endpointPickerRef: {name: picker, port: {number: 9002}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: good}
spec:
  parentRefs: [{name: ours, sectionName: web}, {name: theirs}]
  hostnames: [chat.models.test]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: lost}
spec:
  parentRefs: [{name: ours, sectionName: web}]
  rules: [{backendRefs: [{name: nothing, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: filtered}
spec:
  parentRefs: [{name: ours, sectionName: web}]
  rules: [{filters: [{type: ExtensionRef, extensionRef: {group: example.com, kind: Filter, name: theirs}}], backendRefs: [{name: chat, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: elsewhere}
spec:
  parentRefs: [{name: ours, sectionName: web}]
  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool, namespace: default}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: others}
spec:
  parentRefs: [{name: theirs}]
  rules: [{backendRefs: [{name: chat, port: 80}]}]
`

const (
	fineRoute = "Accepted=True/Accepted ResolvedRefs=True/ResolvedRefs"
	byUs      = "ours by roundhouse.dev/gateway: "
)

// frontService is the gateway's Service, with an address as a cluster gives it.
func frontService(t *testing.T, c client.Client, name string) {
	t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "grpc", Port: 8081}}}}
	if err := c.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(t.Context(), s) }) // also of tests that failed
}

// message is that of a pool's first parent about its endpoint picker.
func message(u *unstructured.Unstructured) string {
	parents, _, _ := unstructured.NestedSlice(u.Object, "status", "parents")
	for _, p := range parents {
		conditions, _, _ := unstructured.NestedSlice(p.(map[string]any), "conditions")
		for _, c := range conditions {
			if c := c.(map[string]any); c["type"] == "ResolvedRefs" {
				return fmt.Sprint(c["message"])
			}
		}
	}
	return ""
}

// TestGatewayAPI writes the status of GatewayClasses, Gateways, HTTPRoutes and
// InferencePools as their published definitions have it, of ours alone; what
// others wrote stays; a restart writes nothing; definitions may go.
func TestGatewayAPI(t *testing.T) {
	r := newGatewayRig(t)
	o := options(t)
	o.gatewayService, o.adopt = "gateway-"+r.ns, nil
	frontService(t, r.c, o.gatewayService)
	r.apply(gatewayManifests)
	// Another gateway has written its part.
	theirs := r.get("HTTPRoute", "good")
	theirs.Object["status"] = map[string]any{"parents": []any{map[string]any{"parentRef": map[string]any{"name": "theirs"}, "controllerName": "example.com/gateway",
		"conditions": []any{map[string]any{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "observedGeneration": int64(1), "lastTransitionTime": "2026-01-01T00:00:00Z"}}}}}
	if err := r.c.Status().Update(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	before := r.get("HTTPRoute", "others").GetResourceVersion() + r.get("Gateway", "theirs").GetResourceVersion()
	run := begin(t, o, kubetest.Server(t))

	status := func(kind, name, field string) func() string {
		return func() string {
			v, _, _ := unstructured.NestedFieldNoCopy(r.get(kind, name).Object, "status", field)
			return said(v)
		}
	}
	r.await(status("GatewayClass", r.ns, "conditions"), "Accepted=True/Accepted SupportedVersion=True/SupportedVersion")
	r.await(status("Gateway", "ours", "conditions"), "Accepted=True/ListenersNotValid Programmed=True/Programmed")
	const theirEntry = "theirs by example.com/gateway: Accepted=True/Accepted; "
	for name, want := range map[string]string{
		"good":      theirEntry + byUs + fineRoute,
		"lost":      byUs + "Accepted=True/Accepted ResolvedRefs=False/BackendNotFound",
		"filtered":  byUs + "Accepted=True/Accepted ResolvedRefs=False/InvalidKind",
		"elsewhere": byUs + "Accepted=True/Accepted ResolvedRefs=False/RefNotPermitted",
		"others":    "",
	} {
		r.await(func() string { return r.parents("HTTPRoute", name) }, want)
	}
	// The endpoint picker that the pool names is missing, has another port, is there.
	pool := func() string { return r.parents("InferencePool", "pool") }
	r.await(pool, byUs+"Accepted=True/Accepted ResolvedRefs=False/InvalidExtensionRef")
	r.apply("apiVersion: v1\nkind: Service\nmetadata: {name: picker}\nspec: {ports: [{name: grpc, port: 9003}]}\n")
	r.await(func() string { return message(r.get("InferencePool", "pool")) }, "endpointPickerRef: Service picker has no port 9002; as failureMode FailClose says, requests are refused")
	r.apply("apiVersion: v1\nkind: Service\nmetadata: {name: picker}\nspec: {ports: [{name: grpc, port: 9002}]}\n")
	r.await(pool, byUs+fineRoute)
	g := r.get("Gateway", "ours")
	listeners, _, _ := unstructured.NestedSlice(g.Object, "status", "listeners")
	want := []string{"Accepted=True/Accepted Conflicted=False/NoConflicts Programmed=True/Programmed ResolvedRefs=True/ResolvedRefs",
		"Accepted=False/PortUnavailable Conflicted=False/NoConflicts Programmed=False/Invalid ResolvedRefs=True/ResolvedRefs"}
	kinds := []any{map[string]any{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute"}, map[string]any{"group": "gateway.networking.k8s.io", "kind": "GRPCRoute"}}
	for i, l := range listeners {
		l := l.(map[string]any)
		if got := said(l["conditions"]); got != want[i] || !reflect.DeepEqual(l["supportedKinds"], kinds) {
			t.Errorf("listener %v: %s, want %s", l, got, want[i])
		}
	}
	r.await(func() string {
		listeners, _, _ := unstructured.NestedSlice(r.get("Gateway", "ours").Object, "status", "listeners")
		return fmt.Sprint(listeners[0].(map[string]any)["attachedRoutes"], listeners[1].(map[string]any)["attachedRoutes"])
	}, "4 0")
	var svc corev1.Service
	if err := r.c.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: o.gatewayService}, &svc); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedSlice(g.Object, "status", "addresses"); !reflect.DeepEqual(got, []any{map[string]any{"type": "IPAddress", "value": svc.Spec.ClusterIP}}) {
		t.Errorf("addresses %v, the Service's is %s", got, svc.Spec.ClusterIP)
	}
	if now := r.get("HTTPRoute", "others").GetResourceVersion() + r.get("Gateway", "theirs").GetResourceVersion(); now != before {
		t.Error("objects of another class were written")
	}

	// A restart writes nothing.
	if err := run.stop(); err != nil {
		t.Fatal(err)
	}
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	run = begin(t, o, cfg)
	<-run.routes.gateways.Synced()
	r.apply("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: later}\nspec: {parentRefs: [{name: ours, sectionName: web}], rules: [{backendRefs: [{name: chat, port: 80}]}]}\n")
	r.await(func() string { return r.parents("HTTPRoute", "later") }, byUs+fineRoute)
	for _, call := range writes.Take() {
		if strings.Contains(call, "networking") && !strings.Contains(call, "/later/") && !strings.Contains(call, "/gateways/ours/") {
			t.Errorf("a restart wrote %s", call)
		}
	}

	// What is put right, or taken away, is said anew.
	r.apply("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: good}\nspec: {parentRefs: [{name: theirs}], rules: [{backendRefs: [{name: chat, port: 80}]}]}\n")
	r.await(func() string { return r.parents("HTTPRoute", "good") }, strings.TrimSuffix(theirEntry, "; "))
	r.await(func() string { return r.parents("InferencePool", "pool") }, "")
	r.apply("apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: nothing}\nspec: {model: {uri: \"https://models.test/x\", format: {name: unheard}}}\n")
	r.await(func() string { return r.parents("HTTPRoute", "lost") }, byUs+fineRoute)
	// A namespace that is not adopted any more.
	var ns corev1.Namespace
	if err := r.c.Get(t.Context(), client.ObjectKey{Name: r.ns}, &ns); err != nil {
		t.Fatal(err)
	}
	delete(ns.Labels, "roundhouse.dev/adopt")
	if err := r.c.Update(t.Context(), &ns); err != nil {
		t.Fatal(err)
	}
	r.await(func() string { return r.parents("HTTPRoute", "lost") }, byUs+"Accepted=False/UnsupportedValue")
}

// TestPoolAddresses: the status of a pool says which of its addresses gateways
// refuse, and a controller that starts again does not write it anew.
func TestPoolAddresses(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	o := options(t)
	first := begin(t, o, kubetest.Server(t))
	pools := kubetest.Apply(t, c, ns, `
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: literal}
spec: {addresses: ["10.1.2.3:8000"]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: named}
spec: {addresses: ["localhost:8000"]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: public}
spec: {addresses: ["192.0.2.1:8000"]}
`)
	says := func(want ...string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			for i, words := range want {
				got := condition(get(t, c, pools[i]), "Ready")
				for _, w := range strings.Split(words, ", ") {
					if !strings.Contains(got, w) {
						return fmt.Sprintf("%s: %q lacks %q", pools[i].GetName(), got, w)
					}
				}
			}
			return ""
		})
	}
	says("status:False, reason:NoEndpoints, 10.1.2.3 is an internal address", "status:False, localhost: , is an internal address", "status:True, 1 address")
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	var before []string
	for _, p := range pools {
		before = append(before, get(t, c, p).GetResourceVersion())
	}
	again := begin(t, o, kubetest.Server(t))
	// A change that comes after all else has been looked at.
	last := kubetest.Apply(t, c, ns, `
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: probe}
spec: {addresses: ["10.1.2.3:8000", "localhost:8001"]}
`)
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, last[0]), "Ready"); !strings.Contains(got, "localhost: ") {
			return got
		}
		return ""
	})
	for i, p := range pools {
		if now := get(t, c, p).GetResourceVersion(); now != before[i] {
			t.Errorf("%s was written again", p.GetName())
		}
	}
	if err := again.stop(); err != nil {
		t.Fatal(err)
	}
	o.internalAddresses = true
	begin(t, o, kubetest.Server(t))
	says("status:True, 1 address", "status:True, 1 address", "status:True, 1 address")
}
