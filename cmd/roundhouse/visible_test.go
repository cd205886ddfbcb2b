package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TestStatusIsVisible: what a status says neither moves the cursor nor looks like
// another service's line.
func TestStatusIsVisible(t *testing.T) {
	const bad = "\x1b]0;owned\x07\x1b[2J down\nprod  other  True\fprod\vx\u009b1m"
	s := admin.Service{Namespace: "prod", Name: "iris", Rendered: "a: b\n", Status: service.Status{Conditions: []service.Condition{
		{Type: service.ConditionReady, Status: "False", Reason: "Failed", Message: bad}}, Model: service.ModelStatus{LastFailure: &service.Failure{Reason: "Failed", Message: bad}}}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/iris"):
			_ = json.NewEncoder(w).Encode(s)
		default:
			_ = json.NewEncoder(w).Encode([]admin.Service{s})
		}
	}))
	t.Cleanup(server.Close)
	for _, args := range [][]string{{"get"}, {"get", "-o", "wide"}, {"get", "iris"}, {"describe", "iris"}} {
		text, err := runHere(t, append(args, "--server", server.URL, "--data-dir", t.TempDir())...)
		if err != nil {
			t.Fatal(args, err)
		}
		if !strings.Contains(text, "down prod other") || strings.ContainsAny(text, "\x1b\x07\f\v\u009b") {
			t.Errorf("%v: %q", args, text)
		}
	}
}
