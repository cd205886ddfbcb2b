package controller

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"roundhouse.dev/roundhouse/cmd/internal/front"
	"roundhouse.dev/roundhouse/internal/decide/usage"
)

// measures are the controller's own metrics. No label names a service: how one
// is doing is in its status, and as many series as services would cost more
// than they tell. Who wants those of replicas says of how many services.
type measures struct {
	op                                             *operator
	reconciles                                     *prometheus.HistogramVec
	leading, waiting, active, oldest, states, kind *prometheus.Desc
	used                                           [2]*prometheus.Desc // of replicas and GPUs
}

func newMeasures(op *operator) *measures {
	const prefix = "roundhouse_controller_"
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &measures{
		op: op,
		reconciles: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "reconcile_seconds",
			Help: "Time that reconciles took: done; refused by the API server, as its objects are; or failed. The latter are tried again after 5 s, and later each time. Reading a new model is part of one.", Buckets: []float64{.001, .005, .01, .05, .1, .25, .5, 1, 5, 10, 30, 60}}, []string{"result"}),
		leading: desc(prefix+"leading", "1 in the controller that decides, 0 in those that wait to."),
		waiting: desc(prefix+"queue_services", "Services that wait to be reconciled."),
		active:  desc(prefix+"reconciling", "Services that are being reconciled."),
		oldest:  desc(prefix+"queue_oldest_seconds", "For how long the first of the services that wait has waited."),
		states:  desc(prefix+"services", "Services by whether they are ready, and why.", "ready", "reason"),
		used: [2]*prometheus.Desc{
			desc(prefix+"replica_seconds_total", "Seconds that replicas were starting, idle, busy or asleep, summed over all services.", "state"),
			desc(prefix+"gpu_seconds_total", "Seconds that replicas in each state held the GPUs that they ask for, summed over all services.", "state"),
		},
		kind: desc(prefix+"kinds", "Kinds of manifests that are watched: read, or unread as long as their first list is waited for.", "state"),
	}
}

// reconciled is a fleet.Config.Reconciled.
func (m *measures) reconciled(took time.Duration, err error) {
	result := "done"
	switch {
	case err == nil:
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		result = "refused" // nothing is wrong with the controller: the service's condition Ready has the reason
	default:
		result = "failed"
	}
	m.reconciles.WithLabelValues(result).Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (m *measures) Describe(c chan<- *prometheus.Desc) {
	m.reconciles.Describe(c)
	for _, d := range []*prometheus.Desc{m.leading, m.waiting, m.active, m.oldest, m.states, m.kind, m.used[0], m.used[1]} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (m *measures) Collect(c chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	m.reconciles.Collect(c)
	read, unread := m.op.source.Watched()
	gauge(m.kind, float64(read), "read")
	gauge(m.kind, float64(unread), "unread")
	select {
	case <-m.op.led:
		gauge(m.leading, 1)
	default:
		gauge(m.leading, 0)
	}
	b := m.op.fleet.Backlog()
	gauge(m.waiting, float64(b.Waiting))
	gauge(m.active, float64(b.Active))
	gauge(m.oldest, b.Oldest.Seconds())
	_, sum := m.op.fleet.UsageTotals()
	for i, s := range []usage.ByState{sum.Replicas, sum.GPUs} {
		for state, seconds := range s.Each() {
			c <- prometheus.MustNewConstMetric(m.used[i], prometheus.CounterValue, seconds, state)
		}
	}
	for s, n := range front.Readiness(m.op.fleet.List()) {
		gauge(m.states, float64(n), s.Ready, s.Reason)
	}
}

// registerMetrics registers the metrics of this process, the Kubernetes
// libraries, the requests to the API server, the gateways' reports and the
// controller.
func (op *operator) registerMetrics() error {
	op.registry = prometheus.NewRegistry()
	if err := front.Measured(metrics.Registry); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	all := []prometheus.Collector{metrics.Registry.(prometheus.Collector), op.calls, op.traffic, op.measures, op.reserves}
	if n := op.opts.replicaMetrics; n > 0 {
		all = append(all, front.NewReplicaCounts(op.fleet, n), front.NewReplicaSeconds(op.fleet, n))
	}
	for _, c := range all {
		if err := op.registry.Register(c); err != nil {
			return fmt.Errorf("controller: %w", err)
		}
	}
	return nil
}

// serveMetrics serves --metrics-listen until ctx ends.
func (op *operator) serveMetrics(ctx context.Context) error {
	if op.opts.metrics == "" {
		<-ctx.Done()
		return nil
	}
	l, err := net.Listen("tcp", op.opts.metrics)
	if err != nil {
		return fmt.Errorf("--metrics-listen %s: %w", op.opts.metrics, err)
	}
	return front.ServeMetrics(ctx, l, op.registry)
}
