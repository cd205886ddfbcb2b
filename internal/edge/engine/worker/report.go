package worker

import (
	"context"
	"encoding/json"
	"log/slog"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
)

// Metrics receives what models' code measures with mlserver.register and
// mlserver.log. Model and version are empty where nobody knows whose it is.
// Its methods are called by several goroutines at once and must not wait.
type Metrics interface {
	// Register names a metric before its first value.
	Register(model, version, name, description string)
	// Observe takes one value of a metric, registered or not.
	Observe(model, version, name string, value float64)
}

// report passes on what workers push.
type report struct {
	to        Metrics
	collected *collected
}

// maxName bounds the name of a metric, in bytes.
const maxName = 256

// metrics passes on a metrics message. What is malformed in it is left out.
func (r report) metrics(p *placement, m *message) {
	if r.to == nil {
		return
	}
	var model, version string
	if p != nil {
		model, version = p.model.settings.Name, p.model.settings.Version
	}
	for _, metric := range m.Registered {
		if metric.Name != "" && len(metric.Name) <= maxName {
			r.to.Register(model, version, metric.Name, excerpt.Of(metric.Description, maxMessage))
		}
	}
	for _, o := range m.Observations {
		var name string
		var value float64
		if len(o) == 2 && json.Unmarshal(o[0], &name) == nil && json.Unmarshal(o[1], &value) == nil && name != "" && len(name) <= maxName {
			r.to.Observe(model, version, name, value)
		}
	}
}

var levels = map[string]slog.Level{"DEBUG": slog.LevelDebug, "INFO": slog.LevelInfo, "WARNING": slog.LevelWarn,
	"ERROR": slog.LevelError, "CRITICAL": slog.LevelError + 4}

// record logs a record of a model's code.
func (r report) record(log *slog.Logger, p *placement, record *wireRecord) {
	attrs := []slog.Attr{slog.String("logger", excerpt.Of(record.Logger, maxName))}
	if p != nil {
		attrs = append(attrs, slog.String("model", p.model.settings.Name))
	}
	if record.Traceback != "" {
		attrs = append(attrs, slog.String("traceback", excerpt.Of(record.Traceback, maxTraceback)))
	}
	log.LogAttrs(context.Background(), levels[record.Level], excerpt.Of(record.Message, maxMessage), attrs...)
}
