package dialect

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// metrics are what a component scales on.
var metrics = []service.ScaleMetric{
	service.MetricConcurrency, service.MetricRPS, service.MetricCPU, service.MetricMemory,
}

// scaling checks a component's own scaling; path is the place of its fields.
func (r *reading) scaling(path string, s service.Scaling) service.Scaling {
	r.notNegative(path+".minReplicas", s.MinReplicas)
	r.notNegative(path+".maxReplicas", s.MaxReplicas)
	if crossed(s) {
		r.errorf(path+".minReplicas", "%d is more than maxReplicas %d", *s.MinReplicas, *s.MaxReplicas)
	}
	if s.ScaleTarget != nil && *s.ScaleTarget <= 0 {
		r.errorf(path+".scaleTarget", "%v is not more than 0", *s.ScaleTarget)
	}
	if s.ScaleMetric != "" && !slices.Contains(metrics, s.ScaleMetric) {
		r.errorf(path+".scaleMetric", "unknown metric %q: write one of %s", clip(string(s.ScaleMetric)), joined(metrics))
	}
	r.measured(path+".scaleMetric", s.ScaleMetric)
	return s
}

// measured warns of a metric that one machine does not have.
func (r *reading) measured(path string, m service.ScaleMetric) {
	if m == service.MetricCPU || m == service.MetricMemory {
		p := r.problem(path, fmt.Sprintf("%s is not measured on one machine: replicas are counted by %d requests in flight each", m, service.DefaultScaleTarget))
		p.Warning, p.Platform = true, Process
	}
}

// crossed says whether min is above max. A max of 0 is no stated bound.
func crossed(s service.Scaling) bool {
	return s.MinReplicas != nil && s.MaxReplicas != nil && *s.MaxReplicas > 0 && *s.MinReplicas > *s.MaxReplicas
}

// together reports bounds that cross only once two places are read together.
func (r *reading) together(path string, whole service.Scaling, parts ...service.Scaling) {
	for _, p := range parts {
		if crossed(p) {
			return // reported where it stands
		}
	}
	if crossed(whole) {
		r.errorf(path, "asks, with what is stated elsewhere, for at least %d and at most %d replicas", *whole.MinReplicas, *whole.MaxReplicas)
	}
}

func (r *reading) notNegative(path string, n *int) {
	if n != nil && *n < 0 {
		r.errorf(path, "%d is negative", *n)
	}
}

// positive reports a count that must be 1 or more.
func (r *reading) positive(path string, n *int) {
	if n != nil && *n < 1 {
		r.errorf(path, "%d is not more than 0", *n)
	}
}

// priority reads an entry's priority, whatever integer type it came in.
func priority[I ~int | ~int32](r *reading, path string, p *I) *int {
	if p == nil {
		return nil
	}
	n := int(*p)
	r.positive(path+".priority", &n)
	return &n
}

// duration checks a duration that must be more than 0.
func (r *reading) duration(path string, d *metav1.Duration) {
	if d != nil && d.Duration <= 0 {
		r.errorf(path, "%v is not more than 0", d.Duration)
	}
}

// operator reads a version operator.
func (r *reading) operator(path, s string) service.Operator {
	ops := []service.Operator{service.OperatorEqual, service.OperatorGreaterThan, service.OperatorGreaterThanOrEqual}
	if s != "" && !slices.Contains(ops, service.Operator(s)) {
		r.errorf(path, "unknown operator %q: write one of %s", clip(s), joined(ops))
	}
	return service.Operator(s)
}
