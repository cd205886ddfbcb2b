package dialect

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

var update = flag.Bool("update", false, "write golden files anew")

const examples = "../../../examples/manifests"

// object is an Object as golden files hold it.
type object struct {
	Kind    Kind
	Service *service.Service `json:",omitempty"`
	Runtime *service.Runtime `json:",omitempty"`
	Model   *service.Model   `json:",omitempty"`
	Base    *service.Base    `json:",omitempty"`
	Routing routing.Object   `json:",omitempty"`

	Accelerator *service.AcceleratorClass `json:",omitempty"`
}

// TestExamples reads every example manifest and compares what the hub holds,
// and every warning, with a golden file.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(examples + "/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples in %s: %v", examples, err)
	}
	for _, f := range files {
		name := filepath.Base(f)
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Problems []string
				Objects  []object
			}
			res := Read(name, data)
			for _, p := range res.Problems {
				got.Problems = append(got.Problems, p.String())
			}
			if errs := res.Errors(Process); len(errs) > 0 {
				t.Errorf("an example has errors: %v", errs)
			}
			for _, o := range res.Objects {
				got.Objects = append(got.Objects, object{o.Kind, o.Service, o.Runtime, o.Model, o.Base, o.Routing, o.Accelerator})
			}
			golden(t, filepath.Join("testdata", name+".golden.json"), got)
		})
	}
}

// golden compares v as JSON with a file.
func golden(t *testing.T, file string, v any) {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: make it with -update", err)
	}
	if got, want := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n"); !equalLines(got, want) {
		for i := range got {
			if i >= len(want) || got[i] != want[i] {
				t.Fatalf("%s:%d: got %q; rerun with -update and read the diff", file, i+1, got[i])
			}
		}
		t.Fatalf("%s has more lines than were got", file)
	}
}

func equalLines(a, b []string) bool {
	return strings.Join(a, "\n") == strings.Join(b, "\n")
}

func TestResolveFile(t *testing.T) {
	for _, c := range []struct{ uri, want string }{
		{"file://models/iris.ubj", "file:///srv/app/models/iris.ubj"},
		{"file://./models/../iris.ubj", "file:///srv/app/iris.ubj"},
		{"file:///abs/iris.ubj", "file:///abs/iris.ubj"},
		{"models/iris.ubj", "file:///srv/app/models/iris.ubj"},
		{"./iris.ubj#sha256=00", "file:///srv/app/iris.ubj#sha256=00"},
		{"../iris.ubj", "file:///srv/iris.ubj"},
		{"/abs/iris.ubj", "file:///abs/iris.ubj"},
		{"FILE://iris.ubj", "file:///srv/app/iris.ubj"},
		{"file://", "file://"},
		{"s3://bucket/iris", "s3://bucket/iris"},
		{"", ""},
	} {
		if got := ResolveFile(c.uri, "/srv/app"); got != c.want {
			t.Errorf("ResolveFile(%q) = %q, want %q", c.uri, got, c.want)
		}
	}
}

// TestNewRefusalsSpareWhatIsApplied: a manifest that earlier versions took is
// refused where it is applied, and read where it is kept.
func TestNewRefusalsSpareWhatIsApplied(t *testing.T) {
	for _, manifest := range []string{
		"apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: 1abc}\nspec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}}}\n",
		"apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a, annotations: {serving.kserve.io/autoscalerClass: bogus}}\nspec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/b}}}\n",
		"apiVersion: ome.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec: {model: {name: m}, decoder: {}}\n",
		"apiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: a}\nspec: {supportedModelFormats: [{name: x}], containers: [{name: kserve-container, image: i, args: [--a, '{{range .Labels}}{{.}}{{end}}']}]}\n",
		"apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: a}\nspec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: s3://a/b, env: [{name: A, value: '{{if .Name}}x'}]}}}\n",
		"apiVersion: roundhouse.dev/v1alpha1\nkind: ModelService\nmetadata: {name: a}\nspec: {model: {uri: s3://a/b, format: {name: x}}, engine: {local: {command: [a, '{{printf .Name}}']}}}\n",
	} {
		res := Read("a.yaml", []byte(manifest))
		if len(res.Errors(Process)) != 1 || len(res.Errors(Kubernetes)) != 1 || len(res.Objects) != 1 {
			t.Errorf("%s\n%d objects, %v", manifest, len(res.Objects), res.Problems)
		}
		if applied := res.Applied(); len(applied.Errors(Kubernetes)) != 0 || len(applied.Warnings(Kubernetes)) != 1 {
			t.Errorf("%s\napplied: %v", manifest, applied.Problems)
		}
	}
}

// TestAnswerTimeout: the time to begin an answer is read in every dialect that
// has it, without a warning.
func TestAnswerTimeout(t *testing.T) {
	for name, manifest := range map[string]string{
		"ours": `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: a}
spec:
  model: {uri: "s3://b/m", format: {name: xgboost}}
  scaling: {answerTimeout: 90s}
`,
		"KServe": `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a}
spec:
  predictor:
    timeout: 90
    model: {modelFormat: {name: xgboost}, storageUri: "s3://b/m"}
`,
		"OME": `apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: a}
spec:
  model: {name: m}
  engine: {timeoutSeconds: 90}
`,
	} {
		res := Read("a.yaml", []byte(manifest))
		if len(res.Problems) > 0 || len(res.Objects) != 1 {
			t.Fatalf("%s: %v", name, res.Problems)
		}
		engine := res.Objects[0].Service.Components.Engine
		if got := engine.Scaling.Over(service.Scaling{}).Settled().AnswerTimeout; got != 90*time.Second {
			t.Errorf("%s: it is %v", name, got)
		}
	}
}

// TestQueue: the bounds of a service's queue are a field of ours, and an annotation of
// services of others.
func TestQueue(t *testing.T) {
	for name, c := range map[string]struct{ manifest, problem string }{
		"ours": {manifest: `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: a}
spec:
  model: {uri: "s3://b/m", format: {name: xgboost}}
  scaling: {queue: {maxRequests: 50, maxBytes: 1Mi, maxWait: 9s}}
`},
		"KServe": {manifest: `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a, annotations: {roundhouse.dev/queue: "{maxRequests: 50, maxBytes: 1Mi, maxWait: 9s}"}}
spec:
  predictor:
    model: {modelFormat: {name: xgboost}, storageUri: "s3://b/m"}
`},
		"none": {manifest: `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: a}
spec:
  model: {uri: "s3://b/m", format: {name: xgboost}}
  scaling: {queue: {maxRequests: 0}}
`, problem: "a.yaml:6: spec.scaling.queue.maxRequests: 0 is not more than 0"},
		"no YAML": {manifest: `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a, annotations: {roundhouse.dev/queue: "50"}}
spec:
  predictor:
    model: {modelFormat: {name: xgboost}, storageUri: "s3://b/m"}
`, problem: "a.yaml:3: metadata.annotations[roundhouse.dev/queue]: is not {maxRequests: 100, maxBytes: 64Mi, maxWait: 30s} or a part of it"},
	} {
		res := Read("a.yaml", []byte(c.manifest))
		if c.problem != "" {
			if len(res.Problems) != 1 || !strings.HasPrefix(res.Problems[0].String(), c.problem) {
				t.Errorf("%s: %v, want %s", name, res.Problems, c.problem)
			}
			continue
		}
		if len(res.Problems) > 0 || len(res.Objects) != 1 {
			t.Fatalf("%s: %v", name, res.Problems)
		}
		got := res.Objects[0].Service.Components.Engine.Scaling.Over(service.Scaling{}).Settled().Queue
		if want := (service.QueueBounds{MaxRequests: 50, MaxBytes: 1 << 20, MaxWait: 9 * time.Second}); got != want {
			t.Errorf("%s: it is %+v", name, got)
		}
	}
}

// With the preset every annotation of Knative's counts; without it a service that
// carries them keeps its own autoscaler, whatever their class.
func TestKnativePreset(t *testing.T) {
	const annotations = `
    autoscaling.knative.dev/class: kpa.autoscaling.knative.dev
    autoscaling.knative.dev/target: "20"
    autoscaling.knative.dev/target-utilization-percentage: "80"
    autoscaling.knative.dev/window: 40s
    autoscaling.knative.dev/panic-window-percentage: "20"
    autoscaling.knative.dev/panic-threshold-percentage: "150"
    autoscaling.knative.dev/scale-down-delay: 15m
    autoscaling.knative.dev/scale-to-zero-pod-retention-period: 2m
    autoscaling.knative.dev/initial-scale: "2"
    autoscaling.knative.dev/activation-scale: "3"
    autoscaling.knative.dev/target-burst-capacity: "-1"
`
	read := func(more string, warnings int) service.Limits {
		t.Helper()
		res := Read("a.yaml", []byte("apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata:\n  name: a\n  annotations:"+more+annotations+
			"spec: {predictor: {containerConcurrency: 16, model: {modelFormat: {name: xgboost}, storageUri: 's3://b/m'}}}\n"))
		if len(res.Objects) != 1 || len(res.Problems) != warnings {
			t.Fatalf("%d objects, %d problems, want %d: %v", len(res.Objects), len(res.Problems), warnings, res.Problems)
		}
		return res.Objects[0].Service.Components.Engine.Scaling.Settled()
	}
	if l := read("", 7); l.Knative != nil || l.Target != 16 || l.ScaleToZeroAfter != 2*time.Minute {
		t.Errorf("without the preset: %+v", l)
	}
	l := read("\n    roundhouse.dev/scaling-preset: knative", 0)
	got, err := json.Marshal(l.Knative)
	want := `{"targetUtilizationPercentage":80,"window":40000000000,"panicWindowPercentage":20,"panicThresholdPercentage":150,"scaleDownDelay":900000000000,` +
		`"scaleToZeroPodRetentionPeriod":120000000000,"initialScale":2,"activationScale":3,"targetBurstCapacity":-1}`
	if err != nil || string(got) != want || l.Target != 16 {
		t.Errorf("with the preset the target is %v, want 16, the containerConcurrency; the settings are %s, want %s (%v)", l.Target, got, want, err)
	}
}
