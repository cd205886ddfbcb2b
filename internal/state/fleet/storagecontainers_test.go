package fleet_test

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestStorageContainers: on a cluster a URI that nothing here fetches is fetched by the
// container that supports it, from when it is applied until it is deleted.
func TestStorageContainers(t *testing.T) {
	r := newRig(t)
	f, err := fleet.New(fleet.Config{Platform: r.platform, Store: r.store, Models: r.models, Traffic: r.traffic, Catalog: r.catalog, Cluster: true, Image: "roundhouse:v1"})
	if err != nil {
		t.Fatal(err)
	}
	r.Fleet = f
	const asks = `---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: a}
spec: {model: {uri: "registry://oak", format: {name: tree, version: "1"}}, engine: {containers: [{name: main, image: "example.com/oak:1"}]}}
`
	container := func(name, image, rest string) string {
		return "---\napiVersion: serving.kserve.io/v1alpha1\nkind: ClusterStorageContainer\nmetadata: {name: " + name + "}\n" + rest +
			"spec: {container: {name: c, image: " + image + "}, supportedUriFormats: [{prefix: 'registry://'}]}\n"
	}
	apply := func(manifest string) {
		t.Helper()
		var objects []fleet.Object
		for _, o := range dialect.Read("a.yaml", []byte(manifest)).Objects { // the error is of one machine
			objects = append(objects, fleet.Object{Object: o})
		}
		if _, err := f.Apply(t.Context(), objects, fleet.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	image := func() (image, hash string) {
		r.reconcile("default/a")
		rev := r.store.records[key("default/a")].Revision
		return rev.Brought["registry://oak"].Image, rev.Hash
	}
	apply(asks + container("off", "example.com/off:1", "disabled: true\n"))
	got, before := image()
	if got != "" {
		t.Errorf("%s fetches", got)
	}
	apply(container("registry", "example.com/fetch:1", ""))
	got, after := image()
	if got != "example.com/fetch:1" || after == before {
		t.Errorf("%q fetches, in the revision %s after %s", got, after, before)
	}
	apply(container("registry", "example.com/fetch:2", ""))
	if got, _ := image(); got != "example.com/fetch:2" {
		t.Errorf("%q fetches", got)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "clusterstoragecontainer", Key: service.Key{Name: "registry"}}); err != nil {
		t.Fatal(err)
	}
	if got, _ := image(); got != "" {
		t.Errorf("%q fetches", got)
	}
}
