package platform

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// Trimmed sets a cache's options so that, of the platform's kinds, it keeps only
// Roundhouse's own objects and only the fields that are read: without its volumes
// and variables a pod takes a quarter of the memory. Objects from such a cache must
// not be written back whole.
func Trimmed(o *cache.Options) error {
	for kind, by := range o.ByObject {
		switch kind.(type) {
		case *corev1.Pod:
			by.Transform = chain(by.Transform, o.DefaultTransform, trimPod)
		case *appsv1.Deployment:
			by.Transform = chain(by.Transform, o.DefaultTransform, trimDeployment)
		case *corev1.Service:
			by.Transform = chain(by.Transform, o.DefaultTransform, func(raw any) (any, error) {
				if s, ok := raw.(*corev1.Service); ok {
					s.Spec, s.Status = corev1.ServiceSpec{}, corev1.ServiceStatus{}
				}
				return raw, nil
			})
		case *policyv1.PodDisruptionBudget:
			by.Transform = chain(by.Transform, o.DefaultTransform, func(raw any) (any, error) {
				if b, ok := raw.(*policyv1.PodDisruptionBudget); ok {
					b.Spec, b.Status = policyv1.PodDisruptionBudgetSpec{}, policyv1.PodDisruptionBudgetStatus{}
				}
				return raw, nil
			})
		default:
			continue
		}
		if by.Label == nil {
			return errors.New("platform: the cache would hold every " + fmt.Sprintf("%T", kind) + " of the cluster: select by " + shape.LabelManagedBy)
		}
		o.ByObject[kind] = by
	}
	return nil
}

// chain applies the kind's own transform, or else the default, and then last.
func chain(own, byDefault, last toolscache.TransformFunc) toolscache.TransformFunc {
	first := own
	if first == nil {
		first = byDefault
	}
	return func(raw any) (any, error) {
		if first != nil {
			var err error
			if raw, err = first(raw); err != nil {
				return raw, err
			}
		}
		return last(raw)
	}
}

func trimMeta(o metav1.Object) {
	o.SetManagedFields(nil)
	var kept map[string]string
	for _, name := range []string{shape.AnnotationService, shape.AnnotationApplied, deletionCost, annotationSurge} {
		if v, ok := o.GetAnnotations()[name]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[name] = v
		}
	}
	o.SetAnnotations(kept)
	o.SetOwnerReferences(nil)
}

func trimPod(raw any) (any, error) {
	pod, ok := raw.(*corev1.Pod)
	if !ok {
		return raw, nil
	}
	trimMeta(pod)
	pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName, InitContainers: names(pod.Spec.InitContainers),
		Containers: names(pod.Spec.Containers)}
	st := &pod.Status
	for _, list := range [][]corev1.ContainerStatus{st.InitContainerStatuses, st.ContainerStatuses} {
		for i := range list {
			c := &list[i]
			c.ImageID, c.ContainerID, c.VolumeMounts, c.AllocatedResources, c.Resources, c.User, c.AllocatedResourcesStatus =
				"", "", nil, nil, nil, nil, nil
		}
	}
	st.PodIPs, st.HostIPs, st.EphemeralContainerStatuses, st.ResourceClaimStatuses = nil, nil, nil, nil
	return pod, nil
}

// names keeps only the names of containers.
func names(in []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(in))
	for i := range in {
		out[i] = corev1.Container{Name: in[i].Name, Image: in[i].Image, RestartPolicy: in[i].RestartPolicy}
	}
	return out
}

func trimDeployment(raw any) (any, error) {
	d, ok := raw.(*appsv1.Deployment)
	if !ok {
		return raw, nil
	}
	trimMeta(d)
	d.Spec = appsv1.DeploymentSpec{Replicas: d.Spec.Replicas}
	return d, nil
}

func trimGroups(raw any) (any, error) {
	u, ok := raw.(*unstructured.Unstructured)
	if !ok {
		return raw, nil
	}
	trimMeta(u)
	n, found, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	delete(u.Object, "status")
	u.Object["spec"] = map[string]any{}
	if found {
		u.Object["spec"] = map[string]any{"replicas": n}
	}
	return u, nil
}

func trimMetadata(raw any) (any, error) {
	if m, ok := raw.(*metav1.PartialObjectMetadata); ok {
		trimMeta(m)
	}
	return raw, nil
}

func trimScaler(raw any) (any, error) {
	h, ok := raw.(*autoscalingv2.HorizontalPodAutoscaler)
	if !ok {
		return raw, nil
	}
	if !ownScaler(h) {
		h.Labels = nil
	}
	trimMeta(h)
	h.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: h.Spec.ScaleTargetRef}
	h.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
	return h, nil
}
