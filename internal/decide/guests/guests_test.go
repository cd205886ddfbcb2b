package guests

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

func TestDecide(t *testing.T) {
	revision := func(l workload.Layout) *workload.Revision {
		return &workload.Revision{Runtime: service.RuntimeChoice{Name: "rt"},
			Components: []workload.Component{{Role: service.RoleEngine, Process: &workload.Process{Repository: l}}}}
	}
	pod := func(l workload.Layout) *workload.Revision {
		return &workload.Revision{Runtime: service.RuntimeChoice{Name: "rt"}, Components: []workload.Component{{Role: service.RoleEngine, Repository: l}}}
	}
	with := func(r *workload.Revision, c workload.Component) *workload.Revision {
		r.Components = append(r.Components, c)
		return r
	}
	holds, other := &service.Service{Repository: true}, &service.Service{}
	for name, tt := range map[string]struct {
		parent  Parent
		cluster bool
		want    Place
		why     string
	}{
		"no parent":            {Parent{}, false, Own, "there is no service plain"},
		"a model of its own":   {Parent{Service: other, Revision: revision("")}, false, Own, "plain serves a model of its own"},
		"not resolved":         {Parent{Service: holds}, false, Later, "has not been resolved yet"},
		"cannot be run":        {Parent{Service: holds, Failure: "no runtime"}, false, Later, "no runtime"},
		"server of one model":  {Parent{Service: holds, Revision: revision("")}, false, Own, "plain runs on rt, which loads no models"},
		"containers":           {Parent{Service: &service.Service{Custom: true}}, false, Own, "predictor of plain is a container of its author's"},
		"transformer":          {Parent{Service: holds, Revision: with(revision(""), workload.Component{Role: service.RoleTransformer})}, false, Own, "enter at its transformer"},
		"an image":             {Parent{Service: holds, Revision: with(&workload.Revision{Runtime: service.RuntimeChoice{Name: "rt"}}, workload.Component{Role: service.RoleEngine, Process: &workload.Process{Container: &workload.Container{}}})}, false, Own, "plain runs on rt as a container"},
		"repository":           {Parent{Service: holds, Revision: revision(workload.LayoutMLServer)}, false, Guest, "loaded into the replicas of plain"},
		"runs in spite of all": {Parent{Service: holds, Failure: "x", Revision: revision(workload.LayoutTriton)}, false, Guest, "rt"},
		"cluster":              {Parent{Service: holds, Revision: pod(workload.LayoutRoundhouse)}, true, Guest, "loaded into the replicas of plain"},
		"another's server":     {Parent{Service: holds, Revision: pod("")}, true, Own, "plain runs on rt, and on a cluster Roundhouse's own model server alone"},
	} {
		tt.parent.Key = service.Key{Namespace: "default", Name: "plain"}
		if got, why := Decide(tt.parent, tt.cluster); got != tt.want || !strings.Contains(why, tt.why) {
			t.Errorf("%s: %d, %q", name, got, why)
		}
	}
}

func TestRefuse(t *testing.T) {
	at := func(n int) time.Time { return time.Unix(int64(n), 0) }
	models := []Model{{"young", at(3), 60}, {"old", at(1), 50}, {"huge", at(2), 70}, {"free", at(4), 0}, {"a", at(3), 50}}
	for limit, want := range map[int64][]string{
		0: nil, 1000: nil, 230: nil, 229: {"young"}, 170: {"young"}, 169: {"a", "young"}, 100: {"huge", "young"}, 10: {"a", "huge", "old", "young"},
	} {
		got := slices.Sorted(maps.Keys(Refuse("plain", limit, models)))
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %q are refused, want %q", limit, got, want)
		}
	}
	why := Refuse("plain", 100<<20, []Model{{"a", at(1), 64 << 20}, {"b", at(2), 64 << 20}})["b"]
	if !strings.Contains(why, "spec.model.memory") || !strings.Contains(why, "declares 64 MiB") || !strings.Contains(why, "36 MiB are left") {
		t.Errorf("why: %q", why)
	}
}

func TestReplicas(t *testing.T) {
	when := time.Unix(9, 0)
	of := []replica.Replica{
		{ID: "loaded", Role: service.RoleEngine, Phase: replica.Ready, ReadyAt: when, Guests: map[string]replica.Guest{"m": {Loaded: true}, "n": {Failures: 1}}},
		{ID: "loading", Role: service.RoleEngine, Phase: replica.Ready, ReadyAt: when, Guests: map[string]replica.Guest{"n": {Loaded: true}}},
		{ID: "fetching", Role: service.RoleEngine, Phase: replica.Ready, Guests: map[string]replica.Guest{"m": {Progress: &replica.Progress{Done: 1}}}},
		{ID: "refused", Role: service.RoleEngine, Phase: replica.Ready, Guests: map[string]replica.Guest{"m": {Failures: 2, Message: "not a model", Retry: when}}},
		{ID: "starting", Role: service.RoleEngine, Phase: replica.Starting, Message: "not ready", Guests: map[string]replica.Guest{"m": {Loaded: true}}},
		{ID: "draining", Role: service.RoleEngine, Phase: replica.Draining, Guests: map[string]replica.Guest{"m": {Loaded: true}}},
		{ID: "explainer", Role: service.RoleExplainer, Phase: replica.Ready},
	}
	var got []string
	for _, r := range Replicas(of, "m") {
		if r.Guests != nil {
			t.Errorf("%s tells of other models", r.ID)
		}
		got = append(got, strings.Join([]string{r.ID, string(r.Phase), r.Reason, r.Message}, " "))
	}
	want := []string{"loaded Ready  ", "loading Starting ModelLoading is being loaded", "fetching Fetching ModelLoading is being loaded",
		"refused Failed ModelLoadFailed not a model", "starting Starting  not ready", "draining Draining  "}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if r := Replicas(of, "m")[3]; r.FailedStarts != 2 || !r.Restart.Equal(when) {
		t.Errorf("the next try: %+v", r)
	}
	if of[0].Guests == nil || of[1].Phase != replica.Ready {
		t.Error("the parent's replicas were changed")
	}
}

// TestUnfetched: what a pod that runs cannot fetch is refused by its URI.
func TestUnfetched(t *testing.T) {
	for uri, fetched := range map[string]bool{"s3://b/m": true, "gs://b/m": true, "hf://o/m": true, "https://h/m": true, "oci://r/m:1": true, "az://a/c/m": true,
		"S3://b/m": true, "pvc://claim/m": false, "file:///m": false, "upload://1": false, "zoo://m": false, "/m": false, "": false} {
		if why := Unfetched(uri); (why == "") != fetched || !fetched && !strings.HasPrefix(why, "spec.model.storageUri: "+uri) {
			t.Errorf("%s: %q", uri, why)
		}
	}
}

func TestUnsupported(t *testing.T) {
	pod := func(args ...string) *workload.Revision {
		return &workload.Revision{Service: service.Key{Name: "plain"}, Runtime: service.RuntimeChoice{Name: "rt"}, Components: []workload.Component{{Role: service.RoleEngine, Main: "m",
			Pod: corev1.PodSpec{Containers: []corev1.Container{{Name: "m", Command: []string{"serve"}, Args: args}}}}}}
	}
	process := &workload.Revision{Components: []workload.Component{{Role: service.RoleEngine, Process: &workload.Process{Command: []string{"serve", "--format=lightgbm"}}}}}
	for name, tt := range map[string]struct {
		of   *workload.Revision
		want string
	}{
		"the same":       {pod("--format", "XGBoost"), ""},
		"none is stated": {pod("--format"), ""},
		"a template":     {pod("--format={{.X}}"), ""},
		"another":        {pod("--format", "sklearn"), "spec.model.framework: plain runs on rt, which loads sklearn models alone, and no xgboost"},
		"a process":      {process, "which loads lightgbm models alone"},
	} {
		if why := Unsupported(tt.of, "xgboost"); (why == "") != (tt.want == "") || !strings.Contains(why, tt.want) {
			t.Errorf("%s: %q", name, why)
		}
	}
}

func TestHostReady(t *testing.T) {
	for want, of := range map[bool][]replica.Replica{
		true:  {{Role: service.RoleEngine, Phase: replica.Starting}, {Role: service.RoleEngine, Phase: replica.Ready}},
		false: {{Role: service.RoleEngine, Phase: replica.Starting, Guests: map[string]replica.Guest{"m": {Loaded: true}}}, {Role: service.RoleEngine, Phase: replica.Draining}},
	} {
		if got := HostReady(Replicas(of, "m")); got != want {
			t.Errorf("%+v: %v", of, got)
		}
	}
}
