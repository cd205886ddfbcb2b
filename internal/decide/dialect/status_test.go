package dialect

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
	"roundhouse.dev/roundhouse/internal/decide/dialect/own"
)

// served is a status with every part set.
func served() service.Status {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	return service.Status{
		Conditions: []service.Condition{
			{Type: service.ConditionReady, Status: "False", Reason: "PredictorNotReady", Message: "the replica ended", Since: at},
			{Type: service.ConditionSelected, Status: "True"},
			{Type: service.ConditionPredictorReady, Status: "False", Reason: "RuntimeUnhealthy", Since: at},
			{Type: service.ConditionIngressReady, Status: "True", Since: at},
			{Type: service.ConditionStopped, Status: "False"},
		},
		URL:      "http://iris.default.localhost:8080",
		Runtime:  service.RuntimeChoice{Name: "kserve-xgbserver", Scope: service.ScopeCluster, Why: "the only one"},
		Protocol: service.ProtocolV1, Revision: "iris-0a1b2c", Generation: 3,
		Model: service.ModelStatus{Transition: service.BlockedByFailedLoad, Active: service.ModelLoaded,
			Target: service.ModelFailedToLoad, Copies: 2, Failed: 1,
			LastFailure: &service.Failure{Reason: "ModelLoadFailed", Message: "no such file", ExitCode: 1, Time: at, Replica: "iris-1"}},
		Components: []service.ComponentStatus{
			{Role: service.RoleEngine, Desired: 2, Running: 2, Ready: 1, Serving: "iris-0a1b2c", ReplicaSeconds: 12.5, IdleSeconds: 3, StartupSeconds: 0.2, Progress: "1 GB of 2 GB"},
			{Role: service.RoleDecoder, Desired: 1},
			{Role: service.RoleRouter, Desired: 1, Running: 1, Ready: 1, Serving: "iris-0a1b2c"},
			{Role: service.RoleTransformer, Desired: 1},
		},
		Canary: &service.CanaryStatus{Revision: "iris-3d4e5f", Wanted: 10, Percent: 10, Ready: 1, Why: "ready, takes 10 %", Transition: service.UpToDate},
	}
}

// TestStatus compares a full and an empty status in every dialect's words
// with golden files.
func TestStatus(t *testing.T) {
	for dialect, version := range map[string]string{
		"kserve": "serving.kserve.io/v1beta1", "kserve-llm": "serving.kserve.io/v1alpha2", "ome": "ome.io/v1beta1", "own": api.APIVersion, "seldon": "machinelearning.seldon.io/v1",
	} {
		origin := service.Origin{APIVersion: version}
		if dialect == "kserve-llm" {
			origin.Kind = "LLMInferenceService"
		}
		golden(t, "testdata/status."+dialect+".golden.json", map[string]any{
			"full": Status(origin, served()), "empty": Status(origin, service.Status{}),
		})
	}
}

// TestStatusOfAFailedRollout: the revision that serves is the ready one in
// KServe's and OME's words, which takes all requests, and the one that does not
// start the created one.
func TestStatusOfAFailedRollout(t *testing.T) {
	failed := service.Status{Revision: "iris-2", Conditions: []service.Condition{{Type: service.ConditionReady, Status: "True"}},
		Model: service.ModelStatus{Transition: service.BlockedByFailedLoad, Active: service.ModelLoaded, Target: service.ModelFailedToLoad, Copies: 1, Failed: 1,
			LastFailure: &service.Failure{Reason: "ModelLoadFailed", Message: "no such file"}},
		Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 1, Ready: 1, Serving: "iris-1"}}}
	starting, first, done := failed, failed, failed
	starting.Model.Transition, starting.Model.LastFailure = service.InProgress, nil
	first.Components = []service.ComponentStatus{{Role: service.RoleEngine, Desired: 1}}
	done.Model.Transition, done.Components = service.UpToDate, []service.ComponentStatus{{Role: service.RoleEngine, Desired: 1, Ready: 1, Serving: "iris-2"}}
	canary := done
	canary.Canary = &service.CanaryStatus{Revision: "iris-3", Wanted: 10, Transition: service.BlockedByFailedLoad}
	for _, c := range []struct {
		name, created, ready, rolledOut, traffic, deployed, blamed string
		st                                                         service.Status
	}{
		{"failed", "iris-2", "iris-1", "iris-1", "iris-1 100% latest", "False BlockedByFailedLoad no such file", "iris-2", failed},
		{"starting", "iris-2", "iris-1", "iris-1", "iris-1 100% latest", "Unknown InProgress revision iris-2 is not ready yet", "", starting},
		{"the first failed", "iris-2", "", "", "", "False BlockedByFailedLoad no such file", "iris-2", first},
		{"done", "iris-2", "iris-2", "iris-2", "iris-2 100% latest", "True", "iris-2", done},
		{"the canary failed", "iris-3", "iris-2", "iris-2", "iris-3 0% latest, iris-2 100%", "False BlockedByFailedLoad no such file", "iris-3", canary},
	} {
		for engine, version := range map[string]string{"predictor": "serving.kserve.io/v1beta1", "engine": "ome.io/v1beta1"} {
			origin := service.Origin{APIVersion: version}
			raw := asJSON(t, Status(origin, c.st))
			in := manifest.Decoded[struct {
				Conditions []manifest.Condition
				Components map[string]struct {
					LatestCreatedRevision, LatestReadyRevision, LatestRolledoutRevision string
					Traffic                                                             []struct {
						RevisionName   string
						LatestRevision bool
						Percent        int
					}
				}
				ModelStatus struct {
					LastFailureInfo struct{ ModelRevisionName string }
				}
			}](raw)
			part, traffic, deployed := in.Components[engine], []string{}, ""
			for _, one := range part.Traffic {
				text := fmt.Sprintf("%s %d%%", one.RevisionName, one.Percent)
				if one.LatestRevision {
					text += " latest"
				}
				traffic = append(traffic, text)
			}
			for _, one := range in.Conditions {
				if one.Type == "LatestDeploymentReady" {
					deployed = strings.TrimSpace(one.Status + " " + one.Reason + " " + one.Message)
				}
			}
			got := []string{part.LatestCreatedRevision, part.LatestReadyRevision, part.LatestRolledoutRevision, strings.Join(traffic, ", "), deployed,
				in.ModelStatus.LastFailureInfo.ModelRevisionName}
			if want := []string{c.created, c.ready, c.rolledOut, c.traffic, c.deployed, c.blamed}; !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s:\n%q, want\n%q", c.name, engine, got, want)
			}
			if back := ReadStatus(origin, raw); back.Revision != c.st.Revision {
				t.Errorf("%s, %s: read back as revision %s", c.name, engine, back.Revision)
			}
		}
	}
}

// TestSeldonStatusOfAFailedRollout: the replicas that serve are those of the
// deployment before.
func TestSeldonStatusOfAFailedRollout(t *testing.T) {
	st := service.Status{Revision: "iris-2", Components: []service.ComponentStatus{{Role: service.RoleEngine, Desired: 1, Running: 1, Ready: 1, Serving: "iris-1"}}}
	got := Status(service.Origin{APIVersion: "machinelearning.seldon.io/v1"}, st)["deploymentStatus"]
	want := map[string]any{"iris-1": map[string]any{"replicas": int64(1), "availableReplicas": int64(1)}, "iris-2": map[string]any{}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestOwnStatusIsTheAPI holds ownStatus to the published type: every field it
// writes is one, and every one is written.
func TestOwnStatusIsTheAPI(t *testing.T) {
	raw, err := json.Marshal(own.Status(served()))
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.DisallowUnknownFields()
	var got api.ModelServiceStatus
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if v := reflect.ValueOf(got); true {
		for i := range v.NumField() {
			if v.Field(i).IsZero() {
				t.Errorf("%s is not written", v.Type().Field(i).Name)
			}
		}
	}
}

// TestRender renders examples with their status: each must read back as the
// same object, with its comments, and a second status must replace the first.
func TestRender(t *testing.T) {
	for _, name := range []string{"roundhouse.yaml", "kserve-new-schema.yaml", "ome-service.yaml", "kserve.json", "seldon-servers.yaml", "seldon-custom.yaml"} {
		data, err := os.ReadFile(examples + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range Read(name, data).Objects {
			t.Run(name+"/"+o.Key.Name, func(t *testing.T) { rendered(t, o) })
		}
	}
}

func rendered(t *testing.T, o Object) {
	st := served()
	text, again := renderAndRead(t, o, &st)
	if !strings.Contains(text, "no such file") {
		t.Errorf("the status is missing:\n%s", text)
	}
	if strings.Contains(string(o.Original), "#") && !strings.Contains(text, "#") {
		t.Errorf("a comment is lost:\n%s", text)
	}
	st.Model.LastFailure.Message = "another"
	if text, _ = renderAndRead(t, again, &st); strings.Contains(text, "no such file") || !strings.Contains(text, "another") || strings.Count(text, "\nstatus:") != 1 {
		t.Errorf("the status was not replaced:\n%s", text)
	}
	if text, _ = renderAndRead(t, again, nil); strings.Contains(text, "status:") {
		t.Errorf("a status without one:\n%s", text)
	}
}

// renderAndRead renders an object and reads it back: the same object.
func renderAndRead(t *testing.T, o Object, st *service.Status) (string, Object) {
	t.Helper()
	text, err := Render(o, nil, st)
	if err != nil {
		t.Fatal(err)
	}
	res := Read("rendered.yaml", text)
	if len(res.Errors(AnyPlatform)) > 0 || len(res.Objects) != 1 {
		t.Fatalf("rendered\n%s\nreads back with %v", text, res.Problems)
	}
	if !sameHub(o, res.Objects[0]) {
		t.Errorf("rendered\n%s\nis another object", text)
	}
	return string(text), res.Objects[0]
}

// sameHub compares what two objects are, not where they were written.
func sameHub(a, b Object) bool {
	hub := func(o Object) string {
		j, err := json.Marshal(object{o.Kind, o.Service, o.Runtime, o.Model, o.Base, o.Routing, o.Accelerator})
		if err != nil {
			return err.Error()
		}
		var m map[string]map[string]any
		_ = json.Unmarshal(j, &m)
		for _, part := range m {
			delete(part, "origin")
		}
		j, _ = json.Marshal(m)
		return string(j)
	}
	return a.Key == b.Key && hub(a) == hub(b)
}

func TestRenderOfNonsense(t *testing.T) {
	if _, err := Render(Object{Original: []byte("{")}, nil, nil); err == nil {
		t.Error("nonsense was rendered")
	}
}
