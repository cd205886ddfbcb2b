package controller

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// gather reads a controller's metrics: each series' value, or how often it was
// observed, by its name and the values of its labels.
func gather(t *testing.T, op *operator) map[string]float64 {
	t.Helper()
	families, err := op.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				out[key] = float64(m.GetHistogram().GetSampleCount())
			case dto.MetricType_COUNTER:
				out[key] = m.GetCounter().GetValue()
			default:
				out[key] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// await waits until each metric has at least a value.
func await(t *testing.T, r *running, least map[string]float64) {
	t.Helper()
	kubetest.Eventually(t, func() string {
		got := gather(t, r.operator)
		for name, n := range least {
			if got[name] < n {
				return fmt.Sprintf("%s is %v, want %v or more", name, got[name], n)
			}
		}
		return ""
	})
}

// TestMetrics: what a controller does is in its metrics, and one that waits to
// lead says so.
func TestMetrics(t *testing.T) {
	c := kubetest.Client(t, "kserve", "ome")
	ns := kubetest.Namespace(t, c, nil)
	o := options(t, ns)
	o.system, o.elect = ns, true
	op := begin(t, o, kubetest.Server(t))
	second := launch(t, o, kubetest.Server(t))
	kubetest.Apply(t, c, ns, iris)
	await(t, op, map[string]float64{"roundhouse_controller_services False starting": 1, "roundhouse_controller_reconcile_seconds done": 1})
	got := gather(t, op.operator)
	for name, least := range map[string]float64{
		"roundhouse_controller_leading":                                              1,
		"roundhouse_controller_kinds read":                                           1,
		"roundhouse_kubernetes_watches modelservices.roundhouse.dev":                 1,
		"roundhouse_kubernetes_watches pods":                                         1,
		"roundhouse_kubernetes_requests_total modelservices.roundhouse.dev ok watch": 1,
		"go_goroutines": 1,
	} {
		if got[name] < least {
			t.Errorf("%s is %v, want %v or more", name, got[name], least)
		}
	}
	for name, want := range map[string]float64{
		"roundhouse_controller_gateways reporting": 0,
		"roundhouse_controller_gateways silent":    0,
		"roundhouse_controller_kinds unread":       0,
	} {
		if v, there := got[name]; !there || v != want {
			t.Errorf("%s is %v (there: %v), want %v", name, v, there, want)
		}
	}
	await(t, op, map[string]float64{"roundhouse_kubernetes_requests_total deployments.apps ok apply": 1, "roundhouse_kubernetes_requests_total controllerrevisions.apps ok create": 1})
	if v, there := gather(t, second.operator)["roundhouse_controller_leading"]; !there || v != 0 {
		t.Errorf("one that waits says that it leads: %v (there: %v)", v, there)
	}
}

// TestMetricsText: Prometheus can read it all at once.
func TestMetricsText(t *testing.T) {
	op := begin(t, options(t, kubetest.Namespace(t, kubetest.Client(t), nil)), kubetest.Server(t))
	srv := httptest.NewServer(promhttp.HandlerFor(op.registry, promhttp.HandlerOpts{}))
	defer srv.Close()
	res, err := http.Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(text), "roundhouse_controller_leading 1") || !strings.Contains(string(text), "leader_election_master_status") {
		t.Errorf("%s, %v: %.200s", res.Status, err, text)
	}
}
