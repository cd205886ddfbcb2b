package modelserver

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strconv"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// This file has the extensions of Triton's that its clients call, as far as they make
// sense here: a model's configuration, and the settings of traces and logs, which can be
// read alone.

// ModelConfig is what Triton's clients read of a model's configuration.
type ModelConfig struct {
	Name         string          `json:"name"`
	Platform     string          `json:"platform"`
	Backend      string          `json:"backend"`
	MaxBatchSize int             `json:"max_batch_size"`
	Input        []TensorConfig  `json:"input"`
	Output       []TensorConfig  `json:"output"`
	Dynamic      *DynamicConfig  `json:"dynamic_batching,omitempty"`
	Ensemble     *EnsembleConfig `json:"ensemble_scheduling,omitempty"`
	Transaction  DecoupledConfig `json:"model_transaction_policy"`
}

// EnsembleConfig is the graph that a model is.
type EnsembleConfig struct {
	Steps []EnsembleStep `json:"step"`
}

// EnsembleStep is one model of a graph.
type EnsembleStep struct {
	Model   string            `json:"model_name"`
	Version int64             `json:"model_version"` // -1: the default one
	Inputs  map[string]string `json:"input_map"`
	Outputs map[string]string `json:"output_map"`
}

// TensorConfig is an input or output. Where requests are batched, Dims are without the
// rows.
type TensorConfig struct {
	Name     string  `json:"name"`
	DataType string  `json:"data_type"` // TYPE_FP32 …
	Dims     []int64 `json:"dims"`
}

// DynamicConfig is how requests are batched.
type DynamicConfig struct {
	PreferredSizes []int32 `json:"preferred_batch_size"`
	DelayMicros    uint64  `json:"max_queue_delay_microseconds"`
}

// DecoupledConfig reports whether a request may have any number of answers.
type DecoupledConfig struct {
	Decoupled bool `json:"decoupled"`
}

// ModelConfig is that of a model; version "" is the default one. The errors are those of
// ModelMetadata.
func (s *service) ModelConfig(name, version string) (ModelConfig, error) {
	i, err := s.registry.acquire(name, version)
	if err != nil {
		return ModelConfig{}, err
	}
	defer i.release()
	m := i.model.Metadata()
	_, streams := i.model.(Streamer)
	out := ModelConfig{Name: name, Platform: m.Platform, Transaction: DecoupledConfig{streams}}
	rows := i.batcher != nil && batched(m.Inputs) && batched(m.Outputs)
	if rows {
		out.MaxBatchSize = i.batcher.config.MaxSize
		out.Dynamic = &DynamicConfig{PreferredSizes: []int32{}, DelayMicros: uint64(i.batcher.config.MaxTime.Microseconds())}
	}
	if e, ok := i.model.(*ensembleModel); ok {
		rows = e.plan.MaxBatchSize > 0
		out.MaxBatchSize, out.Ensemble = e.plan.MaxBatchSize, e.config()
	}
	out.Input, out.Output = tensorConfigs(m.Inputs, rows), tensorConfigs(m.Outputs, rows)
	return out, nil
}

func (e *ensembleModel) config() *EnsembleConfig {
	out := &EnsembleConfig{}
	for _, s := range e.plan.Steps {
		version, err := strconv.ParseInt(s.Version, 10, 64)
		if err != nil {
			version = -1
		}
		out.Steps = append(out.Steps, EnsembleStep{s.Model, version, s.Inputs, s.Outputs})
	}
	return out
}

// batched reports whether all tensors have rows, of any number.
func batched(list []tensor.TensorMetadata) bool {
	return !slices.ContainsFunc(list, func(t tensor.TensorMetadata) bool { return len(t.Shape) < 2 || t.Shape[0] != -1 })
}

func tensorConfigs(list []tensor.TensorMetadata, rows bool) []TensorConfig {
	out := make([]TensorConfig, len(list))
	for i, t := range list {
		dims := t.Shape
		if rows {
			dims = dims[1:]
		}
		kind := t.Datatype.String()
		if t.Datatype == tensor.Bytes {
			kind = "STRING"
		}
		out[i] = TensorConfig{Name: t.Name, DataType: "TYPE_" + kind, Dims: append([]int64{}, dims...)}
	}
	return out
}

// TraceSettings are Triton's: requests are traced as the server was started, by
// OpenTelemetry.
func (s *service) TraceSettings() map[string][]string {
	level := "OFF"
	if s.tracer != nil {
		level = "TIMESTAMPS"
	}
	return map[string][]string{"trace_level": {level}, "trace_mode": {"opentelemetry"}, "trace_rate": {"1"}, "trace_count": {"-1"}, "log_frequency": {"0"}, "trace_file": {""}}
}

// LogSettings are Triton's, as the server logs.
func (s *service) LogSettings() LogSettings {
	return LogSettings{Info: s.log.Enabled(context.Background(), slog.LevelInfo), Warning: true, Error: true, Format: "default", Verbose: verbosity(s.log.Enabled(context.Background(), slog.LevelDebug))}
}

// LogSettings are what is logged, in Triton's words.
type LogSettings struct {
	File    string `json:"log_file"`
	Info    bool   `json:"log_info"`
	Warning bool   `json:"log_warning"`
	Error   bool   `json:"log_error"`
	Verbose uint32 `json:"log_verbose_level"`
	Format  string `json:"log_format"`
}

// ErrSettings refuses to change settings while the server runs.
var ErrSettings = &httpError{http.StatusBadRequest, "these settings can be read only: state them when the server is started"}

func verbosity(debug bool) uint32 {
	if debug {
		return 1
	}
	return 0
}

func (a *api) getStatistics(w http.ResponseWriter, r *http.Request) {
	list, err := a.models.Statistics(r.PathValue(modelName), r.PathValue(modelVersion))
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"model_stats": list})
}

// getAllStatistics is of all models, unless one has the path's name.
func (a *api) getAllStatistics(w http.ResponseWriter, r *http.Request) {
	r.SetPathValue(modelName, "")
	if ready, err := a.models.ModelReady("stats", ""); err == nil && ready {
		r.SetPathValue(modelName, "stats")
		a.getModel(w, r)
		return
	}
	a.getStatistics(w, r)
}

func (a *api) getConfig(w http.ResponseWriter, r *http.Request) {
	c, err := a.models.ModelConfig(r.PathValue(modelName), r.PathValue(modelVersion))
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, c)
}

// getTrace answers also for a model, which has no settings of its own.
func (a *api) getTrace(w http.ResponseWriter, r *http.Request) {
	if name := r.PathValue(modelName); name != "" {
		if _, err := a.models.ModelReady(name, ""); err != nil {
			writeError(w, err)
			return
		}
	}
	out := map[string]any{}
	for name, values := range a.models.TraceSettings() {
		if out[name] = values[0]; name == "trace_level" {
			out[name] = values
		}
	}
	writeJSON(w, http.StatusOK, out)
}

func (a *api) getLogging(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, a.models.LogSettings())
}

func (a *api) refuseSettings(w http.ResponseWriter, _ *http.Request) { writeError(w, ErrSettings) }
