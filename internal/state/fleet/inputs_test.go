package fleet_test

import (
	"slices"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// TestStoredChangesAreMade: what was stored of a service, its runtime or its
// model, and not acted upon, is after a restart; what is gone changes nothing.
func TestStoredChangesAreMade(t *testing.T) {
	own := func(arg string) string {
		return `apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: ash}
spec:
  supportedModelFormats: [{name: tree, version: "1"}]
  protocolVersions: [v2]
  local: {command: [elm, "` + arg + `", "--port={{.Port}}"]}
`
	}
	model := func(uri string) string {
		return `apiVersion: ome.io/v1beta1
kind: ClusterBaseModel
metadata: {name: m}
spec: {storage: {storageUri: "` + uri + `"}, modelFormat: {name: tree}}
`
	}
	service := func(rest string) string {
		return `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: a}
spec: {model: {ref: {name: m}}, runtime: {name: ash}, ` + rest + "}\n"
	}
	for _, c := range []struct {
		name    string
		change  string
		gone    fleet.ID
		changed bool
		scaled  int
	}{
		{"nothing", "", fleet.ID{}, false, 1},
		{"the service", service("engine: {env: [{name: A, value: b}]}, scaling: {minReplicas: 1}"), fleet.ID{}, true, 1},
		{"its scaling", service("scaling: {minReplicas: 2, maxReplicas: 2}"), fleet.ID{}, false, 2},
		{"its runtime", own("--other"), fleet.ID{}, true, 1},
		{"its model", model("s3://bucket/other"), fleet.ID{}, true, 1},
		{"a runtime that is gone", "", parse(t, own(""))[0].ID(), false, 1},
		{"a model that is gone", "", parse(t, model("s3://b/m"))[0].ID(), false, 1},
	} {
		for _, cluster := range []bool{false, true} {
			r := newRig(t)
			if r.cluster = cluster; cluster {
				r.restart()
			}
			r.apply(own("--first") + "---\n" + model("s3://bucket/m") + "---\n" + service("scaling: {minReplicas: 1}"))
			r.reconcile("a")
			before := r.platform.revisions[key("a")].Hash
			if before == "" {
				t.Fatalf("%s: Ready is %+v", c.name, r.ready("a"))
			}
			if c.change != "" {
				for _, o := range parse(t, c.change) {
					r.store.objects[o.ID()] = o
				}
			}
			delete(r.store.objects, c.gone)
			writes := r.store.writes
			r.restart()
			r.reconcile("a")
			if now := r.platform.revisions[key("a")].Hash; (now != before) != c.changed {
				t.Errorf("%s, cluster %v: revision %s, was %s", c.name, cluster, now, before)
			}
			if n := r.platform.counts[engine("a")]; n != c.scaled {
				t.Errorf("%s, cluster %v: %d replicas, want %d", c.name, cluster, n, c.scaled)
			}
			if wrote := r.store.writes > writes; wrote != (c.changed || c.scaled != 1) {
				t.Errorf("%s, cluster %v: %d writes", c.name, cluster, r.store.writes-writes)
			}
		}
	}
}

// TestOldRecordsStand: records of a version that noted no inputs are those of
// the same revision, whatever has become of their runtime.
func TestOldRecordsStand(t *testing.T) {
	r := newRig(t)
	r.apply(runtimeYAML("elm", 1) + "---\n" + serviceYAML("a", "runtime: {name: elm}, "+one))
	r.reconcile("a")
	before := r.platform.revisions[key("a")].Hash
	old := r.store.records[key("a")]
	old.Inputs = nil
	for _, gone := range []bool{false, true} {
		r.store.records[key("a")] = old
		if gone {
			delete(r.store.objects, parse(t, runtimeYAML("elm", 1))[0].ID())
		}
		writes := r.store.writes
		r.restart()
		r.reconcile("a")
		if now := r.platform.revisions[key("a")].Hash; now != before || r.store.writes != writes {
			t.Errorf("its runtime gone %v: revision %s, was %s; %d writes", gone, now, before, r.store.writes-writes)
		}
	}
}

// TestProtocolsArePublished: the request path is told what the replicas speak,
// also by a fleet that has just been restored, but not while replicas of the
// revision before serve, which may speak others.
func TestProtocolsArePublished(t *testing.T) {
	r := newRig(t)
	r.apply(serviceYAML("a", one))
	r.reconcile("a")
	want := func(when string, protocols ...service.Protocol) {
		t.Helper()
		if got := r.traffic.views[key("a")].Protocols; !slices.Equal(got, protocols) {
			t.Errorf("%s: published are %v, want %v", when, got, protocols)
		}
	}
	want("resolved", service.ProtocolV2)
	clear(r.traffic.views)
	r.restart()
	want("restored", service.ProtocolV2)
	r.platform.replicas[key("a")] = []replica.Replica{{ID: "old", Service: key("a"), Role: service.RoleEngine, Revision: "before", Phase: replica.Ready}}
	r.reconcile("a")
	want("beside replicas of another revision")
}
