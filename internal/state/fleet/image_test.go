package fleet_test

import (
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestNewProgramKeepsPods: on a cluster a newer program, with another image and
// another catalog, takes over the revision as it was rendered, also when a
// count changes.
func TestNewProgramKeepsPods(t *testing.T) {
	r := newRig(t)
	program := func(image, arg string) {
		r.catalog = nil
		for _, o := range parse(t, `apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: oak}
spec:
  supportedModelFormats: [{name: tree, version: "1", autoSelect: true, priority: 2}]
  engine: {containers: [{name: main, image: roundhouse, args: ["`+arg+`"]}]}
  local: {command: [oak]}
`) {
			o.Runtime.Scope = service.ScopeCatalog
			r.catalog = append(r.catalog, *o.Runtime)
		}
		f, err := fleet.New(fleet.Config{Platform: r.platform, Store: r.store, Models: r.models, Traffic: r.traffic, Catalog: r.catalog,
			Cluster: true, Image: image, Now: func() time.Time { return r.now }})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Restore(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.Fleet = f
	}
	check := func(what string, limit int) {
		t.Helper()
		rev := r.store.records[key("iris")].Revision
		c := rev.Component(service.RoleEngine)
		if c == nil || rev.Image != "roundhouse:v1" || c.Pod.Containers[0].Image != "roundhouse:v1" || args(rev) != "--one" || c.Limits.Max != limit {
			t.Fatalf("%s: %+v", what, rev)
		}
	}
	program("roundhouse:v1", "--one")
	r.apply(serviceYAML("iris", "scaling: {maxReplicas: 2}"))
	r.reconcile("iris")
	check("at first", 2)
	program("roundhouse:v2", "--two")
	r.reconcile("iris")
	check("after the upgrade", 2)
	r.apply(serviceYAML("iris", "scaling: {maxReplicas: 5}"))
	r.reconcile("iris")
	check("after a change of counts", 5)
	if args(r.platform.revisions[key("iris")]) != "--one" {
		t.Error("the platform was given another pod")
	}
}
