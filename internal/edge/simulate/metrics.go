package simulate

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the figures of an engine under vLLM's or SGLang's names. Times are simulated
// seconds. It is a prometheus.Collector for those read from the scheduler.
type metrics struct {
	cfg      *Config
	stats    func() shownStats
	registry *prometheus.Registry

	firstToken prometheus.Histogram
	nextToken  prometheus.Histogram
	whole      prometheus.Histogram
	success    *prometheus.CounterVec

	read readFigures
}

// readFigures describe what is read from the scheduler when it is asked for.
type readFigures struct {
	waiting, running, usage      *prometheus.Desc
	queries, hits, preemptions   *prometheus.Desc
	promptTokens, generated      *prometheus.Desc
	adapters, cacheConfiguration *prometheus.Desc // vLLM's
	blocks, blockTokens, slots   *prometheus.Desc // SGLang's
}

// sglangNames are SGLang's names of what vLLM calls otherwise.
var sglangNames = map[string]string{
	"num_requests_waiting": "num_queue_reqs",
	"num_requests_running": "num_running_reqs",
	"kv_cache_usage_perc":  "token_usage",
}

func newReadFigures(api API, labels prometheus.Labels) readFigures {
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		if own, ok := sglangNames[name]; ok && api == APISGLang {
			name = own
		}
		return prometheus.NewDesc(string(api)+":"+name, help, variable, labels)
	}
	return readFigures{
		blocks:       desc("num_pages", "KV memory in pages."),
		blockTokens:  desc("page_size", "Tokens of one page of KV memory."),
		slots:        desc("lora_pool_slots_total", "LoRA adapters in one batch."),
		waiting:      desc("num_requests_waiting", "Requests in the queue."),
		running:      desc("num_requests_running", "Requests being computed."),
		usage:        desc("kv_cache_usage_perc", "Part of KV memory that requests hold, 0 to 1."),
		queries:      desc("prefix_cache_queries_total", "Tokens looked up in the prefix cache."),
		hits:         desc("prefix_cache_hits_total", "Tokens found in the prefix cache."),
		preemptions:  desc("num_preemptions_total", "Requests returned to the queue for want of KV memory."),
		promptTokens: desc("prompt_tokens_total", "Prompt tokens of requests whose prefill is done."),
		generated:    desc("generation_tokens_total", "Output tokens."),
		adapters: prometheus.NewDesc("vllm:lora_requests_info", "LoRA adapters in use; the value is a Unix time in seconds.",
			[]string{"max_lora", "running_lora_adapters", "waiting_lora_adapters"}, nil),
		cacheConfiguration: desc("cache_config_info", "Shape of KV memory.", "block_size", "num_gpu_blocks"),
	}
}

func newMetrics(cfg *Config, stats func() shownStats) *metrics {
	rank := strconv.Itoa(cfg.rank)
	labels := prometheus.Labels{"model_name": cfg.Models[0], "engine": rank}
	if cfg.API == APISGLang { // with DP attention each rank begins at a GPU of its own
		labels = prometheus.Labels{"model_name": cfg.Models[0], "engine_type": "unified", "tp_rank": rank, "pp_rank": "0"}
		if cfg.DataParallelSize > 1 {
			labels["dp_rank"] = rank
		}
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: string(cfg.API) + ":" + name, Help: help, Buckets: buckets, ConstLabels: labels,
		})
	}
	m := &metrics{
		cfg:      cfg,
		stats:    stats,
		registry: prometheus.NewRegistry(),
		firstToken: histogram("time_to_first_token_seconds", "From arrival to the first output token.",
			[]float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}),
		nextToken: histogram("inter_token_latency_seconds", "From one output token to the next.",
			[]float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}),
		whole: histogram("e2e_request_latency_seconds", "From arrival to the last output token.",
			[]float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}),
		success: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: string(cfg.API) + ":request_success_total", Help: "Requests that ended, by reason.", ConstLabels: labels,
		}, []string{"finished_reason"}),
		read: newReadFigures(cfg.API, labels),
	}
	for _, reason := range []string{"stop", "length", "abort"} {
		m.success.WithLabelValues(reason)
	}
	m.registry.MustRegister(m.firstToken, m.nextToken, m.whole, m.success, m)
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 16})
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	d := m.read
	for _, desc := range []*prometheus.Desc{
		d.waiting, d.running, d.usage, d.queries, d.hits, d.preemptions,
		d.promptTokens, d.generated, d.cacheConfiguration, d.adapters, d.blocks, d.blockTokens, d.slots,
	} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	st := m.stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge(m.read.waiting, float64(st.waiting))
	gauge(m.read.running, float64(st.running))
	gauge(m.read.usage, st.usage)
	counter(m.read.queries, st.totals.PrefixQueries)
	counter(m.read.hits, st.totals.PrefixHits)
	counter(m.read.preemptions, st.totals.Preemptions)
	counter(m.read.promptTokens, st.totals.PromptTokens)
	counter(m.read.generated, st.totals.OutputTokens)
	n, blocks := m.cfg.Physics.MaxAdapters, m.cfg.Physics.KVBlocks
	if m.cfg.API == APISGLang {
		gauge(m.read.blocks, float64(blocks))
		gauge(m.read.blockTokens, BlockTokens)
		if n > 0 {
			gauge(m.read.slots, float64(n))
		}
		return
	}
	gauge(m.read.cacheConfiguration, 1, strconv.Itoa(BlockTokens), strconv.Itoa(blocks))
	if n > 0 {
		gauge(m.read.adapters, float64(time.Now().UnixNano())/1e9, strconv.Itoa(n),
			strings.Join(st.runningAdapters, ","), strings.Join(st.waitingAdapters, ","))
	}
}

// token observes an output token computed at the given simulated time.
func (m *metrics) token(c *call, at time.Duration) {
	if c.tokens == 1 {
		m.firstToken.Observe((at - c.arrived).Seconds())
		return
	}
	m.nextToken.Observe((at - c.lastToken).Seconds())
}

// end observes the end of a call.
func (m *metrics) end(c *call, effect Effect) {
	switch effect.Kind {
	case Finished:
		m.whole.Observe((effect.At - c.arrived).Seconds())
		m.success.WithLabelValues(c.answer.reason).Inc()
	case Cancelled:
		m.success.WithLabelValues("abort").Inc()
	}
}
