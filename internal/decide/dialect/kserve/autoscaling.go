package kserve

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/strict"
)

// autoScaling is what KServe hands to a HorizontalPodAutoscaler or to KEDA.
type autoScaling struct {
	Metrics  []metricSpec `json:"metrics"`
	Behavior any          `json:"behavior"`
}

type metricSpec struct {
	Type     string `json:"type"`
	Resource *struct {
		Name   string       `json:"name"`
		Target metricTarget `json:"target"`
	} `json:"resource"`
	External *struct {
		Metric            externalSource `json:"metric"`
		Target            metricTarget   `json:"target"`
		AuthenticationRef any            `json:"authenticationRef"`
	} `json:"external"`
	PodMetric *struct {
		Metric podSource    `json:"metric"`
		Target metricTarget `json:"target"`
	} `json:"podmetric"`
}

type metricTarget struct {
	Type               string             `json:"type"`
	Value              *resource.Quantity `json:"value"`
	AverageValue       *resource.Quantity `json:"averageValue"`
	AverageUtilization *int               `json:"averageUtilization"`
}

type externalSource struct {
	Backend       string `json:"backend"`
	ServerAddress string `json:"serverAddress"`
	Query         string `json:"query"`
	Namespace     string `json:"namespace"`
}

type podSource struct {
	Backend           string   `json:"backend"`
	ServerAddress     string   `json:"serverAddress"`
	MetricNames       []string `json:"metricNames"`
	Query             string   `json:"query"`
	OperationOverTime string   `json:"operationOverTime"`
}

// The types of a metric, in KServe's spelling.
const (
	typeResource  = "Resource"
	typeExternal  = "External"
	typePodMetric = "PodMetric"
)

// engineMetrics are the metrics of engines that are read under other names here, and
// what the values are multiplied by.
var engineMetrics = map[string]struct {
	metric service.ScaleMetric
	times  float64
}{
	"vllm:num_requests_waiting": {service.MetricQueue, 1}, "sglang:num_queue_reqs": {service.MetricQueue, 1},
	"trtllm_num_requests_waiting": {service.MetricQueue, 1}, "llamacpp:requests_deferred": {service.MetricQueue, 1},
	"vllm:num_requests_running": {service.MetricConcurrency, 1}, "sglang:num_running_reqs": {service.MetricConcurrency, 1},
	"vllm:kv_cache_usage_perc": {service.MetricKV, 100}, "vllm:gpu_cache_usage_perc": {service.MetricKV, 100},
	"sglang:token_usage": {service.MetricKV, 100}, "trtllm_kv_cache_utilization": {service.MetricKV, 100},
}

// readAutoScaling reads the metrics of a component into its scaling. The first takes
// the place of scaleMetric where none is stated.
func readAutoScaling(r *manifest.Report, path string, a *autoScaling, s *service.Scaling) {
	if a == nil {
		return
	}
	stated := s.ScaleMetric != "" || s.ScaleTarget != nil
	for i := range a.Metrics {
		at := strict.Index(path+".metrics", i)
		m, ok := readMetric(r, at, &a.Metrics[i])
		switch {
		case !ok:
		case !stated:
			stated = true
			s.ScaleMetric, s.ScaleTarget, s.External = m.Metric, &m.Target, m.External
		case !m.Metric.Measured():
			r.Warnf(at, "has no effect: requests are scaled on by one metric alone, and another is stated before it")
		default:
			s.Metrics = append(s.Metrics, m)
		}
	}
}

// readMetric reads one metric; false for one that has no effect.
func readMetric(r *manifest.Report, at string, m *metricSpec) (out service.MetricTarget, ok bool) {
	switch {
	case m.Type == typeResource && m.Resource != nil:
		out.Metric = service.ScaleMetric(m.Resource.Name)
		if !out.Metric.Resource() {
			r.Refuse(at+".resource.name", "unknown resource %q: write cpu or memory", manifest.Clip(m.Resource.Name))
			return out, false
		}
		percent := m.Resource.Target.AverageUtilization
		if percent == nil {
			r.Warnf(at+".resource.target", "has no effect without averageUtilization: %s is scaled on in percent", out.Metric)
			return out, false
		}
		out.Target = float64(*percent)
		if *percent <= 0 {
			r.Refuse(at+".resource.target.averageUtilization", "%d is not more than 0", *percent)
		}
		return out, *percent > 0
	case m.Type == typeExternal && m.External != nil:
		return readExternalMetric(r, at+".external", m)
	case m.Type == typePodMetric && m.PodMetric != nil:
		return readPodMetric(r, at+".podmetric", m)
	case !slices.Contains([]string{typeResource, typeExternal, typePodMetric}, m.Type):
		r.Refuse(at+".type", "unknown type %q: write %s, %s or %s", manifest.Clip(m.Type), typeResource, typeExternal, typePodMetric)
	default:
		r.Refuse(at, "has type %s and no %s: write it", m.Type, strings.ToLower(m.Type))
	}
	return out, false
}

func readExternalMetric(r *manifest.Report, at string, m *metricSpec) (out service.MetricTarget, ok bool) {
	e := m.External
	if e.Metric.Backend != "" && e.Metric.Backend != "prometheus" {
		r.Warnf(at+".metric.backend", "%q is not asked, so the metric has no effect: of backends prometheus is", manifest.Clip(e.Metric.Backend))
		return out, false
	}
	if e.AuthenticationRef != nil {
		r.Warnf(at+".authenticationRef", "has no effect: the server is asked without credentials")
	}
	if e.Metric.Namespace != "" {
		r.Warnf(at+".metric.namespace", "has no effect: the query is sent as it is")
	}
	out = service.MetricTarget{Metric: service.MetricExternal, External: &service.ExternalMetric{URL: e.Metric.ServerAddress, Query: e.Metric.Query}}
	manifest.CheckExternal(r, at+".metric", "serverAddress", *out.External)
	out.Target, ok = e.Target.read(r, at+".target")
	return out, ok
}

func readPodMetric(r *manifest.Report, at string, m *metricSpec) (out service.MetricTarget, ok bool) {
	p := m.PodMetric
	name := p.Metric.Query
	if len(p.Metric.MetricNames) > 0 {
		name = cmp.Or(name, p.Metric.MetricNames[0])
	}
	known, found := engineMetrics[strings.TrimSpace(name)]
	if !found {
		r.Warnf(at+".metric", "%q has no effect: it is no metric of an engine that is known here; a query that a Prometheus server answers is of type External", manifest.Clip(name))
		return out, false
	}
	for field, stated := range map[string]bool{"serverAddress": p.Metric.ServerAddress != "", "operationOverTime": p.Metric.OperationOverTime != ""} {
		if stated {
			r.Warnf(at+".metric."+field, "has no effect: engines' metrics are read from the engines, and the last value counts")
		}
	}
	target, ok := p.Target.read(r, at+".target")
	return service.MetricTarget{Metric: known.metric, Target: target * known.times}, ok
}

// read is a target that is a number.
func (t *metricTarget) read(r *manifest.Report, at string) (float64, bool) {
	field, q := "averageValue", t.AverageValue
	if q == nil {
		field, q = "value", t.Value
	}
	switch {
	case q == nil:
		r.Refuse(at, "has neither value nor averageValue: say what a replica is to have")
		return 0, false
	case q.Sign() <= 0:
		r.Refuse(at+"."+field, "%s is not more than 0", q)
		return 0, false
	case field == "value":
		r.Warnf(at+"."+field, "counts as averageValue: what a replica is to have")
	}
	return q.AsApproximateFloat64(), true
}
