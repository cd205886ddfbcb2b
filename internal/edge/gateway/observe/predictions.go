package observe

import (
	"github.com/prometheus/client_golang/prometheus"

	"roundhouse.dev/roundhouse/internal/decide/latency"
	"roundhouse.dev/roundhouse/internal/state/dispatch"
)

// latencyDescs describe how well predictions of latency hold.
type latencyDescs struct{ answers, err, calibration *prometheus.Desc }

func newLatencyDescs(desc func(name, help string, labels ...string) *prometheus.Desc) latencyDescs {
	return latencyDescs{
		answers:     desc("latency_predictions_total", "Streamed answers whose time to the first token (ttft), or per further token (tpot), had been predicted.", "quantity"),
		err:         desc("latency_prediction_error_ratio", "Mean of how far the predicted medians were off, by what the last 500 answers took.", "quantity"),
		calibration: desc("latency_calibration_error_ratio", "How far the share of the last 500 answers that took no longer than their predicted 90th percentile is from 0.9.", "quantity"),
	}
}

func (d *latencyDescs) each(f func(*prometheus.Desc)) {
	for _, x := range []*prometheus.Desc{d.answers, d.err, d.calibration} {
		f(x)
	}
}

// collect reports on the predictions of a service or pool; nothing before there are some.
func (d *latencyDescs) collect(c chan<- prometheus.Metric, service string, l dispatch.Latency) {
	for what, a := range map[string]latency.Accuracy{"ttft": l.First, "tpot": l.Each} {
		if a.Answers == 0 {
			continue
		}
		c <- prometheus.MustNewConstMetric(d.answers, prometheus.CounterValue, float64(a.Answers), service, what)
		c <- prometheus.MustNewConstMetric(d.err, prometheus.GaugeValue, a.Error, service, what)
		c <- prometheus.MustNewConstMetric(d.calibration, prometheus.GaugeValue, a.Miscalibration(), service, what)
	}
}

// Predictions are the metrics of predicted latency alone, for a process that picks
// endpoints and forwards nothing.
type Predictions struct {
	dispatch *dispatch.Dispatcher
	descs    latencyDescs
}

// NewPredictions makes the metrics; their names begin with prefix.
func NewPredictions(prefix string, d *dispatch.Dispatcher) *Predictions {
	return &Predictions{dispatch: d, descs: newLatencyDescs(newDesc(prefix))}
}

// Describe implements prometheus.Collector.
func (p *Predictions) Describe(c chan<- *prometheus.Desc) {
	p.descs.each(func(d *prometheus.Desc) { c <- d })
}

// Collect implements prometheus.Collector.
func (p *Predictions) Collect(c chan<- prometheus.Metric) {
	for _, s := range p.dispatch.Pools() {
		p.descs.collect(c, ServiceName(s.Pool), s.Latency)
	}
}

// newDesc describes metrics of services and pools.
func newDesc(prefix string) func(name, help string, labels ...string) *prometheus.Desc {
	return func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, append([]string{"service"}, labels...), nil)
	}
}
