package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/live"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// follower is what a gateway is in a cluster, up to its request path.
type follower struct {
	*fleet.Follower
	view  *live.View
	waker *live.Waker
	mu    sync.Mutex
	views map[service.Key]fleet.View
}

// follow runs one over a namespace.
func follow(t *testing.T, ns string) *follower {
	t.Helper()
	cfg := kubetest.Server(t)
	direct, err := client.New(cfg, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	opts := kube.CacheOptions([]string{ns})
	opts.Scheme, opts.Mapper = kube.Scheme(), direct.RESTMapper()
	watches, err := cache.New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{views: map[service.Key]fleet.View{}}
	vc := live.DefaultConfig()
	vc.Cache = watches
	if f.view, err = live.New(vc); err != nil {
		t.Fatal(err)
	}
	f.waker = live.NewWaker(direct, f.view.Revision, slog.New(slog.DiscardHandler))
	source, err := objects.New(objects.Config{Cache: watches, Mapper: direct.RESTMapper(), Records: f.view.Records(), Adopt: []service.Dialect{service.DialectKServe}, Namespaces: []string{ns}})
	if err != nil {
		t.Fatal(err)
	}
	if f.Follower, err = fleet.NewFollower(fleet.FollowerConfig{Replicas: f.view, Traffic: f, URL: func(service.Key) string { return "" }}); err != nil {
		t.Fatal(err)
	}
	f.view.Follow(f.Follower)
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, run := range []func(context.Context) error{watches.Start, source.Start, func(ctx context.Context) error { f.Run(ctx, 2); return nil }} {
		all.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { stop(); f.view.Close(); all.Wait() })
	if err := f.view.Start(ctx); err != nil {
		t.Fatal(err)
	}
	restore := func(context.Context) error { f.Restore(source.Objects()); return nil }
	if err := source.Attach(ctx, f.view.Sink(), restore); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *follower) Publish(v fleet.View) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.views[v.Key] = v
}

func (f *follower) Withdraw(k service.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.views, k)
}

// is what the request path knows, in words: "2 of 3 ready, canary 20 %".
func (f *follower) is(k service.Key) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, there := f.views[k]
	if !there {
		return "not there"
	}
	ready := 0
	for _, r := range v.Replicas {
		if r.Phase == replica.Ready {
			ready++
		}
	}
	return fmt.Sprintf("%d of %d ready, canary %d %%", ready, len(v.Replicas), v.CanaryPercent)
}

// nodes takes the place of Deployment controller, kubelet and EndpointSlice
// controller for what a test says.
type nodes struct {
	t  *testing.T
	c  client.Client
	ns string
	n  int
}

// pod makes a pod of the present revision of a service's role, and its slice.
func (n *nodes) pod(k service.Key, role service.Role) *corev1.Pod {
	n.t.Helper()
	var d appsv1.Deployment
	if err := n.c.Get(n.t.Context(), client.ObjectKey{Namespace: n.ns, Name: shape.Name(k, role)}, &d); err != nil {
		n.t.Fatal(err)
	}
	n.n++
	p := &corev1.Pod{ObjectMeta: d.Spec.Template.ObjectMeta, Spec: d.Spec.Template.Spec}
	p.Namespace, p.Name, p.Spec.NodeName = n.ns, fmt.Sprintf("%s-%d", d.Name, n.n), "node"
	if err := n.c.Create(n.t.Context(), p); err != nil {
		n.t.Fatal(err)
	}
	port, closed := int32(8080), false
	labels := map[string]string{discoveryv1.LabelServiceName: d.Name}
	for name, v := range d.Labels {
		labels[name] = v
	}
	delete(labels, shape.LabelRevision)
	name := shape.PortHTTP
	es := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: n.ns, Name: p.Name, Labels: labels}, AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("192.0.2.%d", n.n)}, Conditions: discoveryv1.EndpointConditions{Ready: &closed},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: n.ns, Name: p.Name}}}}
	if err := n.c.Create(n.t.Context(), es); err != nil {
		n.t.Fatal(err)
	}
	return p
}

// becomes writes what a kubelet says of a pod's container: that it is ready,
// or waits for a reason.
func (n *nodes) becomes(p *corev1.Pod, waiting, message string) {
	n.t.Helper()
	ready, is := corev1.ConditionTrue, true
	cs := corev1.ContainerStatus{Name: p.Spec.Containers[0].Name, Image: p.Spec.Containers[0].Image, Ready: true, Started: &is,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}
	if waiting != "" {
		ready, is = corev1.ConditionFalse, false
		cs.Ready, cs.State = false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: waiting, Message: message}}
	}
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "192.0.2.1", StartTime: &now, ContainerStatuses: []corev1.ContainerStatus{cs},
		Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: ready, LastTransitionTime: now}}}
	n.patch(n.c.SubResource("status").Patch, p, map[string]any{"status": status})
	es := &discoveryv1.EndpointSlice{}
	if err := n.c.Get(n.t.Context(), client.ObjectKeyFromObject(p), es); err != nil {
		n.t.Fatal(err)
	}
	es.Endpoints[0].Conditions.Ready = &is
	if err := n.c.Update(n.t.Context(), es); err != nil {
		n.t.Fatal(err)
	}
}

func (n *nodes) patch(send func(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error, o client.Object, v any) {
	n.t.Helper()
	text, err := json.Marshal(v)
	if err == nil {
		err = send(n.t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, text))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// count is that of a role's Deployment; -1 where there is none.
func (n *nodes) count(k service.Key, role service.Role) int32 {
	n.t.Helper()
	var d appsv1.Deployment
	err := n.c.Get(n.t.Context(), client.ObjectKey{Namespace: n.ns, Name: shape.Name(k, role)}, &d)
	if apierrors.IsNotFound(err) {
		return -1
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return *d.Spec.Replicas
}

func eventuallyIs(t *testing.T, when string, is func() string, want string) {
	t.Helper()
	kubetest.Eventually(t, func() string {
		if got := is(); got != want {
			return fmt.Sprintf("%s: %s, not %s", when, got, want)
		}
		return ""
	})
}

// TestCanary takes a service of KServe's from its first revision by a canary
// to the next: what the controller makes and says, and what a gateway does.
func TestCanary(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	r := begin(t, options(t, ns), kubetest.Server(t))
	f := follow(t, ns)
	n := &nodes{t: t, c: c, ns: ns}
	k := service.Key{Namespace: ns, Name: "example-sklearn-isvc"}
	manifest := func(model, percent string) string {
		return strings.NewReplacer("sklearn/mnist.joblib", model, "  predictor:", "  predictor:\n    minReplicas: 1\n"+percent).Replace(kserveSklearn)
	}
	u := kubetest.Apply(t, c, ns, manifest("one", "    canaryTrafficPercent: 20"))[0]
	said := func(path ...string) func() string {
		return func() string { return field(get(t, c, u), append([]string{"status"}, path...)...) }
	}
	counted := func(k service.Key) func() string {
		return func() string { return fmt.Sprint(n.count(k, service.RoleEngine)) }
	}
	is := func(k service.Key) func() string { return func() string { return f.is(k) } }
	split := func() string {
		var part struct {
			RolledOut string `json:"latestRolledoutRevision"`
			Traffic   []struct {
				Name    string `json:"revisionName"`
				Latest  bool   `json:"latestRevision"`
				Percent int    `json:"percent"`
			}
		}
		text, _ := json.Marshal(get(t, c, u).Object["status"].(map[string]any)["components"].(map[string]any)["predictor"])
		if err := json.Unmarshal(text, &part); err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, s := range part.Traffic {
			out += fmt.Sprintf("%d%% latest %v rolled out %v; ", s.Percent, s.Latest, s.Name == part.RolledOut)
		}
		return out
	}
	created, ready := said("components", "predictor", "latestCreatedRevision"), said("components", "predictor", "latestReadyRevision")
	transition := said("modelStatus", "transitionStatus")

	eventuallyIs(t, "the first revision", counted(k), "1")
	n.becomes(n.pod(k, service.RoleEngine), "", "")
	eventuallyIs(t, "the first revision", is(k), "1 of 1 ready, canary 0 %")
	eventuallyIs(t, "the first revision", split, "100% latest true rolled out true; ")
	eventuallyIs(t, "the first revision", transition, "UpToDate")
	first := created()
	eventuallyIs(t, "no canary of it", counted(k.Canary()), "-1")

	// A canary that does not start takes nothing, and the service says why.
	kubetest.Apply(t, c, ns, manifest("two", "    canaryTrafficPercent: 20"))
	eventuallyIs(t, "the canary", counted(k.Canary()), "1")
	p := n.pod(k.Canary(), service.RoleEngine)
	n.becomes(p, "ImagePullBackOff", `Back-off pulling image "x": not found`)
	eventuallyIs(t, "the canary fails", is(k.Canary()), "0 of 1 ready, canary 0 %")
	kubetest.Eventually(t, func() string {
		if got := said("modelStatus", "lastFailureInfo", "message")(); !strings.Contains(got, "not found") {
			return "why the canary fails: " + got
		}
		return ""
	})
	if got := split(); got != "0% latest true rolled out false; 100% latest false rolled out true; " {
		t.Errorf("while it fails: %s", got)
	}
	eventuallyIs(t, "the canary fails", transition, "BlockedByFailedLoad")
	if ready() != first || created() == first {
		t.Errorf("while it fails, %s is said to be ready and %s created", ready(), created())
	}
	if got, rec := f.is(k), made(t, c, ns, k.Name)["records"]; got != "1 of 1 ready, canary 0 %" || rec != 2 {
		t.Errorf("while the canary fails: %s, %d records", got, rec)
	}

	// It comes to be ready, and takes its share; it fails later, and loses it.
	n.becomes(p, "", "")
	eventuallyIs(t, "ready", is(k), "1 of 1 ready, canary 20 %")
	eventuallyIs(t, "ready", is(k.Canary()), "1 of 1 ready, canary 0 %")
	eventuallyIs(t, "ready", split, "20% latest true rolled out false; 80% latest false rolled out true; ")
	eventuallyIs(t, "ready", transition, "UpToDate")
	eventuallyIs(t, "ready", ready, created())
	n.becomes(p, "CrashLoopBackOff", "back-off 10s restarting failed container")
	eventuallyIs(t, "fails later", is(k), "1 of 1 ready, canary 0 %")
	n.becomes(p, "", "")
	eventuallyIs(t, "ready again", is(k), "1 of 1 ready, canary 20 %")

	// Asleep it keeps its share, and a gateway wakes it without the controller.
	if err := r.fleet.Sleep(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	eventuallyIs(t, "asleep", counted(k.Canary()), "0")
	for _, o := range []client.Object{p, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: p.Name}}} {
		if err := c.Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	eventuallyIs(t, "asleep", is(k.Canary()), "0 of 0 ready, canary 0 %")
	eventuallyIs(t, "asleep", is(k), "1 of 1 ready, canary 20 %")
	if err := f.waker.Wake(t.Context(), k.Canary()); err != nil {
		t.Fatal(err)
	}
	eventuallyIs(t, "woken", counted(k.Canary()), "1")
	p = n.pod(k.Canary(), service.RoleEngine)
	n.becomes(p, "", "")
	eventuallyIs(t, "woken", is(k.Canary()), "1 of 1 ready, canary 0 %")

	// Promoted: the service is the manifest's, and the canary goes.
	kubetest.Apply(t, c, ns, manifest("two", ""))
	eventuallyIs(t, "promoted", counted(k.Canary()), "-1")
	eventuallyIs(t, "promoted", is(k.Canary()), "not there")
	eventuallyIs(t, "promoted", func() string { return fmt.Sprint(made(t, c, ns, k.Name)["records"]) }, "1")
	eventuallyIs(t, "promoted", split, "100% latest true rolled out true; ")
	now := n.pod(k, service.RoleEngine)
	if now.Labels[shape.LabelRevision] != p.Labels[shape.LabelRevision] {
		t.Errorf("promoted to %s, and the canary was %s", now.Labels[shape.LabelRevision], p.Labels[shape.LabelRevision])
	}
	if err := c.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	eventuallyIs(t, "deleted", func() string { return strings.Join(keys(made(t, c, ns, k.Name)), " ") }, "")
	eventuallyIs(t, "deleted", is(k), "not there")
}

// TestKServesRolloutThatFails: the status of an InferenceService names the
// revision that serves as the ready one, and the broken one as created alone.
func TestKServesRolloutThatFails(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t, ns), kubetest.Server(t))
	n := &nodes{t: t, c: c, ns: ns}
	k := service.Key{Namespace: ns, Name: "example-sklearn-isvc"}
	manifest := func(model string) string {
		return strings.NewReplacer("sklearn/mnist.joblib", model, "  predictor:", "  predictor:\n    minReplicas: 1\n").Replace(kserveSklearn)
	}
	u := kubetest.Apply(t, c, ns, manifest("one"))[0]
	// says is created, ready, rolled out and answering, as A and B.
	names := map[string]string{}
	says := func() string {
		part, _, _ := unstructured.NestedMap(get(t, c, u).Object, "status", "components", "predictor")
		target := map[string]any{}
		if list, _ := part["traffic"].([]any); len(list) == 1 {
			target = list[0].(map[string]any)
		}
		out := ""
		for _, v := range []any{part["latestCreatedRevision"], part["latestReadyRevision"], part["latestRolledoutRevision"], target["revisionName"]} {
			revision, _ := v.(string)
			if revision != "" && names[revision] == "" {
				names[revision] = string(rune('A' + len(names)))
			}
			out += names[revision] + " "
		}
		return out
	}
	conditions := func() string {
		out := ""
		list, _, _ := unstructured.NestedSlice(get(t, c, u).Object, "status", "conditions")
		for _, raw := range list {
			if m := raw.(map[string]any); m["type"] != service.ConditionIngressReady {
				out += fmt.Sprint(m["type"], "=", m["status"], " ")
			}
		}
		return out
	}
	eventuallyIs(t, "applied", func() string { return fmt.Sprint(n.count(k, service.RoleEngine)) }, "1")
	eventuallyIs(t, "applied", says, "A    ")
	n.becomes(n.pod(k, service.RoleEngine), "", "")
	eventuallyIs(t, "serving", says, "A A A A ")
	eventuallyIs(t, "serving", conditions, "Ready=True PredictorReady=True LatestDeploymentReady=True ")

	kubetest.Apply(t, c, ns, manifest("two"))
	eventuallyIs(t, "the next", says, "B A A A ")
	next := n.pod(k, service.RoleEngine)
	n.becomes(next, "ImagePullBackOff", `Back-off pulling image "x": not found`)
	eventuallyIs(t, "does not start", conditions, "Ready=True PredictorReady=True LatestDeploymentReady=False ")
	eventuallyIs(t, "does not start", says, "B A A A ")
	n.becomes(next, "", "")
	eventuallyIs(t, "mended", says, "B B B B ")
	eventuallyIs(t, "mended", conditions, "Ready=True PredictorReady=True LatestDeploymentReady=True ")
}

// TestRolloutThatFails: a new revision whose pods do not start leaves the old
// ones serving, and status and events say why; mended, it takes over.
func TestRolloutThatFails(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	begin(t, options(t, ns), kubetest.Server(t))
	f := follow(t, ns)
	n := &nodes{t: t, c: c, ns: ns}
	k := service.Key{Namespace: ns, Name: "iris"}
	u := kubetest.Apply(t, c, ns, iris)[0]
	is := func() string { return f.is(k) }
	ready := func() string {
		for _, raw := range get(t, c, u).Object["status"].(map[string]any)["conditions"].([]any) {
			if m := raw.(map[string]any); m["type"] == service.ConditionPredictorReady {
				return fmt.Sprint(m["status"], " ", m["reason"], " ", m["message"])
			}
		}
		return "nothing"
	}
	model := func() string { return field(get(t, c, u), "status", "model", "transition") }
	eventuallyIs(t, "applied", func() string { return fmt.Sprint(n.count(k, service.RoleEngine)) }, "1")
	old := n.pod(k, service.RoleEngine)
	n.becomes(old, "", "")
	eventuallyIs(t, "serving", is, "1 of 1 ready, canary 0 %")
	eventuallyIs(t, "serving", model, "UpToDate")
	before := field(get(t, c, u), "status", "revision")

	kubetest.Apply(t, c, ns, strings.Replace(iris, "models/iris", "models/tulip", 1))
	kubetest.Eventually(t, func() string {
		if field(get(t, c, u), "status", "revision") == before {
			return "another revision"
		}
		return ""
	})
	next := n.pod(k, service.RoleEngine)
	n.becomes(next, "ImagePullBackOff", `Back-off pulling image "x": not found`)
	name := field(get(t, c, u), "status", "revision")
	kubetest.Eventually(t, func() string {
		got := ready()
		if !strings.HasPrefix(got, "True Serving revision "+name+" is not ready, the previous one keeps serving: ") || !strings.Contains(got, "not found") {
			return "why the new revision does not serve: " + got
		}
		return ""
	})
	eventuallyIs(t, "does not start", model, "BlockedByFailedLoad")
	kubetest.Eventually(t, func() string { return lacks(events(t, c, u), "ImagePullBackOff") })
	if got := is(); got != "1 of 2 ready, canary 0 %" {
		t.Errorf("the gateway knows %s", got)
	}

	n.becomes(next, "", "")
	for _, o := range []client.Object{old, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: old.Name}}} {
		if err := c.Delete(t.Context(), o, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	eventuallyIs(t, "mended", ready, "True Serving <nil>")
	eventuallyIs(t, "mended", model, "UpToDate")
	eventuallyIs(t, "mended", is, "1 of 1 ready, canary 0 %")
}
