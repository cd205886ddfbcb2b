package backend

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path"
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
	const kinds = "kinds are services, runtimes, models, weights, routes, pools and reserves"
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
	if _, err := Select([]string{"service", "pods"}, "default", false).Services(t.Context(), up); err == nil || err.Error() != "no service pods" {
		t.Errorf("with a kind: %v", err)
	}
}
