package clustercli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/loadjob"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

const iris = `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata:
  name: iris
spec:
  model:
    format: {name: xgboost}
    uri: https://models.example/iris.ubj
`

const kserve = `apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: wine
spec:
  predictor:
    minReplicas: 1
    model:
      modelFormat: {name: xgboost}
      storageUri: https://models.example/wine.ubj
`

func TestApplyGetDelete(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	both := c.file(iris + "---\n" + kserve)
	// No controller runs here: what is applied is not looked at.
	c.run("validate", "--context", "test", both).want(0, "service default/iris is valid")
	c.run("get").want(0, "No services found")
	answering(t, api, ns)
	c.run("apply", "-f", both).want(0, "service "+ns+"/iris created: asleep", "service "+ns+"/wine created: asleep")
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("x"))
	live.SetAPIVersion("roundhouse.dev/v1alpha1")
	live.SetKind("ModelService")
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "iris"}, live); err != nil {
		t.Fatal(err)
	}
	if m := live.GetManagedFields(); len(m) == 0 || m[0].Manager != "roundhouse-cli" || m[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Errorf("managed fields %+v", m)
	}
	c.run("apply", "-f", c.file(strings.ReplaceAll(iris, "iris.ubj", "iris-2.ubj"))).want(0, "iris configured")
	c.run("apply", "-f", both).want(0, "iris configured", "wine unchanged")

	c.run("get").want(0, "NAMESPACE", ns, "iris", "wine")
	c.run("get", "-o", "name").want(0, ns+"/iris\n"+ns+"/wine\n")
	c.run("get", "-A", "-o", "wide").want(0, "PROTOCOL", "iris")
	var list struct {
		Kind  string
		Items []struct{ Kind string }
	}
	if err := json.Unmarshal([]byte(c.run("get", "-o", "json").want(0).stdout), &list); err != nil || list.Kind != "List" || len(list.Items) != 2 {
		t.Errorf("%v: %+v", err, list)
	}
	// What get prints, apply takes: nothing changes.
	text := c.run("get", "iris", "-o", "yaml").want(0, "kind: ModelService", "uri: https://models.example/iris.ubj").stdout
	if strings.Contains(text, "managedFields") || strings.Contains(text, "resourceVersion") {
		t.Errorf("not as its author wrote it:\n%s", text)
	}
	c.run("apply", "-f", c.file(text)).want(0, "iris unchanged")

	c.run("describe", "iris").want(0, "Name:      "+ns+"/iris", "Kind:      roundhouse.dev/v1alpha1 ModelService", "https://models.example/iris.ubj")
	c.run("describe", "nobody").fails("no service " + ns + "/nobody")
	c.run("get", "nobody").fails("no service " + ns + "/nobody")
	c.run("logs", "iris").fails("has no pod now")

	c.run("delete", "wine").want(0, "service "+ns+"/wine deleted")
	c.run("delete", "-f", c.file(iris)).want(0, "service "+ns+"/iris deleted")
	c.run("delete", "iris").fails("no service " + ns + "/iris")
	c.run("get").want(0, "No services found")
}

// TestNothingHalf: an apply of which one object is refused changes nothing.
func TestNothingHalf(t *testing.T) {
	c, _, ns := newCLI(t)
	c.run("apply", "-f", c.file(iris+"---\n"+strings.ReplaceAll(iris, "name: iris", "name: Iris!"))).fails("metadata.name")
	c.run("apply", "-f", c.file(iris+"---\n"+strings.ReplaceAll(strings.ReplaceAll(iris, "name: iris", "name: two"), "metadata:", "metadata:\n  namespace: nowhere-at-all"))).
		fails("service nowhere-at-all/two", `namespaces "nowhere-at-all" not found`)
	c.run("apply", "-f", c.file(strings.ReplaceAll(iris, "https://models.example/", "file:///models/"))).fails("file:///models/iris.ubj is a file of one machine", "s3://")
	c.run("apply", "--reselect", "-f", c.file(iris)).check(2, "stderr", c.run("apply", "--reselect", "-f", c.file(iris)).stderr, []string{"--reselect does not work on a cluster"})
	c.run("get", "-o", "name").want(0)
	if out := c.run("get", "-o", "name").stdout; out != "" {
		t.Errorf("something was applied in %s: %s", ns, out)
	}
	// Documents of other projects are skipped, with a warning.
	r := c.run("apply", "-f", c.file("apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n---\napiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: p}\nspec: {selector: {a: b}}\n")).
		want(0, "pool "+ns+"/p created")
	if !strings.Contains(r.stderr, "Namespace is skipped: apply it with kubectl") {
		t.Errorf("stderr: %s", r.stderr)
	}
}

// TestConflict: what another tool has set stays, unless force is used.
func TestConflict(t *testing.T) {
	c, api, ns := newCLI(t)
	kubetest.Apply(t, api, ns, iris)
	answering(t, api, ns)
	changed := c.file(strings.ReplaceAll(iris, "iris.ubj", "iris-2.ubj"))
	c.run("apply", "-f", changed).fails("others have set these fields", ".spec.model.uri", `"kubectl"`)
	c.run("apply", "--force-conflicts", "-f", changed).want(0, "iris configured")
	c.run("get", "iris", "-o", "yaml").want(0, "iris-2.ubj")
}

// status writes a service's status as the controller does.
func status(t *testing.T, api client.Client, ns, name string, origin service.Origin, st service.Status) {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetAPIVersion(origin.APIVersion)
	u.SetKind(origin.Kind)
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, u); err != nil {
		t.Fatal(err)
	}
	st.Generation = u.GetGeneration()
	raw, err := json.Marshal(map[string]any{"status": dialect.Status(origin, st)})
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, raw)); err != nil {
		t.Fatal(err)
	}
}

// TestSeen: replicas, counts, decisions and events of services that run.
func TestSeen(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	kubetest.Apply(t, api, ns, iris+"---\n"+kserve)
	ready := service.Status{Conditions: []service.Condition{{Type: service.ConditionReady, Status: "True", Reason: "Ready", Since: time.Now().Add(-time.Hour)}},
		URL: "http://iris.example", Runtime: service.RuntimeChoice{Name: "roundhouse-xgboost", Scope: service.ScopeCatalog, Why: "the only one"}, Protocol: service.ProtocolV2,
		Revision: "r1", Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 2, Running: 2, Ready: 1}}}
	status(t, api, ns, "iris", service.Origin{APIVersion: "roundhouse.dev/v1alpha1", Kind: "ModelService"}, ready)
	ready.URL = "http://wine.example"
	status(t, api, ns, "wine", service.Origin{APIVersion: "serving.kserve.io/v1beta1", Kind: "InferenceService"}, ready)
	for _, name := range []string{"iris", "wine"} {
		running(t, api, service.Key{Namespace: ns, Name: name})
	}

	c.run("get", "-o", "wide").want(0, "iris", "True", "1/2", "roundhouse-xgboost", "v2", "http://iris.example", "wine", "0/2", "http://wine.example")
	for _, name := range []string{"iris", "wine"} {
		r := c.run("describe", name).want(0, "Runtime:   roundhouse-xgboost (catalog): the only one", "Protocol:  v2", "Revision:  r1", "0 to 3 replicas",
			name+"-engine-a", "Pending", "Unschedulable: no node takes the pod: 0/1 nodes are available", name+"-engine-awaited-1")
		if strings.Contains(r.stderr, "warning") {
			t.Errorf("%s", r.stderr)
		}
	}
	c.run("describe", "iris").want(0, "Events:", "RuntimeSelected", "event 14")
	if out := c.run("describe", "iris").stdout; strings.Contains(out, "event 3\n") || strings.Count(out, "RuntimeSelected") != 10 {
		t.Errorf("not the last ten events:\n%s", out)
	}
	c.run("logs", "iris").fails("pod iris-engine-a has written nothing: it is not on a node yet", "0/1 nodes are available")
	c.run("logs", "iris", "--replica", "other").fails(`no pod "other"`, "roundhouse describe")
	c.run("apply", "--wait", "--timeout", "1m", "-f", c.file(iris)).want(0, ": on roundhouse-xgboost, ready")
}

// TestApplyWaitsForACanary: --wait ends when the canary is ready, and fails
// while it is not and when it cannot be, in every dialect that has canaries.
func TestApplyWaitsForACanary(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	kubetest.Apply(t, api, ns, iris+"---\n"+kserve)
	for name, origin := range map[string]service.Origin{
		"iris": {APIVersion: "roundhouse.dev/v1alpha1", Kind: "ModelService"}, "wine": {APIVersion: "serving.kserve.io/v1beta1", Kind: "InferenceService"},
	} {
		text := map[string]string{"iris": iris, "wine": kserve}[name]
		apply := func(timeout string) *result {
			return c.run("apply", "--force-conflicts", "--wait", "--timeout", timeout, "-f", c.file(text))
		}
		say := func(canary service.CanaryStatus, failure *service.Failure) {
			canary.Revision, canary.Wanted = "r2", 10
			status(t, api, ns, name, origin, service.Status{URL: "http://x.example", Revision: "r1", Canary: &canary,
				Conditions: []service.Condition{{Type: service.ConditionReady, Status: "True", Reason: "Serving", Since: time.Now()}},
				Model:      service.ModelStatus{Transition: service.UpToDate, Active: service.ModelLoaded, Copies: 1, LastFailure: failure},
				Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 1, Running: 1, Ready: 1, Serving: "r1"}}})
		}
		say(service.CanaryStatus{Transition: service.InProgress, Why: "the canary is not ready yet; the previous revision answers all requests"}, nil)
		apply("3s").want(1, "ready, but the canary is not ready yet").fails("1 service is not ready within 3s")
		say(service.CanaryStatus{Transition: service.BlockedByFailedLoad, Why: "the canary is not ready (no such file); the previous revision answers all requests"},
			&service.Failure{Reason: "ModelLoadFailed", Message: "no such file"})
		apply("1m").want(1, "ready, but the canary ", "no such file").fails("1 service is not ready: ") // not "within 1m"
		say(service.CanaryStatus{Transition: service.UpToDate, Percent: 10, Ready: 1, Why: "ready, takes 10 %"}, nil)
		apply("1m").want(0, "service "+ns+"/"+name)
	}
}

// running makes what the controller makes of a service: a record, a Deployment
// of two, of which one has a pod; and the events of its life.
func running(t *testing.T, api client.Client, k service.Key) {
	t.Helper()
	labels := map[string]string{shape.LabelManagedBy: shape.Manager, shape.LabelService: k.Name, shape.LabelRole: "engine", shape.LabelRevision: "r1"}
	annotations := map[string]string{shape.AnnotationService: k.Name}
	pod := corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "roundhouse", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}}
	record := fleet.Record{Service: k, Revision: workload.Revision{Service: k, Hash: "r1", Protocol: service.ProtocolV2,
		Runtime:    service.RuntimeChoice{Name: "roundhouse-xgboost", Scope: service.ScopeCatalog, Why: "the only one"},
		Components: []workload.Component{{Role: service.RoleEngine, Pod: pod, Main: "main", Limits: service.Limits{Max: 3, Target: 1, Metric: "concurrency"}}}}}
	raw, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: k.Namespace, Name: name, Labels: labels, Annotations: annotations}
	}
	cr := &appsv1.ControllerRevision{ObjectMeta: meta("roundhouse-" + k.Name), Revision: 2, Data: runtime.RawExtension{Raw: raw}}
	cr.Labels = map[string]string{shape.LabelManagedBy: shape.Manager, shape.LabelService: k.Name, shape.LabelRecord: "true"}
	cr.Annotations = map[string]string{shape.AnnotationService: k.Name, records.AnnotationFormat: "1"}
	old := cr.DeepCopy()
	old.Name, old.Revision, old.Data.Raw = cr.Name+"-old", 1, []byte(`{"revision":{"hash":"r0"}}`)
	two := int32(2)
	d := &appsv1.Deployment{ObjectMeta: meta(k.Name + "-engine"), Spec: appsv1.DeploymentSpec{Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod}}}
	p := &corev1.Pod{ObjectMeta: meta(k.Name + "-engine-a"), Spec: pod}
	for _, o := range []client.Object{cr, old, d, p} {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/1 nodes are available"}}
	if err := api.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i := range 15 {
		e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: fmt.Sprintf("%s.%d", k.Name, i)}, Type: "Normal", Reason: "RuntimeSelected",
			Message: fmt.Sprintf("event %d", i), InvolvedObject: corev1.ObjectReference{Kind: "ModelService", Namespace: k.Namespace, Name: k.Name},
			LastTimestamp: metav1.NewTime(now.Add(time.Duration(i) * time.Second))}
		if err := api.Create(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNobodyLooks: of a service that no controller has looked at it is said why
// that may be, and of another project's how it is adopted.
func TestNobodyLooks(t *testing.T) {
	c, api, ns := newCLI(t, "kserve", "ome")
	kubetest.Apply(t, api, ns, iris+"---\n"+kserve)
	label := "kubectl label namespace " + ns + " roundhouse.dev/adopt="
	for _, verb := range []string{"get", "describe"} {
		args := []string{verb}
		if verb == "describe" {
			args = append(args, "iris", "wine")
		}
		out := c.run(args...).want(0, "Unknown", "NotSeen", "no controller has looked at it yet", "NotAdopted", "no controller of Roundhouse has looked at it", label+"kserve`", "--adopt kserve").stdout
		if verb == "describe" {
			for _, unknown := range []string{"Cost", "cost", "scaling", "Canary", "Replicas", "0 to 0"} {
				if strings.Contains(out, unknown) {
					t.Errorf("%q is not known:\n%s", unknown, out)
				}
			}
		}
	}
	c.run("logs", "wine").fails("has no pod now: no controller of Roundhouse has looked at it", label)
	c.run("keys", "list").fails("a file in a Secret", "--file")
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}
	relabel := func(value string) {
		t.Helper()
		if err := api.Patch(t.Context(), space, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"`+shape.LabelAdopt+`":"`+value+`"}}}`))); err != nil {
			t.Fatal(err)
		}
	}
	relabel("ome")
	c.run("get", "wine").want(0, label+"ome.kserve --overwrite")
	relabel("kserve")
	c.run("get", "wine").want(0, "NotSeen", "the namespace adopts kserve")
	// Another controller's status stays what is shown.
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("serving.kserve.io/v1beta1")
	u.SetKind("InferenceService")
	u.SetNamespace(ns)
	u.SetName("wine")
	relabel("")
	if err := api.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)), client.FieldOwner("kserve-controller")); err != nil {
		t.Fatal(err)
	}
	c.run("describe", "wine").want(0, "Ready    True", "Adopted  False  NotAdopted", label)
}

func TestExplain(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	c.run("explain", "--all", c.file(iris)).want(0, ns+"/iris (roundhouse.dev/v1alpha1 ModelService)", "roundhouse-xgboost", "https://models.example/iris.ubj")
	kubetest.Apply(t, api, ns, `apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata:
  name: my-xgboost
spec:
  supportedModelFormats: [{name: xgboost, autoSelect: true, priority: 9}]
  protocolVersions: [v2]
  containers: [{name: kserve-container, image: example.com/xgb:1}]
---
`+iris)
	// A namespace's own runtime is seen there, and nowhere else.
	c.run("explain", "iris").want(0, "my-xgboost")
	c.run("get", "runtimes").want(0, "my-xgboost", "roundhouse-xgboost", "catalog")
	other := kubetest.Namespace(t, api, nil)
	if out := c.run("explain", "-n", other, c.file(iris)).want(0, other+"/iris").stdout; strings.Contains(out, "my-xgboost") {
		t.Errorf("seen from %s:\n%s", other, out)
	}
	running(t, api, service.Key{Namespace: ns, Name: "iris"})
	c.run("explain", "iris").want(0, "runs on        roundhouse-xgboost (catalog)")
	var facts map[string]any
	if err := json.Unmarshal([]byte(c.run("explain", "iris", "-o", "json").want(0).stdout), &facts); err != nil || facts["result"] == nil {
		t.Errorf("%v: %v", err, facts)
	}
	c.run("explain", "nobody").fails("no service " + ns + "/nobody")
	c.run("explain", "request", c.file(`{"model":"iris"}`)).fails("roundhouse up", "In a cluster, the access log")
	c.run("delete", "runtime", "my-xgboost").want(0, "runtime "+ns+"/my-xgboost deleted")
}

func TestRoutes(t *testing.T) {
	c, api, ns := newCLI(t, "gie")
	answering(t, api, ns)
	f := c.file(strings.ReplaceAll(iris, "name: iris", "name: iris\n  labels: {app: iris}") + `---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: irises}
spec:
  selector: {app: iris}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: flowers}
spec:
  models: [flowers]
  targets: [{service: iris}]
`)
	c.run("apply", "-f", f).want(0, "pool "+ns+"/irises created", "route "+ns+"/flowers created")
	c.run("get", "pools").want(0, "irises", "app=iris", "iris")
	c.run("get", "routes").want(0, "flowers", "Route")
	c.run("describe", "route", "flowers").want(0, "Takes:", "flowers")
	c.run("get", "routes", "flowers", "-o", "yaml").want(0, "kind: Route", "models:")
	c.run("delete", "pool", "irises").want(0, "pool "+ns+"/irises deleted")
	c.run("delete", "-f", c.file(strings.SplitN(readFile(t, f), "---\n", 3)[2])).want(0, "route "+ns+"/flowers deleted")
}

// TestTwoOfAName: which of two projects' services of one name goes is not
// guessed.
func TestTwoOfAName(t *testing.T) {
	c, api, ns := newCLI(t, "kserve")
	kubetest.Apply(t, api, ns, iris+"---\n"+strings.ReplaceAll(kserve, "wine", "iris"))
	c.run("delete", "iris").fails("ModelService of roundhouse.dev/v1alpha1", "InferenceService of serving.kserve.io/v1beta1", "-f")
	c.run("delete", "-f", c.file(strings.ReplaceAll(kserve, "wine", "iris"))).want(0, "iris deleted")
	c.run("get", "iris", "-o", "yaml").want(0, "kind: ModelService")
}

// TestReserve: a Reserve is checked, applied and deleted as other manifests are.
func TestReserve(t *testing.T) {
	c, api, ns := newCLI(t)
	const manifest = `apiVersion: roundhouse.dev/v1alpha1
kind: Reserve
metadata:
  name: room
spec:
  placeholders: {percent: %s, resources: {nvidia.com/gpu: 1}}
`
	good, bad := c.file(fmt.Sprintf(manifest, "10")), c.file(fmt.Sprintf(manifest, "200"))
	c.run("validate", "--context", "test", good).want(0, "reserve default/room is valid")
	c.run("apply", "-f", bad).fails("spec.placeholders.percent: 200 is not between 1 and 100")
	c.run("apply", "-f", good).want(0, "reserve "+ns+"/room created")
	c.run("apply", "-f", good).want(0, "reserve "+ns+"/room unchanged")
	live := &unstructured.Unstructured{}
	live.SetAPIVersion("roundhouse.dev/v1alpha1")
	live.SetKind("Reserve")
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "room"}, live); err != nil {
		t.Error(err)
	}
	c.run("get", "reserves").want(0, "room", "NotSeen")
	if err := unstructured.SetNestedMap(live.Object, map[string]any{"nodes": int64(3), "placeholders": map[string]any{"wanted": int64(1), "running": int64(0), "pending": int64(1), "why": "10 % of 3 nodes"},
		"images": map[string]any{"wanted": int64(3), "present": int64(2), "pulling": int64(0), "failed": int64(1), "names": []any{"vllm:1"},
			"lastFailure": map[string]any{"image": "vllm:1", "node": "n3", "message": "not found"}},
		"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": "NoRoom", "message": "0/3 nodes are available", "lastTransitionTime": "2026-11-20T00:00:00Z"}}}, "status"); err != nil {
		t.Fatal(err)
	}
	if err := api.Status().Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	c.run("get", "reserves", "room").want(0, "0 of 1", "2 of 3", "NoRoom: 0/3 nodes are available")
	c.run("get", "reserves", "-A", "-o", "name").want(0, "reserve/"+ns+"/room")
	c.run("get", "reserve/room", "-o", "yaml").want(0, "percent: 10", "running: 0")
	c.run("describe", "reserve", "room").want(0, "1 wanted (10 % of 3 nodes), 0 running, 1 pending", "every Linux node", "vllm:1 on n3: not found", "NoRoom")
	c.run("describe", "reserve", "none").fails("no reserve " + ns + "/none: `roundhouse get reserves -A` lists them")
	c.run("delete", "reserve", "room").want(0, "reserve "+ns+"/room deleted")
	c.run("apply", "-f", good).want(0, "reserve "+ns+"/room created")
	c.run("delete", "-f", good).want(0, "reserve "+ns+"/room deleted")
	c.run("delete", "-f", good).fails("no reserve " + ns + "/room: `kubectl get reserves -A` lists what there is")
}

// TestBenchmarkJob: a BenchmarkJob is applied, shown as its status tells and deleted. A status
// of an earlier spec does not count.
func TestBenchmarkJob(t *testing.T) {
	c, api, ns := newCLI(t, "ome")
	manifest := func(scenario, output string) string {
		return c.file(`apiVersion: ome.io/v1beta1
kind: BenchmarkJob
metadata:
  name: chat-load
spec:
  endpoint: {inferenceService: {name: chat}}
  task: text-to-text
  trafficScenarios: ["` + scenario + `"]
  numConcurrency: [1]
  maxTimePerIteration: 1
  maxRequestsPerIteration: 10
  outputLocation: {storageUri: "` + output + `"}
`)
	}
	refused := manifest("D(10,5)", "file:///results")
	for _, command := range [][]string{{"validate", "--context", "test", refused}, {"apply", "-f", refused}} {
		c.run(command...).fails("spec.outputLocation.storageUri: is a folder of the pod that sends the load, which goes with it: write pvc://CLAIM/PATH, s3://, gs:// or az://")
	}
	good := manifest("D(10,5)", "pvc://results")
	c.run("apply", "-f", good).want(0, "benchmarkjob "+ns+"/chat-load created")
	c.run("get", "benchmarkjobs").want(0, "chat-load", "Pending", ns+"/chat")
	c.run("describe", "benchmarkjob", "chat-load").want(0, "State:      Pending", "Reason:     no controller has reported its state", "Output:     pvc://results/chat-load/report.json")
	live := &unstructured.Unstructured{}
	live.SetAPIVersion("ome.io/v1beta1")
	live.SetKind("BenchmarkJob")
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "chat-load"}, live); err != nil {
		t.Fatal(err)
	}
	doc, err := objects.Document(live)
	if err != nil {
		t.Fatal(err)
	}
	of := &loadjob.Benchmark{UID: live.GetUID(), Mark: loadjob.Mark(doc)}
	of.Name = "chat-load"
	if err := unstructured.SetNestedMap(live.Object, map[string]any{"state": "Completed", "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z",
		"details": "Job " + loadjob.JobName(of) + "\nD(10,5), 1 at once: 10 requests\nNo effect: spec.a: none"}, "status"); err != nil {
		t.Fatal(err)
	}
	if err := api.Status().Update(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	c.run("get", "benchmarkjobs", "-A").want(0, ns, "Completed")
	c.run("describe", "benchmarkjob", "chat-load").want(0, "State:      Completed", "Started:    2026-01-01T00:00:00Z", "Ended:      2026-01-01T00:01:00Z", "D(10,5), 1 at once: 10 requests", "No effect: spec.a: none")
	c.run("apply", "--wait", "-f", good).want(0, "benchmarkjob "+ns+"/chat-load unchanged: Completed")
	c.run("apply", "-f", manifest("D(20,5)", "pvc://results")).want(0, "benchmarkjob "+ns+"/chat-load configured")
	c.run("describe", "benchmarkjob", "chat-load").want(0, "State:      Pending", "the controller has not looked at its latest change yet")
	c.run("get", "benchmarkjob", "chat-load", "-o", "yaml").want(0, "kind: BenchmarkJob", "state: Completed")
	c.run("delete", "benchmarkjob", "chat-load").want(0, "benchmarkjob "+ns+"/chat-load deleted")
	c.run("get", "benchmarkjobs").want(0, "No benchmarkjobs found")
}

// TestUsage: what the controller stored of services is shown, found by the Service of
// its gateway; without any, or without the right to read it, the error says so.
func TestUsage(t *testing.T) {
	c, api, ns := newCLI(t)
	system := kubetest.Namespace(t, api, nil)
	at := "--gateway-service=" + system + "/roundhouse-gateway"
	c.run("usage", at).fails("namespace "+system, "no controller has stored")
	store := records.NewUsage(api, system)
	now := time.Now()
	row := func(namespace, name string, idle float64) usage.Row {
		return usage.Row{Account: usage.Account{Namespace: namespace, Service: name, Component: service.RoleEngine},
			Use: usage.Use{Replicas: usage.ByState{Starting: 30, Idle: idle}, GPUs: usage.ByState{Starting: 60, Idle: 2 * idle}}}
	}
	for i, rows := range [][]usage.Row{{row(ns, "llama", 60), row("other", "iris", 5)}, {row(ns, "llama", 3600)}} {
		if err := store.Save(usage.DayOf(now.AddDate(0, 0, -i)), rows, now); err != nil {
			t.Fatal(err)
		}
	}
	c.run("usage", at).want(0, "llama", "iris", "1h02m", "TOTAL")
	c.run("usage", at, "--since", "1d").want(0, "1m30s")
	c.run("usage", "llama", at).want(0, "DAY", string(usage.DayOf(now)), "1h00m")
	c.run("usage", at, "-o", "csv").want(0, "replica_seconds", ",llama,engine,3630.000,30.000,3600.000")
	c.run("usage", "nobody", at).fails("nobody")
	c.run("usage", at, "--since", "soon").check(2, "stderr", "", nil)
}
