package gateway

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// metrics are the gateway's. Labels name known services only, and a deleted
// service's series go with it.
type metrics struct {
	dispatch *dispatch.Dispatcher
	requests *prometheus.CounterVec
	cuts     *prometheus.CounterVec
	waits    *prometheus.HistogramVec
	seconds  *prometheus.HistogramVec
	tokens   *prometheus.CounterVec
	retries  *prometheus.CounterVec
	refused  *prometheus.CounterVec
	prefills *prometheus.CounterVec
	genAI    genAI
	pools    poolDescs
	dropped  *prometheus.Desc
	log      *AccessLog // nil: none

	found found
	names names

	mu   sync.Mutex
	seen struct{ services, models map[string]bool } // that may have series
}

func newMetrics(d *dispatch.Dispatcher, log *AccessLog) *metrics {
	const prefix = "roundhouse_gateway_"
	label := []string{"service"}
	m := &metrics{
		dispatch: d,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests answered, by service (empty for none) and status code; 499 is a client that left, and 502 is also an answer that its replica broke off."}, []string{"service", "code"}),
		cuts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "answers_cut_total",
			Help: "Answers that a replica broke off."}, label),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "wait_seconds",
			Help:    "Time admitted requests waited for a replica.",
			Buckets: []float64{0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}}, label),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: prefix + "request_seconds",
			Help:    "Time from a request's header to the end of its answer, by service (empty for none).",
			Buckets: []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}}, label),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "tokens_total",
			Help: "Tokens that answers say they cost: prompt, cached (of the prompt), completion."}, []string{"service", "type"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "retries_total",
			Help: "Times a request was sent to another replica."}, label),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "refused_total",
			Help: "Requests refused for their API key: no_key, bad_key, limit, model."}, []string{"reason"}),
		prefills: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "prefills_total",
			Help: "Prompts that the gateway asked a prefill replica to compute: computed, or refused or failed, so that the decode replica did."}, []string{"service", "outcome"}),
		genAI:   newGenAI(),
		pools:   newPoolDescs(prefix),
		dropped: prometheus.NewDesc(prefix+"access_log_dropped_total", "Lines of the access log that were not written.", nil, nil),
		log:     log,
	}
	m.found.Store(&sync.Map{})
	return m
}

func (m *metrics) refuse(reason string) { m.refused.WithLabelValues(reason).Inc() }

func (m *metrics) cut(service string) { m.cuts.WithLabelValues(service).Inc() }

func (m *metrics) waited(service string, d time.Duration) {
	m.waits.WithLabelValues(service).Observe(d.Seconds())
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	m.requests.Describe(c)
	m.cuts.Describe(c)
	m.waits.Describe(c)
	m.seconds.Describe(c)
	m.tokens.Describe(c)
	m.retries.Describe(c)
	m.refused.Describe(c)
	m.prefills.Describe(c)
	m.genAI.each(func(h *prometheus.HistogramVec) { h.Describe(c) })
	c <- m.dropped
	m.pools.each(func(d *prometheus.Desc) { c <- d })
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	pools := m.dispatch.Pools()
	m.forget(pools)
	for _, s := range pools {
		m.pools.collect(c, s)
	}
	m.requests.Collect(c)
	m.cuts.Collect(c)
	m.waits.Collect(c)
	m.seconds.Collect(c)
	m.tokens.Collect(c)
	m.retries.Collect(c)
	m.refused.Collect(c)
	m.prefills.Collect(c)
	m.genAI.each(func(h *prometheus.HistogramVec) { h.Collect(c) })
	if m.log != nil {
		c <- prometheus.MustNewConstMetric(m.dropped, prometheus.CounterValue, float64(m.log.Dropped()))
	}
}

// forget deletes the series of services and models seen before and gone now.
func (m *metrics) forget(pools []dispatch.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	services, models := make(map[string]bool, len(pools)), m.readNames()
	for _, s := range pools {
		services[poolName(s.Pool)] = true
		models[modelLabel(poolName(s.Pool))] = true
	}
	for name := range m.seen.services {
		if !services[name] {
			gone := prometheus.Labels{"service": name}
			m.requests.DeletePartialMatch(gone)
			m.cuts.DeletePartialMatch(gone)
			m.waits.DeletePartialMatch(gone)
			m.seconds.DeletePartialMatch(gone)
			m.tokens.DeletePartialMatch(gone)
			m.retries.DeletePartialMatch(gone)
			m.prefills.DeletePartialMatch(gone)
			m.found.Store(&sync.Map{})
		}
	}
	for name := range m.seen.models {
		if !models[name] {
			m.genAI.forget(name)
			m.found.Store(&sync.Map{})
		}
	}
	m.seen.services, m.seen.models = services, models
}
