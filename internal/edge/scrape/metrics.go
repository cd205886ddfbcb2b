package scrape

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are about reading itself. No label names a server: there may be
// thousands. A server of several pools counts in each.
type metrics struct {
	duration prometheus.Histogram
	failures *prometheus.CounterVec
	servers  *prometheus.Desc
	age      *prometheus.Desc
}

func newMetrics() *metrics {
	const prefix = "roundhouse_scrape_"
	m := &metrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "duration_seconds",
			Help: "Time to read one server's metrics.", Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "failures_total",
			Help: "Readings that failed, by what was wrong."}, []string{"reason"}),
		servers: prometheus.NewDesc(prefix+"servers", "Servers of a pool whose metrics are read (active), are not for want of traffic (idle), or cannot be (failing).", []string{"pool", "state"}, nil),
		age:     prometheus.NewDesc(prefix+"age_seconds", "Age of the oldest load among the active servers.", nil, nil),
	}
	for _, r := range reasons {
		m.failures.WithLabelValues(r)
	}
	return m
}

func (m *metrics) read(took time.Duration, err error) {
	m.duration.Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(reason(err)).Inc()
	}
}

// Describe implements prometheus.Collector.
func (s *Scraper) Describe(c chan<- *prometheus.Desc) {
	s.metrics.duration.Describe(c)
	s.metrics.failures.Describe(c)
	c <- s.metrics.servers
	c <- s.metrics.age
}

// Collect implements prometheus.Collector.
func (s *Scraper) Collect(c chan<- prometheus.Metric) {
	s.metrics.duration.Collect(c)
	s.metrics.failures.Collect(c)
	now := s.cfg.Clock.Now()
	var age time.Duration
	for name, p := range *s.pools.Load() {
		states := map[string]int{"active": 0, "idle": 0, "failing": 0}
		s.mu.Lock()
		for _, srv := range p.servers {
			switch {
			case srv.failures > 0:
				states["failing"]++
			case srv.phase == parked:
				states["idle"]++
			default:
				states["active"]++
				if srv.load != nil {
					age = max(age, now.Sub(srv.load.At))
				}
			}
		}
		s.mu.Unlock()
		for state, n := range states {
			c <- prometheus.MustNewConstMetric(s.metrics.servers, prometheus.GaugeValue, float64(n), name, state)
		}
	}
	c <- prometheus.MustNewConstMetric(s.metrics.age, prometheus.GaugeValue, age.Seconds())
}
