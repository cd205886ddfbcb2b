package shape

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
	"roundhouse.dev/roundhouse/internal/decide/precache"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Labels of what keeps models on nodes ahead of their use, and of the pods that use them.
const (
	// LabelModelCache is the name of the copies, on what makes them and on pods that read
	// one.
	LabelModelCache = "roundhouse.dev/model-cache"
	// LabelKeeper is the namespace of the controller that made what makes copies.
	LabelKeeper = "roundhouse.dev/keeper"
	// AnnotationDropping is the time since which copies are being removed.
	AnnotationDropping = "roundhouse.dev/dropping-since"
)

// Of the folder of models that nodes share: where the file is that says a kept model is
// there. Every user may see it, unlike the places.
const keptReady = "ready"

// keptVolume is the folder in a pod that reads a kept model.
const keptVolume = modelVolume

// kept has the pod read a model that its node keeps: an init container waits until it is
// there, and fetches nothing; where the server reads a path in it, another looks whether
// that is there. ok is false where the pod is to fetch the model.
func (r *renderer) kept(pod *corev1.PodSpec, main *corev1.Container) (ok bool) {
	k := r.rev.Kept
	if k == nil || !r.serves() || r.c.Files != nil || r.rev.Image == "" || mountAt(main, modelPath) != nil {
		return false
	}
	place, sub := placeOfKept(k.Name), strings.TrimPrefix(path.Join("/", k.Sub), "/")
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: keptVolume, VolumeSource: nodeFolder(k.Folder)})
	mount := func(at, sub string) corev1.VolumeMount {
		return corev1.VolumeMount{Name: keptVolume, MountPath: at, SubPath: sub, ReadOnly: true}
	}
	main.VolumeMounts = append(main.VolumeMounts, mount(modelPath, path.Join(place, sub)))
	before := []corev1.Container{r.looks(Waiter, mount(storePath, ""), "await", arrivedAt(k.Name))}
	if sub != "" { // the kubelet would make one that is not there, in the copy that all read
		before = append(before, r.looks(Finder, mount(modelPath, place), "find", modelPath, sub))
	}
	pod.InitContainers = append(before, pod.InitContainers...)
	return true
}

// looks is an init container that only reads the folder of a kept model.
func (r *renderer) looks(name string, mount corev1.VolumeMount, args ...string) corev1.Container {
	security := restricted()
	security.ReadOnlyRootFilesystem = new(true)
	return corev1.Container{
		Name: name, Image: r.rev.Image, Command: append([]string{program}, args...),
		Resources:    corev1.ResourceRequirements{Requests: smallest(), Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}},
		VolumeMounts: []corev1.VolumeMount{mount}, SecurityContext: security,
	}
}

// placeOfKept is where a kept model is in its folder.
func placeOfKept(name string) string { return path.Join("places", name, "model") }

// arrivedAt is the file that says a kept model is there, in a container that fetches or
// waits.
func arrivedAt(name string) string { return path.Join(storePath, keptReady, name, "done") }

func nodeFolder(at string) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: at, Type: new(corev1.HostPathDirectoryOrCreate)}}
}

// CacheOptions are what a cluster adds to a model that nodes keep.
type CacheOptions struct {
	Options
	// Image is this program's own, Installation the controller's namespace.
	Image, Installation string
	// StoreSize bounds the models of a namespace on a node where their groups do not.
	StoreSize string
}

// CacheAccount names the service account whose secrets fetch the model of a cache; "" is
// none.
func CacheAccount(c *service.ModelCache) string {
	rev, component := cacheRevision(c, "")
	return AccountOf(&rev, &component)
}

// cacheRevision is a revision whose pods fetch the model of a cache.
func cacheRevision(c *service.ModelCache, image string) (workload.Revision, workload.Component) {
	component := workload.Component{Role: service.RoleEngine, Main: Fetcher, Pod: corev1.PodSpec{ServiceAccountName: c.Account}}
	return workload.Revision{Service: service.Key{Namespace: credentials.NamespaceOfCache(c), Name: c.Name}, Image: image,
		Model: workload.Model{URI: c.URI, Storage: c.Storage}}, component
}

// CacheDaemonSet makes the copies of a cache's model on the nodes that keep it, each with a
// pod that fetches it, is ready when it is there, and holds it as long as it runs.
func CacheDaemonSet(c *service.ModelCache, k precache.Kept, o CacheOptions) (*appsv1.DaemonSet, error) {
	rev, component := cacheRevision(c, o.Image)
	rev.Delivery = workload.Delivery{Store: k.Folder, StoreSize: o.StoreSize}
	if k.Limit > 0 {
		rev.Delivery.StoreSize = strconv.FormatInt(k.Limit, 10)
	}
	r := renderer{rev: &rev, c: component, m: rev.Model, o: o.Options}
	pod := corev1.PodSpec{ServiceAccountName: c.Account}
	fetch, err := r.keeps(&pod, k)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Key, err)
	}
	pod.Containers = []corev1.Container{fetch}
	r.hub(&pod)
	lastWords(&pod)
	// An account is named for its secrets alone.
	pod.AutomountServiceAccountToken, pod.EnableServiceLinks = new(false), new(false)
	pod.TerminationGracePeriodSeconds = new(int64(keeperGrace))
	pod.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	if k.Nodes != nil {
		pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: k.Nodes.DeepCopy()}}
	}
	labels := map[string]string{LabelManagedBy: Manager, LabelModelCache: k.Name, LabelKeeper: o.Installation}
	all := intstr.FromString("100%")
	d := &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: k.Name, Namespace: k.Namespace, Labels: labels, Annotations: map[string]string{}},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{LabelModelCache: k.Name, LabelKeeper: o.Installation}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(labels)}, Spec: pod},
			// Nobody waits for these pods: what they keep stays when they are replaced.
			UpdateStrategy:       appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &all}},
			RevisionHistoryLimit: new(int32(0)),
		},
	}
	d.Annotations[AnnotationApplied] = digest(d)
	return d, nil
}

const (
	// keeperGrace is how long a pod that keeps a model may take to end.
	keeperGrace = 2
	// askEvery is how often it is looked whether a model is there, in seconds.
	askEvery = 2
)

// keeps is the container that fetches a model into the folder of its node and holds it.
func (r *renderer) keeps(pod *corev1.PodSpec, k precache.Kept) (corev1.Container, error) {
	uri := r.m.URI
	scheme, _, found := strings.Cut(uri, "://")
	if !found || !Fetches(scheme) {
		return corev1.Container{}, fmt.Errorf("spec.sourceModelUri: nothing fetches %s ahead of its use: name a model of %s", service.RedactURI(uri), strings.Join(service.FetchedSchemes, "://, ")+"://")
	}
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: keptVolume, VolumeSource: nodeFolder(k.Folder)})
	security := restricted()
	security.ReadOnlyRootFilesystem = new(true)
	c := corev1.Container{
		Name: Fetcher, Image: r.rev.Image,
		Resources:       corev1.ResourceRequirements{Requests: smallest(), Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
		VolumeMounts:    []corev1.VolumeMount{{Name: keptVolume, MountPath: storePath}},
		SecurityContext: security,
		StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{program, "await", arrivedAt(k.Name)}}},
			PeriodSeconds: askEvery, TimeoutSeconds: 1, FailureThreshold: math.MaxInt32},
	}
	if err := r.public(&c, files{what: "spec.sourceModelUri", uri: uri}); err != nil {
		return c, err
	}
	r.storage(&c)
	r.grant(pod, &c, scheme)
	r.keep(&c, uri)
	c.Args = slices.Clone(c.Args)
	c.Args[slices.Index(c.Args, "--place")+1] = k.Name
	c.Args = append(c.Args, "--stay", path.Dir(arrivedAt(k.Name)))
	c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == podVariable })
	return c, nil
}

// CacheRemoval is d with pods that remove the copies which it made, each ready when its
// node has none, and nothing else. since is when that began.
func CacheRemoval(d *appsv1.DaemonSet, since string) *appsv1.DaemonSet {
	out := &appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: d.Name, Namespace: d.Namespace, Labels: maps.Clone(d.Labels), Annotations: map[string]string{AnnotationDropping: since}},
		Spec:       *d.Spec.DeepCopy()}
	pod := &out.Spec.Template.Spec
	pod.ServiceAccountName, pod.DeprecatedServiceAccount = "", "" // which may be gone
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if c.Name != Fetcher {
			continue
		}
		remove := *c
		remove.Args, remove.StartupProbe = append(slices.Clone(c.Args), "--drop"), nil
		// Secrets may be gone by now, and it needs none, but for what a storage makes of the
		// URI.
		remove.Env, remove.EnvFrom = nil, nil
		for _, e := range c.Env {
			if e.Name == storageConfig || e.Name == storageOverride {
				e = *e.DeepCopy()
				if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
					e.ValueFrom.SecretKeyRef.Optional = new(true)
				}
				remove.Env = append(remove.Env, e)
			}
		}
		pod.InitContainers = []corev1.Container{remove}
		*c = corev1.Container{Name: "ended", Image: c.Image, Command: []string{program}, TerminationMessagePolicy: c.TerminationMessagePolicy,
			Resources:       corev1.ResourceRequirements{Requests: smallest(), Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}},
			SecurityContext: without(nil)}
	}
	return out
}

// Removed reports whether the pods of [CacheRemoval] have removed the copies of all nodes.
func Removed(d *appsv1.DaemonSet) bool {
	s := d.Status
	return d.Annotations[AnnotationDropping] != "" && s.ObservedGeneration >= d.Generation &&
		s.UpdatedNumberScheduled >= s.DesiredNumberScheduled && s.NumberReady >= s.DesiredNumberScheduled
}

// ReadsCopy reports whether a pod with the label of the copies that d makes may read one.
// Anybody who makes pods can write the label, so it does not count alone: the pod mounts the
// folder of the copies, for which its namespace must admit hostPath volumes, and those of a
// namespace's cache are read there.
func ReadsCopy(pod *corev1.Pod, d *appsv1.DaemonSet) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	folder := keptFolder(&d.Spec.Template.Spec)
	return folder != "" && keptFolder(&pod.Spec) == folder && (d.Namespace == credentials.CacheNamespace || pod.Namespace == d.Namespace)
}

// keptFolder is the node's folder of kept models that a pod mounts; "" for none.
func keptFolder(pod *corev1.PodSpec) string {
	for _, v := range KeptVolumes(pod.Volumes) {
		return v.HostPath.Path
	}
	return ""
}

// KeptVolumes are those of a pod's volumes that are folders of kept models.
func KeptVolumes(all []corev1.Volume) (out []corev1.Volume) {
	for _, v := range all {
		if v.Name == keptVolume && v.HostPath != nil {
			out = append(out, v)
		}
	}
	return out
}
