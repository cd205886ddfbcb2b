package demand

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what a controller's side is measured by. Gateways are counted,
// not named.
type metrics struct {
	reports         *prometheus.CounterVec
	gateways, known *prometheus.Desc
}

func newMetrics() metrics {
	const prefix = "roundhouse_controller_"
	return metrics{
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "demand_reports_total",
			Help: "Reports of demand: taken, refused (whose token it is), unreviewed (the API server did not say whose), invalid."}, []string{"result"}),
		gateways: prometheus.NewDesc(prefix+"gateways", "Gateways that take requests: reporting, silent, or unheard since this process or theirs began.", []string{"state"}, nil),
		known:    prometheus.NewDesc(prefix+"demand_known", "1 once every gateway that takes requests has told all it knows. Until then no service is put to sleep.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(c chan<- *prometheus.Desc) {
	s.metrics.reports.Describe(c)
	c <- s.metrics.gateways
	c <- s.metrics.known
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(c chan<- prometheus.Metric) {
	s.metrics.reports.Collect(c)
	s.mu.Lock()
	states, known := s.mu.book.states(), 0.0
	if !s.mu.book.unknown() {
		known = 1
	}
	s.mu.Unlock()
	for state, n := range states {
		c <- prometheus.MustNewConstMetric(s.metrics.gateways, prometheus.GaugeValue, float64(n), state)
	}
	c <- prometheus.MustNewConstMetric(s.metrics.known, prometheus.GaugeValue, known)
}

// states counts the gateways that take requests by what is heard of them.
func (b *book) states() map[string]int {
	out := map[string]int{"reporting": 0, "silent": 0, "unheard": 0}
	for pod := range b.live {
		switch g := b.gateways[pod]; {
		case g != nil && g.silent:
			out["silent"]++
		case g == nil || !g.full:
			out["unheard"]++
		default:
			out["reporting"]++
		}
	}
	return out
}

// counted counts the reports that a handler answers.
func (s *Server) counted(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer := &answer{ResponseWriter: w, status: http.StatusOK}
		h(answer, r)
		result := "invalid"
		switch answer.status {
		case http.StatusOK:
			result = "taken"
		case http.StatusUnauthorized, http.StatusForbidden:
			result = "refused"
		case http.StatusServiceUnavailable:
			result = "unreviewed"
		}
		s.metrics.reports.WithLabelValues(result).Inc()
	}
}

// answer remembers the status it was given.
type answer struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is http.ResponseController's.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
