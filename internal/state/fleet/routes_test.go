package fleet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

const poolYAML = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: p}
spec: {selector: {matchLabels: {app: x}}, targetPorts: [{number: 8000}]}
`

func modelYAML(name, model string) string {
	return fmt.Sprintf(`apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {name: %s}
spec: {modelName: %s, poolRef: {name: p}}
`, name, model)
}

func labelled(name, app string) string {
	return strings.Replace(serviceYAML(name, one), "metadata: {name: "+name+"}", "metadata: {name: "+name+", labels: {app: "+app+"}}", 1)
}

// conditionOf is "Status Reason" of a routing object's condition.
func (r *rig) conditionOf(kind, name, condition string) string {
	r.t.Helper()
	for _, o := range r.RoutingObjects() {
		if o.Object.ID() != (fleet.ID{Kind: kind, Key: key(name)}) {
			continue
		}
		for _, c := range o.Status.Conditions {
			if c.Type == condition {
				if c.Since.IsZero() {
					r.t.Errorf("%s of %s has no time", condition, name)
				}
				return c.Status + " " + c.Reason
			}
		}
	}
	return ""
}

// TestRoutingObjects: they are stored, published with the members of pools as
// services come and go, restored, and deleted.
func TestRoutingObjects(t *testing.T) {
	r := newRig(t)
	r.apply(poolYAML)
	if got := r.conditionOf("pool", "p", "Ready"); got != "False NoEndpoints" {
		t.Errorf("a pool without services is %s", got)
	}
	r.apply(labelled("a", "x"))
	r.apply(labelled("b", "y"))
	if got := r.conditionOf("pool", "p", "Ready"); got != "True Accepted" {
		t.Errorf("a pool with a service is %s", got)
	}
	if m := r.traffic.routed.Members[key("p")]; len(m) != 1 || m[0] != key("a") || len(r.traffic.routed.Objects) != 1 {
		t.Errorf("published %+v", r.traffic.routed)
	}
	r.apply(labelled("b", "x"))
	if m := r.traffic.routed.Members[key("p")]; len(m) != 2 {
		t.Errorf("a label changed and members are %v", m)
	}
	r.restart()
	if m := r.traffic.routed.Members[key("p")]; len(m) != 2 || r.conditionOf("pool", "p", "Ready") != "True Accepted" {
		t.Errorf("after a restart the members are %v", m)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "service", Key: key("a")}); err != nil {
		t.Fatal(err)
	}
	if m := r.traffic.routed.Members[key("p")]; len(m) != 1 {
		t.Errorf("a service went and members are %v", m)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "pool", Key: key("p")}); err != nil {
		t.Fatal(err)
	}
	if len(r.traffic.routed.Objects)+len(r.RoutingObjects()) > 0 || r.store.objects[fleet.ID{Kind: "pool", Key: key("p")}].Routing != nil {
		t.Errorf("a deleted pool is still there: %+v", r.traffic.routed)
	}
	err := r.Delete(t.Context(), fleet.ID{Kind: "pool", Key: key("p")})
	if err == nil || !strings.Contains(err.Error(), "no pool default/p: `roundhouse get pools -A`") {
		t.Errorf("again: %v", err)
	}
}

// TestModelNames: the oldest keeps a name, its heir is promoted, and the name
// of an object that is there does not change.
func TestModelNames(t *testing.T) {
	r := newRig(t)
	r.apply(poolYAML)
	r.apply(modelYAML("b", "llama"))
	r.now = r.now.Add(time.Minute)
	r.apply(modelYAML("a", "llama"))
	if got := r.conditionOf("inferencemodel", "a", "Accepted"); got != "False ModelNameInUse" {
		t.Errorf("the younger is %s", got)
	}
	writes := r.store.writes
	_, err := r.Apply(t.Context(), parse(t, modelYAML("b", "other")), fleet.ApplyOptions{})
	if err == nil || !strings.Contains(err.Error(), `spec.modelName: cannot change, from "llama" to "other"`) || r.store.writes != writes {
		t.Errorf("a changed name: %v, %d writes", err, r.store.writes-writes)
	}
	if err := r.Delete(t.Context(), fleet.ID{Kind: "inferencemodel", Key: key("b")}); err != nil {
		t.Fatal(err)
	}
	if got := r.conditionOf("inferencemodel", "a", "Accepted"); got != "True Accepted" {
		t.Errorf("the heir is %s", got)
	}
	// Deleted and applied again it may have another name.
	if got := r.apply(modelYAML("b", "other")); got[0] != "created" {
		t.Errorf("actions %v", got)
	}
}

// TestDegradation: what is wrong with a pool's addresses shows in its status until
// it is mended.
func TestDegradation(t *testing.T) {
	r := newRig(t)
	r.apply("apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: p}\nspec: {addresses: [\"llama.test:80\"]}\n")
	r.apply("apiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: r}\nspec: {targets: [{pool: p}]}\n")
	for kind, name := range map[string]string{"pool": "p", "route": "r"} {
		if got := r.conditionOf(kind, name, "Ready"); got != "Unknown Checking" {
			t.Errorf("before a check the %s is %s", kind, got)
		}
	}
	r.SetDegradation(key("p"), routing.Degradation{Message: "llama.test: no such host", Down: true})
	r.SetDegradation(service.Key{Namespace: "default", Name: "gone"}, routing.Degradation{Message: "nobody asks"})
	if got := r.conditionOf("pool", "p", "Ready"); got != "False NoEndpoints" {
		t.Errorf("a pool without an address that is up is %s", got)
	}
	if got := r.conditionOf("route", "r", "Ready"); got != "False NoEndpoints" {
		t.Errorf("a route to it is %s", got)
	}
	r.SetDegradation(key("p"), routing.Degradation{Message: "llama.test: no such host"})
	if got := r.conditionOf("pool", "p", "Ready"); got != "True Degraded" {
		t.Errorf("a pool that serves through another address is %s", got)
	}
	r.SetDegradation(key("p"), routing.Degradation{})
	if got := r.conditionOf("pool", "p", "Ready"); got != "True Accepted" {
		t.Errorf("mended it is %s", got)
	}
	for _, changed := range []struct{ spec, want string }{
		{"addresses: [\"llama.test:80\"], queue: {maxRequests: 5}", "True Accepted"},
		{"addresses: [\"llama.test:80\"], healthCheck: {path: /up}", "Unknown Checking"},
		{"addresses: [\"other.test:80\"], healthCheck: {path: /up}", "Unknown Checking"},
	} {
		r.apply("apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: p}\nspec: {" + changed.spec + "}\n")
		if got := r.conditionOf("pool", "p", "Ready"); got != changed.want {
			t.Errorf("with %s it is %s, want %s", changed.spec, got, changed.want)
		}
		r.SetDegradation(key("p"), routing.Degradation{})
	}
}

// TestSourcedRouting: what came from a watched file is known by it.
func TestSourcedRouting(t *testing.T) {
	r := newRig(t)
	objects := parse(t, poolYAML)
	objects[0].Source = "/manifests/p.yaml"
	if _, err := r.Apply(t.Context(), objects, fleet.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	got := r.Sourced(func(s string) bool { return s == "/manifests/p.yaml" })
	if len(got) != 1 || got[0] != (fleet.ID{Kind: strings.ToLower(string(routing.KindPool)), Key: key("p")}) {
		t.Errorf("sourced are %v", got)
	}
}

// TestRoutesAlone: routing objects need no services, no platform and no store,
// and a manifest of a service is refused with all that comes with it.
func TestRoutesAlone(t *testing.T) {
	to := &traffic{}
	now := epoch
	r := fleet.NewRoutes(to, func() time.Time { return now })
	apply := func(manifest string) ([]fleet.Change, error) {
		t.Helper()
		return r.Apply(t.Context(), parse(t, manifest), fleet.ApplyOptions{})
	}
	if _, err := apply(poolYAML + "---\n" + serviceYAML("a", one)); err == nil || !strings.Contains(err.Error(), "service default/a: only routes and pools") {
		t.Errorf("a service: %v", err)
	}
	if n := len(r.Objects()) + len(to.routed.Objects); n > 0 {
		t.Errorf("%d objects after a refusal", n)
	}
	for _, want := range []string{"created", "unchanged"} {
		got, err := apply(poolYAML)
		if err != nil || len(got) != 1 || got[0].Action != want {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
		now = now.Add(time.Hour)
	}
	if _, err := apply(modelYAML("b", "llama")); err != nil {
		t.Fatal(err)
	}
	if _, err := apply(modelYAML("b", "other")); err == nil || !strings.Contains(err.Error(), "spec.modelName: cannot change") {
		t.Errorf("a changed name: %v", err)
	}
	if o := to.routed.Objects; len(o) != 2 || !o[0].Common().Created.Equal(epoch) {
		t.Errorf("published %+v", o)
	}
	pool := fleet.ID{Kind: "pool", Key: key("p")}
	if err := r.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if len(to.routed.Objects) != 1 || len(r.Objects()) != 1 {
		t.Errorf("after a deletion %+v", to.routed)
	}
	var gone *fleet.NotFoundError
	if err := r.Delete(t.Context(), pool); !errors.As(err, &gone) {
		t.Errorf("again: %v", err)
	}
}
