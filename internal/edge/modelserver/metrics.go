package modelserver

import (
	"strconv"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// appName is MLServer's label of its REST metrics.
const appName = "mlserver"

// modelLabels are the guide's labels of a model's metrics and, beside them,
// those that MLServer uses.
var modelLabels = []string{"model_name", "model_version", "model", "version"}

// modelMeters counts inference requests by model and version.
type modelMeters struct{ success, failure, duration, queue *metrics.Family }

func newModelMeters(r *metrics.Registry) (m modelMeters, err error) {
	return m, registerAll(r,
		registration{&m.success, metrics.Desc{Name: "model_infer_request_success_total", Help: "Inference requests answered.", Kind: metrics.Counter, Labels: modelLabels}},
		registration{&m.failure, metrics.Desc{Name: "model_infer_request_failure_total", Help: "Inference requests that failed.", Kind: metrics.Counter, Labels: modelLabels}},
		registration{&m.duration, metrics.Desc{Name: "model_infer_request_duration", Help: "Seconds of inference requests answered.", Kind: metrics.Histogram, Labels: modelLabels}},
		registration{&m.queue, metrics.Desc{Name: "batch_request_queue", Help: "Requests that wait to be batched.", Kind: metrics.Gauge, Labels: modelLabels}})
}

// registration is a family to be and where to put it.
type registration struct {
	family **metrics.Family
	desc   metrics.Desc
}

func registerAll(r *metrics.Registry, list ...registration) (err error) {
	for _, item := range list {
		if *item.family, err = r.Register(item.desc); err != nil {
			return err
		}
	}
	return nil
}

// meter is modelMeters of one version of a model. It outlives the version's
// instances, so that counters never fall.
type meter struct{ success, failure, duration *metrics.Series }

func (m modelMeters) of(name, version string) meter {
	values := []string{name, version, name, version}
	return meter{m.success.With(values...), m.failure.With(values...), m.duration.With(values...)}
}

// waiting counts the requests of a version that wait to be batched.
func (m modelMeters) waiting(name, version string) *metrics.Series {
	return m.queue.With(name, version, name, version)
}

// observe counts one request.
func (m *meter) observe(took time.Duration, ok bool) {
	if !ok {
		m.failure.Add(1)
		return
	}
	m.success.Add(1)
	m.duration.Observe(took.Seconds())
}

// restMeters counts HTTP requests, by the pattern of their paths.
type restMeters struct {
	requests, duration, inProgress *metrics.Family

	known sync.Map // restKey → restSeries: one look-up a request in place of two
}

// restKey is what the series of requests differ in. All three come from small
// sets.
type restKey struct {
	method, path string
	status       int
}

type restSeries struct{ requests, duration *metrics.Series }

func newRESTMeters(r *metrics.Registry, prefix string) (*restMeters, error) {
	labels := []string{"app_name", "method", "path", "status_code"}
	m := &restMeters{}
	return m, registerAll(r,
		registration{&m.requests, metrics.Desc{Name: prefix + "_requests_total", Help: "REST requests.", Kind: metrics.Counter, Labels: labels}},
		registration{&m.duration, metrics.Desc{Name: prefix + "_request_duration_seconds", Aliases: []string{prefix + "_requests_duration_seconds"},
			Help: "Seconds of REST requests.", Kind: metrics.Histogram, Labels: labels}},
		registration{&m.inProgress, metrics.Desc{Name: prefix + "_requests_in_progress", Help: "REST requests under way.", Kind: metrics.Gauge, Labels: []string{"app_name", "method"}}})
}

// observe counts one request; pattern is the one that matched its path.
func (m *restMeters) observe(method, pattern string, status int, took time.Duration) {
	key := restKey{method, pattern, status}
	found, ok := m.known.Load(key)
	if !ok {
		values := []string{appName, method, template(pattern), strconv.Itoa(status)}
		found, _ = m.known.LoadOrStore(key, restSeries{m.requests.With(values...), m.duration.With(values...)})
	}
	series := found.(restSeries)
	series.requests.Add(1)
	series.duration.Observe(took.Seconds())
}
