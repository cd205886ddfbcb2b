package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

const chatLoad = `
apiVersion: ome.io/v1beta1
kind: BenchmarkJob
metadata: {name: chat-load}
spec:
  task: text-to-text
  endpoint: {inferenceService: {name: chat}}
  trafficScenarios: ["D(100,100)"]
  numConcurrency: [1, 8]
  maxTimePerIteration: 5
  maxRequestsPerIteration: 200
  outputLocation: {storageUri: "pvc://results/chat"}
  podOverride: {image: genai-bench}
`

// jobs are those of a namespace.
func jobs(t *testing.T, c client.Client, ns string) []batchv1.Job {
	t.Helper()
	var list batchv1.JobList
	if err := c.List(t.Context(), &list, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// onlyJob waits until a namespace has one Job, with another name than before.
func onlyJob(t *testing.T, c client.Client, ns, before string) *batchv1.Job {
	t.Helper()
	var out *batchv1.Job
	kubetest.Eventually(t, func() string {
		all := jobs(t, c, ns)
		if len(all) != 1 || all[0].Name == before {
			return fmt.Sprintf("one Job other than %q; there are %d", before, len(all))
		}
		out = &all[0]
		return ""
	})
	return out
}

// says waits until the status of a BenchmarkJob has these texts, "" for an absent field.
func says(t *testing.T, c client.Client, u *unstructured.Unstructured, want map[string]string) {
	t.Helper()
	kubetest.Eventually(t, func() string {
		now := get(t, c, u)
		for name, text := range want {
			got, _, _ := unstructured.NestedString(now.Object, "status", name)
			if text == "" && got != "" || !strings.Contains(got, text) {
				return fmt.Sprintf("%s %q; the status is %s", name, text, field(now, "status"))
			}
		}
		return ""
	})
}

// podOf makes the pod of a Job, as Kubernetes' own controller would, which is not here.
func podOf(t *testing.T, c client.Client, j *batchv1.Job) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: j.Name + "-x", Namespace: j.Namespace, Labels: j.Spec.Template.Labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: j.Name, UID: j.UID, Controller: new(true)}}}, Spec: j.Spec.Template.Spec}
	if err := c.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestBenchmarkJob: a BenchmarkJob gets a Job that belongs to it, its status follows the Job
// and its pod, a controller that starts again writes nothing, and a changed spec gets another
// Job once the former one is gone.
func TestBenchmarkJob(t *testing.T) {
	c := kubetest.Client(t, "ome")
	ns := kubetest.Namespace(t, c, nil)
	cfg := kubetest.Server(t)
	writes := kubetest.Count(cfg)
	r := begin(t, options(t, ns), cfg)
	u := kubetest.Apply(t, c, ns, chatLoad)[0]
	j := onlyJob(t, c, ns, "")
	if ref := metav1.GetControllerOf(j); ref == nil || ref.UID != u.GetUID() || ref.Kind != "BenchmarkJob" {
		t.Errorf("the Job belongs to %v", ref)
	}
	main := j.Spec.Template.Spec.Containers[0]
	if got := strings.Join(main.Command, " "); main.Image != "registry.example/roundhouse:1" || !strings.HasPrefix(got, "/roundhouse bench http://roundhouse-gateway.default.svc --model="+ns+"/chat --api=chat") {
		t.Errorf("%s runs %s", main.Image, got)
	}
	const effect = "No effect: spec.podOverride.image: has no effect: Roundhouse's own image sends the load"
	says(t, c, u, map[string]string{"state": "Pending", "details": effect, "lastReconcileTime": "T", "startTime": ""})

	p := podOf(t, c, j)
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	j.Status.StartTime = &now
	p.Status.Phase = corev1.PodRunning
	for _, o := range []client.Object{j, p} {
		if err := c.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	says(t, c, u, map[string]string{"state": "Running", "startTime": now.UTC().Format(time.RFC3339), "details": effect})

	p.Status.Phase = corev1.PodSucceeded
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: main.Name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "D(100,100), 1 at once: 200 requests"}}}}
	j.Status.CompletionTime, j.Status.Succeeded = &now, 1
	j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue, LastTransitionTime: now}, {Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now}}
	for _, o := range []client.Object{p, j} {
		if err := c.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	says(t, c, u, map[string]string{"state": "Completed", "completionTime": now.UTC().Format(time.RFC3339), "details": "D(100,100), 1 at once: 200 requests\n" + effect, "failureMessage": ""})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	before := get(t, c, u).GetResourceVersion()
	writes.Take()
	begin(t, options(t, ns), cfg)
	other := kubetest.Apply(t, c, ns, strings.NewReplacer("chat-load", "second", "pvc://results/chat", "file:///results").Replace(chatLoad))[0]
	says(t, c, other, map[string]string{"state": "Failed", "failureMessage": "spec.outputLocation.storageUri: is a folder of the pod that sends the load"})
	if is := get(t, c, u).GetResourceVersion(); is != before {
		t.Errorf("the status was written again: version %s, was %s; %q", is, before, writes.Take())
	}

	kubetest.Apply(t, c, ns, strings.NewReplacer("chat-load", "second", "pvc://results/chat", "s3://results/chat", "podOverride: {image: genai-bench}", "").Replace(chatLoad))
	says(t, c, other, map[string]string{"state": "Pending", "failureMessage": ""})
	if err := c.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	for _, of := range jobs(t, c, ns) { // which Kubernetes' own collector would do
		if of.Name != j.Name {
			if err := c.Delete(t.Context(), &of, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
				t.Fatal(err)
			}
		}
	}

	kubetest.Apply(t, c, ns, strings.ReplaceAll(chatLoad, "D(100,100)", "D(200,100)"))
	says(t, c, u, map[string]string{"state": "Pending", "details": "waits until the pod of the former Job has ended", "completionTime": ""})
	kubetest.Eventually(t, func() string {
		if j = onlyJob(t, c, ns, ""); j.DeletionTimestamp == nil {
			return "the end of the former Job"
		}
		return ""
	})
	j.Finalizers = nil // as once its pods have ended
	if err := c.Update(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	if fresh := onlyJob(t, c, ns, j.Name); !strings.Contains(strings.Join(fresh.Spec.Template.Spec.Containers[0].Command, " "), "--scenario=D(200,100)") {
		t.Errorf("%v", fresh.Spec.Template.Spec.Containers[0].Command)
	}
}

// TestBenchmarkRefused: a Job of somebody else that has the name is left alone, and told in
// the status and in an Event; once it is gone the benchmark runs. Volumes that give what the
// namespace has not are refused by their field.
func TestBenchmarkRefused(t *testing.T) {
	c := kubetest.Client(t, "ome")
	ns := kubetest.Namespace(t, c, nil)
	r := begin(t, options(t, ns), kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, chatLoad)[0]
	own := onlyJob(t, c, ns, "")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), own, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	other := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: own.Name, Namespace: ns}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "a", Image: "a"}}}}}}
	if err := c.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	begin(t, options(t, ns), kubetest.Server(t))
	text := "the Job " + own.Name + " is there already and is not this BenchmarkJob's"
	says(t, c, u, map[string]string{"state": "Pending", "details": text})
	kubetest.Eventually(t, func() string {
		var list eventsv1.EventList
		if err := c.List(t.Context(), &list, client.InNamespace(ns)); err != nil {
			return err.Error()
		}
		for _, e := range list.Items {
			if e.Reason == "JobRefused" && e.Regarding.UID == u.GetUID() && strings.Contains(e.Note, text) {
				return ""
			}
		}
		return fmt.Sprintf("an Event; there are %d others", len(list.Items))
	})
	if all := jobs(t, c, ns); len(all) != 1 || all[0].UID != other.UID {
		t.Errorf("the other Job was touched: %v", all)
	}
	if err := c.Delete(t.Context(), other, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if all := jobs(t, c, ns); len(all) != 1 || !metav1.IsControlledBy(&all[0], u) {
			return "a Job of its own"
		}
		return ""
	})

	node := kubetest.Apply(t, c, ns, strings.NewReplacer("chat-load", "node", "{image: genai-bench}", "{volumes: [{name: node, hostPath: {path: /}}], volumeMounts: [{name: node, mountPath: /node}]}").Replace(chatLoad))[0]
	says(t, c, node, map[string]string{"state": "Failed", "failureMessage": "spec.podOverride.volumes[0].hostPath: is not mounted"})
	if n := len(jobs(t, c, ns)); n != 1 {
		t.Errorf("%d Jobs, want 1", n)
	}
}

// TestNoBenchmarks: where none is to be run the status says so, and no Job is made.
func TestNoBenchmarks(t *testing.T) {
	c := kubetest.Client(t, "ome")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t, ns)
	o.benchmarks = false
	begin(t, o, kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, chatLoad)[0]
	says(t, c, u, map[string]string{"state": "Pending", "details": noBenchmarks})
	if n := len(jobs(t, c, ns)); n != 0 {
		t.Errorf("%d Jobs", n)
	}
}
