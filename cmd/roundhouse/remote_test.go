package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/fleet"
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

// TestGreetingAsksWhatTheServiceIsFor: what `up` prints of a service is a request
// that predicts, also where no sample of one lies beside its manifest.
func TestGreetingAsksWhatTheServiceIsFor(t *testing.T) {
	for protocol, want := range map[service.Protocol]string{
		service.ProtocolOpenAI: `curl -N http://gw/v1/chat/completions -H 'Content-Type: application/json' -d '{"model":"m",`,
		service.ProtocolV1:     `curl http://gw/v1/models/m:predict -H 'Content-Type: application/json' -d '{"instances": [ROW]}'`,
		service.ProtocolV2:     `curl http://gw/v2/models/m/infer -H 'Content-Type: application/json' -d '{"inputs": [{"name": "input-0", "shape": [1, N],`,
	} {
		var out strings.Builder
		st := fleet.ServiceState{Status: service.Status{Protocol: protocol}}
		st.Object.Key = service.ParseKey("m")
		greetService(func(format string, args ...any) { _, _ = fmt.Fprintf(&out, format+"\n", args...) }, "http://gw", st)
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s:\n%s\nwant %s", protocol, &out, want)
		}
	}
}
