package observe

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// Metrics are the gateway's. Labels name known services only, and a deleted
// service's series go with it.
type Metrics struct {
	dispatch *dispatch.Dispatcher
	requests *prometheus.CounterVec
	cuts     *prometheus.CounterVec
	waits    *prometheus.HistogramVec
	seconds  *prometheus.HistogramVec
	tokens   *prometheus.CounterVec
	retries  *prometheus.CounterVec
	refused  *prometheus.CounterVec
	prefills *prometheus.CounterVec
	mirrors  *prometheus.CounterVec
	hedges   *prometheus.CounterVec
	genAI    genAI
	pools    poolDescs
	dropped  *prometheus.Desc
	log      *AccessLog // nil: none

	found found
	names names

	mu   sync.Mutex
	seen struct{ services, models map[string]bool } // that may have series
}

// NewMetrics makes the metrics of a gateway in front of d; log may be nil.
func NewMetrics(d *dispatch.Dispatcher, log *AccessLog) *Metrics {
	const prefix = "roundhouse_gateway_"
	label := []string{"service"}
	m := &Metrics{
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
		mirrors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "mirrored_total",
			Help: "Copies of requests for the mirrors of routes: answered, failed, or skipped because too many were under way."}, []string{"service", "outcome"}),
		hedges: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "hedges_total",
			Help: "Requests that a second replica was asked besides because the first was slow to begin its answer: won by the second, or lost."}, []string{"service", "outcome"}),
		genAI:   newGenAI(),
		pools:   newPoolDescs(prefix),
		dropped: prometheus.NewDesc(prefix+"access_log_dropped_total", "Lines of the access log that were not written.", nil, nil),
		log:     log,
	}
	m.found.Store(&sync.Map{})
	return m
}

// Refused counts a request refused for its API key.
func (m *Metrics) Refused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Cut counts an answer that a replica broke off.
func (m *Metrics) Cut(service string) { m.cuts.WithLabelValues(service).Inc() }

// Waited counts how long a request waited for a replica.
func (m *Metrics) Waited(service string, d time.Duration) {
	m.waits.WithLabelValues(service).Observe(d.Seconds())
}

// Prefilled counts a prompt that a prefill replica was asked to compute.
func (m *Metrics) Prefilled(service, outcome string) {
	m.prefills.WithLabelValues(service, outcome).Inc()
}

// Mirrored counts a copy of a request to a service.
func (m *Metrics) Mirrored(service, outcome string) {
	m.mirrors.WithLabelValues(service, outcome).Inc()
}

// Hedged counts a request that two replicas were asked.
func (m *Metrics) Hedged(service, outcome string) { m.hedges.WithLabelValues(service, outcome).Inc() }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(c chan<- *prometheus.Desc) {
	m.requests.Describe(c)
	m.cuts.Describe(c)
	m.waits.Describe(c)
	m.seconds.Describe(c)
	m.tokens.Describe(c)
	m.retries.Describe(c)
	m.refused.Describe(c)
	m.prefills.Describe(c)
	m.mirrors.Describe(c)
	m.hedges.Describe(c)
	m.genAI.each(func(h *prometheus.HistogramVec) { h.Describe(c) })
	c <- m.dropped
	m.pools.each(func(d *prometheus.Desc) { c <- d })
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(c chan<- prometheus.Metric) {
	pools := m.dispatch.Pools()
	m.forget(pools)
	for _, s := range pools {
		m.pools.collect(c, s)
		m.pools.states(c, s, m.dispatch.Endpoints(s.Pool.Ref()))
	}
	for _, e := range m.dispatch.AllEndpoints() {
		m.pools.endpointOf(c, e)
	}
	m.requests.Collect(c)
	m.cuts.Collect(c)
	m.waits.Collect(c)
	m.seconds.Collect(c)
	m.tokens.Collect(c)
	m.retries.Collect(c)
	m.refused.Collect(c)
	m.prefills.Collect(c)
	m.mirrors.Collect(c)
	m.hedges.Collect(c)
	m.genAI.each(func(h *prometheus.HistogramVec) { h.Collect(c) })
	if m.log != nil {
		c <- prometheus.MustNewConstMetric(m.dropped, prometheus.CounterValue, float64(m.log.Dropped()))
	}
}

// forget deletes the series of services and models seen before and gone now.
func (m *Metrics) forget(pools []dispatch.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	services, models := make(map[string]bool, len(pools)), m.readNames()
	for _, s := range pools {
		services[ServiceName(s.Pool)] = true
		models[modelLabel(ServiceName(s.Pool))] = true
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
			m.mirrors.DeletePartialMatch(gone)
			m.hedges.DeletePartialMatch(gone)
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

// poolDescs describe the metrics of pools, which package dispatch reports when they
// are read: nothing is kept of a deleted pool.
type poolDescs struct {
	queued, inFlight, waiting, waitingBytes, saturation, admission, dropped, noRetry, endpoint, endpoints, results, firstByte, open *prometheus.Desc
	latency                                                                                                                         latencyDescs
}

func newPoolDescs(prefix string) poolDescs {
	desc := newDesc(prefix)
	return poolDescs{
		queued:       desc("queued", "Requests waiting for a replica now."),
		inFlight:     desc("in_flight", "Requests replicas work on now."),
		waiting:      desc("queue_requests", "Requests waiting now, by priority.", "priority"),
		waitingBytes: desc("queue_bytes", "Body bytes of the requests waiting now, by priority.", "priority"),
		saturation:   desc("saturation", "How full the endpoint with the most capacity is; from 1 on requests wait, and those of negative priority are shed."),
		admission:    desc("admission_total", "Requests by what admission did with them: admitted, shed, evicted, overdue, abandoned.", "outcome"),
		dropped:      desc("picker_dropped_total", "Requests that the picker's policy dropped."),
		noRetry:      desc("retries_refused_total", "Retries that were not made for want of budget."),
		endpoint:     desc("endpoint_in_flight", "Requests an endpoint works on now.", "endpoint"),
		endpoints:    desc("endpoints", "Endpoints of a service or pool by their state: ready, ejected by the circuit breaker, or not ready.", "state"),
		results:      desc("endpoint_results_total", "What became of the requests that were sent to an endpoint: answered, refused, busy, failed, lost or silent. An answer that was broken off is also lost.", "endpoint", "result"),
		firstByte:    desc("endpoint_first_byte_seconds", "Time until an endpoint began its answers.", "endpoint"),
		open:         desc("endpoint_open", "1 while requests may be sent to an endpoint.", "endpoint"),
		latency:      newLatencyDescs(desc),
	}
}

func (d *poolDescs) each(f func(*prometheus.Desc)) {
	for _, x := range []*prometheus.Desc{d.queued, d.inFlight, d.waiting, d.waitingBytes, d.saturation, d.admission, d.dropped, d.noRetry, d.endpoint, d.endpoints, d.results, d.firstByte, d.open} {
		f(x)
	}
	d.latency.each(f)
}

// ServiceName is what a grant of the pool calls it.
func ServiceName(p *dispatch.PoolConfig) string {
	if p.Shared {
		return p.Ref().String()
	}
	return p.Key.String()
}

func (d *poolDescs) collect(c chan<- prometheus.Metric, s dispatch.Status) {
	name := ServiceName(s.Pool)
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
	count(d.admission, a.Abandoned, "abandoned")
	count(d.dropped, s.Counts.Dropped)
	count(d.noRetry, s.Counts.RetriesRefused)
	d.latency.collect(c, name, s.Latency)
}

// states counts the endpoints of a pool by their state.
func (d *poolDescs) states(c chan<- prometheus.Metric, s dispatch.Status, list []dispatch.Endpoint) {
	count := map[string]int{"ready": 0, "ejected": 0, "not ready": 0}
	for _, e := range list {
		switch {
		case e.Phase != replica.Ready:
			count["not ready"]++
		case e.Ejected != "":
			count["ejected"]++
		default:
			count["ready"]++
		}
	}
	for state, n := range count {
		c <- prometheus.MustNewConstMetric(d.endpoints, prometheus.GaugeValue, float64(n), ServiceName(s.Pool), state)
	}
}

// endpointOf reports what is an endpoint's own, whichever pools have it: its service is
// the one whose replica it is, "" for a server that others run.
func (d *poolDescs) endpointOf(c chan<- prometheus.Metric, e dispatch.Endpoint) {
	name := ""
	if e.Service.Name != "" {
		name = e.Service.String()
	}
	open := 0.
	if e.Open {
		open = 1
	}
	c <- prometheus.MustNewConstMetric(d.open, prometheus.GaugeValue, open, name, e.ID)
	for result, n := range e.Record.Results {
		c <- prometheus.MustNewConstMetric(d.results, prometheus.CounterValue, float64(n), name, e.ID, result)
	}
	if e.Record.FirstBytes > 0 {
		c <- prometheus.MustNewConstSummary(d.firstByte, e.Record.FirstBytes, e.Record.Seconds, nil, name, e.ID)
	}
}
