package platform_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform/clustertest"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// fixture is a platform whose calls and callbacks are seen.
type fixture struct {
	platformtest.Subject
	t       *testing.T
	calls   *counter
	direct  client.Client
	raised  chan int
	drifted chan service.Key
}

// open makes one that ends with the test.
func open(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, calls: &counter{}, direct: direct(t), raised: make(chan int, 100), drifted: make(chan service.Key, 100)}
	cfg := cluster(t)
	f.calls.attach(cfg)
	p := clustertest.Open(t, platform.Config{REST: cfg,
		Raised:  func(_ service.Key, n int) { f.raised <- n },
		Drifted: func(k service.Key) { f.drifted <- k }})
	t.Cleanup(func() { f.calls.set(nil, false) }) // runs before what Open cleans
	f.Subject = platformtest.On(t, p)
	f.calls.writes()
	return f
}

func revision(k service.Key, s platformtest.Server) workload.Revision {
	return clustertest.Revision(clustertest.Options{Image: "test"}, k, s)
}

var (
	deployments = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	groups      = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}
)

// live reads the engine's object past every cache.
func (f *fixture) live(kind schema.GroupVersionKind, k service.Key) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	if err := f.direct.Get(f.t.Context(), client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}, u); err != nil {
		f.t.Fatal(err)
	}
	return u
}

func (f *fixture) wantCount(kind schema.GroupVersionKind, k service.Key, want int64, when string) {
	f.t.Helper()
	u := f.live(kind, k)
	n, found, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
	surge := u.GetAnnotations()["roundhouse.dev/surge"] != "" && n > 1
	if surge {
		n--
	}
	if !found || n != want || surge && kind != groups {
		f.t.Errorf("%s: count %d (%v), beyond it one more: %v, want %d", when, n, found, surge, want)
	}
}

// scaleAs sets a count as somebody else, who always gets what he wants.
func (f *fixture) scaleAs(manager string, kind schema.GroupVersionKind, k service.Key, n int) {
	f.t.Helper()
	u := f.live(kind, k)
	body := &unstructured.Unstructured{}
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
	if err := f.direct.SubResource("scale").Patch(f.t.Context(), u, client.RawPatch(types.MergePatchType, patch),
		client.FieldOwner(manager), client.WithSubResourceBody(body)); err != nil {
		f.t.Fatal(err)
	}
}

// TestCount is never reset, nor owned once somebody else has set it.
func TestCount(t *testing.T) {
	testCount(t, deployments, func(r workload.Revision) workload.Revision { return r })
}

func testCount(t *testing.T, kind schema.GroupVersionKind, shaped func(workload.Revision) workload.Revision) {
	f := open(t)
	k := platformtest.Key("count-" + strings.ToLower(kind.Kind))
	n := 0
	next := func() workload.Revision {
		n++
		return shaped(revision(k, platformtest.Server{NeverReady: true, Salt: fmt.Sprint(n)}))
	}
	f.MustApply(next())
	f.wantCount(kind, k, 0, "new")
	f.MustApply(next())
	f.MustApply(next())
	f.wantCount(kind, k, 0, "a new revision, never scaled")
	f.scaleAs("somebody", kind, k, 3)
	f.MustApply(next())
	f.wantCount(kind, k, 3, "a new revision, scaled by somebody else")
	f.MustApply(next())
	f.wantCount(kind, k, 3, "and another")
	// A surge of groups is ours, the count included, until it ends.
	if owners := countOwners(t, f.live(kind, k)); kind == deployments && !slices.Equal(owners, []string{"somebody/Update"}) {
		t.Errorf("owners of the count: %v", owners)
	}
	f.scaleAs("somebody", kind, k, 0)
	f.MustApply(next())
	f.wantCount(kind, k, 0, "a new revision, scaled to zero by somebody else")
	f.MustScale(k, 2)
	f.MustApply(next())
	f.wantCount(kind, k, 2, "a new revision, scaled by us")
	f.MustScale(k, 0)
	f.MustApply(next())
	f.wantCount(kind, k, 0, "a new revision, scaled to zero by us")
	// Whoever wipes out who owns what does not move the count either.
	f.scaleAs("somebody", kind, k, 1)
	u := f.live(kind, k)
	if err := f.direct.Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"managedFields":[{}]}}`))); err != nil {
		t.Fatal(err)
	}
	f.MustApply(next())
	f.MustApply(next())
	f.wantCount(kind, k, 1, "a new revision, once nobody owned anything")
}

// countOwners are those who own spec.replicas, as "manager/operation".
func countOwners(t *testing.T, u *unstructured.Unstructured) []string {
	t.Helper()
	var out []string
	for _, e := range u.GetManagedFields() {
		var fields map[string]map[string]any
		if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields); err == nil && fields["f:spec"]["f:replicas"] != nil {
			out = append(out, e.Manager+"/"+string(e.Operation))
		}
	}
	return out
}

// TestRaceWithGateway: between our read and our apply a gateway raises a
// sleeping service, which must not be lost, however often it is tried.
func TestRaceWithGateway(t *testing.T) {
	f := open(t)
	k := platformtest.Key("raced")
	f.MustApply(revision(k, platformtest.Server{Salt: "1"}))
	raced := 0
	f.calls.writes()
	f.calls.set(func(call string) {
		if call == "PATCH deployments" && raced == 0 {
			raced++
			f.scaleAs("roundhouse-gateway", deployments, k, 1)
		}
	}, false)
	r := revision(k, platformtest.Server{Salt: "2"})
	f.MustApply(r)
	f.wantCount(deployments, k, 1, "raised meanwhile")
	if raced != 1 {
		t.Fatal("the test raised nothing")
	}
	if writes := f.calls.writes(); !slices.Equal(writes, []string{"PATCH deployments", "PATCH deployments"}) {
		t.Errorf("calls: %v", writes)
	}
	f.wantRaised(1)
	if rs := f.AwaitReady(k, 1); rs[0].Revision != r.Hash {
		t.Errorf("runs revision %s, want %s", rs[0].Revision, r.Hash)
	}
}

// TestStaleWatch: a Deployment that the watch has not shown yet, made by the
// controller that led before and woken by a gateway since, is not taken for new.
func TestStaleWatch(t *testing.T) {
	f, before := open(t), open(t)
	k := platformtest.Key("unseen")
	old, r := revision(k, platformtest.Server{Salt: "1"}), revision(k, platformtest.Server{Salt: "2"})
	done := false
	f.calls.set(func(call string) {
		if call == "PATCH deployments" && !done {
			done = true
			before.MustApply(old)
			f.scaleAs("roundhouse-gateway", deployments, k, 1)
		}
	}, false)
	f.MustApply(r)
	f.calls.set(nil, false)
	f.wantCount(deployments, k, 1, "woken before we knew of it")
	if rs := f.AwaitReady(k, 1); rs[0].Revision != r.Hash {
		t.Errorf("runs revision %s, want %s", rs[0].Revision, r.Hash)
	}
}

// TestConflictStorm: a write that somebody always comes before is given up in
// words, and done once there is peace.
func TestConflictStorm(t *testing.T) {
	f := open(t)
	k := platformtest.Key("stormy")
	f.MustApply(revision(k, platformtest.Server{Salt: "1"}))
	storm := 0
	f.calls.set(func(call string) {
		if call == "PATCH deployments" {
			storm++
			patch := fmt.Appendf(nil, `{"metadata":{"labels":{"storm":"%d"}}}`, storm)
			if err := f.direct.Patch(t.Context(), f.live(deployments, k), client.RawPatch(types.MergePatchType, patch)); err != nil {
				t.Error(err)
			}
		}
	}, false)
	r := revision(k, platformtest.Server{Salt: "2"})
	if err := f.Apply(t.Context(), r); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "suite/stormy-engine") {
		t.Errorf("Apply: %v", err)
	}
	if storm < 3 || storm > 20 {
		t.Errorf("tried %d times", storm)
	}
	f.calls.set(nil, false)
	f.MustApply(r)
	f.MustScale(k, 1)
	if rs := f.AwaitReady(k, 1); rs[0].Revision != r.Hash {
		t.Errorf("runs revision %s, want %s", rs[0].Revision, r.Hash)
	}
}

// TestWrites counts what a service costs.
func TestWrites(t *testing.T) {
	f := open(t)
	k := platformtest.Key("written")
	r := revision(k, platformtest.Server{})
	want := func(when string, calls ...string) {
		t.Helper()
		if got := f.calls.writes(); !slices.Equal(got, calls) {
			t.Errorf("%s: %d calls %v, want %v", when, len(got), got, calls)
		}
	}
	f.MustApply(r)
	f.MustScale(k, 1)
	// A count that meets the Deployment controller's own writes is sent again.
	if got := slices.Compact(f.calls.writes()); !slices.Equal(got, []string{"PATCH services", "PATCH poddisruptionbudgets", "PATCH deployments", "PATCH deployments/scale"}) {
		t.Errorf("a new service: %v", got)
	}
	f.AwaitReady(k, 1)
	f.MustApply(r)
	f.MustScale(k, 1)
	want("the same again")
	began := time.Now()
	f.MustApply(revision(k, platformtest.Server{Salt: "2"}))
	t.Logf("another revision is written in %s", time.Since(began))
	want("another revision", "PATCH deployments")
	two := revision(k, platformtest.Server{Salt: "2", Roles: []string{"engine", "router"}})
	f.MustApply(two)
	f.calls.writes()
	f.MustApply(revision(k, platformtest.Server{Salt: "2"}))
	want("a role less", "PATCH deployments", "DELETE deployments", "DELETE services", "DELETE poddisruptionbudgets")

	again := open(t) // a controller that starts
	again.MustApply(revision(k, platformtest.Server{Salt: "2"}))
	again.MustScale(k, 1)
	if got := again.calls.writes(); len(got) != 0 {
		t.Errorf("a restart wrote %v", got)
	}
}

// TestOtherRendering: what another version of the controller rendered of the
// same revision stays, but for what restarts nothing.
func TestOtherRendering(t *testing.T) {
	f := open(t)
	k := platformtest.Key("rendered")
	r := revision(k, platformtest.Server{})
	f.MustApply(r)
	f.MustScale(k, 1)
	id := f.AwaitReady(k, 1)[0].ID
	key := client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}
	var d appsv1.Deployment
	var s corev1.Service
	for _, o := range []client.Object{&d, &s} {
		if err := f.direct.Get(t.Context(), key, o); err != nil {
			t.Fatal(err)
		}
	}
	patch := func(o client.Object, p string) {
		t.Helper()
		if err := f.direct.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(p))); err != nil {
			t.Fatal(err)
		}
	}
	patch(&d, `{"metadata":{"labels":{"made-by":"older"}}}`)
	patch(&s, `{"metadata":{"annotations":{"roundhouse.dev/applied":"0"}},"spec":{"publishNotReadyAddresses":true}}`)
	again := open(t)
	again.MustApply(r)
	if got := again.calls.writes(); !slices.Equal(got, []string{"PATCH services"}) {
		t.Errorf("calls: %v", got)
	}
	if rs := again.AwaitReady(k, 1); rs[0].ID != id {
		t.Errorf("%s took the place of %s", rs[0].ID, id)
	}
}

// TestDeletedByOthers comes back.
func TestDeletedByOthers(t *testing.T) {
	f := open(t)
	k := platformtest.Key("deleted")
	r := revision(k, platformtest.Server{})
	f.MustApply(r)
	f.MustScale(k, 1)
	f.AwaitReady(k, 1)
	for _, o := range []client.Object{&appsv1.Deployment{}, &corev1.Service{}} {
		o.SetNamespace(k.Namespace)
		o.SetName(shape.Name(k, service.RoleEngine))
		if err := f.direct.Delete(t.Context(), o, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			t.Fatal(err)
		}
		if got := f.driftedKey(); got != k {
			t.Errorf("told of %s", got)
		}
		f.MustApply(r)
		f.MustScale(k, 1)
		if err := f.direct.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			t.Error(err)
		}
	}
	f.AwaitReady(k, 1)
	if err := f.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	f.AwaitNone(k)
	select {
	case k := <-f.drifted:
		t.Errorf("%s was removed, and is said to have drifted", k)
	default:
	}
}

func (f *fixture) driftedKey() service.Key {
	f.t.Helper()
	select {
	case k := <-f.drifted:
		return k
	case <-within(f.t).Done():
		f.t.Fatal("nobody is told that an object was deleted, or a count lowered")
		return service.Key{}
	}
}

// TestAPIServerGone: what is known stays known, writes fail in words, and all
// is well again once it is back.
func TestAPIServerGone(t *testing.T) {
	f := open(t)
	k := platformtest.Key("lonely")
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 1)
	f.AwaitReady(k, 1)
	f.calls.set(nil, true)
	r := revision(k, platformtest.Server{Salt: "2"})
	for what, err := range map[string]error{
		"Apply":  f.Apply(t.Context(), r),
		"Scale":  f.Scale(t.Context(), workload.Ref{Service: k, Role: service.RoleEngine}, 3, nil),
		"Remove": f.Remove(t.Context(), platformtest.Key("nobody")),
	} {
		if what == "Remove" != (err == nil) || err != nil && !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if rs := f.See(k); len(rs) != 1 {
		t.Errorf("observed %s", platformtest.Describe(rs))
	}
	f.calls.set(nil, false)
	f.MustApply(r)
	f.MustScale(k, 2)
	f.AwaitReady(k, 2)
}

// TestNames of services, however long, stay apart, and are listed in full.
func TestNames(t *testing.T) {
	f := open(t)
	var keys []service.Key
	for _, end := range []string{"a", "b"} {
		k := platformtest.Key(strings.Repeat("long-", 40) + end)
		f.MustApply(revision(k, platformtest.Server{}))
		f.MustScale(k, 1)
		keys = append(keys, k)
	}
	canary := platformtest.Key("short").Canary()
	f.MustApply(revision(canary, platformtest.Server{}))
	f.MustScale(canary, 1)
	keys = append(keys, canary)
	for _, k := range keys {
		f.AwaitReady(k, 1)
	}
	got, err := f.Services(context.Background())
	if err != nil || !slices.Equal(got, keys) {
		t.Errorf("Services = %v, %v", got, err)
	}
}

// TestCopies that bear our labels under other names, as kubectl expose makes
// them, are their makers': neither deleted nor counted, nor a service of ours.
func TestCopies(t *testing.T) {
	f := open(t)
	k := platformtest.Key("copied")
	f.MustApply(revision(k, platformtest.Server{}))
	f.MustScale(k, 1)
	f.AwaitReady(k, 1)
	labels := map[string]string{shape.LabelManagedBy: shape.Manager, shape.LabelService: k.Name, shape.LabelRole: "engine"}
	exposed := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: "copied-public", Labels: labels},
		Spec: corev1.ServiceSpec{Selector: map[string]string{shape.LabelService: k.Name}, Ports: []corev1.ServicePort{{Port: 80}}}}
	stray := exposed.DeepCopy()
	stray.Name, stray.Labels[shape.LabelService] = "stray", "nobody"
	for _, o := range []client.Object{exposed, stray} {
		if err := f.direct.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.direct.Delete(context.Background(), o) })
	}
	f.MustApply(revision(k, platformtest.Server{Salt: "2"}))
	f.MustScale(k, 2)
	f.AwaitReady(k, 2)
	if all, err := f.Services(t.Context()); err != nil || slices.Contains(all, service.Key{Namespace: k.Namespace, Name: "nobody"}) {
		t.Errorf("services %v, %v", all, err)
	}
	if err := f.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	f.AwaitNone(k)
	for _, o := range []client.Object{exposed, stray} {
		if err := f.direct.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil || o.GetDeletionTimestamp() != nil {
			t.Errorf("%s %s: %v", o.GetName(), o.GetDeletionTimestamp(), err)
		}
	}
}

// TestStrategy: how replicas are replaced changes with the manifest, in every
// direction, and restarts none.
func TestStrategy(t *testing.T) {
	f := open(t)
	k := platformtest.Key("strategic")
	r := revision(k, platformtest.Server{})
	f.MustApply(r)
	f.MustScale(k, 1)
	id := f.AwaitReady(k, 1)[0].ID
	one := intstr.FromInt32(1)
	for _, st := range []*service.Strategy{{Recreate: true}, {MaxSurge: &one, MaxUnavailable: &one}, {Recreate: true}, nil} {
		r.Components[0].Strategy, r.Components[0].Budget = st, nil
		if st != nil {
			r.Components[0].Budget = &service.Budget{MinAvailable: &one}
		}
		f.calls.writes()
		f.MustApply(r)
		if writes := f.calls.writes(); !slices.Contains(writes, "PATCH deployments") {
			t.Errorf("%+v: wrote %v", st, writes)
		}
		key := client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}
		var d appsv1.Deployment
		var b policyv1.PodDisruptionBudget
		if err := errors.Join(f.direct.Get(t.Context(), key, &d), f.direct.Get(t.Context(), key, &b)); err != nil {
			t.Fatal(err)
		}
		got, bounds := d.Spec.Strategy, d.Spec.Strategy.RollingUpdate
		switch {
		case st == nil && (bounds == nil || bounds.MaxUnavailable.String() != "0" || bounds.MaxSurge.String() != "25%" || b.Spec.MinAvailable != nil),
			st != nil && st.Recreate && (got.Type != appsv1.RecreateDeploymentStrategyType || bounds != nil),
			st != nil && !st.Recreate && (bounds == nil || *bounds.MaxSurge != one || *bounds.MaxUnavailable != one),
			st != nil && (b.Spec.MinAvailable == nil || b.Spec.MaxUnavailable != nil):
			t.Errorf("%+v: the Deployment has %+v, the budget %+v", st, got, b.Spec)
		}
		if rs := f.AwaitReady(k, 1); rs[0].ID != id {
			t.Errorf("%+v: replica %s took the place of %s", st, rs[0].ID, id)
		}
	}
}
