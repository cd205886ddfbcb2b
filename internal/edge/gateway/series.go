package gateway

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/core/openai"
)

// kind is what decides which series a request counts in. There are as many as
// there are combinations of labels.
type kind struct {
	service, model, operation, provider string
	code                                int
	known                               bool // the answer says what it cost
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

func (m *metrics) series(k kind) *series {
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
func (m *metrics) observe(x *exchange, u openai.Usage, known bool, now time.Time) {
	model := ""
	if x.seen.operation != "" {
		model = m.model(x.service, x.model, now)
	}
	code := x.code
	if x.seen.cut != "" { // what was sent before is no success
		code = http.StatusBadGateway
	}
	s := m.series(kind{x.service, model, x.seen.operation, x.surface.provider(), code, known})
	took := now.Sub(x.seen.begun).Seconds()
	s.requests.Inc()
	s.seconds.Observe(took)
	if x.seen.tries > 1 {
		m.retries.WithLabelValues(x.service).Add(float64(x.seen.tries - 1))
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
	m.genAI.streamed(x, model, u, known, now)
}
