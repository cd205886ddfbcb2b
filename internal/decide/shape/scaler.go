package shape

import (
	"math"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Annotations by which a manifest leaves the count to an autoscaler of its
// author's: of KServe, of OME, and ours.
const (
	classKServe   = "serving.kserve.io/autoscalerClass"
	classOME      = "ome.io/autoscalerClass"
	classOurs     = "roundhouse.dev/autoscalerClass"
	classExternal = "external"
)

// LeftToOthers reports whether annotations leave a count to an autoscaler that
// the manifest's author brings.
func LeftToOthers(annotations map[string]string) bool {
	return annotations[classKServe] == classExternal || annotations[classOME] == classExternal || annotations[classOurs] == classExternal
}

// scaler has Kubernetes count the replicas of a role whose metric is what they
// use of a resource, which requests do not tell. It never asks for none: from and
// to zero, requests decide.
func (r *renderer) scaler(out *Objects) {
	l := r.c.Limits
	if !l.Metric.Resource() || LeftToOthers(r.rev.Annotations) || LeftToOthers(r.c.Annotations) {
		return
	}
	target := autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: Name(r.rev.Service, r.c.Role)}
	if r.grouped() {
		target.APIVersion, target.Kind = GroupAPIVersion, "LeaderWorkerSet"
	}
	percent := int32(min(max(math.Round(l.Target), 1), math.MaxInt32))
	least := count32(max(l.Min, 1))
	h := autoscalingv2.HorizontalPodAutoscaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v2", Kind: "HorizontalPodAutoscaler"},
		ObjectMeta: r.meta(),
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: target,
			MinReplicas:    &least,
			MaxReplicas:    max(count32(l.Max), least),
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ResourceMetricSourceType,
				Resource: &autoscalingv2.ResourceMetricSource{
					Name:   resourceOf(l.Metric),
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &percent},
				},
			}},
		},
	}
	r.applied(&h.ObjectMeta, h)
	out.Scalers = append(out.Scalers, h)
}

func resourceOf(m service.ScaleMetric) corev1.ResourceName {
	if m == service.MetricMemory {
		return corev1.ResourceMemory
	}
	return corev1.ResourceCPU
}

func count32(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }
