package modelserver

import (
	"strconv"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/modelserver/metrics"
)

// appName is MLServer's label of its REST metrics.
const appName = "mlserver"

// modelLabels are the guide's labels of a model's metrics and, with them,
// those that MLServer uses.
var modelLabels = []string{"model_name", "model_version", "model", "version"}

// loadLabels are the labels of the metrics that MLServer labels as the guide has
// it, and of those that are ours.
var loadLabels = modelLabels[:2]

// modelMeters counts inference requests by model and version.
type modelMeters struct{ success, failure, duration, queue, waiting, running *metrics.Family }

func newModelMeters(r *metrics.Registry) (m modelMeters, err error) {
	return m, registerAll(r,
		registration{&m.success, metrics.Desc{Name: "model_infer_request_success_total", Help: "Inference requests answered.", Kind: metrics.Counter, Labels: modelLabels}},
		registration{&m.failure, metrics.Desc{Name: "model_infer_request_failure_total", Help: "Inference requests that failed.", Kind: metrics.Counter, Labels: modelLabels}},
		registration{&m.duration, metrics.Desc{Name: "model_infer_request_duration", Help: "Seconds of inference requests answered.", Kind: metrics.Histogram, Labels: modelLabels}},
		registration{&m.queue, metrics.Desc{Name: "batch_request_queue", Help: "How many requests waited to be batched when another came.", Kind: metrics.Histogram, Labels: loadLabels}},
		registration{&m.waiting, metrics.Desc{Name: "roundhouse_requests_waiting", Help: "Inference requests that wait to be batched.", Kind: metrics.Gauge, Labels: loadLabels}},
		registration{&m.running, metrics.Desc{Name: "roundhouse_requests_running", Help: "Inference requests, of all protocols, that their models work on.", Kind: metrics.Gauge, Labels: loadLabels}})
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
type meter struct {
	success, failure, duration, running *metrics.Series
	stats                               *statistics
}

func (m modelMeters) of(name, version string) meter {
	values := []string{name, version, name, version}
	return meter{m.success.With(values...), m.failure.With(values...), m.duration.With(values...), m.running.With(name, version), &statistics{}}
}

// queueMeter measures the requests of a version that wait to be batched. Those
// are not running.
type queueMeter struct{ found, waiting, running *metrics.Series }

func (m modelMeters) queueOf(name, version string) queueMeter {
	return queueMeter{m.queue.With(name, version), m.waiting.With(name, version), m.running.With(name, version)}
}

// arrived counts a request that finds so many waiting.
func (m *queueMeter) arrived(waiting int) { m.found.Observe(float64(waiting)) }

// changed notes that n more requests wait, or fewer.
func (m *queueMeter) changed(n int) {
	m.waiting.Add(int64(n))
	m.running.Add(int64(-n))
}

// begin counts a request that begins.
func (m *meter) begin() { m.running.Add(1) }

// left counts a request whose outcome only the model knows.
func (m *meter) left() { m.running.Add(-1) }

// end counts one that has ended.
func (m *meter) end(took time.Duration, ok bool) {
	m.running.Add(-1)
	m.stats.ended(time.Now(), took, ok)
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
