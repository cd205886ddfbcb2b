package dialect

import (
	"math"
	"slices"
	"strconv"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// knative is the prefix of Knative's annotations.
const knative = "autoscaling.knative.dev/"

// annotation is one that was found, and where.
type annotation struct{ path, value string }

// annotated reads the annotations by which people scale KServe's and OME's
// services: Knative's, and the dialect's own for its HPA mode under prefix.
// The component's are at path and win over the service's; what the spec states
// wins over both.
func (r *reading) annotated(path, prefix string, c *service.Component, annotations map[string]string) {
	find := func(names ...string) *annotation {
		for _, n := range names {
			if v, ok := c.Annotations[n]; ok {
				return &annotation{strict.Key(path, n), v}
			}
			if v, ok := annotations[n]; ok {
				return &annotation{strict.Key("metadata.annotations", n), v}
			}
		}
		return nil
	}
	s := service.Scaling{
		MinReplicas: r.count(find(knative+"min-scale", knative+"minScale")),
		MaxReplicas: r.count(find(knative+"max-scale", knative+"maxScale")),
		ScaleTarget: r.target(find(knative+"target", prefix+"targetUtilizationPercentage")),
	}
	if a := find(knative+"metric", prefix+"metrics"); a != nil {
		s.ScaleMetric = service.ScaleMetric(a.value)
		if !slices.Contains(metrics, s.ScaleMetric) {
			r.errorf(a.path, "unknown metric %q: write one of %s", clip(a.value), joined(metrics))
		}
	}
	if a := find(knative + "scale-to-zero-pod-retention-period"); a != nil {
		switch d, err := time.ParseDuration(a.value); {
		case err != nil || d < 0:
			r.errorf(a.path, "%q is not a duration such as 5m", clip(a.value))
		case d > 0:
			s.ScaleToZeroAfter = &d
		}
	}
	if a := find(prefix + "autoscalerClass"); a != nil {
		switch a.value {
		case "none":
			r.warnf(a.path, "%q has no effect: set minReplicas and maxReplicas alike to fix the count", a.value)
		case "external":
			r.warnf(a.path, "%q has no effect on one machine; on a cluster the count is left to your autoscaler, but for the start from 0", a.value)
		}
	}
	apart := c.Scaling
	c.Scaling = c.Scaling.Over(s)
	r.together("metadata.annotations", c.Scaling, apart, s)
}

// annotatedToo reads those of a further component, nil for none. What is wrong
// with the service's own is said once.
func (r *reading) annotatedToo(path, prefix string, c *service.Component, annotations map[string]string) {
	if c == nil {
		return
	}
	said := len(r.problems)
	r.annotated(path, prefix, c, annotations)
	again := slices.DeleteFunc(r.problems[said:], func(p Problem) bool { return slices.Contains(r.problems[:said], p) })
	r.problems = r.problems[:said+len(again)]
}

// count reads an annotation that is a number of replicas.
func (r *reading) count(a *annotation) *int {
	if a == nil {
		return nil
	}
	n, err := strconv.ParseInt(a.value, 10, 32)
	if err != nil || n < 0 {
		r.errorf(a.path, "%q is not a count", clip(a.value))
	}
	out := int(n)
	return &out
}

// target reads an annotation that is a scale target.
func (r *reading) target(a *annotation) *float64 {
	if a == nil {
		return nil
	}
	f, err := strconv.ParseFloat(a.value, 64)
	if err != nil || math.IsNaN(f) || f <= 0 || f > 1e9 {
		r.errorf(a.path, "%q is not a target above 0", clip(a.value))
	}
	return &f
}
