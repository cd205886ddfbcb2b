package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

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
