package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/admin"
)

func TestAge(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		0: "0s", -time.Second: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m", 90 * time.Second: "1m30s",
		9*time.Minute + 40*time.Second: "9m40s", 9*time.Minute + 59*time.Second + 900*time.Millisecond: "9m59s", 10*time.Minute + 40*time.Second: "10m",
		59*time.Minute + 59*time.Second: "59m", time.Hour: "1h", 47*time.Hour + 59*time.Minute: "47h", 48 * time.Hour: "2d", 700 * 24 * time.Hour: "700d",
	} {
		if got := age(now.Add(-ago), now); got != want {
			t.Errorf("%v ago is %q, want %q", ago, got, want)
		}
	}
	if got := age(time.Time{}, now); got != "" {
		t.Errorf("never is %q", got)
	}
}

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
