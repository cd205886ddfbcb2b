package front

import (
	"github.com/prometheus/client_golang/prometheus"

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
