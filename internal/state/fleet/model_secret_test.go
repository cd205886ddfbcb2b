package fleet_test

import (
	"strings"
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

// TestMissingModelSecrets: who applies a model hears that its secret is not there, or
// lacks the key.
func TestMissingModelSecrets(t *testing.T) {
	r := newRig(t)
	const model = `---
apiVersion: ome.io/v1beta1
kind: BaseModel
metadata: {name: m, namespace: team}
spec:
  modelFormat: {name: tree, version: "1"}
  storage: {storageUri: "hf://org/m", key: own}
`
	secret := func(namespace, key string) string {
		return "---\napiVersion: v1\nkind: Secret\nmetadata: {name: own, namespace: " + namespace + "}\nstringData: {" + key + ": hf_x}\n"
	}
	check := func(manifest, want string) {
		t.Helper()
		got := strings.Join(r.Warnings(parse(t, manifest)), "\n")
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s\nwarnings %q, want %q", manifest, got, want)
		}
	}
	check(model, `there is no secret "own" in namespace "team"`)
	check(model+secret("other", "token"), `there is no secret "own" in namespace "team"`)
	check(model+secret("team", "tokn"), `the secret "own" in namespace "team" has no key "token"`)
	check(model+secret("team", "token"), "")
	check(strings.Replace(model, "hf://org/m", "s3://models/m", 1)+secret("team", "AWS_ACCESS_KEY_ID"), "")
	check(strings.NewReplacer("kind: BaseModel", "kind: ClusterBaseModel", ", namespace: team", "").Replace(model), `there is no secret "own" in namespace "ome"`)
	r.apply(secret("team", "token"))
	check(model, "")
}
