//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// TestOwnRuntimeInPods: an init container brings a model, our own runtime serves
// it, where the strictest pod security standard is enforced.
func TestOwnRuntimeInPods(t *testing.T) {
	c := node.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const ns = "restricted"
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}); err != nil {
		t.Fatal(err)
	}
	rev := ownRuntime(t, "roundhouse-xgboost", service.Key{Namespace: ns, Name: "iris"}, modelServer(t, "examples/quickstart/models/iris.ubj")+"/the-model.ubj")
	objects, err := shape.Render(rev, shape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	put := func(o any) { t.Helper(); apply(ctx, t, c, o) }
	put(&objects.Services[0])
	put(&objects.Budgets[0])
	began := time.Now()
	put(&objects.Deployments[0]) // one replica, as the API server has it where nobody says
	if err := c.AwaitRollout(ctx, ns, objects.Deployments[0].Name); err != nil {
		said, _ := c.Kubectl(ctx, "describe", "pods", "-n", ns)
		t.Fatalf("%v\n%s", err, said)
	}
	t.Logf("ready after %.1f s", time.Since(began).Seconds())

	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels(objects.Services[0].Spec.Selector)); err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods: %v", len(pods.Items), err)
	}
	pod := pods.Items[0]
	res, err := http.Post("http://"+net.JoinHostPort(pod.Status.PodIP, "8080")+"/v2/models/iris/infer", "application/json",
		strings.NewReader(`{"inputs": [{"name": "input-0", "datatype": "FP32", "shape": [1, 4], "data": [5.1, 3.5, 1.4, 0.2]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"predict"`) {
		t.Fatalf("%s: %s, %v", res.Status, body, err)
	}

	// What is applied again is what is there: no new generation, no new pod.
	put(&objects.Deployments[0])
	var d appsv1.Deployment
	if err := c.Get(ctx, client.ObjectKeyFromObject(&objects.Deployments[0]), &d); err != nil || d.Generation != 1 {
		t.Errorf("generation %d after the same again: %v", d.Generation, err)
	}

	// It goes within its sleep and what the server takes, far from being killed.
	began = time.Now()
	if _, err := c.Kubectl(ctx, "delete", "deployment", d.Name, "-n", ns, "--wait", "--cascade=foreground"); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	t.Logf("gone after %.1f s", took.Seconds())
	if took < 2*time.Second || took > 25*time.Second {
		t.Error("want its sleep of 3 s and little more")
	}
}

// TestONNXInPods: the image with ONNX Runtime serves a model, where the strictest pod
// security standard is enforced, fetched beside the pull as the controller has it.
func TestONNXInPods(t *testing.T) {
	archive := os.Getenv("ROUNDHOUSE_ONNX_IMAGE")
	if archive == "" {
		t.Skip("ROUNDHOUSE_ONNX_IMAGE names no image: make image-onnx ONNX_IMAGE_TAG=" + onnxImage)
	}
	c := node.Get(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	if err := c.Import(ctx, archive); err != nil {
		t.Fatal(err)
	}
	const ns = "onnx"
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}); err != nil {
		t.Fatal(err)
	}
	rev := ownRuntime(t, "roundhouse-onnx", service.Key{Namespace: ns, Name: "linear"}, modelServer(t, "internal/edge/engine/onnx/testdata/linear.onnx")+"/model.onnx")
	objects, err := shape.Render(rev, shape.Options{})
	if err != nil {
		t.Fatal(err)
	}
	apply(ctx, t, c, &objects.Services[0])
	apply(ctx, t, c, &objects.Deployments[0])
	if err := c.AwaitRollout(ctx, ns, objects.Deployments[0].Name); err != nil {
		said, _ := c.Kubectl(ctx, "describe", "pods", "-n", ns)
		t.Fatalf("%v\n%s", err, said)
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(ns), client.MatchingLabels(objects.Services[0].Spec.Selector)); err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods: %v", len(pods.Items), err)
	}
	res, err := http.Post("http://"+net.JoinHostPort(pods.Items[0].Status.PodIP, "8080")+"/v2/models/linear/infer", "application/json",
		strings.NewReader(`{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"outputs"`) {
		t.Fatalf("%s: %s, %v", res.Status, body, err)
	}
}

// apply makes an object as the controller does.
func apply(ctx context.Context, t *testing.T, c *node.Cluster, o any) {
	t.Helper()
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	delete(u, "status")
	if err := c.Apply(ctx, client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: u}),
		client.FieldOwner(shape.FieldManager), client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

// modelServer serves a file of the repository to pods, whatever they ask for.
func modelServer(t *testing.T, file string) string {
	t.Helper()
	model, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(node.Address, "0")) // of the test's own network
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(model)
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + l.Addr().String()
}

// onnxImage is the image of ONNX models' pods.
const onnxImage = "roundhouse.local/roundhouse-onnx:e2e"

// ownRuntime is a revision of a service on a runtime of the catalog.
func ownRuntime(t *testing.T, name string, key service.Key, uri string) workload.Revision {
	t.Helper()
	runtimes, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	runtimes = catalog.WithImage(runtimes, "roundhouse-onnx", onnxImage)
	i := slices.IndexFunc(runtimes, func(r service.Runtime) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("no %s in the catalog", name)
	}
	rev, err := workload.Render(workload.Input{Runtime: &runtimes[i], Protocol: service.ProtocolV2, URI: uri, Cluster: true, Image: node.Image, Delivery: workload.Delivery{Beside: true},
		Service: &service.Service{Meta: service.Meta{Key: key}},
		Choice:  service.RuntimeChoice{Name: runtimes[i].Name, Scope: runtimes[i].Scope}})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}
