//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

const (
	system     = "roundhouse-system"
	gateway    = "roundhouse-gateway"
	controller = "roundhouse-controller"
	domain     = "models.test"
)

// product is Roundhouse installed on the node.
type product struct {
	*node.Cluster
	t       *testing.T
	address string // of the gateways' Service, host:port
}

// TestProduct installs Roundhouse as its chart does, and lives with it for a
// while. The tests build on one another: what one deploys others ask.
func TestProduct(t *testing.T) {
	p := &product{Cluster: node.Get(t)}
	p.live(t, []string{"Install"}, []step{
		{"Install", 2 * time.Minute, install},
		{"Native", 2 * time.Minute, native},
		{"KServe", 2 * time.Minute, kserve},
		{"OME", 2 * time.Minute, ome},
		{"ScaleToZeroAndWake", 2 * time.Minute, zeroAndBack},
		{"KilledPod", 2 * time.Minute, killedPod},
		{"KilledGateway", 2 * time.Minute, killedGateway},
		{"KilledController", 4 * time.Minute, killedController},
		{"RollingUpgradeOfModel", 3 * time.Minute, rollingModel},
		{"RollingUpgradeOfGateway", 4 * time.Minute, rollingGateway},
		{"FailingRevision", 3 * time.Minute, failingRevision},
		{"APIServerGone", 5 * time.Minute, apiServerGone},
		{"Deletion", 2 * time.Minute, deletion},
		{"Uninstall", 2 * time.Minute, uninstall},
	})
}

// do fails the test with an error.
func (p *product) do(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// chart renders the Helm chart.
func chart(ctx context.Context, values string) (string, error) {
	return node.Chart(ctx, system, values)
}

const values = `
image: {repository: roundhouse.local/roundhouse, tag: e2e, pullPolicy: Never}
adopt: [kserve, ome]
installCRDs: [kserve, ome]
controller: {resources: {requests: {cpu: 50m}}}
gateway: {url: "http://{name}.{namespace}.` + domain + `", resources: {requests: {cpu: 50m}}}
`

func install(ctx context.Context, p *product) {
	manifests, err := chart(ctx, values)
	p.do(err)
	p.do(p.ApplyYAML(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n---\n"+manifests))
	p.do(p.AwaitRollout(ctx, system, controller))
	p.do(p.AwaitRollout(ctx, system, gateway))
	var s corev1.Service
	p.do(p.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	p.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
	for _, d := range []string{controller, gateway} {
		if n := p.restarts(ctx, d); n > 0 {
			p.t.Errorf("%s restarted %d times", d, n)
		}
	}
	p.models(ctx)
}

// uninstall takes the product away: nothing of it runs on.
func uninstall(ctx context.Context, p *product) {
	manifests, err := chart(ctx, values)
	p.do(err)
	p.do(p.DeleteYAML(ctx, manifests))
	p.gone(ctx)
}

// gone waits until no pod of ours runs. The lease goes then: one that ended
// without its rights could not give it back, and who is installed next would
// wait until it has run out.
func (p *product) gone(ctx context.Context) {
	p.t.Helper()
	p.do(node.Await(ctx, p, "no pod of ours", &corev1.PodList{}, func(l *corev1.PodList) bool { return len(l.Items) == 0 }, client.InNamespace(system)))
	_, err := p.Kubectl(ctx, "delete", "lease", controller, "--namespace", system, "--ignore-not-found")
	p.do(err)
}

// restarts counts those of a part's containers.
func (p *product) restarts(ctx context.Context, part string) (n int32) {
	for _, pod := range p.pods(ctx, system, part) {
		n += restarts(&pod)
	}
	return n
}

func restarts(pod *corev1.Pod) (n int32) {
	for _, c := range pod.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

// pods lists the pods of a namespace whose names begin with a prefix.
func (p *product) pods(ctx context.Context, namespace, prefix string) []corev1.Pod {
	p.t.Helper()
	var l corev1.PodList
	p.do(p.List(ctx, &l, client.InNamespace(namespace)))
	return slices.DeleteFunc(l.Items, func(pod corev1.Pod) bool { return !strings.HasPrefix(pod.Name, prefix) })
}

// modelsFolder is on the node.
const modelsFolder = "/run/roundhouse/models"

// models puts the examples' models on a volume of the node, which the
// namespaces apps, kserve, ome and others claim.
func (p *product) models(ctx context.Context, others ...string) {
	p.t.Helper()
	examples := filepath.Join(filepath.Dir(filepath.Dir(node.Binaries())), "examples", "quickstart", "models")
	p.do(os.RemoveAll(modelsFolder)) // of a test before
	p.do(os.CopyFS(modelsFolder, os.DirFS(examples)))
	for _, ns := range append([]string{"apps", "kserve", "ome"}, others...) {
		p.do(p.ApplyYAML(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: models-%[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  claimRef: {namespace: %[1]s, name: models}
  hostPath: {path: %[2]s, type: Directory}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models, namespace: %[1]s}
spec:
  accessModes: [ReadOnlyMany]
  storageClassName: ""
  volumeName: models-%[1]s
  resources: {requests: {storage: 1Gi}}
`, ns, modelsFolder)))
	}
}

// The kinds of services.
var (
	modelService  = schema.GroupVersionKind{Group: "roundhouse.dev", Version: "v1alpha1", Kind: "ModelService"}
	kserveService = schema.GroupVersionKind{Group: "serving.kserve.io", Version: "v1beta1", Kind: "InferenceService"}
	omeService    = schema.GroupVersionKind{Group: "ome.io", Version: "v1beta1", Kind: "InferenceService"}
)

// await waits until a service is as wanted.
func (p *product) await(ctx context.Context, kind schema.GroupVersionKind, namespace, name, what string, ok func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	p.t.Helper()
	var l unstructured.UnstructuredList
	l.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	var last *unstructured.Unstructured
	err := node.Await(ctx, p, what, &l, func(l *unstructured.UnstructuredList) bool {
		for i := range l.Items {
			if l.Items[i].GetName() == name {
				last = &l.Items[i]
				return ok(last)
			}
		}
		return false
	}, client.InNamespace(namespace))
	if err != nil {
		status := "nothing"
		if last != nil {
			text, _ := json.MarshalIndent(last.Object["status"], "", "  ")
			status = string(text)
		}
		p.t.Fatalf("%s/%s: %v; its status: %s", namespace, name, err, status)
	}
	return last
}

// awaitReady waits until a service says that it is ready, for its newest
// generation.
func (p *product) awaitReady(ctx context.Context, kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	p.t.Helper()
	return p.await(ctx, kind, namespace, name, "ready", func(u *unstructured.Unstructured) bool {
		seen, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
		return condition(u, "Ready")["status"] == "True" && seen >= u.GetGeneration()
	})
}

// known reports whether a controller has written a service's status.
func known(u *unstructured.Unstructured) bool { return condition(u, "Ready") != nil }

// condition is one condition of a status.
func condition(u *unstructured.Unstructured, kind string) map[string]any {
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range all {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return m
		}
	}
	return nil
}

// host is where a service's status says that it is reached.
func (p *product) host(u *unstructured.Unstructured) string {
	p.t.Helper()
	url, _, _ := unstructured.NestedString(u.Object, "status", "url")
	host, found := strings.CutPrefix(url, "http://")
	if !found {
		p.t.Fatalf("%s: its status has the URL %q", u.GetName(), url)
	}
	return host
}

// awaitReplicas waits until exactly n pods of a service are ready and no other
// is left.
func (p *product) awaitReplicas(ctx context.Context, namespace, service string, n int) []corev1.Pod {
	p.t.Helper()
	var l corev1.PodList
	err := node.Await(ctx, p, fmt.Sprintf("%d pods of %s", n, service), &l, func(l *corev1.PodList) bool {
		return len(l.Items) == n && !slices.ContainsFunc(l.Items, func(pod corev1.Pod) bool { return !ready(&pod) })
	}, client.InNamespace(namespace), client.MatchingLabels{"roundhouse.dev/service": service})
	if err != nil {
		var lines []string
		for _, pod := range l.Items {
			lines = append(lines, fmt.Sprintf("%s %s", pod.Name, pod.Status.Phase))
		}
		p.t.Fatalf("%v: %v", err, lines)
	}
	return l.Items
}

func ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// scaled sets a Deployment's count.
func (p *product) scaled(ctx context.Context, namespace, name string, n int32) {
	p.t.Helper()
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = namespace, name
	p.do(p.Patch(ctx, d, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n))))
	p.do(p.AwaitRollout(ctx, namespace, name))
}
