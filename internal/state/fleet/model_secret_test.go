package fleet_test

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestModelSecretInPods: on a cluster the pods of a service get the secret that its model
// object names where it is of their own namespace, and never one of another.
func TestModelSecretInPods(t *testing.T) {
	r := newRig(t)
	f, err := fleet.New(fleet.Config{Platform: r.platform, Store: r.store, Models: r.models, Traffic: r.traffic, Catalog: r.catalog, Cluster: true, Image: "roundhouse:v1"})
	if err != nil {
		t.Fatal(err)
	}
	r.Fleet = f
	model := func(kind, name, where string) string {
		return `---
apiVersion: ome.io/v1beta1
kind: ` + kind + `
metadata: {name: ` + name + where + `}
spec:
  modelFormat: {name: tree, version: "1"}
  storage: {storageUri: "s3://models/` + name + `", key: own}
`
	}
	asks := func(namespace, name, model string) string {
		return `---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: ` + name + `, namespace: ` + namespace + `}
spec: {model: {ref: {name: ` + model + `}}, engine: {containers: [{name: main, image: "example.com/oak:1"}]}}
`
	}
	r.apply(model("BaseModel", "mine", ", namespace: team") + model("ClusterBaseModel", "everybodys", "") +
		asks("team", "a", "mine") + asks("team", "b", "everybodys") + asks("ome", "c", "everybodys"))
	for name, want := range map[string]string{"team/a": "own", "team/b": "", "ome/c": "own"} {
		r.reconcile(name)
		rec := r.store.records[key(name)]
		got := ""
		if s := rec.Revision.Model.Secret; s != nil {
			got = s.Secret
		}
		if rec.Revision.Model.URI == "" || got != want || !rec.Revision.Model.Credentials.Zero() {
			t.Errorf("%s: %q of %+v, want %q", name, got, rec.Revision.Model, want)
		}
	}
}
