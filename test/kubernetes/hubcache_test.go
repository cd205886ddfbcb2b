//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// TestHubCache installs the chart's ring of caches: services that name nothing get
// their models by it, and the Hub sends each once.
func TestHubCache(t *testing.T) {
	p := &product{Cluster: node.Get(t)}
	hub, err := hubtest.NewAt(node.Address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hub.Close)
	iris, err := os.ReadFile("../../examples/quickstart/models/iris.ubj")
	if err != nil {
		t.Fatal(err)
	}
	hub.Add("models", "org/iris").Commit("main", map[string][]byte{"iris.ubj": iris}, "iris.ubj")
	values := fmt.Sprintf(ringValues, hub.URL)
	p.live(t, []string{"Install"}, []step{
		{"Install", 3 * time.Minute, func(ctx context.Context, p *product) { installRing(ctx, p, values) }},
		{"Once", 3 * time.Minute, func(ctx context.Context, p *product) { fetchedOnce(ctx, p, hub, int64(len(iris))) }},
		{"Uninstall", 2 * time.Minute, func(ctx context.Context, p *product) {
			_, err := p.Kubectl(ctx, "delete", "namespace", "ring", "--wait")
			p.do(err)
			manifests, err := chart(ctx, values)
			p.do(err)
			p.do(p.DeleteYAML(ctx, manifests))
			p.gone(ctx)
		}},
	})
}

const ringValues = `
image: {repository: roundhouse.local/roundhouse, tag: e2e, pullPolicy: Never}
controller: {replicas: 1, resources: {requests: {cpu: 50m}}}
gateway: {replicas: 1, url: "http://{name}.{namespace}.` + domain + `", resources: {requests: {cpu: 50m}}}
hubCache: {enabled: true, replicas: 2, ringSecret: ring, upstream: %q, storage: {size: 1Gi, className: ring}, maxSize: 900MiB, args: [--ring-min-size=0], resources: {requests: {cpu: 50m}, limits: {memory: 512Mi}}}
`

func installRing(ctx context.Context, p *product, values string) {
	p.do(p.StartNames(ctx))
	manifests, err := chart(ctx, values)
	p.do(err)
	volumes := ""
	for i := range 2 {
		at := fmt.Sprintf("/run/roundhouse/ring-%d", i)
		p.do(os.MkdirAll(at, 0o700))
		p.do(os.Chown(at, imageUser, imageUser)) // the kubelet leaves owners of such volumes alone
		volumes += fmt.Sprintf(`---
apiVersion: v1
kind: PersistentVolume
metadata: {name: ring-%d}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: ring, hostPath: {path: %s}}
`, i, at)
	}
	p.do(p.ApplyYAML(ctx, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+system+"}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: ring}\n---\n"+
		"apiVersion: v1\nkind: Secret\nmetadata: {name: ring, namespace: "+system+"}\nstringData: {ring: "+strings.Repeat("0123456789abcdef", 4)+"}\n"+volumes+"---\n"+manifests))
	p.do(p.AwaitRollout(ctx, system, controller))
	p.do(p.AwaitRollout(ctx, system, gateway))
	p.do(node.Await(ctx, p, "the caches are ready", &appsv1.StatefulSetList{}, func(l *appsv1.StatefulSetList) bool {
		return len(l.Items) == 1 && l.Items[0].Status.ReadyReplicas == 2
	}, client.InNamespace(system)))
	var s corev1.Service
	p.do(p.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	p.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
}

// imageUser is the user of our image.
const imageUser = 65532

// fetchedOnce starts services of one model: all answer, and the Hub has sent it
// once.
func fetchedOnce(ctx context.Context, p *product, hub *hubtest.Hub, size int64) {
	for _, name := range []string{"one", "two", "three"} {
		p.do(p.ApplyYAML(ctx, fmt.Sprintf(`
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: %s, namespace: ring}
spec:
  model: {uri: "hf://org/iris", format: {name: xgboost}}
  scaling: {minReplicas: 1}
`, name)))
		u := p.awaitReady(ctx, modelService, "ring", name)
		request{p.address, p.host(u), "/v2/models/" + name + "/infer", irisTensor, predicts(irisClass, 3)}.must(p.t)
	}
	for _, pod := range p.pods(ctx, "ring", "one-") {
		for _, e := range pod.Spec.Containers[0].Env {
			if e.Name == "HF_ENDPOINT" && e.Value != "http://roundhouse-hub-cache."+system+".svc:8083" {
				p.t.Errorf("%s asks %s", pod.Name, e.Value)
			}
		}
	}
	if sent := hub.Sent(); sent < size || sent >= 2*size {
		p.t.Errorf("the Hub sent %d bytes of a model of %d", sent, size)
	}
	p.t.Logf("three services, and the Hub sent %d bytes of %d", hub.Sent(), size)
}
