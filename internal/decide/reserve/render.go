package reserve

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
)

// Labels and annotations of what belongs to a Reserve. The objects do not have the
// label of services' objects: they are not a service's.
const (
	// LabelReserve is the Reserve's name.
	LabelReserve = "roundhouse.dev/reserve"
	// AnnotationApplied is the digest of a Deployment as it was rendered.
	AnnotationApplied = "roundhouse.dev/applied"
	// AnnotationNode and AnnotationImage say what a Job pulls.
	AnnotationNode  = "roundhouse.dev/node"
	AnnotationImage = "roundhouse.dev/image"

	labelComponent = "app.kubernetes.io/component"
)

// Names of the containers.
const (
	placeholder = "placeholder"
	// Puller is the container whose image is pulled.
	Puller = "image"
	copier = "copy"
)

const (
	// program is roundhouse-pause in our image, and tools where other images have it.
	program = "/roundhouse-pause"
	tools   = "/roundhouse-tools"
	// graceSeconds is more than a placeholder needs to end. With 0 the API server
	// would forget the pod while its devices are still in use.
	graceSeconds = 2
	// user is nobody in any image.
	user = 65532
)

// Env is what a cluster adds.
type Env struct {
	// Image is this program's own, PriorityClass that of placeholders.
	Image, PriorityClass string
}

// Deployment is the one that runs a Reserve's placeholders.
func Deployment(r *api.Reserve, count int, env Env) *appsv1.Deployment {
	labels := map[string]string{LabelReserve: r.Metadata.Name, labelComponent: placeholder}
	pod := podOf(r)
	pod.PriorityClassName = env.PriorityClass
	pod.NodeSelector = maps.Clone(r.Spec.NodeSelector)
	pod.Tolerations = slices.Clone(r.Spec.Tolerations)
	pod.TerminationGracePeriodSeconds = new(int64(graceSeconds))
	pod.Containers = []corev1.Container{{
		Name: placeholder, Image: env.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{program}, Resources: resources(r.Spec.Placeholders.Resources), SecurityContext: confined(),
	}}
	d := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: DeploymentName(r), Namespace: r.Metadata.Namespace, Labels: labels, OwnerReferences: owner(r)},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(count)), Selector: &metav1.LabelSelector{MatchLabels: labels}, RevisionHistoryLimit: new(int32(0)),
			// Others would need the resources of both.
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod},
		},
	}
	d.Annotations = map[string]string{AnnotationApplied: digest(d)}
	return d
}

// DeploymentName is that of a Reserve's placeholders.
func DeploymentName(r *api.Reserve) string { return r.Metadata.Name + "-placeholder" }

// Job pulls an image onto a node: its second container is the image, and what runs
// there is our program, which ends at once. Nothing of the image itself runs, and
// it needs no shell. The Job ends by itself, and goes by itself, should nobody take
// it away: with its node, or with the Reserve.
func Job(r *api.Reserve, p Pull, env Env) *batchv1.Job {
	labels := map[string]string{LabelReserve: r.Metadata.Name, labelComponent: "pull"}
	notes := map[string]string{AnnotationNode: p.Node, AnnotationImage: p.Image}
	pod := podOf(r)
	pod.NodeName = p.Node
	pod.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.RestartPolicy = corev1.RestartPolicyNever
	pod.TerminationGracePeriodSeconds = new(int64(graceSeconds))
	mount := []corev1.VolumeMount{{Name: "tools", MountPath: tools}}
	pod.InitContainers = []corev1.Container{{Name: copier, Image: env.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{program, "copy", tools + program}, VolumeMounts: mount, SecurityContext: confined()}}
	pod.Containers = []corev1.Container{{Name: Puller, Image: p.Image, ImagePullPolicy: corev1.PullIfNotPresent,
		Command: []string{tools + program, "done"}, VolumeMounts: []corev1.VolumeMount{{Name: "tools", MountPath: tools, ReadOnly: true}}, SecurityContext: confined(),
		// NVIDIA's runtime would mount its driver, or refuse an image for a newer one.
		Env: []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: "void"}}}}
	pod.Volumes = []corev1.Volume{{Name: "tools", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	return &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: JobName(r, p), Namespace: r.Metadata.Namespace, Labels: labels, Annotations: notes,
			OwnerReferences: owner(r)},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(0)), ActiveDeadlineSeconds: new(int64(pullSeconds)), TTLSecondsAfterFinished: new(int32(ttlSeconds)),
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: notes}, Spec: pod},
		},
	}
}

const (
	// pullSeconds is how long one image may take.
	pullSeconds = 3600
	// ttlSeconds is how long a Job stays that nobody takes away.
	ttlSeconds = 600
)

// JobName is that of one pull: a controller that starts again makes none twice. It
// is the value of a label too, which has at most 63 bytes.
func JobName(r *api.Reserve, p Pull) string {
	sum := sha256.Sum256([]byte(r.Metadata.Name + "\n" + p.Node + "\n" + Canonical(p.Image)))
	begin := r.Metadata.Name[:min(len(r.Metadata.Name), 40)]
	return strings.TrimRight(begin, "-") + "-pull-" + hex.EncodeToString(sum[:])[:10]
}

// podOf is what all pods of a Reserve have: no rights, and no token.
func podOf(r *api.Reserve) corev1.PodSpec {
	out := corev1.PodSpec{
		AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), FSGroup: new(int64(user)),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
	}
	for _, name := range r.Spec.ImagePullSecrets {
		out.ImagePullSecrets = append(out.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return out
}

func confined() *corev1.SecurityContext {
	return &corev1.SecurityContext{AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true), RunAsNonRoot: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
}

// resources are requests; what cannot be shared, as devices, needs the same limit.
func resources(in map[string]resource.Quantity) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}}
	for name, q := range in {
		n := corev1.ResourceName(name)
		out.Requests[n] = q.DeepCopy()
		switch n {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
		default:
			if out.Limits == nil {
				out.Limits = corev1.ResourceList{}
			}
			out.Limits[n] = q.DeepCopy()
		}
	}
	return out
}

func owner(r *api.Reserve) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: api.APIVersion, Kind: api.KindReserve, Name: r.Metadata.Name, UID: r.Metadata.UID, Controller: new(true)}}
}

// IsPlaceholder reports whether a pod of a Reserve's namespace is one of its
// placeholders.
func IsPlaceholder(o metav1.Object, r *api.Reserve) bool {
	l := o.GetLabels()
	return l[LabelReserve] == r.Metadata.Name && l[labelComponent] == placeholder
}

// Owned reports whether an object belongs to a Reserve.
func Owned(o metav1.Object, reserve types.UID) bool {
	ref := metav1.GetControllerOf(o)
	return ref != nil && ref.UID == reserve
}

func digest(v any) string {
	raw, _ := json.Marshal(v) // encoding these plain structs cannot fail
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:16]
}
