package reserves

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/reserve"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

const class = "test-reserve"

// clock is a time that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// begin runs a keeper for a namespace until the test or stop ends it.
func begin(t *testing.T, cfg *rest.Config, ns string, with func(*Config)) (k *Keeper, stop func()) {
	t.Helper()
	c, err := client.New(cfg, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	shared, err := cache.New(cfg, kube.CacheOptions(nil))
	if err != nil {
		t.Fatal(err)
	}
	o := Config{REST: cfg, Mapper: c.RESTMapper(), Shared: shared, Client: c, Reader: c, Namespaces: []string{ns}, System: "elsewhere", Image: "roundhouse:1",
		PriorityClass: class, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	if with != nil {
		with(&o)
	}
	if k, err = New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	parts.Go(func() { _ = shared.Start(ctx) })
	parts.Go(func() {
		if err := k.Run(ctx); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		parts.Wait()
	})
	t.Cleanup(stop)
	return k, stop
}

// node makes a node of a pool that is ready.
func node(t *testing.T, c client.Client, pool, name string, images ...string) *corev1.Node {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: pool + "-" + name, Labels: map[string]string{"pool": pool}}}
	if err := c.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), n) })
	n.Spec.Taints = nil // the API server has new nodes wait for a controller that removes this
	if err := c.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	for _, i := range images {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{i}})
	}
	if err := c.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	return n
}

// ready is the Reserve's condition, as "Status Reason Message".
func ready(t *testing.T, c client.Client, u *unstructured.Unstructured) string {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
		return err.Error()
	}
	all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, e := range all {
		if m, ok := e.(map[string]any); ok && m["type"] == reserve.ConditionReady {
			return fmt.Sprint(m["status"], " ", m["reason"], " ", m["message"])
		}
	}
	return "no condition"
}

func eventuallyReady(t *testing.T, c client.Client, u *unstructured.Unstructured, want string) {
	t.Helper()
	kubetest.Eventually(t, func() string {
		if got := ready(t, c, u); !strings.Contains(got, want) {
			return fmt.Sprintf("%q; it is %q", want, got)
		}
		return ""
	})
}

const room = `
apiVersion: roundhouse.dev/v1alpha1
kind: Reserve
metadata: {name: room}
spec:
  nodeSelector: {pool: NS}
  placeholders:
    ladder: [{fromNodes: 0, count: 1}, {fromNodes: 2, count: 3}]
    resources: {nvidia.com/gpu: 1, memory: 1Gi}
`

// TestPlaceholders: the number follows the nodes, what others change is put back,
// pods that do not fit are told of without an event, and a keeper that starts again
// writes nothing.
func TestPlaceholders(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	u := kubetest.Apply(t, c, ns, strings.ReplaceAll(room, "NS", ns))[0]
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	_, stop := begin(t, cfg, ns, nil)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "room-placeholder"}}
	replicas := func(want int32) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
				return err.Error()
			}
			if *d.Spec.Replicas != want {
				return fmt.Sprintf("%d replicas; there are %d", want, *d.Spec.Replicas)
			}
			return ""
		})
	}
	replicas(1)
	eventuallyReady(t, c, u, "False NoPods 0 of 1 placeholder run (0 nodes: the ladder's step from 0 on)")
	if d.Spec.Template.Spec.PriorityClassName != class || !metav1.IsControlledBy(d, u) {
		t.Errorf("%+v", d)
	}
	node(t, c, ns, "a")
	second := node(t, c, ns, "b")
	replicas(3)
	d.Spec.Replicas = new(int32(7))
	if err := c.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	replicas(3)

	// Its pods, which nobody makes here: one runs, one has no room.
	for i, p := range []corev1.PodStatus{
		{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
			Message: "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: no victims."}}},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("room-%d", i), Labels: d.Spec.Template.Labels}, Spec: *d.Spec.Template.Spec.DeepCopy()}
		pod.Spec.PriorityClassName = ""
		if err := c.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		pod.Status = p
		if err := c.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	eventuallyReady(t, c, u, "False NoRoom 1 of 3 placeholders run (2 nodes: the ladder's step from 2 on): 1 has no room and comes back when there is some: 0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
	var events eventsv1.EventList
	if err := c.List(t.Context(), &events, client.InNamespace(ns)); err != nil || len(events.Items) > 0 {
		t.Errorf("%d events, %v", len(events.Items), err)
	}

	stop()
	writes.Take()
	again, _ := begin(t, cfg, ns, nil)
	kubetest.Eventually(t, func() string { // it has looked at everything
		if !again.seen.ready(true) {
			return "the first lists"
		}
		return ""
	})
	if err := c.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	replicas(1)
	if all := writes.Take(); len(all) == 0 || !strings.HasPrefix(all[0], "PATCH") || !strings.HasSuffix(all[0], "/deployments/room-placeholder") {
		t.Errorf("the first write after a new start: %v", all)
	}
}

// TestForeignDeployment: another's Deployment of the name stays as it is.
func TestForeignDeployment(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "room-placeholder"}, Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}}}
	if err := c.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	u := kubetest.Apply(t, c, ns, strings.ReplaceAll(room, "NS", ns))[0]
	begin(t, kubetest.Server(t), ns, nil)
	eventuallyReady(t, c, u, "False Refused 0 of 1 placeholder run (0 nodes: the ladder's step from 0 on): a Deployment room-placeholder exists and does not belong to this Reserve")
	version := d.ResourceVersion
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil || d.ResourceVersion != version {
		t.Errorf("it was written: %v", err)
	}
}

// TestDisabled: an installation that serves no Reserves says so, and reads no node.
func TestDisabled(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	u := kubetest.Apply(t, c, ns, strings.ReplaceAll(room, "NS", ns))[0]
	k, _ := begin(t, kubetest.Server(t), ns, func(o *Config) { o.PriorityClass = "" })
	eventuallyReady(t, c, u, "False Disabled this installation serves no Reserve: set reserves.enabled")
	if k.seen.ready(true) {
		t.Error("it watches nodes")
	}
}

// TestRunAgain: a Reserve that was deleted while nothing was watched is not kept
// when Run is called once more.
func TestRunAgain(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	u := kubetest.Apply(t, c, ns, strings.ReplaceAll(room, "NS", ns))[0]
	k, stop := begin(t, kubetest.Server(t), ns, func(o *Config) { o.PriorityClass = "" })
	eventuallyReady(t, c, u, "False Disabled")
	stop()
	if err := c.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	shared, err := cache.New(kubetest.Server(t), kube.CacheOptions(nil))
	if err != nil {
		t.Fatal(err)
	}
	k.cfg.Shared = shared
	ctx, cancel := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	parts.Go(func() { _ = shared.Start(ctx) })
	parts.Go(func() { _ = k.Run(ctx) })
	defer parts.Wait()
	defer cancel()
	kubetest.Eventually(t, func() string {
		if !k.seen.ready(false) || k.seen.any() {
			return "the list without the deleted Reserve"
		}
		return ""
	})
}

// jobs are the pulls that are there, by "node image".
func jobs(t *testing.T, c client.Client, ns string) map[string]*batchv1.Job {
	t.Helper()
	var l batchv1.JobList
	if err := c.List(t.Context(), &l, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	out := map[string]*batchv1.Job{}
	for i := range l.Items {
		if j := &l.Items[i]; j.DeletionTimestamp == nil {
			p := pullOf(j)
			out[p.Node+" "+p.Image] = j
		}
	}
	return out
}

func eventuallyJobs(t *testing.T, c client.Client, ns string, want ...string) map[string]*batchv1.Job {
	t.Helper()
	var out map[string]*batchv1.Job
	kubetest.Eventually(t, func() string {
		out = jobs(t, c, ns)
		for _, name := range want {
			if out[name] == nil {
				return fmt.Sprintf("%s; there is %v", name, out)
			}
		}
		if len(out) != len(want) {
			return fmt.Sprintf("%v alone; there is %v", want, out)
		}
		return ""
	})
	return out
}

// end has a Job be as its controller would leave it.
func end(t *testing.T, c client.Client, j *batchv1.Job, failed string) {
	t.Helper()
	now := metav1.Now()
	j.Status.StartTime = &now
	kinds := []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete}
	if failed != "" {
		kinds = []batchv1.JobConditionType{batchv1.JobFailureTarget, batchv1.JobFailed}
	} else {
		j.Status.CompletionTime, j.Status.Succeeded = &now, 1
	}
	for _, kind := range kinds {
		j.Status.Conditions = append(j.Status.Conditions, batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, Message: failed, LastTransitionTime: now})
	}
	if err := c.Status().Update(t.Context(), j); err != nil {
		t.Fatal(err)
	}
}

// TestImages: images come onto each node, one node at a time as the Reserve says;
// an image that fails waits; a node that goes leaves no Job; a new node gets them.
func TestImages(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	one := node(t, c, ns, "1", "docker.io/library/first:1")
	u := kubetest.Apply(t, c, ns, strings.ReplaceAll(`
apiVersion: roundhouse.dev/v1alpha1
kind: Reserve
metadata: {name: images}
spec:
  nodeSelector: {pool: NS}
  images: {names: ["first:1"], from: [services], nodesAtOnce: 1}
`, "NS", ns))[0]
	at := &clock{now: time.Now()}
	begin(t, kubetest.Server(t), ns, func(o *Config) {
		o.Now = at.Now
		o.Used = func() []reserve.Image {
			return []reserve.Image{{From: reserve.FromServices, Namespace: ns, Name: "engine:1"}, {From: reserve.FromServices, Namespace: "another", Name: "secret:1"}}
		}
	})
	first := eventuallyJobs(t, c, ns, one.Name+" engine:1")[one.Name+" engine:1"]
	eventuallyReady(t, c, u, "False Pulling 2 images on 1 node: 1 of 2 present")

	// What cannot be pulled fails, and is tried again after a while.
	end(t, c, first, "no such image")
	eventuallyJobs(t, c, ns)
	eventuallyReady(t, c, u, "False PullFailed 2 images on 1 node: 1 of 2 present; engine:1 on node "+one.Name+": no such image; tried again after a pause")
	at.add(reserve.FirstRetry)
	// A node that comes is younger, and has neither: one image is tried there first.
	two := node(t, c, ns, "2")
	started := jobs(t, c, ns)
	kubetest.Eventually(t, func() string {
		if started = jobs(t, c, ns); len(started) != 1 {
			return fmt.Sprintf("one Job; there is %v", started)
		}
		return ""
	})
	for _, j := range started {
		end(t, c, j, "")
	}
	for range 2 { // what is left, whichever was first
		kubetest.Eventually(t, func() string {
			now := jobs(t, c, ns)
			for name := range started {
				delete(now, name)
			}
			if len(now) != 1 {
				return fmt.Sprintf("another Job; there is %v", now)
			}
			for name, j := range now {
				started[name] = j
				end(t, c, j, "")
			}
			return ""
		})
	}
	eventuallyJobs(t, c, ns)
	eventuallyReady(t, c, u, "True Kept 2 images on 2 nodes: 4 of 4 present")

	// A node that goes while it pulls leaves nothing.
	three := node(t, c, ns, "3")
	eventuallyJobs(t, c, ns, three.Name+" first:1")
	if err := c.Delete(t.Context(), three); err != nil {
		t.Fatal(err)
	}
	eventuallyJobs(t, c, ns)
	if err := c.Delete(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	eventuallyReady(t, c, u, "True Kept 2 images on 1 node: 2 of 2 present")
}

// TestPullPods: the pod tells sooner than its Job what became of a pull.
func TestPullPods(t *testing.T) {
	yes := true
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{UID: "j"}}
	p := &pass{}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{UID: "j", Controller: &yes}}}}
	p.w.pods = []*corev1.Pod{pod}
	waiting := func(name, reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "why"}}}
	}
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		want   reserve.State
	}{
		"pulling":        {waiting(reserve.Puller, "ContainerCreating"), reserve.Active},
		"not there":      {waiting(reserve.Puller, "ErrImagePull"), reserve.Failed},
		"backing off":    {waiting(reserve.Puller, "ImagePullBackOff"), reserve.Failed},
		"ended":          {corev1.ContainerStatus{Name: reserve.Puller, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 128}}}, reserve.Done},
		"cannot start":   {corev1.ContainerStatus{Name: reserve.Puller, ImageID: "sha256:1", State: waiting("", "RunContainerError").State}, reserve.Done},
		"another's name": {waiting("side", "ContainerCreating"), reserve.Active},
	} {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{c.status}
		if got, _ := p.stateOf(j); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
