package status_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
	"roundhouse.dev/roundhouse/internal/edge/kube/status"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// rig is a writer, and what it did.
type rig struct {
	*testing.T
	*status.Writer
	api      client.Client
	writes   *kubetest.Writes
	recorder *events.FakeRecorder
	ns       string
	now      time.Time
}

func newRig(t *testing.T, projects ...string) *rig {
	t.Helper()
	r := &rig{T: t, api: kubetest.Client(t, projects...), now: time.Now()}
	r.ns = kubetest.Namespace(t, r.api, nil)
	r.restart()
	return r
}

// restart is a new process over the same cluster.
func (r *rig) restart() {
	r.Helper()
	cfg := kubetest.Server(r)
	r.writes = kubetest.Count(cfg)
	c, err := client.New(cfg, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		r.Fatal(err)
	}
	r.recorder = events.NewFakeRecorder(100)
	if r.Writer, err = status.New(status.Config{Client: c, Events: r.recorder, Now: func() time.Time { return r.now }}); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) events() (out []string) {
	for {
		select {
		case e := <-r.recorder.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

// apply applies a manifest and gives it as the API has it.
func (r *rig) apply(text string) *unstructured.Unstructured {
	r.Helper()
	return r.read(kubetest.Apply(r, r.api, r.ns, text)[0])
}

func (r *rig) read(u *unstructured.Unstructured) *unstructured.Unstructured {
	r.Helper()
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(u.GroupVersionKind())
	if err := r.api.Get(r.Context(), client.ObjectKeyFromObject(u), out); err != nil {
		r.Fatal(err)
	}
	return out
}

func (r *rig) field(u *unstructured.Unstructured, path ...string) string {
	r.Helper()
	v, _, err := unstructured.NestedFieldNoCopy(r.read(u).Object, append([]string{"status"}, path...)...)
	if err != nil {
		r.Fatal(err)
	}
	return fmt.Sprint(v)
}

func (r *rig) condition(u *unstructured.Unstructured, kind string) map[string]any {
	r.Helper()
	cs, _, _ := unstructured.NestedSlice(r.read(u).Object, "status", "conditions")
	for _, c := range cs {
		if m := c.(map[string]any); m["type"] == kind {
			return m
		}
	}
	return nil
}

// state is a service's state for a manifest in the API.
func (r *rig) state(u *unstructured.Unstructured) fleet.ServiceState {
	r.Helper()
	doc, err := objects.Document(u)
	if err != nil {
		r.Fatal(err)
	}
	res := dialect.Read("", doc)
	if len(res.Objects) != 1 {
		r.Fatal(res.Problems)
	}
	return fleet.ServiceState{Object: fleet.Object{Object: res.Objects[0]}, Generation: 7,
		Scaling: map[service.Role]string{service.RoleEngine: "its least"},
		Status: service.Status{Generation: 7, URL: "http://iris.example.com", Protocol: service.ProtocolV2, Revision: "iris-12345678",
			Runtime:    service.RuntimeChoice{Name: "roundhouse-gbdt", Scope: service.ScopeCatalog, Why: "the format matches"},
			Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 1, Running: 1, Ready: 1, ReplicaSeconds: 12.5, IdleSeconds: 3, StartupSeconds: 2}},
			Model:      service.ModelStatus{Transition: service.UpToDate, Active: service.ModelLoaded, Target: service.ModelLoaded, Copies: 1},
			Conditions: []service.Condition{
				{Type: service.ConditionReady, Status: "True", Reason: "Serving", Since: time.Now()},
				{Type: service.ConditionSelected, Status: "True", Reason: "Selected", Since: time.Now()},
				{Type: service.ConditionPredictorReady, Status: "True", Reason: "Serving", Since: time.Now()},
			}}}
}

const (
	own = `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: iris}
spec: {model: {uri: s3://models/iris, format: {name: xgboost}}}
`
	kserve = `
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec: {predictor: {model: {modelFormat: {name: sklearn}, storageUri: gs://b/m}}}
`
	ome = `
apiVersion: ome.io/v1beta1
kind: InferenceService
metadata: {name: iris}
spec: {engine: {minReplicas: 1}, model: {name: m}}
`
	seldon = `
apiVersion: machinelearning.seldon.io/v1
kind: SeldonDeployment
metadata: {name: iris}
spec: {protocol: v2, predictors: [{name: default, graph: {name: classifier, implementation: SKLEARN_SERVER, modelUri: gs://b/m}}]}
`
)

func (r *rig) report(st fleet.ServiceState) []string {
	r.Helper()
	for {
		again, err := r.Report(r.Context(), st)
		if err != nil {
			r.Fatal(err)
		}
		if again == 0 {
			return r.writes.Take()
		}
		r.now = r.now.Add(again)
	}
}

// TestStatusInTheDialect writes each dialect's status once, and again only when
// something changes that does not tick.
func TestStatusInTheDialect(t *testing.T) {
	for name, c := range map[string]struct {
		manifest string
		ready    []string
		want     string
	}{
		"own":    {own, []string{"runtime", "name"}, "roundhouse-gbdt"},
		"kserve": {kserve, []string{"modelStatus", "states", "activeModelState"}, "Loaded"},
		"ome":    {ome, []string{"modelStatus", "modelRevisionStates", "activeModelState"}, "Loaded"},
		"seldon": {seldon, []string{"state"}, "Available"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "kserve", "ome", "seldon")
			u := r.apply(c.manifest)
			st := r.state(u)
			if got := r.report(st); len(got) != 1 || !strings.HasSuffix(got[0], "/iris/status") {
				t.Fatalf("the first report wrote %v", got)
			}
			if got := r.field(u, c.ready...); got != c.want {
				t.Errorf("status.%s is %s, not %s", strings.Join(c.ready, "."), got, c.want)
			}
			if got := r.field(u, "observedGeneration"); got != "1" {
				t.Errorf("observedGeneration %s, the object's is %d", got, u.GetGeneration())
			}
			told := strings.Join(r.events(), "\n")
			for _, want := range []string{"RuntimeSelected roundhouse-gbdt (catalog): the format matches", "RevisionMade iris-12345678", "Scaled engine: 0 to 1 replicas: its least"} {
				if !strings.Contains(told, want) {
					t.Errorf("no event %q in\n%s", want, told)
				}
			}
			since := r.field(u, "conditions")
			for range 2 { // this process, then a new one that knows no times
				st.Status.Components[0].ReplicaSeconds += 100
				st.Status.Components[0].StartupSeconds = 0
				for i := range st.Status.Conditions {
					st.Status.Conditions[i].Since = time.Now().Add(time.Hour)
				}
				if got := r.report(st); len(got) > 0 {
					t.Errorf("nothing changed and it wrote %v", got)
				}
				if got := r.events(); len(got) > 0 {
					t.Errorf("nothing changed and there are events: %v", got)
				}
				r.restart()
			}
			if got := r.field(u, "conditions"); got != since {
				t.Errorf("conditions were %s, are %s", since, got)
			}
			st.Status.Conditions[0].Status, st.Status.Conditions[0].Reason, st.Status.Conditions[0].Message = "False", "Starting", "0 of 1 ready"
			if got := r.report(st); len(got) != 1 {
				t.Errorf("a real change wrote %v", got)
			}
			st.Status.URL = "" // what is not said any more goes
			if r.report(st); r.field(u, "url") != "<nil>" && name != "seldon" {
				t.Errorf("url is still %s", r.field(u, "url"))
			}
		})
	}
}

// TestGeneration is the API's, once what is reported was made from it.
func TestGeneration(t *testing.T) {
	r := newRig(t)
	st := r.state(r.apply(own))
	r.report(st)
	u := r.apply(strings.Replace(own, "s3://models/iris", "s3://models/iris2", 1))
	r.report(st) // of the manifest before
	if got := r.field(u, "observedGeneration"); got != "1" {
		t.Errorf("observedGeneration %s before the change was seen", got)
	}
	st = r.state(u)
	st.Status.Generation = 6 // not reconciled yet
	r.report(st)
	if got := r.field(u, "observedGeneration"); got != "1" {
		t.Errorf("observedGeneration %s before the change was worked on", got)
	}
	st.Status.Generation = 7
	r.report(st)
	if got := r.field(u, "observedGeneration"); got != "2" {
		t.Errorf("observedGeneration %s", got)
	}
}

// TestRefusals say what is wrong on the object itself.
func TestRefusals(t *testing.T) {
	r := newRig(t, "kserve", "gie")
	refuse := func(u *unstructured.Unstructured, form objects.Form, running bool) objects.Refusal {
		t.Helper()
		no := objects.Refusal{Ref: objects.Ref{GroupVersionKind: u.GroupVersionKind(), Key: service.Key{Namespace: u.GetNamespace(), Name: u.GetName()}, UID: u.GetUID()},
			Status: form, Reason: objects.ReasonInvalid, Message: `spec.modle: unknown field; did you mean "model"?`, Running: running}
		if err := r.Refused(t.Context(), no); err != nil {
			t.Fatal(err)
		}
		return no
	}
	u := r.apply(own)
	refuse(u, objects.ServiceStatus, false)
	if c := r.condition(u, "Ready"); c["status"] != "False" || c["reason"] != objects.ReasonInvalid || !strings.Contains(fmt.Sprint(c["message"]), "spec.modle") {
		t.Errorf("condition %v", c)
	}
	if got := r.events(); len(got) != 1 || !strings.HasPrefix(got[0], "Warning InvalidManifest spec.modle") {
		t.Errorf("events %v", got)
	}
	refuse(u, objects.ServiceStatus, false)
	if got, told := r.writes.Take(), r.events(); len(got) != 1 || len(told) > 0 {
		t.Errorf("said twice: %v, %v", got, told)
	}

	k := r.apply(kserve)
	no := refuse(k, objects.ServiceStatus, true) // what was said before goes on
	r.report(r.state(k))
	if got := r.field(k, "modelStatus", "lastFailureInfo", "message"); !strings.Contains(got, "spec.modle") {
		t.Errorf("message %q", got)
	}
	if c := r.condition(k, "Ready"); c["status"] != "True" {
		t.Errorf("it serves, and its condition is %v", c)
	}
	r.Accepted(no.Ref)
	r.report(r.state(k))
	if got := r.field(k, "modelStatus", "transitionStatus"); got != "UpToDate" {
		t.Errorf("transition %q after it was mended", got)
	}

	m := r.apply("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferenceModel, metadata: {name: m}, spec: {modelName: m, poolRef: {name: p}}}")
	refuse(m, objects.RoutingStatus, false)
	if c := r.condition(m, "Accepted"); c["status"] != "False" {
		t.Errorf("condition %v", c)
	}
	rt := r.apply("{apiVersion: roundhouse.dev/v1alpha1, kind: ServingRuntime, metadata: {name: rt}, spec: {engine: {image: i}}}")
	r.events()
	refuse(rt, objects.NoStatus, false)
	if got := r.events(); len(got) != 1 {
		t.Errorf("events %v", got)
	}
}

// TestAnotherManager is left alone, but for one condition, once.
func TestAnotherManager(t *testing.T) {
	r := newRig(t, "kserve")
	u := r.apply(kserve)
	theirs := func(url string) {
		t.Helper()
		text, err := json.Marshal(map[string]any{"status": map[string]any{"url": url, "conditions": []any{map[string]any{"type": "Ready", "status": "Unknown"}}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.api.Status().Patch(t.Context(), u.DeepCopy(), client.RawPatch("application/merge-patch+json", text), client.FieldOwner("manager")); err != nil {
			t.Fatal(err)
		}
	}
	theirs("http://theirs")
	for range 2 {
		if _, err := r.Report(t.Context(), r.state(u)); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.writes.Take(); len(got) != 1 {
		t.Errorf("it wrote %v", got)
	}
	if got := r.field(u, "url"); got != "http://theirs" {
		t.Errorf("url %s", got)
	}
	if c := r.condition(u, status.ConditionManaged); c["status"] != "False" || !strings.Contains(fmt.Sprint(c["message"]), "manager keeps") {
		t.Errorf("condition %v", c)
	}
	if c := r.condition(u, "Ready"); c["status"] != "Unknown" {
		t.Errorf("their condition is %v", c)
	}
	theirs("http://theirs/2") // and drops ours
	if r.report(r.state(u)); r.condition(u, status.ConditionManaged) != nil {
		t.Error("both write for ever")
	}
}

// TestRouting writes the status of pools in their dialect.
func TestRouting(t *testing.T) {
	r := newRig(t, "gie")
	u := r.apply("{apiVersion: inference.networking.x-k8s.io/v1alpha2, kind: InferencePool, metadata: {name: p}, spec: {selector: {a: b}, targetPortNumber: 8000, extensionRef: {name: e}}}")
	doc, err := objects.Document(u)
	if err != nil {
		t.Fatal(err)
	}
	res := dialect.Read("", doc)
	if len(res.Objects) != 1 {
		t.Fatal(res.Problems)
	}
	st := fleet.RoutingState{Object: fleet.Object{Object: res.Objects[0]}, Status: routing.Status{Parents: []routing.Parent{{Name: "gw"}},
		Conditions: []service.Condition{{Type: routing.ConditionAccepted, Status: "True", Reason: "Accepted", Since: time.Now()}}}}
	for range 2 {
		if err := r.Routing(t.Context(), []fleet.RoutingState{st}); err != nil {
			t.Fatal(err)
		}
		st.Status.Conditions[0].Since = time.Now().Add(time.Hour)
	}
	if got := r.writes.Take(); len(got) != 1 {
		t.Errorf("it wrote %v", got)
	}
	if got := r.field(u, "parent"); !strings.Contains(got, "name:gw") || !strings.Contains(got, "Accepted") {
		t.Errorf("parents %s", got)
	}
}

// TestGraphGeneration: a graph's status names the generation that it speaks of, and goes
// on naming that while the object has changed and nobody has read the change.
func TestGraphGeneration(t *testing.T) {
	r := newRig(t, "kserve")
	u := r.apply("{apiVersion: serving.kserve.io/v1alpha1, kind: InferenceGraph, metadata: {name: g}, spec: {nodes: {root: {routerType: Sequence, steps: [{serviceName: a}]}}}}")
	doc, err := objects.Document(u)
	if err != nil {
		t.Fatal(err)
	}
	res := dialect.Read("", doc)
	if len(res.Objects) != 1 {
		t.Fatal(res.Problems)
	}
	write := func(ready string) {
		st := fleet.RoutingState{Object: fleet.Object{Object: res.Objects[0]}, Status: routing.Status{
			Conditions: []service.Condition{{Type: routing.ConditionReady, Status: ready, Reason: "R", Since: time.Now()}}}}
		if err := r.Routing(t.Context(), []fleet.RoutingState{st}); err != nil {
			t.Fatal(err)
		}
	}
	write("True")
	if got := r.field(u, "observedGeneration"); got != strconv.FormatInt(u.GetGeneration(), 10) {
		t.Errorf("the status is of generation %s, the object's is %d", got, u.GetGeneration())
	}
	first := r.field(u, "observedGeneration")
	r.apply("{apiVersion: serving.kserve.io/v1alpha1, kind: InferenceGraph, metadata: {name: g}, spec: {nodes: {root: {routerType: Sequence, steps: [{serviceName: b}]}}}}")
	write("False")
	if got := r.field(u, "observedGeneration"); got != first {
		t.Errorf("the status of generation %s says that it is of %s", first, got)
	}
}

// TestGone is no error: the object went while it was reported.
func TestGone(t *testing.T) {
	r := newRig(t)
	u := r.apply(own)
	st := r.state(u)
	if err := r.api.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if got := r.report(st); len(got) > 0 {
		t.Errorf("it wrote %v", got)
	}
	if err := r.Routing(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// TestPlatformTrouble is an event, once; a long one is cut.
func TestPlatformTrouble(t *testing.T) {
	r := newRig(t)
	st := r.state(r.apply(own))
	st.Status.Conditions[2] = service.Condition{Type: service.ConditionPredictorReady, Status: "False", Reason: "PlatformFailed",
		Message: errors.New("exceeded quota: pods " + strings.Repeat("é", 2000)).Error()}
	r.report(st)
	r.report(st)
	trouble := slices.DeleteFunc(r.events(), func(e string) bool { return !strings.HasPrefix(e, "Warning PlatformFailed exceeded quota") })
	if len(trouble) != 1 || len(trouble[0]) > 1100 || !strings.HasSuffix(trouble[0], "é…") {
		t.Errorf("events %v", trouble)
	}
}
