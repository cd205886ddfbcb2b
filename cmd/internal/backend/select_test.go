package backend

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TestKey: a name on the command line never means another object than the one of
// exactly that name; "iris~canary" is not the service iris.
func TestKey(t *testing.T) {
	s := Selection{Namespace: "team"}
	for name, want := range map[string]service.Key{
		"iris":              {Namespace: "team", Name: "iris"},
		"other/iris":        {Namespace: "other", Name: "iris"},
		"iris~canary":       {Namespace: "team", Name: "iris~canary"},
		"other/iris~canary": {Namespace: "other", Name: "iris~canary"},
	} {
		if got := s.Key(name); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// TestUnknownKind: the name of a kind that there is none of tells the kinds, and
// what shows its content; the name of a service that is not there does not.
func TestUnknownKind(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":"no service `+path.Base(r.URL.Path)+`"}`)
	}))
	t.Cleanup(server.Close)
	up := Up{&admin.Client{Base: server.URL}}
	const kinds = "kinds are services, runtimes, models, weights, acceleratorclasses, routes, pools, reserves, benchmarkjobs, localmodelcaches, localmodelnodegroups, clusterstoragecontainers, secrets and serviceaccounts"
	for name, want := range map[string]string{
		"pods":   "there is no kind pods and no service of that name; " + kinds + "; `roundhouse describe NAME` shows the replicas of a service",
		"Events": "there is no kind Events and no service of that name; " + kinds + "; `roundhouse events NAME` shows what happened to a service",
		"wide":   "there is no kind wide and no service of that name; " + kinds + "; did you mean -o wide?",
		"nodes":  "there is no kind nodes and no service of that name; " + kinds,
		"iris":   "no service iris",
	} {
		if _, err := Select([]string{name}, "default", false).Services(t.Context(), up); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if s := Select([]string{"svc", "iris"}, "default", false); s.Kind != "services" || !s.KindGiven || len(s.Names) != 1 {
		t.Errorf("svc is %+v", s)
	}
	if _, err := Select([]string{"service", "pods"}, "default", false).Services(t.Context(), up); err == nil || err.Error() != "no service pods" {
		t.Errorf("with a kind: %v", err)
	}
}

// TestEventsOfNobody: a service of which nothing is told must be there, or have been.
func TestEventsOfNobody(t *testing.T) {
	answers := map[string]string{"/api/v1/events?service=default%2Fgone": `[{"reason":"Deleted"}]`, "/api/v1/services/default/quiet": `{}`}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.String()]
		switch {
		case ok:
		case r.URL.Path == "/api/v1/events":
			answer = "[]"
		default:
			w.WriteHeader(http.StatusNotFound)
			answer = `{"error":"no service ` + path.Base(r.URL.Path) + `"}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	up := Up{&admin.Client{Base: server.URL}}
	for name, want := range map[string]string{"gone": "1 <nil>", "quiet": "0 <nil>", "nobody": "0 no service nobody"} {
		list, err := up.Events(t.Context(), &service.Key{Namespace: "default", Name: name})
		if got := fmt.Sprint(len(list), " ", err); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if list, err := up.Events(t.Context(), nil); len(list) > 0 || err != nil {
		t.Errorf("of all: %v, %v", list, err)
	}
}

// TestOneKind: a kind of manifests lists those of it alone, and neither shows nor deletes
// what another kind has by that name.
func TestOneKind(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := "[]"
		switch r.URL.Path {
		case "/api/v1/services":
			answer = `[{"namespace":"default","name":"isvc","kind":"InferenceService"},{"namespace":"default","name":"tm","kind":"TrainedModel"},{"namespace":"default","name":"llm","kind":"LLMInferenceService"},{"namespace":"default","name":"own","kind":"ModelService"}]`
		case "/api/v1/services/default/isvc":
			answer = `{"namespace":"default","name":"isvc","kind":"InferenceService"}`
		case "/api/v1/models":
			answer = `[{"kind":"model","namespace":"default","name":"base"},{"kind":"model","name":"cluster"}]`
		case "/api/v1/routing":
			answer = `[{"type":"pool","kind":"Pool","namespace":"default","name":"pool"},{"type":"pool","kind":"InferencePool","namespace":"default","name":"inf"},{"type":"pool","kind":"InferencePoolImport","namespace":"default","name":"import"}]`
		}
		if r.Method == http.MethodDelete && !strings.HasSuffix(r.URL.Path, "/default/base") && !strings.HasSuffix(r.URL.Path, "/default/import") {
			t.Errorf("%s is deleted", r.URL)
		}
		if r.Method == http.MethodDelete {
			answer = "{}"
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	up := Up{&admin.Client{Base: server.URL}}
	for args, want := range map[string]string{
		"services":                   "isvc tm llm own",
		"isvc":                       "isvc",
		"inferenceservices":          "isvc",
		"trainedmodels":              "tm",
		"tm":                         "tm",
		"llminferenceservices":       "llm",
		"modelservices":              "own",
		"seldondeployments":          "",
		"inferenceservice/isvc":      "isvc",
		"trainedmodel isvc":          "no trainedmodel default/isvc: it is of the kind InferenceService",
		"models":                     "base cluster",
		"basemodels":                 "base",
		"clusterbasemodels":          "cluster",
		"clusterbasemodel base":      "no clusterbasemodel named base: `roundhouse get clusterbasemodels` lists them",
		"pools":                      "pool inf import",
		"inferencepools":             "inf",
		"inferencepoolimports":       "import",
		"InferencePoolImport import": "import",
	} {
		s := Select(strings.Fields(args), "default", false)
		var names []string
		var err error
		switch {
		case s.IsRouting():
			list, failed := s.Routing(t.Context(), up)
			for _, o := range list {
				names = append(names, o.Name)
			}
			err = failed
		case s.Kind == "services":
			list, failed := s.Services(t.Context(), up)
			for _, o := range list {
				names = append(names, o.Name)
			}
			err = failed
		default:
			list, failed := s.Objects(t.Context(), up)
			for _, o := range list {
				names = append(names, o.Name)
			}
			err = failed
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	for args, want := range map[string]string{
		"trainedmodel isvc":          "no trainedmodel default/isvc: it is of the kind InferenceService",
		"clusterbasemodel base":      "no clusterbasemodel named base: `roundhouse get clusterbasemodels` lists them",
		"basemodel base":             "",
		"inferencepoolimport import": "",
		"inferencepoolimport inf":    "no inferencepoolimport default/inf: `roundhouse get inferencepoolimports -A` lists them",
	} {
		got := ""
		if err := Select(strings.Fields(args), "default", false).Delete(t.Context(), up, func(admin.Change) {}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("delete %s: %s, want %s", args, got, want)
		}
	}
}
