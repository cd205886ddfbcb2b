package shape

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/precache"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

const keptLlama = `apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelNodeGroup
metadata: {name: gpus}
spec:
  storageLimit: 1Ti
  persistentVolumeSpec:
    local: {path: /models}
    nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: gpu, operator: In, values: [h100]}]}]}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: LocalModelCache
metadata: {name: llama}
spec: {sourceModelUri: "s3://models/llama", modelSize: 16Gi, nodeGroups: [gpus], serviceAccountName: sa, storage: {parameters: {type: s3}}}
`

// keptModel is a cache of the manifests, and where it is kept.
func keptModel(t *testing.T, manifests string) (*service.ModelCache, precache.Kept) {
	t.Helper()
	var c *service.ModelCache
	var groups []*service.NodeGroup
	read := dialect.Read("caches.yaml", []byte(manifests))
	if bad := read.Errors(dialect.Kubernetes); len(bad) > 0 {
		t.Fatal(bad)
	}
	for _, o := range read.Objects {
		if o.NodeGroup != nil {
			groups = append(groups, o.NodeGroup)
		} else {
			c = o.ModelCache
		}
	}
	kept, missing := precache.Where(c, groups, "", "roundhouse-system")
	if len(kept) != 1 || missing != "" {
		t.Fatal(kept, missing)
	}
	return c, kept[0]
}

func cacheOptions() CacheOptions {
	return CacheOptions{Options: everything, Image: image, Installation: "roundhouse-system", StoreSize: "80%"}
}

// TestCacheDaemonSet: what makes the copies of a cache, what removes them, and what reads
// one.
func TestCacheDaemonSet(t *testing.T) {
	c, k := keptModel(t, keptLlama)
	d, err := CacheDaemonSet(c, k, cacheOptions())
	if err != nil {
		t.Fatal(err)
	}
	rev := revision(t, "x.yaml", one("llama", "s3://models/llama/v2", ""))
	rev.Kept = &workload.Kept{Name: k.Name, Folder: k.Folder, Sub: "v2", Nodes: k.Nodes}
	objects, err := Render(rev, everything)
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]any{"cache": d, "cache-removal": CacheRemoval(d, "2026-01-01T00:00:00Z"), "cache-reader": objects.Deployments[0]} {
		got, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".golden.yaml")
		if *update {
			if err := os.WriteFile(file, got, 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if want, err := os.ReadFile(file); err != nil || string(got) != string(want) {
			t.Errorf("%s is another: rerun with -update and read the diff: %v\n%s", file, err, got)
		}
	}
	if got := AccountOf(&rev, &rev.Components[0]); got != "" {
		t.Errorf("the account %s is asked for, and nothing is fetched", got)
	}
	if got := CacheAccount(c); got != "sa" {
		t.Errorf("the cache's account is %q", got)
	}
}

// TestCacheRemovalAgain: what removes copies is another DaemonSet than what makes them, and
// a cache that comes back makes them again.
func TestCacheRemovalAgain(t *testing.T) {
	c, k := keptModel(t, keptLlama)
	d, err := CacheDaemonSet(c, k, cacheOptions())
	if err != nil {
		t.Fatal(err)
	}
	gone := CacheRemoval(d, "2026-01-01T00:00:00Z")
	if gone.Annotations[AnnotationApplied] == d.Annotations[AnnotationApplied] || gone.Annotations[AnnotationDropping] == "" {
		t.Errorf("%v", gone.Annotations)
	}
	if strings.Contains(mustYAML(t, gone.Spec.Template.Spec), "s3creds") || !strings.Contains(mustYAML(t, d.Spec.Template.Spec), "s3creds") {
		t.Error("what removes has the secrets, or what makes has none")
	}
	if twice := CacheRemoval(gone, "2026-01-01T00:00:00Z"); !slices.Equal(twice.Spec.Template.Spec.InitContainers[0].Args, gone.Spec.Template.Spec.InitContainers[0].Args) {
		t.Errorf("a second time it has %v", twice.Spec.Template.Spec.InitContainers[0].Args)
	}
	for name, s := range map[string]struct {
		status appsv1.DaemonSetStatus
		want   bool
	}{
		"not seen yet":     {appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberReady: 1}, false},
		"of one node":      {appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 1, NumberReady: 2}, false},
		"not ended":        {appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberReady: 1}, false},
		"everywhere":       {appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberReady: 2}, true},
		"where no node is": {appsv1.DaemonSetStatus{ObservedGeneration: 2}, true},
	} {
		gone.Generation, gone.Status = 2, s.status
		if Removed(gone) != s.want {
			t.Errorf("%s: %v", name, !s.want)
		}
	}
	if d.Status = gone.Status; Removed(d) {
		t.Error("what makes copies has removed them")
	}
}

func mustYAML(t *testing.T, o any) string {
	t.Helper()
	got, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// TestCacheRefused: a model that nothing here fetches, and one at an internal address.
func TestCacheRefused(t *testing.T) {
	for uri, want := range map[string]string{"registry://a": "nothing fetches registry://a ahead of its use", "pvc://claim/a": "nothing fetches", "https://10.0.0.1/m/": "an internal address"} {
		c, k := keptModel(t, keptLlama)
		c.URI = uri
		o := cacheOptions()
		o.PublicModels = true
		if d, err := CacheDaemonSet(c, k, o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", uri, d, err)
		}
	}
}

// TestKeptElsewhere: a pod that brings a volume of its own for the model, and one of a role
// that has other files, are as without a cache.
func TestKeptElsewhere(t *testing.T) {
	rev := revision(t, "x.yaml", one("llama", "s3://models/llama", ""))
	rev.Kept = &workload.Kept{Name: "a", Folder: "/models/n"}
	rev.Components[0].Files = &workload.Model{URI: "s3://models/own"}
	c, err := fetcher(t, rev, everything)
	if err != nil || c.Name != Fetcher || !slices.Contains(c.Args, "s3://models/own") {
		t.Errorf("%+v, %v", c, err)
	}
}

// TestKeptPath: a server of a path in a kept model is started after that path was looked for
// in all of the model, by a container that cannot have the kubelet make it; one of all of it
// needs none.
func TestKeptPath(t *testing.T) {
	for sub, want := range map[string]string{"": "", ".": "", "./": "", "v2": "v2", "v2/": "v2", "/v2//en/.": "v2/en"} {
		rev := revision(t, "x.yaml", one("llama", "s3://models/llama", ""))
		rev.Kept = &workload.Kept{Name: "a", Folder: "/models/n", Sub: sub}
		objects, err := Render(rev, everything)
		if err != nil {
			t.Fatal(err)
		}
		pod := objects.Deployments[0].Spec.Template.Spec
		if at := mountAt(&pod.Containers[0], modelPath); at == nil || at.SubPath != strings.TrimSuffix("places/a/model/"+want, "/") {
			t.Errorf("%q: %+v", sub, at)
		}
		looks := pod.InitContainers[1:]
		if want == "" {
			if len(looks) > 0 {
				t.Errorf("%q: %+v", sub, looks)
			}
			continue
		}
		if len(looks) != 1 || looks[0].Name != Finder || !slices.Equal(looks[0].Command, []string{program, "find", modelPath, want}) ||
			len(looks[0].VolumeMounts) != 1 || looks[0].VolumeMounts[0] != (corev1.VolumeMount{Name: keptVolume, MountPath: modelPath, SubPath: "places/a/model", ReadOnly: true}) {
			t.Errorf("%q: %+v", sub, looks)
		}
	}
}

// TestReadsCopy: a pod as ours are reads a copy until it has ended; one that has no more of
// them than a label, or is where it cannot be read, does not.
func TestReadsCopy(t *testing.T) {
	c, k := keptModel(t, keptLlama)
	d, err := CacheDaemonSet(c, k, cacheOptions())
	if err != nil {
		t.Fatal(err)
	}
	rev := revision(t, "x.yaml", one("llama", "s3://models/llama/v2", ""))
	rev.Kept = &workload.Kept{Name: k.Name, Folder: k.Folder, Nodes: k.Nodes}
	objects, err := Render(rev, everything)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]struct {
		change func(*corev1.Pod, *appsv1.DaemonSet)
		want   bool
	}{
		"one of ours":               {func(*corev1.Pod, *appsv1.DaemonSet) {}, true},
		"one that is being removed": {func(_ *corev1.Pod, d *appsv1.DaemonSet) { *d = *CacheRemoval(d, "2026-01-01T00:00:00Z") }, true},
		"one that ended":            {func(p *corev1.Pod, _ *appsv1.DaemonSet) { p.Status.Phase = corev1.PodSucceeded }, false},
		"one that failed":           {func(p *corev1.Pod, _ *appsv1.DaemonSet) { p.Status.Phase = corev1.PodFailed }, false},
		"a label alone":             {func(p *corev1.Pod, _ *appsv1.DaemonSet) { p.Spec.Volumes = nil }, false},
		"an empty folder of its name": {func(p *corev1.Pod, _ *appsv1.DaemonSet) {
			p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
		}, false},
		"another folder":           {func(p *corev1.Pod, _ *appsv1.DaemonSet) { p.Spec.Volumes[0].HostPath.Path = "/models/other" }, false},
		"of the cache's namespace": {func(p *corev1.Pod, d *appsv1.DaemonSet) { d.Namespace, p.Namespace = "team", "team" }, true},
		"of another namespace":     {func(p *corev1.Pod, d *appsv1.DaemonSet) { d.Namespace, p.Namespace = "team", "other" }, false},
		"nothing keeps a model":    {func(_ *corev1.Pod, d *appsv1.DaemonSet) { d.Spec.Template.Spec.Volumes = nil }, false},
	} {
		template := objects.Deployments[0].Spec.Template
		pod := (&corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}).DeepCopy()
		pod.Namespace = "anywhere"
		d := d.DeepCopy()
		s.change(pod, d)
		if ReadsCopy(pod, d) != s.want {
			t.Errorf("%s: %v", name, !s.want)
		}
	}
}

// TestOthersModels: no container of a manifest mounts the node's folder, which has the models
// of others.
func TestOthersModels(t *testing.T) {
	const mount = "volumeMounts: [{name: roundhouse-model, mountPath: /all}]"
	for _, extra := range []string{", " + mount + "}", "}, containers: [{name: side, image: b, " + mount + "}]", "}, initContainers: [{name: side, image: b, " + mount + "}]"} {
		rev := revision(t, "x.yaml", strings.Replace(one("llama", "s3://models/llama", extra), "}}}\n", "}}\n", 1))
		if _, err := Render(rev, everything); err != nil {
			t.Errorf("in a pod that fetches its own: %v", err)
		}
		kept, shared := rev, rev
		kept.Kept, shared.Delivery.Store = &workload.Kept{Name: "a", Folder: "/models/kserve-localmodel-jobs"}, "/srv/models"
		for _, rev := range []workload.Revision{kept, shared} {
			if o, err := Render(rev, everything); err == nil || !strings.Contains(err.Error(), "mounts the volume roundhouse-model") {
				t.Errorf("%v, and %+v", err, o)
			}
		}
	}
}
