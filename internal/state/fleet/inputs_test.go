package fleet_test

import (
	"slices"
	"strings"
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

// configMap has an endpoint picker's configuration with a scorer, below a key.
func configMap(name, key, scorer string) string {
	return `apiVersion: v1
kind: ConfigMap
metadata: {name: ` + name + `}
data:
  notes: anything
  ` + key + `: |
    apiVersion: llm-d.ai/v1alpha1
    kind: EndpointPickerConfig
    plugins: [{type: ` + scorer + `}]
    schedulingProfiles: [{name: default, plugins: [{pluginRef: ` + scorer + `}]}]
`
}

// TestSchedulingFollowsItsConfigMap: a service is picked for as its ConfigMap says, which
// comes later, changes, also while nobody is there, and goes; its replicas stay.
func TestSchedulingFollowsItsConfigMap(t *testing.T) {
	const llm = `apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: a}
spec:
  model: {uri: "hf://acme/tiny"}
  replicas: 1
  router: {scheduler: {config: {ref: {name: picking, key: epp.yaml}}}}
  template: {containers: [{name: main, image: oak, command: [oak]}]}
`
	id := fleet.ID{Kind: "configmap", Key: key("picking")}
	for _, cluster := range []bool{false, true} {
		r := newRig(t)
		if r.cluster = cluster; cluster {
			r.restart()
		}
		r.apply(llm)
		r.reconcile("a")
		r.reconcile("a")
		before := r.platform.revisions[key("a")].Hash
		if before == "" {
			t.Fatalf("Ready is %+v", r.ready("a"))
		}
		picked := func(what, want string) {
			t.Helper()
			r.reconcile("a")
			for in, s := range map[string]*service.Scheduling{"published": r.traffic.views[key("a")].Scheduling, "recorded": r.store.records[key("a")].Revision.Scheduling} {
				got := ""
				if s != nil {
					got = s.Picker.Scorers[0].Name
				}
				if got != want {
					t.Errorf("cluster %v, %s: %q is %s, want %q", cluster, what, got, in, want)
				}
			}
			if now := r.platform.revisions[key("a")].Hash; now != before || r.platform.counts[engine("a")] != 1 {
				t.Errorf("cluster %v, %s: revision %s was %s, and %d replicas", cluster, what, now, before, r.platform.counts[engine("a")])
			}
		}
		picked("without it", "")
		r.apply(configMap("picking", "another.yaml", "queue-scorer"))
		picked("without its key", "")
		r.apply(configMap("another", "epp.yaml", "queue-scorer"))
		picked("beside another", "")
		r.apply(configMap("picking", "epp.yaml", "queue-scorer"))
		picked("with it", "queue")
		r.apply(configMap("picking", "epp.yaml", "kv-cache-utilization-scorer"))
		picked("changed", "kv")
		writes := r.store.writes
		r.restart()
		picked("after a restart", "kv")
		if r.store.writes != writes {
			t.Errorf("cluster %v: a restart wrote %d times", cluster, r.store.writes-writes)
		}
		for _, o := range parse(t, configMap("picking", "epp.yaml", "lora-affinity-scorer")) {
			r.store.objects[o.ID()] = o
		}
		r.restart()
		picked("changed while nobody was there", "lora")
		if err := r.Delete(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		picked("deleted", "")
	}
}

// TestSchedulingOfABase: what a Base names is looked for in the service's namespace, and
// KServe's own in KServe's.
func TestSchedulingOfABase(t *testing.T) {
	r := newRig(t)
	r.apply(`apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceServiceConfig
metadata: {name: house, namespace: kserve}
spec: {router: {scheduler: {config: {ref: {name: config-scheduler-x}}}}}
---
apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
metadata: {name: a}
spec:
  baseRefs: [{name: house}]
  model: {uri: "hf://acme/tiny"}
  template: {containers: [{name: main, image: oak, command: [oak]}]}
`)
	r.reconcile("a")
	for _, c := range []struct{ namespace, scorer, want string }{
		{"other", "queue-scorer", ""},
		{"kserve", "queue-scorer", "queue"},
		{"default", "lora-affinity-scorer", "lora"},
	} {
		r.apply(strings.Replace(configMap("config-scheduler-x", "epp", c.scorer), "name: config-scheduler-x", "name: config-scheduler-x, namespace: "+c.namespace, 1))
		r.reconcile("a")
		got := ""
		if s := r.traffic.views[key("a")].Scheduling; s != nil {
			got = s.Picker.Scorers[0].Name
		}
		if got != c.want {
			t.Errorf("with one in %s it is %q, want %q", c.namespace, got, c.want)
		}
	}
}
