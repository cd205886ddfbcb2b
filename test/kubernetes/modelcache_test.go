//go:build kubernetes && linux

package kubernetes

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

// jobs is the namespace in which models are fetched ahead of their use.
const jobs = "kserve-localmodel-jobs"

var modelCache = schema.FromAPIVersionAndKind("serving.kserve.io/v1alpha1", "LocalModelCache")

// keptModel are the manifests of a cache; STORE is the node's folder.
const keptModel = `
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNodeGroup
metadata: {name: here}
spec: {storageLimit: 1Gi, persistentVolumeSpec: {hostPath: {path: STORE}}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelCache
metadata: {name: iris}
spec: {sourceModelUri: "hf://org/gated", modelSize: 1Mi, nodeGroups: [here], serviceAccountName: downloader}
`

// TestModelCaches: a node fetches a model ahead of its use, when its secret is right; pods
// that could not fetch it read it there, but no path that is not in it; the pod that holds
// it may be replaced; deleted, its files go when no pod reads them.
func TestModelCaches(t *testing.T) {
	p := &product{Cluster: node.Get(t)}
	iris, err := os.ReadFile("../../examples/quickstart/models/iris.ubj")
	if err != nil {
		t.Fatal(err)
	}
	m := &models{product: p, iris: iris}
	if m.hub, err = hubtest.NewAt(node.Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.hub.Close)
	m.hub.Token("hf_right")
	repo := m.hub.Add("models", "org/gated")
	repo.Commit("main", map[string][]byte{"v1/iris.ubj": iris, "v2/large.bin": make([]byte, 1<<20)}, "v1/iris.ubj", "v2/large.bin")
	repo.Gate("hf_right")
	store := t.TempDir()
	p.live(t, []string{"Install", "Fetched"}, []step{
		{"Install", 0, func(ctx context.Context, _ *product) { cachesInstall(ctx, m) }},
		{"Fetched", 0, func(ctx context.Context, _ *product) { fetchedAhead(ctx, m, store) }},
		{"Read", 0, func(ctx context.Context, _ *product) { readFromNode(ctx, m) }},
		{"Lost", 0, func(ctx context.Context, _ *product) { notInCopy(ctx, m, store) }},
		{"Replaced", 0, func(ctx context.Context, _ *product) { holderReplaced(ctx, m) }},
		{"Freed", 0, func(ctx context.Context, _ *product) { freedOnNode(ctx, m, store) }},
		{"Uninstall", 0, func(ctx context.Context, _ *product) {
			_, err := m.Kubectl(ctx, "delete", "namespace", jobs, "--wait")
			m.do(err)
			modelsUninstall(ctx, m)
		}},
	})
}

func cachesInstall(ctx context.Context, m *models) {
	manifests, err := chart(ctx, modelsValues)
	m.do(err)
	namespaces := ""
	for _, ns := range []string{system, fetched, jobs} {
		namespaces += "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + ns + "}\n---\n"
	}
	m.do(m.ApplyYAML(ctx, namespaces+manifests))
	for _, d := range []string{controller, gateway} {
		m.do(m.AwaitRollout(ctx, system, d))
	}
	var s corev1.Service
	m.do(m.Get(ctx, client.ObjectKey{Namespace: system, Name: gateway}, &s))
	m.address = net.JoinHostPort(s.Spec.ClusterIP, "80")
}

// downloads makes the account that the cache is fetched with.
func downloads(m *models, token string) string {
	return "---\napiVersion: v1\nkind: Secret\nmetadata: {name: hub, namespace: " + jobs + "}\nstringData: {HF_TOKEN: " + token + `, HF_ENDPOINT: "` + m.hub.URL + "\"}\n" +
		"---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: downloader, namespace: " + jobs + "}\nsecrets: [{name: hub}]\n"
}

// nodesOf is what a cache's status says of its nodes.
func nodesOf(u *unstructured.Unstructured) string {
	states, _, _ := unstructured.NestedStringMap(u.Object, "status", "nodeStatus")
	var out []string
	for _, s := range states {
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func fetchedAhead(ctx context.Context, m *models, store string) {
	m.do(m.ApplyYAML(ctx, downloads(m, "hf_wrong")+"---"+strings.ReplaceAll(keptModel, "STORE", store)))
	is := func(want string) {
		m.await(ctx, modelCache, "", "iris", want, func(u *unstructured.Unstructured) bool { return nodesOf(u) == want })
	}
	is("NodeDownloadError")
	m.do(m.ApplyYAML(ctx, downloads(m, "hf_right")))
	is("NodeDownloaded")
}

// readFromNode: the service's namespace has no token of the hub.
func readFromNode(ctx context.Context, m *models) {
	m.do(m.ApplyYAML(ctx, predictor("kept", uri("hf://org/gated/v1"), "", "")))
	m.answers(ctx, kserveService, "kept")
	u := m.await(ctx, modelCache, "", "iris", "its service", func(u *unstructured.Unstructured) bool {
		list, _, _ := unstructured.NestedSlice(u.Object, "status", "inferenceServices")
		return len(list) == 1
	})
	copies, _, _ := unstructured.NestedMap(u.Object, "status", "copies")
	if copies["available"] != int64(1) || copies["total"] != int64(1) {
		m.t.Errorf("%v", copies)
	}
}

// notInCopy: a service of a path that the model does not have says so, and nothing is made
// in the copy that the other service reads.
func notInCopy(ctx context.Context, m *models, store string) {
	m.do(m.ApplyYAML(ctx, predictor("lost", uri("hf://org/gated/v9/en"), "", "")))
	m.complains(ctx, kserveService, "lost", "the model that the node keeps has no v9/en")
	err := filepath.WalkDir(store, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) == "v9" {
			m.t.Errorf("%s was made", path)
		}
		return err
	})
	m.do(err)
	m.do(m.DeleteYAML(ctx, predictor("lost", "", "", "")))
}

// holderReplaced: the pod that holds the model is replaced, as at an upgrade, and the model is
// not fetched again.
func holderReplaced(ctx context.Context, m *models) {
	sent := m.hub.Sent()
	before := m.pods(ctx, jobs, "")
	if len(before) != 1 {
		m.t.Fatalf("%d pods hold the model", len(before))
	}
	_, err := m.Kubectl(ctx, "delete", "pod", before[0].Name, "-n", jobs)
	m.do(err)
	m.do(node.Await(ctx, m, "another pod holds the model", &corev1.PodList{}, func(l *corev1.PodList) bool {
		return slices.ContainsFunc(l.Items, func(p corev1.Pod) bool { return p.UID != before[0].UID && ready(&p) })
	}, client.InNamespace(jobs)))
	m.await(ctx, modelCache, "", "iris", "NodeDownloaded", func(u *unstructured.Unstructured) bool { return nodesOf(u) == "NodeDownloaded" })
	if got := m.hub.Sent() - sent; got > 0 {
		m.t.Errorf("%d bytes of files were fetched again", got)
	}
	m.answers(ctx, kserveService, "kept")
}

// files counts those of the model on the node.
func files(store string) (n int) {
	_ = filepath.WalkDir(store, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && (filepath.Ext(path) == ".ubj" || filepath.Ext(path) == ".bin" || filepath.Base(path) == "done") {
			n++
		}
		return nil
	})
	return n
}

func freedOnNode(ctx context.Context, m *models, store string) {
	if n := files(store); n != 3 {
		m.t.Fatalf("%d files", n)
	}
	_, err := m.Kubectl(ctx, "delete", "localmodelcache", "iris", "--wait")
	m.do(err)
	// The pods of the next revision cannot fetch it; that of this one goes on.
	for {
		all := m.pods(ctx, fetched, "kept-")
		if slices.ContainsFunc(all, func(p corev1.Pod) bool {
			return len(p.Status.InitContainerStatuses) > 0 && p.Status.InitContainerStatuses[0].RestartCount > 0
		}) {
			break
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			m.t.Fatalf("no pod that fetches: %+v", all)
		}
	}
	m.answers(ctx, kserveService, "kept")
	if n := files(store); n != 3 {
		m.t.Errorf("%d files while a pod reads them", n)
	}
	m.do(m.DeleteYAML(ctx, predictor("kept", "", "", "")))
	for files(store) > 0 {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			m.t.Fatalf("%d files of a model that nobody keeps", files(store))
		}
	}
	for {
		out, err := m.Kubectl(ctx, "get", "daemonsets", "-n", jobs, "-o", "name")
		if err == nil && out == "" {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			m.t.Fatalf("%s %v", out, err)
		}
	}
}
