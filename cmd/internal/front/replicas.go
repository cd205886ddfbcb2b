package front

import (
	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/usage"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// ReplicaCounts are the metrics of how many replicas services have. What a deleted
// service had goes with it.
type ReplicaCounts struct {
	fleet                *fleet.Fleet
	most                 int
	desired, ready, left *prometheus.Desc
}

// NewReplicaCounts makes the metrics of the first services by name, of most at most; 0
// is of all.
func NewReplicaCounts(f *fleet.Fleet, most int) *ReplicaCounts {
	labels := []string{"namespace", "service", "component"}
	return &ReplicaCounts{fleet: f, most: most,
		desired: prometheus.NewDesc("roundhouse_desired_replicas", "Replicas that a component of a service is to have.", labels, nil),
		ready:   prometheus.NewDesc("roundhouse_ready_replicas", "Replicas of a component of a service that are ready.", labels, nil),
		left:    prometheus.NewDesc("roundhouse_services_without_replica_metrics", "Services beyond the limit of those whose replicas are exported.", nil, nil)}
}

// Describe implements prometheus.Collector.
func (c *ReplicaCounts) Describe(to chan<- *prometheus.Desc) {
	to <- c.desired
	to <- c.ready
	if c.most > 0 {
		to <- c.left
	}
}

// Collect implements prometheus.Collector.
func (c *ReplicaCounts) Collect(to chan<- prometheus.Metric) {
	all := c.fleet.List()
	if c.most > 0 {
		to <- prometheus.MustNewConstMetric(c.left, prometheus.GaugeValue, float64(max(0, len(all)-c.most)))
		all = all[:min(len(all), c.most)]
	}
	for _, st := range all {
		for _, s := range st.Status.Components {
			labels := []string{st.Object.Key.Namespace, st.Object.Key.Name, string(s.Role)}
			n, ok := c.fleet.Desired(st.Object.Key, s.Role) // where another autoscaler counts, the status has its count
			if !ok {
				n = s.Desired
			}
			to <- prometheus.MustNewConstMetric(c.desired, prometheus.GaugeValue, float64(n), labels...)
			to <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, float64(s.Ready), labels...)
		}
	}
}

// ReplicaSeconds are the metrics of what replicas have used since this process started. Those
// of a deleted service go a day later.
type ReplicaSeconds struct {
	fleet          *fleet.Fleet
	most           int
	replicas, gpus *prometheus.Desc
}

// NewReplicaSeconds makes the metrics of the first services by name, of most at most;
// 0 is of all.
func NewReplicaSeconds(f *fleet.Fleet, most int) *ReplicaSeconds {
	labels := []string{"namespace", "service", "component", "state"}
	return &ReplicaSeconds{fleet: f, most: most,
		replicas: prometheus.NewDesc("roundhouse_replica_seconds_total", "Seconds that replicas were starting, idle, busy or asleep, summed over the replicas of a component.", labels, nil),
		gpus:     prometheus.NewDesc("roundhouse_gpu_seconds_total", "Seconds that replicas in each state held GPUs, summed over the GPUs.", labels, nil)}
}

// Describe implements prometheus.Collector.
func (c *ReplicaSeconds) Describe(to chan<- *prometheus.Desc) {
	to <- c.replicas
	to <- c.gpus
}

// Collect implements prometheus.Collector.
func (c *ReplicaSeconds) Collect(to chan<- prometheus.Metric) {
	rows, _ := c.fleet.UsageTotals()
	services := map[service.Key]bool{}
	for _, r := range rows {
		if services[service.Key{Namespace: r.Namespace, Name: r.Service}] = true; c.most > 0 && len(services) > c.most {
			return
		}
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
