package controller

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/autoscale"
)

// TestSignalsAskKnownServers: a query is sent to the servers that the controller is told
// of, and to no other.
func TestSignalsAskKnownServers(t *testing.T) {
	known := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"scalar","result":[1,"7"]}}`)
	}))
	defer known.Close()
	unknown := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked %s", r.URL) }))
	defer unknown.Close()
	s, err := newSignals([]string{known.URL + "/"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	read := func(url string) (got autoscale.Reading) {
		for deadline := time.Now().Add(10 * time.Second); got == (autoscale.Reading{}) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			got = s.External(service.Key{}, service.ExternalMetric{URL: url, Query: "q"})
		}
		return got
	}
	if got := read(known.URL); got.Value != 7 || got.Problem != "" {
		t.Errorf("%+v", got)
	}
	for _, url := range []string{unknown.URL, known.URL + "/admin", "http://169.254.169.254"} {
		if got := read(url); !got.At.IsZero() || !strings.Contains(got.Problem, "--metrics-server") {
			t.Errorf("%s: %+v", url, got)
		}
	}
	for _, bad := range []string{"prometheus:9090", "http://u:p@h", "file:///x"} {
		o := controllerOptions{image: "i", gatewayURL: "http://{name}.{namespace}.example.com", lease: defaultLease, metricsServers: []string{bad}}
		if err := o.complete(); err == nil || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
