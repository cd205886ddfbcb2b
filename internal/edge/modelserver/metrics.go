package modelserver

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// buckets are the upper bounds of the durations counted, in seconds.
var buckets = [...]float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}

// meter counts the requests of one version of a model. It outlives the
// version's instances, so that counters never fall. The metrics are written by
// hand: a collector library would double a small replica's memory.
type meter struct {
	success, failure atomic.Uint64
	nanoseconds      atomic.Uint64 // of successes
	counts           [len(buckets)]atomic.Uint64
}

// observe counts one request.
func (m *meter) observe(took time.Duration, ok bool) {
	if !ok {
		m.failure.Add(1)
		return
	}
	m.success.Add(1)
	m.nanoseconds.Add(uint64(took))
	for i, bound := range buckets {
		if took.Seconds() <= bound {
			m.counts[i].Add(1)
			return
		}
	}
}

// getMetrics writes Prometheus' text format. Labels are the guide's
// (model_name, model_version) and MLServer's own (model, version).
func (s *Server) getMetrics(w http.ResponseWriter, _ *http.Request) {
	type row struct {
		labels string
		meter  *meter
	}
	var rows []row
	s.registry.mu.RLock()
	for _, slots := range s.registry.mu.models {
		for _, slot := range slots {
			name, version := quoteLabel(slot.name), quoteLabel(slot.version)
			rows = append(rows, row{"model_name=" + name + ",model_version=" + version + ",model=" + name + ",version=" + version, slot.meter})
		}
	}
	s.registry.mu.RUnlock()
	var b []byte
	line := func(name, labels string, value string) {
		b = append(append(append(append(append(append(b, name...), '{'), labels...), "} "...), value...), '\n')
	}
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	b = append(b, "# HELP model_infer_request_success_total Inference requests answered.\n# TYPE model_infer_request_success_total counter\n"...)
	for _, r := range rows {
		line("model_infer_request_success_total", r.labels, count(r.meter.success.Load()))
	}
	b = append(b, "# HELP model_infer_request_failure_total Inference requests that failed.\n# TYPE model_infer_request_failure_total counter\n"...)
	for _, r := range rows {
		line("model_infer_request_failure_total", r.labels, count(r.meter.failure.Load()))
	}
	b = append(b, "# HELP model_infer_request_duration Seconds of inference requests answered.\n# TYPE model_infer_request_duration histogram\n"...)
	for _, r := range rows {
		var sum uint64
		for i, bound := range buckets {
			sum += r.meter.counts[i].Load()
			line("model_infer_request_duration_bucket", r.labels+`,le="`+strconv.FormatFloat(bound, 'g', -1, 64)+`"`, count(sum))
		}
		total := max(sum, r.meter.success.Load())
		line("model_infer_request_duration_bucket", r.labels+`,le="+Inf"`, count(total))
		line("model_infer_request_duration_sum", r.labels, strconv.FormatFloat(float64(r.meter.nanoseconds.Load())/1e9, 'g', -1, 64))
		line("model_infer_request_duration_count", r.labels, count(total))
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(b) // a scraper that left needs no answer
}

// quoteLabel quotes a label's value.
func quoteLabel(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		switch c := s[i]; c {
		case '\\', '"':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}
