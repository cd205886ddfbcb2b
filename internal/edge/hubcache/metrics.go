package hubcache

import (
	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// metrics are the cache's own; no label holds what a client sent.
type metrics struct {
	requests     *prometheus.CounterVec // route, result
	sent         *prometheus.CounterVec // source
	upstream     prometheus.Counter
	errors       *prometheus.CounterVec // reason
	evictions    prometheus.Counter
	evicted      prometheus.Counter
	corrupt      prometheus.Counter
	ringSent     *prometheus.CounterVec // result
	ringReceived *prometheus.CounterVec // result
	ringBytes    prometheus.Counter
}

const prefix = "roundhouse_hub_cache_"

func newMetrics(c *Cache, reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests by route, and where the answer came from: cache, stale, upstream, refused, failed."}, []string{"route", "result"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "sent_bytes_total",
			Help: "Bytes of files sent to clients: from the cache, from a download as it went on, from another node of the ring, or direct from the Hub."}, []string{"source"}),
		upstream: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "upstream_bytes_total",
			Help: "Bytes of files that came from the Hub to be kept."}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "upstream_errors_total",
			Help: "Requests to the Hub that failed: unreachable, refused, malformed, or no space for the answer."}, []string{"reason"}),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "evictions_total", Help: "Files removed to free space."}),
		evicted:   prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "evicted_bytes_total", Help: "Their bytes."}),
		corrupt: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "corrupt_total",
			Help: "Kept files found not to have their hash, and removed."}),
		ringSent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "ring_requests_sent_total",
			Help: "Requests to other nodes of the ring: sent, declined, broken off and repeated, or failed: dead, slow, refused, malformed, wrong."}, []string{"result"}),
		ringReceived: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "ring_requests_received_total",
			Help: "Requests of other nodes of the ring: sent, broken, refused, or declined: source, far, full, upstream, offline, malformed."}, []string{"result"}),
		ringBytes: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "peer_sent_bytes_total", Help: "Bytes of files sent to other nodes of the ring."}),
	}
	for _, result := range []string{"sent", "declined", "broken", "dead", "slow", "refused", "malformed", "wrong"} {
		m.ringSent.WithLabelValues(result)
	}
	for _, result := range []string{"sent", "broken", "refused", reasonSource, reasonFar, reasonFull, reasonUpstream, reasonOffline, reasonBad} {
		m.ringReceived.WithLabelValues(result)
	}
	for _, r := range []string{"resolve", "api", "pass"} {
		for _, result := range []string{"cache", "stale", "upstream", "refused", "failed"} {
			m.requests.WithLabelValues(r, result)
		}
	}
	reg.MustRegister(m.requests, m.sent, m.upstream, m.errors, m.evictions, m.evicted, m.corrupt, m.ringSent, m.ringReceived, m.ringBytes,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "stored_bytes", Help: "Bytes that count against the bound: files and downloads under way, but not files that models link to."}, func() float64 {
			return float64(c.store.blobs.Total())
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "downloads", Help: "Downloads under way."}, func() float64 {
			return float64(c.downloads.count())
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "ring_nodes", Help: "Nodes of the ring, this one included; 0 without a ring."}, func() float64 {
			nodes, _ := c.ringNodes()
			return nodes
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "ring_nodes_ejected", Help: "Nodes of the ring that failed and get no requests for now."}, func() float64 {
			_, ejected := c.ringNodes()
			return ejected
		}))
	return m
}

func (m *metrics) noteEvicted(all []blobs.Entry) {
	for _, e := range all {
		m.evictions.Inc()
		m.evicted.Add(float64(e.Size))
	}
}

func (c *Cache) ringNodes() (nodes, ejected float64) {
	if c.ring == nil {
		return 0, 0
	}
	st := c.ring.State()
	for _, n := range st.Nodes {
		if !n.Asked {
			ejected++
		}
	}
	return float64(len(st.Nodes) + 1), ejected
}
