package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/admin"
)

// TestServerTellsItsGateway: whoever names the server alone asks its gateway,
// wherever that listens.
func TestServerTellsItsGateway(t *testing.T) {
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write([]byte(`{"asked":"` + r.URL.Path + `"}`)) }))
	defer gateway.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1" || r.Header.Get("Authorization") != "Bearer t" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(admin.About{Name: "roundhouse", Gateway: gateway.URL})
	}))
	defer server.Close()
	t.Setenv("ROUNDHOUSE_TOKEN", "t")
	t.Setenv("ROUNDHOUSE_GATEWAY", "")
	out, err := runHere(t, "infer", "iris", "-d", `{"inputs": []}`, "--server", server.URL)
	if err != nil || !strings.Contains(out, "/v2/models/iris/infer") {
		t.Errorf("%q, %v", out, err)
	}
}
