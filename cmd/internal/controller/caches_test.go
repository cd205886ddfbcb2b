package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// Of a namespace NS: a group of nodes, a cache of a model for them, and a service of a part
// of that.
const (
	group = `
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNodeGroup
metadata: {name: NS}
spec:
  storageLimit: 1Gi
  persistentVolumeSpec:
    local: {path: /models}
    nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [NS]}]}]}}
`
	cached = `
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNamespaceCache
metadata: {name: oak}
spec: {sourceModelUri: "s3://models/NS", modelSize: 1Mi, nodeGroups: [NS], serviceAccountName: downloader}
`
	readsCache = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: oak}
spec:
  predictor:
    minReplicas: 1
    model: {modelFormat: {name: xgboost}, protocolVersion: v2, storageUri: "s3://models/NS/v2"}
`
)

// copies plays the controller of DaemonSets, and the kubelets.
type copies struct {
	t  *testing.T
	c  client.Client
	ns string
}

// set is the DaemonSet of the one cache; nil where there is none.
func (k copies) set() *appsv1.DaemonSet {
	k.t.Helper()
	var list appsv1.DaemonSetList
	if err := k.c.List(k.t.Context(), &list, client.InNamespace(k.ns)); err != nil {
		k.t.Fatal(err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

// pod makes the pod of a node, or says how it is.
func (k copies) pod(node string, status corev1.PodStatus) {
	k.t.Helper()
	d := k.set()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: k.ns, Name: "copy-" + node, Labels: d.Spec.Template.Labels}, Spec: *d.Spec.Template.Spec.DeepCopy()}
	p.Spec.NodeName, p.Spec.ServiceAccountName = node, ""
	if err := k.c.Create(k.t.Context(), p); apierrors.IsAlreadyExists(err) {
		err = k.c.Get(k.t.Context(), client.ObjectKeyFromObject(p), p)
		if err != nil {
			k.t.Fatal(err)
		}
	} else if err != nil {
		k.t.Fatal(err)
	}
	p.Status = status
	if err := k.c.Status().Update(k.t.Context(), p); err != nil {
		k.t.Fatal(err)
	}
}

func there() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: shape.Fetcher, Image: "i", ImageID: "i", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
}

func refusedFetch() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: shape.Fetcher, Image: "i", ImageID: "i",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "s3://models: the credentials are refused"}}}}}
}

// leavesNoCopies removes what a test made in a namespace once its controllers have ended,
// since those of other tests may watch it too.
func leavesNoCopies(t *testing.T, c client.Client, ns string) {
	t.Cleanup(func() {
		cache := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "serving.kserve.io/v1alpha1", "kind": "LocalModelNamespaceCache"}}
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(c.DeleteAllOf(ctx, cache, client.InNamespace(ns)), c.DeleteAllOf(ctx, &appsv1.DaemonSet{}, client.InNamespace(ns))); err != nil {
			t.Error(err)
		}
	})
}

// cachedModel applies the manifests of a namespace, and its account, as c may.
func cachedModel(t *testing.T, c client.Client, ns string) (k copies, cache, reader *unstructured.Unstructured) {
	t.Helper()
	in := func(text string) *unstructured.Unstructured {
		return kubetest.Apply(t, c, ns, strings.ReplaceAll(text, "NS", ns))[0]
	}
	for _, o := range []client.Object{&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "downloader"}, Secrets: []corev1.ObjectReference{{Name: "keys"}}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}}} {
		if err := c.Create(t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	g := in(group)
	t.Cleanup(func() { _ = c.Delete(t.Context(), g) })
	return copies{t, c, ns}, in(cached), in(readsCache)
}

// TestModelCaches: the nodes of a cache's group get its model by a DaemonSet, the status
// tells of each, pods of a service read the copy of their node, and the space is freed when
// the cache is gone and nobody reads it.
func TestModelCaches(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t, ns)
	o.system = ns
	leavesNoCopies(t, c, ns)
	r := begin(t, o, kubetest.Server(t))
	k, cache, reader := cachedModel(t, c, ns)
	status := func(want string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if got := field(get(t, c, cache), "status"); got != want {
				return want + "; it is " + got
			}
			return ""
		})
	}
	service1 := "inferenceServices:[map[name:oak namespace:" + ns + "]]"
	status("map[copies:map[] " + service1 + "]")
	d := k.set()
	pod := d.Spec.Template.Spec
	args := strings.Join(pod.Containers[0].Args, " ")
	if args != "pull s3://models/"+ns+" --store /var/lib/roundhouse/models --place "+d.Name+" --store-max-bytes 1073741824 --stay /var/lib/roundhouse/models/ready/"+d.Name ||
		pod.Volumes[0].HostPath.Path != "/models/"+ns || pod.Containers[0].EnvFrom[0].SecretRef.Name != "keys" ||
		pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != ns {
		t.Errorf("%s\n%+v", args, pod)
	}

	k.pod("a", there())
	k.pod("b", refusedFetch())
	status("map[copies:map[available:1 failed:1 total:2] " + service1 + " nodeStatus:map[a:NodeDownloaded b:NodeDownloadError]]")
	kubetest.Eventually(t, func() string { return lacks(events(t, c, cache), "ModelCacheFailed") })
	k.pod("b", there())
	status("map[copies:map[available:2 total:2] " + service1 + " nodeStatus:map[a:NodeDownloaded b:NodeDownloaded]]")
	kubetest.Eventually(t, func() string { return lacks(events(t, c, cache), "ModelCached") })

	// The pods of the service read it.
	key := service.Key{Namespace: ns, Name: "oak"}
	n := &nodes{t: t, c: c, ns: ns}
	kubetest.Eventually(t, func() string {
		if n.count(key, service.RoleEngine) < 1 {
			return "a Deployment"
		}
		return ""
	})
	reads := deployment(t, c, key).Spec.Template.Spec
	mounts := reads.Containers[0].VolumeMounts
	if i := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/mnt/models" }); i < 0 || mounts[i].SubPath != "places/"+d.Name+"/model/v2" || !mounts[i].ReadOnly ||
		len(reads.InitContainers) != 2 || reads.InitContainers[0].Name != shape.Waiter || reads.InitContainers[1].Name != shape.Finder || reads.Affinity == nil {
		t.Errorf("%+v", reads)
	}
	p := n.pod(key, service.RoleEngine)

	// A cache that is gone is kept while a pod reads it; then its nodes remove it. Labels of
	// others keep nothing.
	other := kubetest.Namespace(t, c, nil)
	for _, stray := range []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: ns}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "i"}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: other}, Spec: *p.Spec.DeepCopy()}} {
		stray.Name, stray.Labels, stray.Spec.NodeName, stray.Spec.ServiceAccountName = "stray", p.Labels, "", ""
		if err := c.Create(t.Context(), stray); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Delete(t.Context(), cache); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if spec := deployment(t, c, key).Spec.Template.Spec; spec.InitContainers[0].Name != shape.Fetcher {
			return "pods that fetch"
		}
		return ""
	})
	if _, dropping := k.set().Annotations[shape.AnnotationDropping]; dropping {
		t.Error("a model is removed that a pod reads")
	}
	if err := c.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		d = k.set()
		if d == nil || d.Annotations[shape.AnnotationDropping] == "" || len(d.Spec.Template.Spec.InitContainers) != 1 ||
			!slices.Contains(d.Spec.Template.Spec.InitContainers[0].Args, "--drop") {
			return "a removal"
		}
		return ""
	})
	d.Status = appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, DesiredNumberScheduled: 2, CurrentNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberReady: 1}
	if err := c.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}

	// Another controller goes on with it.
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	begin(t, o, kubetest.Server(t))
	d.Status.NumberReady = 2
	if err := c.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if d := k.set(); d != nil {
			return "no DaemonSet"
		}
		return ""
	})
	if err := c.Delete(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
}

// TestModelCacheComesBack: a cache that is applied again while its model is removed has it
// made again; one that cannot be made says why.
func TestModelCacheComesBack(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t, ns)
	o.system = ns
	leavesNoCopies(t, c, ns)
	begin(t, o, kubetest.Server(t))
	k, cache, reader := cachedModel(t, c, ns)
	is := func(dropping bool) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if d := k.set(); d == nil || (d.Annotations[shape.AnnotationDropping] != "") != dropping || slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "pull") == dropping {
				return fmt.Sprintf("removing %v; it is %+v", dropping, d)
			}
			return ""
		})
	}
	is(false)
	if err := errors.Join(c.Delete(t.Context(), reader), c.Delete(t.Context(), cache)); err != nil {
		t.Fatal(err)
	}
	is(true)
	kubetest.Apply(t, c, ns, strings.ReplaceAll(cached, "NS", ns))
	is(false)

	for name, spec := range map[string]string{
		"there is no LocalModelNodeGroup none: apply it":                                 `{sourceModelUri: "s3://models/a", modelSize: 1Mi, nodeGroups: [none]}`,
		"there is no service account nobody in the namespace " + ns:                      `{sourceModelUri: "s3://models/b", modelSize: 1Mi, nodeGroups: [` + ns + `], serviceAccountName: nobody}`,
		"2Gi do not fit into the 1Gi that LocalModelNodeGroup " + ns + " has":            `{sourceModelUri: "s3://models/c", modelSize: 2Gi, nodeGroups: [` + ns + `]}`,
		"nothing fetches registry://a ahead of its use":                                  `{sourceModelUri: "registry://a", modelSize: 1Mi, nodeGroups: [` + ns + `]}`,
		"https://10.0.0.1: an internal address, and models are fetched from public ones": `{sourceModelUri: "https://10.0.0.1/m/", modelSize: 1Mi, nodeGroups: [` + ns + `]}`,
	} {
		u := kubetest.Apply(t, c, ns, "apiVersion: serving.kserve.io/v1alpha1\nkind: LocalModelNamespaceCache\nmetadata: {name: bad}\nspec: "+spec)[0]
		kubetest.Eventually(t, func() string {
			if got := strings.Join(events(t, c, u), "\n"); !strings.Contains(got, name) {
				return name + "; told is " + got
			}
			return ""
		})
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
}
