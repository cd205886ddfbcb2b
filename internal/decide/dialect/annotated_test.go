package dialect

import (
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestAnnotatedRoles: a service's annotations hold for each of its components,
// a component's own before them.
func TestAnnotatedRoles(t *testing.T) {
	for _, c := range []struct{ name, manifest string }{{"KServe's", `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a, annotations: {autoscaling.knative.dev/scale-to-zero-pod-retention-period: 5s, autoscaling.knative.dev/min-scale: "0"}}
spec:
  predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}}
  transformer:
    annotations: {autoscaling.knative.dev/min-scale: "1"}
    containers: [{name: kserve-container, image: example.com/t}]
`}, {"OME's", `
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: a, annotations: {autoscaling.knative.dev/scale-to-zero-pod-retention-period: 5s, autoscaling.knative.dev/min-scale: "0"}}
spec:
  model: {name: m}
  runtime: {name: r}
  engine: {}
  decoder: {annotations: {autoscaling.knative.dev/min-scale: "1"}}
  router: {annotations: {autoscaling.knative.dev/min-scale: "1"}}
`}} {
		got := Read("a.yaml", []byte(c.manifest))
		if len(got.Objects) != 1 || got.Objects[0].Service == nil {
			t.Fatalf("%s: %v", c.name, got.Problems)
		}
		all := got.Objects[0].Service.Components
		seen := 0
		for role, part := range map[service.Role]*service.Component{service.RoleEngine: all.Engine, service.RoleDecoder: all.Decoder,
			service.RoleRouter: all.Router, service.RoleTransformer: all.Transformer} {
			if part == nil {
				continue
			}
			seen++
			want := 1
			if role == service.RoleEngine {
				want = 0
			}
			s := part.Scaling
			if s.ScaleToZeroAfter == nil || *s.ScaleToZeroAfter != 5*time.Second || s.MinReplicas == nil || *s.MinReplicas != want {
				t.Errorf("%s %s: %+v", c.name, role, s)
			}
		}
		if seen < 2 {
			t.Errorf("%s: %d components", c.name, seen)
		}
	}
}

// TestTargetsAreKnatives: a stated target is aimed at by 70 %, or as much as is
// stated; HPA's targets are percentages of their own.
func TestTargetsAreKnatives(t *testing.T) {
	for _, c := range []struct {
		annotations, predictor string
		want                   float64
	}{
		{`autoscaling.knative.dev/target: "10"`, "", 7},
		{`autoscaling.knative.dev/target: "10", autoscaling.knative.dev/target-utilization-percentage: "100"`, "", 10},
		{`autoscaling.knative.dev/target: "10", autoscaling.knative.dev/targetUtilizationPercentage: "50"`, "", 5},
		{`autoscaling.knative.dev/target: "1"`, "", 1},
		{`autoscaling.knative.dev/target: "200", autoscaling.knative.dev/metric: rps`, "", 140},
		{`autoscaling.knative.dev/target: "80", autoscaling.knative.dev/metric: cpu`, "", 80},
		{`serving.kserve.io/targetUtilizationPercentage: "80", serving.kserve.io/metrics: cpu`, "", 80},
		{``, "scaleTarget: 10", 7},
		{``, "scaleTarget: 10, scaleMetric: cpu", 10},
		{`autoscaling.knative.dev/target: "90"`, "scaleTarget: 20", 14},
	} {
		got := Read("a.yaml", []byte(`apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a, annotations: {`+c.annotations+`}}
spec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}, `+c.predictor+`}}
`))
		if len(got.Objects) != 1 {
			t.Fatalf("%+v: %v", c, got.Problems)
		}
		if target := got.Objects[0].Service.Components.Engine.Scaling.ScaleTarget; target == nil || *target != c.want {
			t.Errorf("%s %s: %v, want %v", c.annotations, c.predictor, target, c.want)
		}
	}
}

// TestScheduleOfKServe: an annotation has the windows of a ModelService.
func TestScheduleOfKServe(t *testing.T) {
	got := Read("a.yaml", []byte(`apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: a
  annotations:
    roundhouse.dev/schedule: |
      - {name: weekdays, start: 0 8 * * mon-fri, end: 0 18 * * mon-fri, timeZone: Europe/Berlin, minReplicas: 3}
spec: {predictor: {minReplicas: 0, maxReplicas: 5, model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}}}
`))
	if len(got.Objects) != 1 || len(got.Problems) > 0 {
		t.Fatalf("%v", got.Problems)
	}
	own := Read("b.yaml", []byte(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: a}
spec:
  model: {uri: s3://a/b, format: {name: sklearn}}
  scaling:
    minReplicas: 0
    maxReplicas: 5
    schedule: [{name: weekdays, start: 0 8 * * mon-fri, end: 0 18 * * mon-fri, timeZone: Europe/Berlin, minReplicas: 3}]
`))
	if len(own.Objects) != 1 || len(own.Problems) > 0 {
		t.Fatalf("%v", own.Problems)
	}
	a, b := got.Objects[0].Service.Components.Engine.Scaling.Settled(), own.Objects[0].Service.Components.Engine.Scaling.Settled()
	if !a.Equal(b) || len(a.Schedule) != 1 || a.Schedule[0].Name != "weekdays" || *a.Schedule[0].MinReplicas != 3 {
		t.Errorf("KServe's is %+v, ours %+v", a, b)
	}
}

// TestResidencyAnnotations: manifests of every kind state residency in annotations,
// a value that cannot be read is an error at its own place, and a cluster is told
// that it has no effect there.
func TestResidencyAnnotations(t *testing.T) {
	const annotations = `annotations: {roundhouse.dev/residency-pin: "true", roundhouse.dev/residency-priority: "-5", roundhouse.dev/residency-gpu-memory: 8Gi, roundhouse.dev/residency-share-gpu: "true",
    roundhouse.dev/residency-preload: "true", roundhouse.dev/residency-group: g, roundhouse.dev/residency-exclusive: "true", roundhouse.dev/residency-one-of: chat}`
	want := service.Residency{Pin: true, Priority: -5, GPUMemory: 8 << 30, ShareGPU: true, Preload: true, Group: "g", Exclusive: true, OneOf: "chat"}
	kserve := `{apiVersion: serving.kserve.io/v1beta1, kind: InferenceService, metadata: {name: a, ANNOTATIONS},
  spec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}}}}`
	for name, manifest := range map[string]string{
		"KServe": kserve,
		"OME":    `{apiVersion: ome.io/v1beta1, kind: InferenceService, metadata: {name: a, ANNOTATIONS}, spec: {model: {name: m}, engine: {}}}`,
		"Seldon": `{apiVersion: machinelearning.seldon.io/v1, kind: SeldonDeployment, metadata: {name: a, ANNOTATIONS},
  spec: {protocol: v2, predictors: [{name: p, graph: {name: a, implementation: SKLEARN_SERVER, modelUri: s3://a/b}}]}}`,
		"own": `{apiVersion: roundhouse.dev/v1alpha1, kind: ModelService, metadata: {name: a, ANNOTATIONS}, spec: {model: {uri: s3://a/b}}}`,
		"own spec": `{apiVersion: roundhouse.dev/v1alpha1, kind: ModelService, metadata: {name: a},
  spec: {model: {uri: s3://a/b}, residency: {pin: true, priority: -5, gpuMemory: 8Gi, shareGPU: true, preload: true, group: g, exclusive: true, oneOf: chat}}}`,
	} {
		got := Read("a.yaml", []byte(strings.Replace(manifest, "ANNOTATIONS", annotations, 1)))
		if len(got.Objects) != 1 || got.Objects[0].Service == nil || got.Objects[0].Service.Residency != want {
			t.Errorf("%s: %+v %v", name, got.Objects, got.Problems)
		}
		warned := 0
		for _, p := range got.Problems {
			if p.Platform == Kubernetes && p.Warning && strings.Contains(p.Message, "has no effect on a cluster") {
				warned++
			}
		}
		if warned != 1 {
			t.Errorf("%s: %d warnings for a cluster: %v", name, warned, got.Problems)
		}
	}
	part := Read("a.yaml", []byte(strings.Replace(kserve, "ANNOTATIONS", "annotations: {roundhouse.dev/residency-gpu-percent: 40%}", 1)))
	if len(part.Objects) != 1 || part.Objects[0].Service.Residency != (service.Residency{GPUPercent: 40}) {
		t.Errorf("%+v %v", part.Objects, part.Problems)
	}
	for annotation, want := range map[string]string{
		"pin: perhaps":               `a.yaml:1: metadata.annotations[roundhouse.dev/residency-pin]: "perhaps" is not read: write "true" or "false"`,
		"priority: '2000'":           "2000 is not between -1000 and 1000",
		"priority: high":             `"high" is not read: write a whole number`,
		"gpu-memory: '-1'":           `"-1" is not read: write the memory`,
		"gpu-memory: 1.5e1000000000": `"1.5e1000000000" is not read: write the memory`, // no number of a billion digits is built
		"gpu-memory: '8'":            `8 bytes are less than 1Mi: write the memory that a replica takes of a GPU with a unit, such as 8Gi`,
		"gpu-percent: '0'":           `"0" is not read: write a percent of a GPU from 1 to 100`,
		"gpu-percent: '120'":         `120 is not between 1 and 100`,
		"gpu-percent: '40', roundhouse.dev/residency-gpu-memory: 8Gi": `is stated beside gpuMemory: state one of them`,
		"group: A b":     `"A b" is not a name`,
		"pinned: 'true'": `is none of Roundhouse's annotations and has no effect; did you mean "roundhouse.dev/residency-pin"?`,
	} {
		got := Read("a.yaml", []byte(strings.Replace(kserve, "ANNOTATIONS", "annotations: {roundhouse.dev/residency-"+annotation+"}", 1)))
		if !slices.ContainsFunc(got.Problems, func(p Problem) bool { return strings.Contains(p.String(), want) }) {
			t.Errorf("%s: %v", annotation, got.Problems)
		}
	}
}

// TestScalingMessages: what is missing or cannot be is said in the words of a
// manifest, with what to write.
func TestScalingMessages(t *testing.T) {
	const ours = "apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: a}\nspec: {model: {uri: s3://a/b}, scaling: {SCALING}}\n"
	for scaling, want := range map[string]string{
		"scaleMetric: tokens":                                            "scaleTarget: is missing: write how many tokens a replica is to have",
		"scaleMetric: external":                                          "scaleTarget: is missing: write how much of the query's result a replica is to have",
		"scaleMetric: kv, scaleTarget: 120":                              "scaleTarget: 120 percent of a KV cache are never used: write at most 100",
		"metrics: [{metric: kv, target: 101}]":                           "metrics[0].target: 101 percent of a KV cache are never used: write at most 100",
		"metrics: [{metric: tokens}]":                                    "metrics[0].target: is missing: write how many tokens a replica is to have",
		"metrics: [{metric: kv, target: -1}]":                            "metrics[0].target: -1 is not a target above 0",
		"schedule: [{start: '@dayly', end: 0 18 * * *, minReplicas: 1}]": `schedule[0].start: "@dayly" is unknown`,
		"schedule: [{start: 0 8 * * *, minReplicas: 1}]":                 "schedule[0].end: is missing: write five fields",
	} {
		got := Read("a.yaml", []byte(strings.Replace(ours, "SCALING", scaling, 1)))
		if !slices.ContainsFunc(got.Problems, func(p Problem) bool { return strings.Contains(p.String(), want) }) {
			t.Errorf("%s: %v, want %s", scaling, got.Problems, want)
		}
	}
	const theirs = "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a, annotations: {roundhouse.dev/schedule: 'VALUE'}}\nspec: {predictor: {model: {modelFormat: {name: xgboost}, storageUri: s3://a/b}}}\n"
	for value, want := range map[string]string{
		"nonsense":     "is no list of windows with start, end, timeZone, minReplicas and maxReplicas: write them as in [{start: 0 8 * * mon-fri, end: 0 18 * * mon-fri, minReplicas: 2}]",
		"[{begin: 0}]": `unknown field "begin"`,
	} {
		got := Read("a.yaml", []byte(strings.Replace(theirs, "VALUE", value, 1)))
		if !slices.ContainsFunc(got.Problems, func(p Problem) bool {
			return strings.Contains(p.Message, want) && !strings.Contains(p.Message, "Go value")
		}) {
			t.Errorf("%s: %v, want %s", value, got.Problems, want)
		}
	}
}

// TestOwnAnnotations: an annotation of ours that is not read is warned of wherever it
// stands, with its line, and with what was probably meant.
func TestOwnAnnotations(t *testing.T) {
	for _, c := range []struct {
		kind, manifest string
		want           []string
	}{
		{"ModelService", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata:
  name: a
  annotations:
    roundhouse.dev/stoop: "true"
    roundhouse.dev/stop: "false"
    roundhouse.dev/prewarm: auto
    example.com/stoop: "true"
spec:
  model: {uri: s3://a/b, format: {name: xgboost}}
  engine: {annotations: {roundhouse.dev/model-store: /srv, roundhouse.dev/autoscalerClass: external}}
`, []string{
			`a.yaml:6: warning: metadata.annotations[roundhouse.dev/stoop]: is none of Roundhouse's annotations and has no effect; did you mean "roundhouse.dev/stop"?`,
			`a.yaml:8: warning: metadata.annotations[roundhouse.dev/prewarm]: has no effect on a ModelService: write spec.scaling.prewarm`,
			`a.yaml:12: warning: spec.engine.annotations[roundhouse.dev/model-store]: has no effect on a component: write it into metadata.annotations`}},
		{"KServe's service", `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a, annotations: {roundhouse.dev/prewarm: auto, roundhouse.dev/residency-gpu-mem: 8Gi}}
spec:
  predictor:
    minReplicas: 0
    annotations: {roundhouse.dev/shedule: "[]"}
    model: {modelFormat: {name: xgboost}, storageUri: s3://a/b}
`, []string{
			`a.yaml:3: warning: metadata.annotations[roundhouse.dev/residency-gpu-mem]: is none of Roundhouse's annotations and has no effect; did you mean "roundhouse.dev/residency-gpu-memory"?`,
			`a.yaml:7: warning: spec.predictor.annotations[roundhouse.dev/shedule]: is none of Roundhouse's annotations and has no effect; did you mean "roundhouse.dev/schedule"?`}},
		{"OME's service", `apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: a, annotations: {roundhouse.dev/nonsense-of-mine: x}}
spec: {model: {name: m}, runtime: {name: r}, engine: {}}
`, []string{`a.yaml:3: warning: metadata.annotations[roundhouse.dev/nonsense-of-mine]: is none of Roundhouse's annotations and has no effect`}},
		{"Seldon's service", `apiVersion: machinelearning.seldon.io/v1
kind: SeldonDeployment
metadata: {name: a, annotations: {roundhouse.dev/schedule: "[]"}}
spec: {protocol: v2, predictors: [{name: d, graph: {name: a, implementation: SKLEARN_SERVER, modelUri: s3://a/b}}]}
`, []string{`a.yaml:3: warning: metadata.annotations[roundhouse.dev/schedule]: has no effect on a SeldonDeployment`}},
		{"a runtime", `apiVersion: serving.kserve.io/v1alpha1
kind: ClusterServingRuntime
metadata: {name: a, annotations: {roundhouse.dev/stop: "true"}}
spec: {containers: [{name: kserve-container, image: example.com/r}]}
`, []string{`a.yaml:3: warning: metadata.annotations[roundhouse.dev/stop]: has no effect on a ClusterServingRuntime`}},
		{"a pool", `apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: a, annotations: {roundhouse.dev/take-ovr: x}}
spec: {addresses: ["127.0.0.1:8000"]}
`, []string{`a.yaml:3: warning: metadata.annotations[roundhouse.dev/take-ovr]: is none of Roundhouse's annotations and has no effect; did you mean "roundhouse.dev/take-over"?`}},
		{"a route", `apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: a, annotations: {roundhouse.dev/take-over: "2026-01-01T00:00:00Z", roundhouse.dev/residency-pin: "true"}}
spec: {targets: [{service: s}]}
`, []string{`a.yaml:3: warning: metadata.annotations[roundhouse.dev/residency-pin]: has no effect on a Route`}},
	} {
		var got []string
		read := Read("a.yaml", []byte(c.manifest))
		for _, p := range read.Problems {
			if strings.Contains(p.Path, "[roundhouse.dev/") && p.Platform == AnyPlatform {
				got = append(got, p.String())
			}
		}
		if !slices.Equal(got, c.want) || len(read.Objects) != 1 {
			t.Errorf("%s: got\n%s\nwant\n%s\nof %v", c.kind, strings.Join(got, "\n"), strings.Join(c.want, "\n"), read.Problems)
		}
	}
}

// TestAnnotationsOfKServe: each of KServe's that has no effect is named, on the
// service and on a component; gke-accelerator chooses nodes.
func TestAnnotationsOfKServe(t *testing.T) {
	got := Read("a.yaml", []byte(`
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: a
  annotations:
    serving.kserve.io/gke-accelerator: nvidia-l4
    serving.kserve.io/enable-tag-routing: "true"
    serving.kserve.io/deploymentMod: Standard
    internal.serving.kserve.io/agent: "true"
    example.com/owner: us
spec:
  predictor:
    annotations: {serving.kserve.io/enable-metric-aggregation: "true"}
    nodeSelector: {zone: a}
    model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}
  transformer:
    containers: [{name: kserve-container, image: example.com/t}]
`))
	var warned []string
	for _, p := range got.Problems {
		warned = append(warned, p.String())
	}
	all := strings.Join(warned, "\n")
	for _, want := range []string{
		"metadata.annotations[serving.kserve.io/enable-tag-routing]: has no effect: a canary is reached",
		`metadata.annotations[serving.kserve.io/deploymentMod]: is none of KServe's annotations and has no effect; did you mean "serving.kserve.io/deploymentMode"?`,
		"spec.predictor.annotations[serving.kserve.io/enable-metric-aggregation]: has no effect",
		"metadata.annotations[serving.kserve.io/gke-accelerator]: has no effect on one machine",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
	if strings.Contains(all, "example.com/owner") || strings.Contains(all, "internal.serving") {
		t.Errorf("what is not KServe's own to be read is reported:\n%s", all)
	}
	parts := got.Objects[0].Service.Components
	const label = "cloud.google.com/gke-accelerator"
	if e, tr := parts.Engine.Pod.NodeSelector, parts.Transformer.Pod.NodeSelector; e[label] != "nvidia-l4" || e["zone"] != "a" || tr[label] != "nvidia-l4" {
		t.Errorf("node selectors %v and %v", e, tr)
	}
}

// TestWhereAnnotationsOfKServeStand: what KServe reads on one kind has no effect on
// another, and what is read of any is not warned of.
func TestWhereAnnotationsOfKServeStand(t *testing.T) {
	for name, c := range map[string]struct {
		manifest string
		want     []string
	}{
		"an LLMInferenceService": {`
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata:
  name: a
  annotations:
    serving.kserve.io/exp-dra-device-class: gpu.example.com
    serving.kserve.io/enable-tag-routing: "true"
    serving.kserve.io/s3-endpoint: minio:9000
    serving.kserve.io/inferencepool-migrated: v1
    serving.kserve.io/stop: "false"
    serving.kserve.io/enable-served-by-heder: "true"
spec:
  model: {uri: "hf://a/b"}
  annotations: {serving.kserve.io/model-based-routing-enabled: "true", serving.kserve.io/nodegroup: x}
  prefill: {annotations: {serving.kserve.io/server-type: vllmserver}}
`, []string{
			"metadata.annotations[serving.kserve.io/exp-dra-device-class]: has no effect: write `resourceClaims` into the pod",
			"metadata.annotations[serving.kserve.io/enable-tag-routing]: has no effect here: KServe reads it on InferenceService",
			`metadata.annotations[serving.kserve.io/enable-served-by-heder]: is none of KServe's annotations and has no effect; did you mean "serving.kserve.io/enable-served-by-header"?`,
			"spec.annotations[serving.kserve.io/nodegroup]: has no effect on one machine: there is one node",
			"spec.prefill.annotations[serving.kserve.io/server-type]: has no effect here: KServe reads it on runtimes",
		}},
		"a Config": {`
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceServiceConfig
metadata: {name: a}
spec: {annotations: {serving.kserve.io/model-based-routing-enabled: "true", serving.kserve.io/stopp: x}}
`, []string{"spec.annotations[serving.kserve.io/stopp]: is none of KServe's annotations"}},
		"a runtime": {`
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: a, annotations: {serving.kserve.io/server-type: mlserver, serving.kserve.io/stop: "true"}}
spec:
  annotations: {prometheus.kserve.io/port: "8082", serving.kserve.io/enable-metric-aggregation: "true"}
  containers: [{name: kserve-container, image: example.com/a}]
`, []string{
			"metadata.annotations[serving.kserve.io/stop]: has no effect here: KServe reads it on InferenceService, LLMInferenceService",
			"spec.annotations[serving.kserve.io/enable-metric-aggregation]: has no effect: the metrics",
		}},
		"a graph": {`
apiVersion: serving.kserve.io/v1alpha1
kind: InferenceGraph
metadata: {name: a, annotations: {serving.kserve.io/deploymentMode: Standard, serving.kserve.io/autoscalerClass: hpa}}
spec: {nodes: {root: {routerType: Sequence, steps: [{serviceName: b}]}}}
`, []string{"metadata.annotations[serving.kserve.io/autoscalerClass]: has no effect here: KServe reads it on"}},
		"an InferenceService": {`
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: a
  annotations: {serving.kserve.io/s3-region: eu, serving.kserve.io/s3-usehttps: "1", serving.kserve.io/s3-verifyssl: "0", serving.kserve.io/server-type: mlserver}
spec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}}}
`, []string{
			"metadata.annotations[serving.kserve.io/s3-verifyssl]: has no effect: certificates are always checked",
			"metadata.annotations[serving.kserve.io/server-type]: has no effect here: KServe reads it on runtimes",
		}},
	} {
		read := Read("a.yaml", []byte(c.manifest))
		var got []string
		for _, p := range read.Problems {
			if strings.Contains(p.Path, "kserve.io/") {
				got = append(got, p.Path+": "+p.Message)
			}
		}
		if len(got) != len(c.want) || len(read.Objects) != 1 {
			t.Errorf("%s: %d objects, %v", name, len(read.Objects), read.Problems)
		}
		for _, want := range c.want {
			if !slices.ContainsFunc(got, func(p string) bool { return strings.HasPrefix(p, want) }) {
				t.Errorf("%s: no %q in\n%s", name, want, strings.Join(got, "\n"))
			}
		}
	}
}
