package dialect

import (
	"encoding/json"
	"reflect"
	"testing"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/gateway"
)

// asJSON is a status as an API server gives it back.
func asJSON(t testing.TB, status any) (out map[string]any) {
	t.Helper()
	raw, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestReadStatus: what every dialect has words for comes back, and of our own
// everything.
func TestReadStatus(t *testing.T) {
	full := served()
	for name, version := range map[string]string{"own": api.APIVersion, "kserve": "serving.kserve.io/v1beta1", "ome": "ome.io/v1beta1", "seldon": "machinelearning.seldon.io/v1"} {
		origin := service.Origin{APIVersion: version}
		got := ReadStatus(origin, asJSON(t, Status(origin, full)))
		want := full
		own := name == "own"
		if !own {
			want.Protocol, want.Conditions = "", append(want.Conditions[:1:1], want.Conditions[2:]...)
			want.Runtime.Why = ""
			want.Components = nil
			want.Canary = &service.CanaryStatus{Revision: full.Canary.Revision, Percent: full.Canary.Percent, Transition: full.Model.Transition}
		} else {
			want.Model.Target = "" // one word for both
		}
		switch name {
		case "ome":
			want.Runtime = service.RuntimeChoice{}
		case "seldon":
			want.Runtime, want.Model, want.Canary = service.RuntimeChoice{}, service.ModelStatus{}, nil
			want.Components = []service.ComponentStatus{{Role: service.RoleEngine, Desired: 2, Running: 2, Ready: 1}}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%+v\nwant\n%+v", name, got, want)
		}
		if empty := ReadStatus(origin, nil); !reflect.DeepEqual(empty, service.Status{}) {
			t.Errorf("%s: no status is read as %+v", name, empty)
		}
	}
}

// TestReadSeldonState: a status of Seldon's own operator, which has no Ready.
func TestReadSeldonState(t *testing.T) {
	got := ReadStatus(service.Origin{APIVersion: "machinelearning.seldon.io/v1"}, map[string]any{"state": "Failed", "description": "no such image"})
	if c := got.Conditions; len(c) != 1 || c[0].Type != service.ConditionReady || c[0].Status != "False" || c[0].Message != "no such image" {
		t.Errorf("%+v", got)
	}
}

func TestReadRoutingStatus(t *testing.T) {
	conditions := []service.Condition{{Type: routing.ConditionReady, Status: "False", Reason: "NoMembers", Message: "none"},
		{Type: routing.ConditionAccepted, Status: "True", Reason: "Accepted"}, {Type: routing.ConditionResolvedRefs, Status: "False", Reason: "NoMembers", Message: "none"}}
	parents := []routing.Parent{{Group: "gateway.networking.k8s.io", Kind: "Gateway", Name: "g", Namespace: "a", SectionName: "s", Port: 80}}
	for _, o := range []routing.Object{
		&routing.Pool{Meta: service.Meta{Origin: service.Origin{APIVersion: api.APIVersion}}},
		&routing.Pool{Meta: service.Meta{Origin: service.Origin{APIVersion: gateway.InferenceV1}}},
		&routing.Pool{Meta: service.Meta{Origin: service.Origin{APIVersion: gateway.InferenceV1alpha2}}},
		&routing.Objective{Meta: service.Meta{Origin: service.Origin{APIVersion: gateway.InferenceV1alpha2}}},
		&routing.HTTPRoute{Meta: service.Meta{Origin: service.Origin{APIVersion: gateway.V1}}},
		&routing.Graph{Meta: service.Meta{Origin: service.Origin{APIVersion: "serving.kserve.io/v1alpha1"}}},
	} {
		in := routing.Status{Conditions: conditions, Parents: parents, URL: "http://g.example"}
		got := ReadRoutingStatus(o, asJSON(t, RoutingStatus(o, in)))
		if r := got.Ready(); r.Type != routing.ConditionReady || r.Status != "False" || r.Reason != "NoMembers" || r.Message != "none" {
			t.Errorf("%s %s: ready is %+v", o.Common().Origin.APIVersion, o.RoutingKind(), r)
		}
		if len(got.Parents) > 0 && !reflect.DeepEqual(got.Parents, parents) {
			t.Errorf("%s: parents are %+v", o.RoutingKind(), got.Parents)
		}
		if is := o.RoutingKind() == routing.KindGraph; is != (got.URL == in.URL) {
			t.Errorf("%s: the URL is %q", o.RoutingKind(), got.URL)
		}
	}
	none := ReadRoutingStatus(&routing.HTTPRoute{}, nil)
	if len(none.Conditions) != 0 || none.Ready().Status != "" {
		t.Errorf("no status is read as %+v", none)
	}
}

// FuzzReadStatus: whatever stands there, reading it again says the same.
func FuzzReadStatus(f *testing.F) {
	versions := []string{api.APIVersion, "serving.kserve.io/v1beta1", "ome.io/v1beta1", "machinelearning.seldon.io/v1"}
	for _, v := range versions {
		raw, _ := json.Marshal(Status(service.Origin{APIVersion: v}, served()))
		f.Add(raw)
	}
	f.Add([]byte(`{"conditions":[{"type":7}],"components":{"predictor":[]},"modelStatus":"x","url":{}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var status map[string]any
		if json.Unmarshal(raw, &status) != nil {
			return
		}
		own := service.Origin{APIVersion: api.APIVersion}
		once := ReadStatus(own, status)
		if again := ReadStatus(own, asJSON(t, Status(own, once))); again.URL != once.URL || len(again.Components) != len(once.Components) || again.Revision != once.Revision {
			t.Errorf("%s\nonce  %+v\nagain %+v", raw, once, again)
		}
		for _, v := range versions[1:] {
			ReadStatus(service.Origin{APIVersion: v}, status)
		}
	})
}
