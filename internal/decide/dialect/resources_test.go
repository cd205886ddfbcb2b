package dialect

import (
	"reflect"
	"slices"
	"testing"
)

// TestResourcesAreTheKindsRead: what can be read from a file can be kept by an
// API server, in the same versions, and the other way round.
func TestResourcesAreTheKindsRead(t *testing.T) {
	var kept, known []string
	for _, r := range Resources {
		for _, v := range r.Versions {
			kept = append(kept, r.Group+"/"+v+" "+r.Kind)
			if at := ResourceOf(r.Group+"/"+v, r.Kind); at == nil || at.Plural != r.Plural {
				t.Errorf("ResourceOf(%s/%s %s) is %v", r.Group, v, r.Kind, at)
			}
		}
	}
	for _, k := range schemas {
		if k.OneMachine != "" {
			continue
		}
		known = append(known, k.APIVersion+" "+k.Kind)
	}
	slices.Sort(kept)
	slices.Sort(known)
	if !slices.Equal(kept, known) {
		t.Errorf("kept by servers:\n%q\nread from files:\n%q", kept, known)
	}
	if r := ResourceOf("serving.kserve.io/v1", "InferenceService"); r != nil {
		t.Errorf("a version that is not read is kept as %+v", r)
	}
}

func TestAuthored(t *testing.T) {
	port := map[string]any{"containerPort": int64(80), "protocol": "TCP"}
	in := map[string]any{"apiVersion": "roundhouse.dev/v1alpha1", "kind": "ModelService",
		"metadata": map[string]any{"name": "iris", "namespace": "a", "uid": "u", "resourceVersion": "1", "labels": map[string]any{"x": "y"},
			"annotations": map[string]any{"drop": "1"}, "managedFields": []any{}},
		"spec": map[string]any{"ports": []any{port}, "grpc": map[string]any{"port": int64(1), "service": ""}}, "status": map[string]any{}}
	want := map[string]any{"apiVersion": "roundhouse.dev/v1alpha1", "kind": "ModelService",
		"metadata": map[string]any{"name": "iris", "namespace": "a", "labels": map[string]any{"x": "y"}},
		"spec":     map[string]any{"ports": []any{map[string]any{"containerPort": int64(80)}}, "grpc": map[string]any{"port": int64(1)}}}
	if got := Authored(in, "drop"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if len(port) != 2 || in["status"] == nil {
		t.Errorf("what was given has changed: %v", in)
	}
}
