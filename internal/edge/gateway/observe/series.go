package observe

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/openai"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// kind is what decides which series a request counts in. There are as many as
// there are combinations of labels.
type kind struct {
	service, model, operation, provider string
	code                                int
	known                               bool // the answer reports its usage
}

// series are those of one kind, found once: to find a series by its labels
// costs more than to count in it.
type series struct {
	requests                   prometheus.Counter
	seconds                    prometheus.Observer
	prompt, cached, completion prometheus.Counter // when known
	duration                   prometheus.Observer
	input, output              prometheus.Observer // of OpenTelemetry's, when known
}

// found are the series that were looked up. They are forgotten as soon as any
// of theirs is deleted.
type found struct{ atomic.Pointer[sync.Map] }

func (m *Metrics) series(k kind) *series {
	all := m.found.Load()
	if s, ok := all.Load(k); ok {
		return s.(*series)
	}
	code := "other"
	if k.code >= 100 && k.code <= 599 {
		code = strconv.Itoa(k.code)
	}
	s := &series{requests: m.requests.WithLabelValues(k.service, code), seconds: m.seconds.WithLabelValues(k.service)}
	if k.known {
		s.prompt, s.cached, s.completion = m.tokens.WithLabelValues(k.service, "prompt"), m.tokens.WithLabelValues(k.service, "cached"),
			m.tokens.WithLabelValues(k.service, "completion")
	}
	if k.operation != "" {
		model, failed := k.model, ""
		if k.code < 200 || k.code >= 400 {
			failed = code
		}
		s.duration = m.genAI.duration.WithLabelValues(k.operation, k.provider, model, failed)
		if k.known {
			s.input = m.genAI.usage.WithLabelValues(k.operation, k.provider, model, "input")
			s.output = m.genAI.usage.WithLabelValues(k.operation, k.provider, model, "output")
		}
	}
	all.Store(k, s)
	return s
}

// observe counts a request that has ended.
func (m *Metrics) observe(r *Record, u openai.Usage, known bool, now time.Time) {
	model := ""
	if r.Operation != "" {
		model = m.model(r.Service, r.Model, now)
	}
	code := r.Status
	if r.Cut != "" { // what was sent before is no success
		code = http.StatusBadGateway
	}
	s := m.series(kind{r.Service, model, r.Operation, r.Provider, code, known})
	took := now.Sub(r.Begun).Seconds()
	s.requests.Inc()
	s.seconds.Observe(took)
	if r.Tries > 1 {
		m.retries.WithLabelValues(r.Service).Add(float64(r.Tries - 1))
	}
	if known {
		s.prompt.Add(float64(u.PromptTokens))
		s.cached.Add(float64(u.CachedTokens))
		s.completion.Add(float64(u.CompletionTokens))
	}
	if s.duration == nil {
		return
	}
	s.duration.Observe(took)
	if known {
		s.input.Observe(float64(u.PromptTokens))
		s.output.Observe(float64(u.CompletionTokens))
	}
	m.genAI.streamed(r, model, u, known, now)
}

// genAI are the metrics of OpenTelemetry's conventions for generative AI, with
// their buckets, named as OpenTelemetry's exporter to Prometheus names them.
// The model is a name that is listed; what is asked for others is under "other".
type genAI struct {
	duration, firstToken, perToken, usage *prometheus.HistogramVec
}

const (
	labelOperation = "gen_ai_operation_name"
	labelProvider  = "gen_ai_provider_name"
	labelModel     = "gen_ai_request_model"
	labelToken     = "gen_ai_token_type"
	labelError     = "error_type"
	modelOther     = "other"
)

func newGenAI() genAI {
	histogram := func(name, help string, buckets []float64, more ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
			append([]string{labelOperation, labelProvider, labelModel}, more...))
	}
	return genAI{
		duration: histogram("gen_ai_server_request_duration_seconds", "Time from a request's header to the end of its answer.",
			prometheus.ExponentialBuckets(0.01, 2, 14), labelError),
		firstToken: histogram("gen_ai_server_time_to_first_token_seconds", "Time from a request's header to the first byte of a streamed answer that succeeds.",
			[]float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}),
		perToken: histogram("gen_ai_server_time_per_output_token_seconds", "Time per token after the first, of streamed answers that succeed and say how many tokens they hold.",
			[]float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5}),
		usage: histogram("gen_ai_client_token_usage", "Tokens of one request, where its answer says.",
			prometheus.ExponentialBuckets(1, 4, 14), labelToken),
	}
}

func (g *genAI) each(f func(*prometheus.HistogramVec)) {
	for _, h := range []*prometheus.HistogramVec{g.duration, g.firstToken, g.perToken, g.usage} {
		f(h)
	}
}

// defaultPrefix begins the names of services that need none.
const defaultPrefix = service.DefaultNamespace + "/"

// modelLabel is what a service or pool is called as a model, where the name that
// was asked for is none that is listed.
func modelLabel(service string) string {
	if service == "" {
		return modelOther
	}
	return strings.TrimPrefix(strings.TrimPrefix(service, poolPrefix), defaultPrefix)
}

// poolPrefix begins what the dispatcher calls shared pools.
const poolPrefix = "pool "

// names are the known models that requests can name.
type names struct {
	known atomic.Pointer[map[string]bool]
	read  atomic.Int64 // when, in nanoseconds
}

// namesEvery is how often the names are read for the sake of one that is not
// among them.
const namesEvery = time.Second

// model is the label of a request's model: the name asked for if it is a listed
// one, so that what clients make up is no label.
func (m *Metrics) model(service, asked string, now time.Time) string {
	if service == "" {
		return modelOther
	}
	if known := m.names.known.Load(); known != nil && (*known)[asked] {
		return asked
	}
	last := m.names.read.Load()
	if now.UnixNano()-last > int64(namesEvery) && m.names.read.CompareAndSwap(last, now.UnixNano()) {
		if m.readNames()[asked] {
			return asked
		}
	}
	return modelLabel(service)
}

func (m *Metrics) readNames() map[string]bool {
	known := map[string]bool{}
	for _, s := range m.dispatch.Models() {
		known[s.Name] = true
	}
	m.names.known.Store(&known)
	return known
}

// streamed counts what streamed answers alone have.
func (g *genAI) streamed(r *Record, model string, u openai.Usage, known bool, now time.Time) {
	if r.stream == nil || r.FirstByte.IsZero() {
		return
	}
	g.firstToken.WithLabelValues(r.Operation, r.Provider, model).Observe(r.FirstByte.Sub(r.Begun).Seconds())
	if known && u.CompletionTokens > 1 {
		g.perToken.WithLabelValues(r.Operation, r.Provider, model).Observe(now.Sub(r.FirstByte).Seconds() / float64(u.CompletionTokens-1))
	}
}

func (g *genAI) forget(model string) {
	gone := prometheus.Labels{labelModel: model}
	g.each(func(h *prometheus.HistogramVec) { h.DeletePartialMatch(gone) })
}
