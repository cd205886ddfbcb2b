package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// replicaCounts are the metrics of how many replicas services have. What a deleted
// service had goes with it.
type replicaCounts struct {
	fleet          *fleet.Fleet
	desired, ready *prometheus.Desc
}

func newReplicaCounts(f *fleet.Fleet) *replicaCounts {
	labels := []string{"namespace", "service", "component"}
	return &replicaCounts{fleet: f,
		desired: prometheus.NewDesc("roundhouse_desired_replicas", "Replicas that a component of a service is to have.", labels, nil),
		ready:   prometheus.NewDesc("roundhouse_ready_replicas", "Replicas of a component of a service that are ready.", labels, nil)}
}

// Describe implements prometheus.Collector.
func (c *replicaCounts) Describe(to chan<- *prometheus.Desc) {
	to <- c.desired
	to <- c.ready
}

// Collect implements prometheus.Collector.
func (c *replicaCounts) Collect(to chan<- prometheus.Metric) {
	for _, st := range c.fleet.List() {
		for _, s := range st.Status.Components {
			labels := []string{st.Object.Key.Namespace, st.Object.Key.Name, string(s.Role)}
			to <- prometheus.MustNewConstMetric(c.desired, prometheus.GaugeValue, float64(s.Desired), labels...)
			to <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, float64(s.Ready), labels...)
		}
	}
}

// used are the metrics of what replicas have used since this process started. Those
// of a deleted service go a day later.
type used struct {
	fleet          *fleet.Fleet
	replicas, gpus *prometheus.Desc
}

func newUsed(f *fleet.Fleet) *used {
	labels := []string{"namespace", "service", "component", "state"}
	return &used{fleet: f,
		replicas: prometheus.NewDesc("roundhouse_replica_seconds_total", "Seconds that replicas were starting, idle, busy or asleep, summed over the replicas of a component.", labels, nil),
		gpus:     prometheus.NewDesc("roundhouse_gpu_seconds_total", "Seconds that replicas in each state held GPUs, summed over the GPUs.", labels, nil)}
}

// Describe implements prometheus.Collector.
func (c *used) Describe(to chan<- *prometheus.Desc) {
	to <- c.replicas
	to <- c.gpus
}

// Collect implements prometheus.Collector.
func (c *used) Collect(to chan<- prometheus.Metric) {
	rows, _ := c.fleet.UsageTotals()
	for _, r := range rows {
		for state, seconds := range r.Replicas.Each() {
			to <- prometheus.MustNewConstMetric(c.replicas, prometheus.CounterValue, seconds, r.Namespace, r.Service, string(r.Component), state)
		}
		if r.GPUs == (usage.ByState{}) {
			continue
		}
		for state, seconds := range r.GPUs.Each() {
			to <- prometheus.MustNewConstMetric(c.gpus, prometheus.CounterValue, seconds, r.Namespace, r.Service, string(r.Component), state)
		}
	}
}
