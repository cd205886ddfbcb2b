package dialect

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const ownService = `# What serves irises.
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: iris}
spec:
  model: {uri: "s3://models/iris", format: {name: xgboost}} # the model
  scaling:
    minReplicas: 1 # always
`

const kserveService = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: iris
spec:
  predictor:
    model: {modelFormat: {name: sklearn}, storageUri: s3://models/iris}
`

const omeService = `apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: llama, namespace: prod}
spec:
  model: {name: llama}
  engine: {minReplicas: 1}
`

const omeLegacy = `apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: llama}
spec:
  predictor: {model: {baseModel: llama}}
`

const seldonService = `apiVersion: machinelearning.seldon.io/v1
kind: SeldonDeployment
metadata: {name: iris}
spec:
  protocol: v2
  predictors:
  - name: default
    graph: {name: iris, implementation: SKLEARN_SERVER, modelUri: s3://models/iris}
`

func one(t *testing.T, text string) Object {
	t.Helper()
	read := Read("x.yaml", []byte(text))
	if len(read.Objects) != 1 {
		t.Fatalf("%v\n%s", read.Problems, text)
	}
	return read.Objects[0]
}

// TestEdits makes each edit in each dialect, and reads what comes of it.
func TestEdits(t *testing.T) {
	yes, no, three := true, false, 3
	at := time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)
	for name, text := range map[string]string{"own": ownService, "kserve": kserveService, "ome": omeService, "ome legacy": omeLegacy, "seldon": seldonService} {
		edit := func(text string, e Edit) string {
			t.Helper()
			patch, err := e.Patch(one(t, text))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			out, err := Merge([]byte(text), patch)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return string(out)
		}
		stopped := edit(text, Edit{Stop: &yes})
		if !one(t, stopped).Service.Stopped {
			t.Errorf("%s: not stopped:\n%s", name, stopped)
		}
		if started := edit(stopped, Edit{Stop: &no}); one(t, started).Service.Stopped {
			t.Errorf("%s: still stopped:\n%s", name, started)
		}
		restarted := edit(text, Edit{Restart: at})
		if got := one(t, restarted).Service.Annotations[service.AnnotationRestarted]; got != "2026-03-04T05:06:07.000000008Z" {
			t.Errorf("%s: restarted at %q:\n%s", name, got, restarted)
		}
		if name == "seldon" {
			if _, err := (Edit{Min: &three}).Patch(one(t, text)); err == nil || !strings.Contains(err.Error(), "change its manifest") {
				t.Errorf("seldon: %v", err)
			}
			continue
		}
		scaled := edit(text, Edit{Min: &three, Max: &three})
		if s := one(t, scaled).Service.Components.Engine.Scaling; s.MinReplicas == nil || *s.MinReplicas != 3 || s.MaxReplicas == nil || *s.MaxReplicas != 3 {
			t.Errorf("%s: %+v:\n%s", name, s, scaled)
		}
		if _, err := (Edit{Min: &three, Component: service.RoleTransformer}).Patch(one(t, text)); err == nil {
			t.Errorf("%s: it has no transformer", name)
		}
	}
}

// TestMergeKeepsTheText: what the patch does not name stays as it was written.
func TestMergeKeepsTheText(t *testing.T) {
	got, err := Merge([]byte(ownService), map[string]any{"spec": map[string]any{"stopped": true, "scaling": map[string]any{"minReplicas": 2, "none": nil}}})
	want := strings.Replace(ownService, "minReplicas: 1 # always", "minReplicas: 2 # always\n  stopped: true", 1)
	if err != nil || string(got)+"\n" != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	for _, shared := range []string{"spec: &a {x: 1}\nother: *a\n", "b: &b {y: 1}\nspec: {<<: *b}\n", "b: &b {y: 1}\nspec: *b\n"} {
		if _, err := Merge([]byte(shared), map[string]any{"spec": map[string]any{"x": 2}}); err == nil || !strings.Contains(err.Error(), "aliases") {
			t.Errorf("%s: %v", shared, err)
		}
	}
	for _, none := range []string{"", "[1]", "a: [", "a: {"} {
		if _, err := Merge([]byte(none), map[string]any{"a": 1}); err == nil {
			t.Errorf("%q was merged", none)
		}
	}
}

// TestUnstated: of the edits of commands stays what the manifest says nothing of.
func TestUnstated(t *testing.T) {
	patch := map[string]any{"spec": map[string]any{"stopped": true, "gone": nil, "scaling": map[string]any{"minReplicas": 5, "maxReplicas": 5}}}
	want := map[string]any{"spec": map[string]any{"stopped": true, "scaling": map[string]any{"maxReplicas": 5}}}
	if got := Unstated([]byte(ownService), patch); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Unstated([]byte("spec: {stopped: false, scaling: {minReplicas: 1, maxReplicas: 1}}"), patch); got != nil {
		t.Errorf("%v stays", got)
	}
}

// FuzzMerge compares the merge in YAML's text with RFC 7386 on values.
func FuzzMerge(f *testing.F) {
	f.Add(`{"a":{"b":1}}`, `{"a":{"b":null,"c":2}}`)
	f.Add(`{"a":[1,2]}`, `{"a":{"b":{"c":null}}}`)
	f.Add(`{"a":{}}`, `{"a":3}`)
	f.Fuzz(func(t *testing.T, doc, patch string) {
		var d, p map[string]any
		if json.Unmarshal([]byte(doc), &d) != nil || json.Unmarshal([]byte(patch), &p) != nil || d == nil || p == nil {
			return
		}
		text, err := yaml.Marshal(d)
		if err != nil {
			return
		}
		got, err := Merge(text, p)
		if err != nil {
			return // keys that YAML reads otherwise
		}
		var back map[string]any
		if err := yaml.Unmarshal(got, &back); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if want := naive(d, p); !same(back, want) {
			t.Fatalf("%s + %s = %v, want %v", doc, patch, back, want)
		}
	})
}

// naive is RFC 7386, section 2, but that removals alone make no object.
func naive(target, patch map[string]any) map[string]any {
	out := maps.Clone(target)
	for k, v := range patch {
		inner, deeper := v.(map[string]any)
		switch before, both := out[k].(map[string]any); {
		case v == nil:
			delete(out, k)
		case deeper && both:
			out[k] = naive(before, inner)
		case deeper:
			if made := naive(map[string]any{}, inner); len(made) > 0 {
				out[k] = made
			}
		default:
			out[k] = v
		}
	}
	return out
}

// same compares by JSON, which has one kind of number.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	var u, v any
	return errX == nil && errY == nil && json.Unmarshal(x, &u) == nil && json.Unmarshal(y, &v) == nil && reflect.DeepEqual(u, v)
}
