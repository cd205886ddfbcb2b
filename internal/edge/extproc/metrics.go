package extproc

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the endpoint picker's. Their one label is the status code, so
// that clients cannot make up series.
type metrics struct {
	server   *Server
	requests *prometheus.CounterVec
	admit    prometheus.Histogram
	streams  *prometheus.Desc
	buffered *prometheus.Desc
}

func newMetrics(s *Server) *metrics {
	const prefix = "roundhouse_endpoint_picker_"
	return &metrics{
		server: s,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests, by the status code of their answer; 0 is one that left before any."}, []string{"code"}),
		admit: prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "admission_seconds",
			Help:    "Time from a request's last byte to its endpoint, waiting included.",
			Buckets: []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 600}}),
		streams:  prometheus.NewDesc(prefix+"requests_under_way", "Requests under way.", nil, nil),
		buffered: prometheus.NewDesc(prefix+"buffered_bytes", "Bytes of requests' bodies in memory.", nil, nil),
	}
}

func (m *metrics) admitted(begun time.Time) { m.admit.Observe(time.Since(begun).Seconds()) }

func (m *metrics) answered(status int) { m.requests.WithLabelValues(strconv.Itoa(status)).Inc() }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	m.requests.Describe(c)
	m.admit.Describe(c)
	c <- m.streams
	c <- m.buffered
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	m.requests.Collect(c)
	m.admit.Collect(c)
	c <- prometheus.MustNewConstMetric(m.streams, prometheus.GaugeValue, float64(m.server.streams.Load()))
	c <- prometheus.MustNewConstMetric(m.buffered, prometheus.GaugeValue, float64(m.server.buffered.Load()))
}
