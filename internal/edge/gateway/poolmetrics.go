package gateway

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// poolDescs are the metrics of what package dispatch says of each pool: nothing
// is kept of a pool that is gone.
type poolDescs struct {
	queued, inFlight, waiting, waitingBytes, saturation, admission, dropped, noRetry, endpoint *prometheus.Desc
}

func newPoolDescs(prefix string) poolDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, append([]string{"service"}, labels...), nil)
	}
	return poolDescs{
		queued:       desc("queued", "Requests waiting for a replica now."),
		inFlight:     desc("in_flight", "Requests replicas work on now."),
		waiting:      desc("queue_requests", "Requests waiting now, by priority.", "priority"),
		waitingBytes: desc("queue_bytes", "Body bytes of the requests waiting now, by priority.", "priority"),
		saturation:   desc("saturation", "How full the endpoint with the most capacity is; from 1 on requests wait, and those of negative priority are shed."),
		admission:    desc("admission_total", "Requests by what admission did with them: admitted, shed, evicted, overdue, left.", "outcome"),
		dropped:      desc("picker_dropped_total", "Requests that the picker's policy dropped."),
		noRetry:      desc("retries_refused_total", "Retries that were not made for want of budget."),
		endpoint:     desc("endpoint_in_flight", "Requests an endpoint works on now.", "endpoint"),
	}
}

func (d *poolDescs) each(f func(*prometheus.Desc)) {
	for _, x := range []*prometheus.Desc{d.queued, d.inFlight, d.waiting, d.waitingBytes, d.saturation, d.admission, d.dropped, d.noRetry, d.endpoint} {
		f(x)
	}
}

// poolName is what a grant of the pool calls it.
func poolName(p *dispatch.PoolConfig) string {
	if p.Shared {
		return p.Ref().String()
	}
	return p.Key.String()
}

func (d *poolDescs) collect(c chan<- prometheus.Metric, s dispatch.Status) {
	name := poolName(s.Pool)
	gauge := func(x *prometheus.Desc, v float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(x, prometheus.GaugeValue, v, append([]string{name}, labels...)...)
	}
	count := func(x *prometheus.Desc, v uint64, labels ...string) {
		c <- prometheus.MustNewConstMetric(x, prometheus.CounterValue, float64(v), append([]string{name}, labels...)...)
	}
	gauge(d.queued, float64(s.Demand.Queued))
	gauge(d.inFlight, float64(s.Demand.Running))
	gauge(d.saturation, s.Saturation)
	for _, b := range s.Queue {
		priority := strconv.Itoa(int(b.Priority))
		gauge(d.waiting, float64(b.Queued), priority)
		gauge(d.waitingBytes, float64(b.Bytes), priority)
	}
	for endpoint, n := range s.InFlight {
		gauge(d.endpoint, float64(n), endpoint)
	}
	a := s.Admission
	count(d.admission, a.Admitted, "admitted")
	count(d.admission, a.Shed, "shed")
	count(d.admission, a.Evicted, "evicted")
	count(d.admission, a.Overdue, "overdue")
	count(d.admission, a.Left, "left")
	count(d.dropped, s.Counts.Dropped)
	count(d.noRetry, s.Counts.RetriesRefused)
}
