package manifest

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

// Scaling checks a component's own scaling; path is the place of its fields.
func (r *Reader) Scaling(path string, s service.Scaling) service.Scaling {
	r.NotNegative(path+".minReplicas", s.MinReplicas)
	r.NotNegative(path+".maxReplicas", s.MaxReplicas)
	if Crossed(s) {
		r.Errorf(path+".minReplicas", "%d is more than maxReplicas %d", *s.MinReplicas, *s.MaxReplicas)
	}
	if s.ScaleTarget != nil && *s.ScaleTarget <= 0 {
		r.Errorf(path+".scaleTarget", "%v is not more than 0", *s.ScaleTarget)
	}
	if s.ScaleMetric != "" && !slices.Contains(metrics, s.ScaleMetric) {
		r.Errorf(path+".scaleMetric", "unknown metric %q: write one of %s", Clip(string(s.ScaleMetric)), Joined(metrics))
	}
	r.Measured(path+".scaleMetric", s.ScaleMetric)
	return s
}

// Measured warns of a metric that one machine does not have.
func (r *Reader) Measured(path string, m service.ScaleMetric) {
	if m == service.MetricCPU || m == service.MetricMemory {
		p := r.Problem(path, fmt.Sprintf("%s is not measured on one machine: replicas are counted by %d requests in flight each", m, service.DefaultScaleTarget))
		p.Warning, p.Platform = true, Process
	}
}

// Crossed reports whether min is above max. A max of 0 is no stated bound.
func Crossed(s service.Scaling) bool {
	return s.MinReplicas != nil && s.MaxReplicas != nil && *s.MaxReplicas > 0 && *s.MinReplicas > *s.MaxReplicas
}

// Together reports bounds that cross only once two places are read together.
func (r *Reader) Together(path string, whole service.Scaling, parts ...service.Scaling) {
	for _, p := range parts {
		if Crossed(p) {
			return // reported where it stands
		}
	}
	if Crossed(whole) {
		r.Errorf(path, "asks, with what is stated elsewhere, for at least %d and at most %d replicas", *whole.MinReplicas, *whole.MaxReplicas)
	}
}

func (r *Reader) NotNegative(path string, n *int) {
	if n != nil && *n < 0 {
		r.Errorf(path, "%d is negative", *n)
	}
}

// Positive reports a count that must be 1 or more.
func (r *Reader) Positive(path string, n *int) {
	if n != nil && *n < 1 {
		r.Errorf(path, "%d is not more than 0", *n)
	}
}

// Priority reads an entry's priority, whatever integer type it came in.
func Priority[I ~int | ~int32](r *Reader, path string, p *I) *int {
	if p == nil {
		return nil
	}
	n := int(*p)
	r.Positive(path+".priority", &n)
	return &n
}

// Duration checks a duration that must be more than 0.
func (r *Reader) Duration(path string, d *metav1.Duration) {
	if d != nil && d.Duration <= 0 {
		r.Errorf(path, "%v is not more than 0", d.Duration)
	}
}

// Operator reads a version operator.
func (r *Reader) Operator(path, s string) service.Operator {
	ops := []service.Operator{service.OperatorEqual, service.OperatorGreaterThan, service.OperatorGreaterThanOrEqual}
	if s != "" && !slices.Contains(ops, service.Operator(s)) {
		r.Errorf(path, "unknown operator %q: write one of %s", Clip(s), Joined(ops))
	}
	return service.Operator(s)
}
