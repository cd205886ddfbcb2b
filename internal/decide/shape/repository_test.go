package shape

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// TestModelList: the models of others are in a ConfigMap alone, which is written anew
// when they change, and no pod with it; who reads it has them again.
func TestModelList(t *testing.T) {
	manifest, err := os.ReadFile("testdata/repository.in")
	if err != nil {
		t.Fatal(err)
	}
	rev := revision(t, "repository.in", string(manifest))
	if rev.Repository() != workload.LayoutRoundhouse {
		t.Fatalf("its repository is %q", rev.Repository())
	}
	before, err := Render(rev, everything)
	if err != nil {
		t.Fatal(err)
	}
	rev.Guests = []workload.Guest{{Name: "oak", Model: workload.Model{URI: "s3://b/oak", Format: "xgboost", Fingerprint: "f"}}, {Name: "elm", Model: workload.Model{URI: "hf://o/elm", Format: "xgboost"}}}
	after, err := Render(rev, everything)
	if err != nil {
		t.Fatal(err)
	}
	if len(before.Lists) != 1 || len(after.Lists) != 1 || before.Lists[0].Annotations[AnnotationApplied] == after.Lists[0].Annotations[AnnotationApplied] {
		t.Errorf("lists before %v, after %v", before.Lists, after.Lists)
	}
	if !reflect.DeepEqual(before.Deployments, after.Deployments) {
		t.Error("the pods have changed")
	}
	var list []ListedModel
	if err := json.Unmarshal([]byte(after.Lists[0].Data[ModelList]), &list); err != nil {
		t.Fatal(err)
	}
	if got := Guests(list); !reflect.DeepEqual(got, rev.Guests) {
		t.Errorf("read again: %+v", got)
	}
	pod := after.Deployments[0].Spec.Template.Spec
	if args := strings.Join(pod.Containers[0].Args, " "); strings.Contains(args, "--name") || !strings.Contains(args, modelPath) {
		t.Errorf("the server is started with %s", args)
	}
	if got := AccountOf(&rev, &rev.Components[0]); got != "sa" {
		t.Errorf("models are fetched with the account %q", got)
	}

	// What keeps models from being put there is named.
	rev.Image = ""
	if _, err := Render(rev, everything); err == nil || !strings.Contains(err.Error(), "--image") {
		t.Errorf("without an image: %v", err)
	}
}
