package dialect

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestAutoScalingOfKServe: metrics of a HorizontalPodAutoscaler and of KEDA are those
// of our own, and what has no effect is named.
func TestAutoScalingOfKServe(t *testing.T) {
	external := &service.ExternalMetric{URL: "http://prometheus:9090", Query: "sum(jobs)"}
	for _, c := range []struct {
		name, metrics string
		want          []service.MetricTarget
		problems      []string
	}{
		{"a resource", `{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}`,
			[]service.MetricTarget{{Metric: service.MetricCPU, Target: 60}}, nil},
		{"a query", `{type: External, external: {metric: {backend: prometheus, serverAddress: "http://prometheus:9090", query: sum(jobs)}, target: {type: AverageValue, averageValue: "2500m"}}}`,
			[]service.MetricTarget{{Metric: service.MetricExternal, Target: 2.5, External: external}}, nil},
		{"an engine's metrics", `{type: PodMetric, podmetric: {metric: {metricNames: ["vllm:num_requests_waiting"]}, target: {averageValue: "3"}}}, {type: PodMetric, podmetric: {metric: {query: "vllm:kv_cache_usage_perc", operationOverTime: avg}, target: {averageValue: "0.8"}}}`,
			[]service.MetricTarget{{Metric: service.MetricQueue, Target: 3}, {Metric: service.MetricKV, Target: 80}},
			[]string{"warning: spec.predictor.autoScaling.metrics[1].podmetric.metric.operationOverTime: has no effect"}},
		{"without effect", `{type: External, external: {metric: {backend: graphite, query: a}, target: {value: 1}}}, {type: PodMetric, podmetric: {metric: {query: "my:metric"}, target: {value: 1}}}, {type: Resource, resource: {name: memory, target: {averageValue: 2Gi}}}`, nil,
			[]string{`metrics[0].external.metric.backend: "graphite" is not asked`, `metrics[1].podmetric.metric: "my:metric" has no effect`, "metrics[2].resource.target: has no effect without averageUtilization"}},
		{"half without effect", `{type: External, external: {metric: {serverAddress: "http://prometheus:9090", query: sum(jobs), namespace: x}, authenticationRef: {name: a}, target: {type: Value, value: 4}}}`,
			[]service.MetricTarget{{Metric: service.MetricExternal, Target: 4, External: external}},
			[]string{"metric.namespace: has no effect", "authenticationRef: has no effect", "target.value: counts as averageValue"}},
		{"wrong", `{type: Resource, resource: {name: gpu, target: {}}}, {type: Pods}, {type: External}, {type: External, external: {metric: {serverAddress: "http://u:p@h", query: a}, target: {averageValue: -1}}}`, nil,
			[]string{`metrics[0].resource.name: unknown resource "gpu"`, `metrics[1].type: unknown type "Pods"`, "metrics[2]: has type External and no external", "metrics[3].external.metric.serverAddress: must have no user", "averageValue: -1 is not more than 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Read("a.yaml", []byte(`apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a}
spec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}, autoScaling: {metrics: [`+c.metrics+`]}}}
`))
			if len(got.Objects) != 1 {
				t.Fatal(got.Problems)
			}
			l := got.Objects[0].Service.Components.Engine.Scaling.Settled()
			if has := l.Measured(); !reflect.DeepEqual(has, c.want) {
				t.Errorf("scales on %+v, want %+v", has, c.want)
			}
			for _, want := range c.problems {
				if !slices.ContainsFunc(got.Problems, func(p Problem) bool { return strings.Contains(p.String(), want) }) {
					t.Errorf("no problem %q in %v", want, got.Problems)
				}
			}
			if len(c.problems) != len(got.Problems) {
				t.Errorf("problems %v, want %d", got.Problems, len(c.problems))
			}
		})
	}
}
