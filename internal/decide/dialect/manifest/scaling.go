package manifest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/cron"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// CheckScaling checks a component's own scaling; path is the place of its fields.
func CheckScaling(r *Report, path string, s service.Scaling) service.Scaling {
	CheckNotNegative(r, path+".minReplicas", s.MinReplicas)
	CheckNotNegative(r, path+".maxReplicas", s.MaxReplicas)
	if Crossed(s) {
		r.Errorf(path+".minReplicas", "%d is more than maxReplicas %d", *s.MinReplicas, *s.MaxReplicas)
	}
	if s.ScaleTarget != nil && *s.ScaleTarget <= 0 {
		r.Errorf(path+".scaleTarget", "%v is not more than 0", *s.ScaleTarget)
	}
	if s.ScaleMetric != "" && !slices.Contains(service.ScaleMetrics, s.ScaleMetric) {
		r.Errorf(path+".scaleMetric", "unknown metric %q: write one of %s", Clip(string(s.ScaleMetric)), Joined(service.ScaleMetrics))
	}
	checkMetrics(r, path, s)
	checkSchedule(r, path+".schedule", s)
	checkPrewarm(r, path+".prewarm", s)
	checkPreset(r, path, s)
	return s
}

// checkPrewarm checks whether a replica is to be started ahead; path is that of
// the field.
func checkPrewarm(r *Report, path string, s service.Scaling) {
	switch s.Prewarm {
	case "", service.PrewarmOff:
	case service.PrewarmAuto:
		if s.MinReplicas != nil && *s.MinReplicas > 0 {
			r.Warnf(path, "has no effect with minReplicas %d: a replica is always there", *s.MinReplicas)
		}
	default:
		r.Errorf(path, "unknown value %q: write auto or off", Clip(string(s.Prewarm)))
	}
}

// maxWindows bounds a schedule.
const maxWindows = 32

// checkSchedule checks the windows of a component's schedule, which is at path.
func checkSchedule(r *Report, path string, s service.Scaling) {
	if len(s.Schedule) > maxWindows {
		r.Errorf(path, "has %d windows: write at most %d", len(s.Schedule), maxWindows)
		return
	}
	if len(s.Schedule) > 0 && s.ScaleMetric.Resource() && len(s.Metrics) == 0 {
		r.Warnf(path, "has no effect on a cluster with the metric %s: a HorizontalPodAutoscaler counts the replicas", s.ScaleMetric)
	}
	for i, w := range s.Schedule {
		at := fmt.Sprintf("%s[%d]", path, i)
		if len(w.Name) > maxWindowName {
			r.Errorf(at+".name", "has %d characters: write at most %d", len(w.Name), maxWindowName)
		}
		checkTimes(r, at, w)
		CheckNotNegative(r, at+".minReplicas", w.MinReplicas)
		CheckPositive(r, at+".maxReplicas", w.MaxReplicas)
		own := service.Scaling{MinReplicas: w.MinReplicas, MaxReplicas: w.MaxReplicas}
		switch {
		case w.MinReplicas == nil && w.MaxReplicas == nil:
			r.Errorf(at, "changes nothing: write minReplicas, maxReplicas or both")
		case Crossed(own):
			r.Errorf(at+".minReplicas", "%d is more than maxReplicas %d", *w.MinReplicas, *w.MaxReplicas)
		case Crossed(own.Over(service.Scaling{MaxReplicas: s.MaxReplicas})):
			r.Errorf(at+".minReplicas", "%d is more than the component's maxReplicas %d: write maxReplicas here too, or raise that", *w.MinReplicas, *s.MaxReplicas)
		case Crossed(own.Over(service.Scaling{MinReplicas: s.MinReplicas})):
			r.Errorf(at+".maxReplicas", "%d is less than the component's minReplicas %d: write minReplicas here too, or lower that", *w.MaxReplicas, *s.MinReplicas)
		}
	}
}

// maxWindowName bounds the name of a window.
const maxWindowName = 63

// checkTimes checks when a window is open.
func checkTimes(r *Report, at string, w service.ScheduleWindow) {
	start, wrongStart := cron.Parse(w.Start)
	if wrongStart != nil {
		r.Errorf(at+".start", "%v", wrongStart)
	}
	end, wrongEnd := cron.Parse(w.End)
	if wrongEnd != nil {
		r.Errorf(at+".end", "%v", wrongEnd)
	}
	zone, err := cron.Zone(w.TimeZone)
	if err != nil {
		r.Errorf(at+".timeZone", "%v", err)
	}
	if wrongStart == nil && wrongEnd == nil && cron.NewWindow(start, end, zone).Never() {
		r.Errorf(at+".end", "is when the window opens: it would never be open")
	}
}

// Crossed reports whether min is above max. A max of 0 is no stated bound.
func Crossed(s service.Scaling) bool {
	return s.MinReplicas != nil && s.MaxReplicas != nil && *s.MaxReplicas > 0 && *s.MinReplicas > *s.MaxReplicas
}

// CheckTogether reports a minimum above the maximum where two fields state them.
func CheckTogether(r *Report, path string, whole service.Scaling, parts ...service.Scaling) {
	for _, p := range parts {
		if Crossed(p) {
			return // reported where it stands
		}
	}
	if Crossed(whole) {
		r.Errorf(path, "the manifest asks for at least %d replicas in one field and at most %d in another: lower the first or raise the second", *whole.MinReplicas, *whole.MaxReplicas)
	}
}

func CheckNotNegative(r *Report, path string, n *int) {
	if n != nil && *n < 0 {
		r.Errorf(path, "%d is negative", *n)
	}
}

// CheckPositive reports a count that must be 1 or more.
func CheckPositive(r *Report, path string, n *int) {
	if n != nil && *n < 1 {
		r.Errorf(path, "%d is not more than 0", *n)
	}
}

// Priority reads an entry's priority, whatever integer type it came in.
func Priority[I ~int | ~int32](r *Report, path string, p *I) *int {
	if p == nil {
		return nil
	}
	n := int(*p)
	CheckPositive(r, path+".priority", &n)
	return &n
}

// CheckDuration checks a duration that must be more than 0.
func CheckDuration(r *Report, path string, d *metav1.Duration) {
	if d != nil && d.Duration <= 0 {
		r.Errorf(path, "%v is not more than 0", d.Duration)
	}
}

// ReadQueue reads the bounds of a queue at path; nil states none.
func ReadQueue(r *Report, path string, q *api.Queue) *service.QueueBounds {
	if q == nil {
		return nil
	}
	var out service.QueueBounds
	if CheckPositive(r, path+".maxRequests", q.MaxRequests); q.MaxRequests != nil {
		out.MaxRequests = *q.MaxRequests
	}
	if q.MaxBytes != nil {
		if out.MaxBytes = q.MaxBytes.Value(); out.MaxBytes <= 0 {
			r.Errorf(path+".maxBytes", "%s is not more than 0", q.MaxBytes)
		}
	}
	if CheckDuration(r, path+".maxWait", q.MaxWait); q.MaxWait != nil {
		out.MaxWait = q.MaxWait.Duration
	}
	if out.Fairness = service.Fairness(q.Fairness); q.Fairness != "" && !slices.Contains(service.Fairnesses, out.Fairness) {
		r.Errorf(path+".fairness", "unknown fairness %q: write one of %s", Clip(q.Fairness), Joined(service.Fairnesses))
	}
	return &out
}

// ReadOperator reads a version operator.
func ReadOperator(r *Report, path, s string) service.Operator {
	ops := []service.Operator{service.OperatorEqual, service.OperatorGreaterThan, service.OperatorGreaterThanOrEqual}
	if s != "" && !slices.Contains(ops, service.Operator(s)) {
		r.Errorf(path, "unknown operator %q: write one of %s", Clip(s), Joined(ops))
	}
	return service.Operator(s)
}

// requestMetrics are those that annotations may name.
var requestMetrics = []service.ScaleMetric{service.MetricConcurrency, service.MetricRPS, service.MetricCPU, service.MetricMemory}

// scheduleAnnotation has the windows of a schedule as YAML, queueAnnotation the bounds
// of a queue, and prewarmAnnotation auto or off, as a ModelService's scaling has them.
const (
	queueAnnotation    = "roundhouse.dev/queue"
	scheduleAnnotation = "roundhouse.dev/schedule"
	prewarmAnnotation  = "roundhouse.dev/prewarm"
)

// KServePrefix is the prefix of KServe's.
const KServePrefix = "serving.kserve.io/"

// annotation is one that was found, and where.
type annotation struct{ path, value string }

// ReadAnnotations reads the annotations by which people scale KServe's and OME's
// services: Knative's, and the dialect's own for its HPA mode under prefix.
// The component's are at path and win over the service's; what the spec states
// wins over both.
func ReadAnnotations(r *Report, path, prefix string, c *service.Component, annotations map[string]string) {
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
		MinReplicas: readCount(r, find(knative+"min-scale", knative+"minScale")),
		MaxReplicas: readCount(r, find(knative+"max-scale", knative+"maxScale")),
		ScaleTarget: readTarget(r, find(knative+"target")),
	}
	if a := find(knative+"metric", prefix+"metrics"); a != nil {
		s.ScaleMetric = service.ScaleMetric(a.value)
		if known := requestMetrics; !slices.Contains(known, s.ScaleMetric) {
			r.Errorf(a.path, "unknown metric %q: write one of %s", Clip(a.value), Joined(known))
		}
	}
	preset := readPreset(r, find, &s, c.Scaling)
	if a := find(knative + "scale-to-zero-pod-retention-period"); a != nil && !preset {
		switch d, err := time.ParseDuration(a.value); {
		case err != nil || d < 0:
			r.Errorf(a.path, "%q is not a duration such as 5m", Clip(a.value))
		case d > 0:
			s.ScaleToZeroAfter = &d
		}
	}
	checkAutoscalerClass(r, find(prefix+"autoscalerClass"))
	readOwn(r, &s, c.Scaling, find(scheduleAnnotation), find(prewarmAnnotation), find(queueAnnotation))
	utilization := readUtilization(r, find(knative+"target-utilization-percentage", knative+"targetUtilizationPercentage"))
	if m := cmp.Or(c.Scaling.ScaleMetric, s.ScaleMetric, service.MetricConcurrency); !preset && (m == service.MetricConcurrency || m == service.MetricRPS) {
		s.ScaleTarget = soft(s.ScaleTarget, utilization)
		if prefix == KServePrefix { // which hands its scaleTarget to Knative
			c.Scaling.ScaleTarget = soft(c.Scaling.ScaleTarget, utilization)
		}
	}
	if s.ScaleTarget == nil && !preset {
		s.ScaleTarget = readTarget(r, find(prefix+"targetUtilizationPercentage"))
	}
	warnKnative(r, path, c.Annotations, preset)
	warnKnative(r, "metadata.annotations", annotations, preset)
	apart := c.Scaling
	c.Scaling = c.Scaling.Over(s)
	CheckTogether(r, "metadata.annotations", c.Scaling, apart, s)
}

// readOwn reads the annotations that other dialects have for fields of ours; stated
// is what the spec states.
func readOwn(r *Report, s *service.Scaling, stated service.Scaling, schedule, prewarm, queue *annotation) {
	if schedule != nil {
		if err := yaml.UnmarshalStrict([]byte(schedule.value), &s.Schedule); err != nil {
			_, why, _ := strings.Cut(err.Error(), "json: ")
			if strings.Contains(why, "Go value") {
				why = "write them as in [{start: 0 8 * * mon-fri, end: 0 18 * * mon-fri, minReplicas: 2}]"
			}
			r.Errorf(schedule.path, "is no list of windows with start, end, timeZone, minReplicas and maxReplicas: %s", cmp.Or(why, Clip(err.Error())))
		}
		checkSchedule(r, schedule.path, stated.Over(*s))
	}
	if prewarm != nil {
		s.Prewarm = service.Prewarm(prewarm.value)
		checkPrewarm(r, prewarm.path, stated.Over(*s))
	}
	if queue != nil {
		var q api.Queue
		if err := yaml.UnmarshalStrict([]byte(queue.value), &q); err != nil {
			r.Errorf(queue.path, "is not {maxRequests: 100, maxBytes: 64Mi, maxWait: 30s} or a part of it: %s", Clip(err.Error()))
			return
		}
		s.Queue = ReadQueue(r, queue.path, &q)
	}
}

// knativeTarget is how much of a stated target Knative aims at, in percent.
const knativeTarget = 70

// soft is the target that Knative aims at for a stated one.
func soft(target *float64, percent float64) *float64 {
	if target == nil {
		return nil
	}
	t := max(1, *target*percent/100)
	return &t
}

// readUtilization reads how much of a target is aimed at, in percent.
func readUtilization(r *Report, a *annotation) float64 {
	if a == nil {
		return knativeTarget
	}
	f, err := strconv.ParseFloat(a.value, 64)
	if err != nil || !(f >= 1 && f <= 100) {
		r.Refuse(a.path, "%q is not a percentage: write 1 to 100", Clip(a.value))
		return knativeTarget
	}
	return f
}

// autoscalerClasses are those that KServe and OME know.
var autoscalerClasses = []string{"hpa", "keda", "external", "none"}

// checkAutoscalerClass reads who decides the count.
func checkAutoscalerClass(r *Report, a *annotation) {
	switch {
	case a == nil:
	case a.value == "none":
		r.Warnf(a.path, "%q has no effect: set minReplicas and maxReplicas alike to fix the count", a.value)
	case a.value == "external":
		r.Warnf(a.path, "%q has no effect on one machine; on a cluster the count is left to your autoscaler, but for the start from 0", a.value)
	case !slices.Contains(autoscalerClasses, a.value):
		r.Refuse(a.path, "unknown class %q: write one of %s", Clip(a.value), Joined(autoscalerClasses))
	}
}

// ReadOtherAnnotations reads those of a further component, nil for none. What is wrong
// with the service's own is said once.
func ReadOtherAnnotations(r *Report, path, prefix string, c *service.Component, annotations map[string]string) {
	if c == nil {
		return
	}
	known := len(r.problems)
	ReadAnnotations(r, path, prefix, c, annotations)
	added := slices.DeleteFunc(r.problems[known:], func(p Problem) bool { return slices.Contains(r.problems[:known], p) })
	r.problems = r.problems[:known+len(added)]
}

// readCount reads an annotation that is a number of replicas.
func readCount(r *Report, a *annotation) *int {
	if a == nil {
		return nil
	}
	n, err := strconv.ParseInt(a.value, 10, 32)
	if err != nil || n < 0 {
		r.Errorf(a.path, "%q is not a count", Clip(a.value))
	}
	out := int(n)
	return &out
}

// readTarget reads an annotation that is a scale target.
func readTarget(r *Report, a *annotation) *float64 {
	if a == nil {
		return nil
	}
	f, err := strconv.ParseFloat(a.value, 64)
	if err != nil || math.IsNaN(f) || f <= 0 || f > 1e9 {
		r.Errorf(a.path, "%q is not a target above 0", Clip(a.value))
	}
	return &f
}
