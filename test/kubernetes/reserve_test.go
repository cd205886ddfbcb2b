//go:build kubernetes && linux

package kubernetes

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/image"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// TestReserve keeps a node ready: a real scheduler preempts placeholders and a real
// kubelet pulls images, of a registry that the test runs.
func TestReserve(t *testing.T) {
	p := &product{Cluster: node.Get(t)}
	p.live(t, []string{"Install", "Placeholders"}, []step{
		{"Install", 2 * time.Minute, install},
		{"Placeholders", 2 * time.Minute, placeholders},
		{"Preempted", 3 * time.Minute, preempted},
		{"Images", 3 * time.Minute, pulledAhead},
		{"NodeGone", 3 * time.Minute, nodeGone},
		{"ReserveGone", 2 * time.Minute, reserveGone},
		{"Uninstall", 2 * time.Minute, uninstall},
	})
}

var reserveKind = schema.GroupVersionKind{Group: "roundhouse.dev", Version: "v1alpha1", Kind: "Reserve"}

const roomManifest = `
apiVersion: roundhouse.dev/v1alpha1
kind: Reserve
metadata: {name: room, namespace: apps}
spec:
  placeholders:
    ladder: [{fromNodes: 0, count: 1}, {fromNodes: 1, count: 2}]
    resources: {nvidia.com/gpu: 1, memory: 16Mi}
`

// placeholders gives the node two GPUs, as a device plugin does, and has them held.
func placeholders(ctx context.Context, p *product) {
	var nodes corev1.NodeList
	p.do(p.List(ctx, &nodes))
	n := nodes.Items[0]
	p.do(p.Status().Patch(ctx, &n, client.RawPatch("application/json-patch+json", []byte(`[{"op":"add","path":"/status/capacity/nvidia.com~1gpu","value":"2"}]`))))
	p.do(p.ApplyYAML(ctx, roomManifest))
	u := p.kept(ctx, "room", "True", "Kept")
	p.told(u, "2 of 2 placeholders run (1 node: the ladder's step from 1 on)")
	out, err := p.Kubectl(ctx, "get", "reserves", "-n", "apps")
	p.do(err)
	p.t.Logf("\n%s", out)
}

// kept waits until the Ready condition of a Reserve has a status and a reason.
func (p *product) kept(ctx context.Context, name, status, reason string) *unstructured.Unstructured {
	p.t.Helper()
	return p.await(ctx, reserveKind, "apps", name, status+" "+reason, func(u *unstructured.Unstructured) bool {
		c := condition(u, "Ready")
		return c["status"] == status && c["reason"] == reason
	})
}

// told compares the message of a Ready condition.
func (p *product) told(u *unstructured.Unstructured, want string) {
	p.t.Helper()
	if got := condition(u, "Ready")["message"]; got != want {
		p.t.Errorf("%q, want %q", got, want)
	}
}

// real is a Deployment of pods that need a GPU each.
const real = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: real, namespace: apps}
spec:
  replicas: %d
  selector: {matchLabels: {app: real}}
  template:
    metadata: {labels: {app: real}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: a, image: ` + node.Image + `, imagePullPolicy: Never, command: [/roundhouse-pause], resources: {limits: {nvidia.com/gpu: 1}}}]
`

// preempted has real pods take the room, one and then both, and give it back.
func preempted(ctx context.Context, p *product) {
	for want := 1; want <= 2; want++ {
		began := time.Now()
		p.do(p.ApplyYAML(ctx, fmt.Sprintf(real, want)))
		p.do(p.AwaitRollout(ctx, "apps", "real"))
		p.t.Logf("%d real pods run after %.1f s", want, time.Since(began).Seconds())
	}
	u := p.await(ctx, reserveKind, "apps", "room", "2 without room", func(u *unstructured.Unstructured) bool {
		c := condition(u, "Ready")
		return c["reason"] == "NoRoom" && strings.Contains(fmt.Sprint(c["message"]), "2 have no room and come back when there is some")
	})
	p.t.Logf("%v", condition(u, "Ready")["message"])
	// While it waits nothing is started over and over, and nobody floods the events.
	time.Sleep(20 * time.Second) // what does not happen has no event to wait for
	for _, pod := range p.pods(ctx, "apps", "room-placeholder") {
		if restarts(&pod) > 0 || pod.Status.Phase != corev1.PodPending {
			p.t.Errorf("%s is %s after %d restarts", pod.Name, pod.Status.Phase, restarts(&pod))
		}
	}
	var events corev1.EventList
	p.do(p.List(ctx, &events, client.InNamespace("apps")))
	about := 0
	for _, e := range events.Items {
		if strings.HasPrefix(e.InvolvedObject.Name, "room-placeholder-") && e.Reason == "FailedScheduling" {
			about++
		}
	}
	if p.t.Logf("%d FailedScheduling events", about); about > 10 {
		p.t.Errorf("%d events of two placeholders that wait", about)
	}
	p.do(p.DeleteYAML(ctx, fmt.Sprintf(real, 2)))
	began := time.Now()
	p.kept(ctx, "room", "True", "Kept")
	p.t.Logf("both are back %.1f s after the real pods were deleted", time.Since(began).Seconds())
}

// registry serves one image of an archive, by the protocol of registries.
type registry struct {
	mu    sync.Mutex
	blobs map[string][]byte // by digest
	tag   struct{ MediaType, Digest string }
	gets  []string
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	r.gets = append(r.gets, q.Method+" "+q.URL.Path)
	r.mu.Unlock()
	parts := strings.Split(q.URL.Path, "/")
	what, ref := "", parts[len(parts)-1]
	if len(parts) > 3 {
		what = parts[len(parts)-2]
	}
	switch {
	case q.URL.Path == "/v2/":
		return
	case !strings.HasPrefix(q.URL.Path, "/v2/tools/server/"):
		http.NotFound(w, q)
		return
	case what == "manifests" && ref == "e2e":
		ref = r.tag.Digest
	}
	content, ok := r.blobs[ref]
	if !ok {
		http.NotFound(w, q)
		return
	}
	if w.Header().Set("Content-Type", "application/octet-stream"); what == "manifests" {
		var m struct{ MediaType string }
		_ = json.Unmarshal(content, &m) // a manifest
		if m.MediaType == "" {
			m.MediaType = r.tag.MediaType
		}
		w.Header().Set("Content-Type", m.MediaType)
		w.Header().Set("Docker-Content-Digest", ref)
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if q.Method != http.MethodHead {
		_, _ = w.Write(content)
	}
}

// serve has an image be pulled from an address of the node.
func (p *product) serve(ctx context.Context) (address string, r *registry) {
	p.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	p.do(err)
	address = l.Addr().String()
	archive := filepath.Join(p.t.TempDir(), "server.tar")
	f, err := os.Create(archive)
	p.do(err)
	p.do(errors.Join(image.WriteRelease(ctx, f, image.Release{Tag: address + "/tools/server:e2e", Programs: [][]string{{filepath.Join(node.Binaries(), "server")}}}), f.Close()))
	r = &registry{blobs: map[string][]byte{}}
	f, err = os.Open(archive)
	p.do(err)
	defer f.Close()
	for t := tar.NewReader(f); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		p.do(err)
		content, err := io.ReadAll(t)
		p.do(err)
		if name, ok := strings.CutPrefix(h.Name, "blobs/sha256/"); ok {
			r.blobs["sha256:"+name] = content
		}
		if h.Name == "index.json" {
			var index struct {
				Manifests []struct{ MediaType, Digest string }
			}
			p.do(json.Unmarshal(content, &index))
			r.tag = index.Manifests[0]
		}
	}
	server := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	p.t.Cleanup(func() { _ = server.Close() })
	return address, r
}

const imagesManifest = `
apiVersion: roundhouse.dev/v1alpha1
kind: Reserve
metadata: {name: images, namespace: apps}
spec:
  images: {names: [%q, %q]}
`

// pulledAhead pulls an image that there is and one that there is not.
func pulledAhead(ctx context.Context, p *product) {
	address, r := p.serve(ctx)
	there, missing := address+"/tools/server:e2e", address+"/tools/missing:e2e"
	began := time.Now()
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(imagesManifest, there, missing)))
	u := p.await(ctx, reserveKind, "apps", "images", "one image present and one failed", func(u *unstructured.Unstructured) bool {
		present, _, _ := unstructured.NestedInt64(u.Object, "status", "images", "present")
		failed, _, _ := unstructured.NestedInt64(u.Object, "status", "images", "failed")
		return present == 1 && failed == 1
	})
	p.t.Logf("after %.1f s: %v", time.Since(began).Seconds(), condition(u, "Ready")["message"])
	if c := condition(u, "Ready"); c["reason"] != "PullFailed" || !strings.Contains(fmt.Sprint(c["message"]), missing) {
		p.t.Errorf("%v", c)
	}
	p.do(node.Await(ctx, p, "the node lists the image", &corev1.NodeList{}, func(l *corev1.NodeList) bool {
		for _, i := range l.Items[0].Status.Images {
			for _, name := range i.Names {
				if name == there {
					return true
				}
			}
		}
		return false
	}))
	// Between two attempts nothing runs.
	p.do(node.Await(ctx, p, "no Job", &batchv1.JobList{}, func(l *batchv1.JobList) bool { return len(l.Items) == 0 }, client.InNamespace("apps")))
	p.do(node.Await(ctx, p, "no pod", &corev1.PodList{}, func(l *corev1.PodList) bool { return len(l.Items) == 0 }, client.InNamespace("apps"),
		client.MatchingLabels{"roundhouse.dev/reserve": "images"}))
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := 0
	for _, get := range r.gets {
		if strings.HasSuffix(get, "/missing/manifests/e2e") {
			asked++
		}
	}
	if p.t.Logf("%d requests, %d of them for what is missing", len(r.gets), asked); asked == 0 || asked > 8 {
		p.t.Errorf("%v", r.gets)
	}
	p.do(p.ApplyYAML(ctx, fmt.Sprintf(imagesManifest, there, node.Image)))
	u = p.kept(ctx, "images", "True", "Kept")
	p.told(u, "2 images on 1 node: 2 of 2 present")
}

// nodeGone has a node that no kubelet answers for come and go: what was to be
// pulled there leaves nothing.
func nodeGone(ctx context.Context, p *product) {
	ghost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ghost"}}
	p.do(p.Create(ctx, ghost))
	bare := client.MergeFrom(ghost.DeepCopy()) // a patch: controllers write to the node too
	ghost.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	p.do(p.Status().Patch(ctx, ghost, bare))
	mine := client.MatchingLabels{"roundhouse.dev/reserve": "images"}
	p.do(node.Await(ctx, p, "a pod on the node", &corev1.PodList{}, func(l *corev1.PodList) bool {
		return len(l.Items) == 1 && l.Items[0].Spec.NodeName == ghost.Name
	}, client.InNamespace("apps"), mine))
	p.do(p.Delete(ctx, ghost))
	p.do(node.Await(ctx, p, "no Job", &batchv1.JobList{}, func(l *batchv1.JobList) bool { return len(l.Items) == 0 }, client.InNamespace("apps")))
	p.do(node.Await(ctx, p, "no pod", &corev1.PodList{}, func(l *corev1.PodList) bool { return len(l.Items) == 0 }, client.InNamespace("apps"), mine))
	p.kept(ctx, "images", "True", "Kept")
}

// reserveGone deletes both: nothing of them is left.
func reserveGone(ctx context.Context, p *product) {
	_, err := p.Kubectl(ctx, "delete", "reserves", "--all", "-n", "apps")
	p.do(err)
	p.do(node.Await(ctx, p, "no Deployment", &appsv1.DeploymentList{}, func(l *appsv1.DeploymentList) bool { return len(l.Items) == 0 }, client.InNamespace("apps")))
	p.do(node.Await(ctx, p, "no pod", &corev1.PodList{}, func(l *corev1.PodList) bool { return len(l.Items) == 0 }, client.InNamespace("apps")))
}
