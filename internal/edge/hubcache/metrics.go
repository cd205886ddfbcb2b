package hubcache

import "github.com/prometheus/client_golang/prometheus"

// metrics are the cache's own; no label holds what a client sent.
type metrics struct {
	requests  *prometheus.CounterVec // route, result
	sent      *prometheus.CounterVec // source
	upstream  prometheus.Counter
	errors    *prometheus.CounterVec // reason
	evictions prometheus.Counter
	evicted   prometheus.Counter
	corrupt   prometheus.Counter
}

const prefix = "roundhouse_hub_cache_"

func newMetrics(c *Cache, reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "requests_total",
			Help: "Requests by route, and where the answer came from: cache, stale, upstream, refused, failed."}, []string{"route", "result"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "sent_bytes_total",
			Help: "Bytes of files sent to clients: from the cache, from a download as it went on, or direct from the Hub."}, []string{"source"}),
		upstream: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "upstream_bytes_total",
			Help: "Bytes of files that came from the Hub to be kept."}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + "upstream_errors_total",
			Help: "Questions to the Hub that failed: unreachable, refused, malformed, or no room for the answer."}, []string{"reason"}),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "evictions_total", Help: "Files removed to make room."}),
		evicted:   prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "evicted_bytes_total", Help: "Their bytes."}),
		corrupt: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "corrupt_total",
			Help: "Kept files found not to have their hash, and removed."}),
	}
	for _, r := range []string{"resolve", "api", "pass"} {
		for _, result := range []string{"cache", "stale", "upstream", "refused", "failed"} {
			m.requests.WithLabelValues(r, result)
		}
	}
	reg.MustRegister(m.requests, m.sent, m.upstream, m.errors, m.evictions, m.evicted, m.corrupt,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "stored_bytes", Help: "Bytes kept, downloads under way included."}, func() float64 {
			c.store.mu.Lock()
			defer c.store.mu.Unlock()
			return float64(c.store.total)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "downloads", Help: "Downloads under way."}, func() float64 {
			c.mu.Lock()
			defer c.mu.Unlock()
			return float64(len(c.flights))
		}))
	return m
}
