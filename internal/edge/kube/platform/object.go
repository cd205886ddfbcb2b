package platform

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// kind is a kind of object that a service consists of.
type kind string

const (
	kindDeployment kind = "Deployment"
	kindGroups     kind = "LeaderWorkerSet"
	kindService    kind = "Service"
	kindBudget     kind = "PodDisruptionBudget"
	kindAccount    kind = "ServiceAccount"
	kindRole       kind = "Role"
	kindBinding    kind = "RoleBinding"
	kindScaler     kind = "HorizontalPodAutoscaler"
	kindModels     kind = "ConfigMap"
)

var groupVersionKind = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: string(kindGroups)}

// accessKinds are the kinds that allow a router to list pods itself.
var accessKinds = map[kind]schema.GroupVersionKind{
	kindAccount: corev1.SchemeGroupVersion.WithKind(string(kindAccount)),
	kindRole:    rbacv1.SchemeGroupVersion.WithKind(string(kindRole)),
	kindBinding: rbacv1.SchemeGroupVersion.WithKind(string(kindBinding)),
}

func (k kind) gvk() schema.GroupVersionKind {
	switch k {
	case kindDeployment:
		return appsv1.SchemeGroupVersion.WithKind(string(k))
	case kindGroups:
		return groupVersionKind
	case kindBudget:
		return policyv1.SchemeGroupVersion.WithKind(string(k))
	case kindScaler:
		return autoscalingv2.SchemeGroupVersion.WithKind(string(k))
	case kindAccount, kindRole, kindBinding:
		return accessKinds[k]
	case kindService, kindModels:
	}
	return corev1.SchemeGroupVersion.WithKind(string(k))
}

// counted kinds have a number of replicas.
func (k kind) counted() bool { return k == kindDeployment || k == kindGroups }

// id names an object of a service's namespace.
type id struct {
	kind kind
	name string
}

// compare orders autoscalers first, then the objects that make pods, so that no
// pods are made while the rest is deleted.
func (i id) compare(j id) int {
	rank := func(k kind) int {
		return slices.Index([]kind{kindScaler, kindDeployment, kindGroups, kindService, kindBudget, kindBinding, kindRole, kindAccount, kindModels}, k)
	}
	return cmp.Or(cmp.Compare(rank(i.kind), rank(j.kind)), cmp.Compare(i.name, j.name))
}

// object is what is known of one object, from the watch or from the answer to one
// of our writes, whichever is newer.
type object struct {
	uid      types.UID
	version  string // resourceVersion
	role     service.Role
	applied  string // shape.AnnotationApplied
	revision string
	deleting bool

	// For an object with a count: the count, when it was set, the count that we
	// are setting (-1: none), and why pods could not be made.
	count int
	since time.Time
	// surge reports that there is one replica beyond the count; replicas is how many
	// there are to be with it. Of LeaderWorkerSets alone.
	surge    bool
	replicas int
	writing  int
	refused  string
	// raised: another client raised the count, and the caller that decides counts
	// has not called Observe since it was told. Until then the count is not lowered,
	// because the decision may be older than the raise.
	raised bool
}

// known reads what is remembered of an object.
func known(o client.Object) object {
	out := object{uid: o.GetUID(), version: o.GetResourceVersion(), role: service.Role(o.GetLabels()[shape.LabelRole]),
		applied: o.GetAnnotations()[shape.AnnotationApplied], revision: o.GetLabels()[shape.LabelRevision],
		deleting: o.GetDeletionTimestamp() != nil}
	switch o := o.(type) {
	case *appsv1.Deployment:
		out.count = 1 // the API server's default
		if o.Spec.Replicas != nil {
			out.count = int(*o.Spec.Replicas)
		}
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				out.refused = c.Message
			}
		}
	case *unstructured.Unstructured:
		if !kind(o.GetKind()).counted() {
			break
		}
		out.replicas, out.surge = replicasOf(o), surging(o)
		out.count = wantedOf(out.replicas, out.surge)
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, raw := range conditions {
			c, _ := raw.(map[string]any)
			if c["type"] == string(appsv1.DeploymentReplicaFailure) && c["status"] == string(corev1.ConditionTrue) {
				out.refused, _ = c["message"].(string)
			}
		}
	}
	return out
}

// replicasOf reads spec.replicas. For both kinds, 1 is the API server's default
// when it is absent.
func replicasOf(o *unstructured.Unstructured) int {
	n, found, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
	if !found {
		return 1
	}
	return int(n)
}

// keyOf is the service an object or pod belongs to.
func keyOf(o metav1.Object) (service.Key, bool) {
	k := service.WorkloadKey(o.GetNamespace(), o.GetAnnotations()[shape.AnnotationService])
	if k.Name == "" {
		k.Name = o.GetLabels()[shape.LabelService]
	}
	return k, k.Name != ""
}

// older reports whether a comes before b in the order of the API server's writes.
func older(a, b string) bool {
	n, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && n < 0
}

func newUnstructured(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

func metadataOf(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(gvk)
	return m
}
