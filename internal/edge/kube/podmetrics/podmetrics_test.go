package podmetrics

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// definition has the API server keep what metrics-server would serve.
const definition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: pods.metrics.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for a test"}
spec:
  group: metrics.k8s.io
  names: {kind: PodMetrics, listKind: PodMetricsList, plural: pods, singular: podmetrics}
  scope: Namespaced
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

const podManifest = `
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app.kubernetes.io/managed-by: roundhouse}}
spec:
  containers:
  - {name: main, image: x, resources: {requests: %s}}
  - {name: side, image: x, resources: {requests: {cpu: 500m, memory: 512Mi}}}
`

const measured = `
apiVersion: metrics.k8s.io/v1beta1
kind: PodMetrics
metadata: {name: %s, labels: {app.kubernetes.io/managed-by: roundhouse}}
timestamp: %q
window: 15s
containers:
- {name: main, usage: {cpu: %s, memory: 1Gi}}
- {name: side, usage: {cpu: 250m, memory: 512Mi}}
`

// TestReadsRealServer: of an API server without metrics.k8s.io the reader says so;
// of one with it, what pods take of their requests, which grows old where nothing is
// measured any more.
func TestReadsRealServer(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	var mu sync.Mutex
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	cfg := DefaultConfig()
	cfg.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	pass := func(d time.Duration) { mu.Lock(); now = now.Add(d); mu.Unlock() }
	fresh := func() *Reader { // as a controller that begins has it
		api, err := client.New(kubetest.Server(t), client.Options{Scheme: kube.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Client = api
		r, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := fresh()
	read := func(name string) *replica.Use {
		_ = r.Use(ns, name)
		for _, in := range r.wanted() {
			r.read(t.Context(), in)
		}
		return r.Use(ns, name)
	}
	if got := r.Use(ns, "a"); got.Problem != "not read yet" || !got.At.IsZero() {
		t.Errorf("before the first reading: %+v", got)
	}
	if got := read("a"); !strings.Contains(got.Problem, "install metrics-server") || !got.At.IsZero() {
		t.Errorf("without metrics.k8s.io: %+v", got)
	}
	u := kubetest.Apply(t, c, "", definition)[0]
	t.Cleanup(func() { _ = c.Delete(context.Background(), u) })
	kubetest.Apply(t, c, ns, fmt.Sprintf(podManifest, "a", "{cpu: 1, memory: 512Mi}"))
	kubetest.Apply(t, c, ns, fmt.Sprintf(podManifest, "b", "{memory: 512Mi}"))
	kubetest.Eventually(t, func() string {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(Kind)
		if err := c.List(t.Context(), list, client.InNamespace(ns)); err != nil {
			return err.Error()
		}
		return ""
	})
	if got := read("a"); !got.At.IsZero() || !strings.Contains(got.Problem, "no measurement of it yet") {
		t.Errorf("before the first measurement: %+v", got)
	}
	kubetest.Apply(t, c, ns, fmt.Sprintf(measured, "a", "2026-11-22T11:59:50Z", "1250m"))
	kubetest.Apply(t, c, ns, fmt.Sprintf(measured, "b", "2026-11-22T11:59:50Z", "1"))
	at := cfg.Now()
	if got := read("a"); got.CPU != 100 || got.Memory != 150 || !got.At.Equal(at) || got.Problem != "" {
		t.Errorf("measured: %+v", got)
	}
	if got := read("b"); got.CPU >= 0 || got.Memory != 150 || !strings.Contains(got.Problem, "container main requests no cpu") {
		t.Errorf("without a request for cpu: %+v", got)
	}
	pass(20 * time.Second)
	if got := read("a"); !got.At.Equal(at) {
		t.Errorf("the same measurement again is taken for a new one: %+v", got)
	}
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(Kind.GroupVersion().WithKind("PodMetrics"))
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "a"}, live); err != nil {
		t.Fatal(err)
	}
	live.Object["timestamp"] = "2026-11-22T12:00:05Z"
	if err := c.Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	if got := read("a"); !got.At.Equal(cfg.Now()) {
		t.Errorf("a new measurement: %+v", got)
	}
	pass(askedFor + time.Second)
	if left := r.wanted(); len(left) != 0 {
		t.Errorf("nobody asks, and %v are read", left)
	}
}

// TestPercent: what cannot be read says nothing, and never that a pod is idle.
func TestPercent(t *testing.T) {
	requests := map[corev1.ResourceName]float64{corev1.ResourceCPU: 2}
	for text, want := range map[string]float64{
		`[{"usage": {"cpu": "1"}}, {"usage": {"cpu": "500m"}}]`: 75,
		`[{"usage": {"cpu": "lots"}}]`:                          -1,
		`[{"usage": {}}]`:                                       -1,
		`[{"usage": "cpu"}]`:                                    -1,
		`["x"]`:                                                 -1,
		`[]`:                                                    -1,
	} {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(`{"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics", "metadata": {"name": "a"}, "containers": ` + text + `}`)); err != nil {
			t.Fatal(err)
		}
		if got := percent(u, corev1.ResourceCPU, requests); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
		if got := percent(u, corev1.ResourceMemory, requests); got != -1 {
			t.Errorf("%s: memory %v", text, got)
		}
	}
}
