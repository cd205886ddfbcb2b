package modelserver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
	"roundhouse.dev/roundhouse/internal/decide/ensemble"
)

const modelSettingsFile = "model-settings.json"

// Settings are those of one version of a model, from model-settings.json.
type Settings struct {
	Name           string                  `json:"name"`
	Implementation string                  `json:"implementation"`
	Platform       string                  `json:"platform"`
	Versions       []string                `json:"versions"`
	Inputs         []tensor.TensorMetadata `json:"inputs"`
	Outputs        []tensor.TensorMetadata `json:"outputs"`
	MaxBatchSize   int                     `json:"max_batch_size"` // requests
	MaxBatchTime   float64                 `json:"max_batch_time"` // seconds
	MaxBatchRows   int                     `json:"max_batch_rows"` // ours; 0: no bound
	CacheEnabled   bool                    `json:"cache_enabled"`
	// ParallelWorkers is in how many of the Python workers the model is loaded,
	// ours; 0: in all.
	ParallelWorkers int `json:"parallel_workers"`
	// InferenceTimeout is how many seconds the model may take for one answer
	// where a worker runs it, ours; 0: as in the server's settings.
	InferenceTimeout float64            `json:"inference_timeout"`
	Parameters       SettingsParameters `json:"parameters"`

	// Ensemble is the graph that the model is; nil where it is none.
	Ensemble *ensemble.Config `json:"-"`
	// Source is the file the settings were read from; "" if from none.
	Source string `json:"-"`
	// Raw is the JSON of the settings, the file's over the environment's, with
	// the fields that are not known here; nil if they were not read.
	Raw json.RawMessage `json:"-"`
}

// SettingsParameters are the parameters of Settings.
type SettingsParameters struct {
	// URI is the model's file or folder. A Repository makes local ones
	// absolute.
	URI     string `json:"uri"`
	Version string `json:"version"`
	Format  string `json:"format"`
	// ContentType is the content type of requests that name none.
	ContentType string `json:"content_type"`
	// EnvironmentPath and EnvironmentTarball are the Python environment to
	// load the model in; a Repository makes them absolute.
	EnvironmentPath              string         `json:"environment_path"`
	EnvironmentTarball           string         `json:"environment_tarball"`
	InferencePoolGID             string         `json:"inference_pool_gid"`
	AutogenerateInferencePoolGID bool           `json:"autogenerate_inference_pool_gid"`
	Extra                        map[string]any `json:"extra"`
}

// What is read of model-settings.json. Other parameters are left to the
// model's implementation.
var (
	settingsFields = map[string]kind{"name": kindText, "implementation": kindText, "platform": kindText, "versions": kindJSON, "inputs": kindJSON, "outputs": kindJSON,
		"max_batch_size": kindNumber, "max_batch_time": kindNumber, "max_batch_rows": kindNumber, "cache_enabled": kindBoolean, "parameters": kindJSON,
		"parallel_workers": kindNumber, "inference_timeout": kindNumber, "warm_workers": kindBoolean}
	parameterFields = map[string]kind{"uri": kindText, "version": kindText, "format": kindText, "content_type": kindText, "environment_path": kindText,
		"environment_tarball": kindText, "inference_pool_gid": kindText, "autogenerate_inference_pool_gid": kindBoolean, "extra": kindJSON}
	// modelIneffective are the fields that are read and change nothing.
	modelIneffective = []string{"warm_workers"}
)

// readModelSettings reads a model-settings.json over the environment.
func readModelSettings(path string, env Environment, log *slog.Logger) (Settings, error) {
	folder := filepath.Dir(path)
	raw, err := readObject(path)
	if err != nil {
		s := Settings{Name: filepath.Base(folder), Source: path}
		return s, err
	}
	warnUnknown(log, path, raw, settingsFields)
	s, err := newSettings(raw, folder, path, env, log)
	s.Source = path
	return s, err
}

// newSettings makes settings of the fields of a file, or of none, over the
// environment. Name and URI default to the folder, to which paths are relative.
func newSettings(raw map[string]json.RawMessage, folder, path string, env Environment, log *slog.Logger) (Settings, error) {
	s, err := parseSettings(raw, path, env, log)
	if s.Name == "" {
		s.Name = filepath.Base(folder)
	}
	p := &s.Parameters
	if !hasScheme(p.URI) {
		p.URI = strings.TrimPrefix(p.URI, "file://")
		if !filepath.IsAbs(p.URI) {
			p.URI = filepath.Join(folder, p.URI)
		}
	}
	for _, file := range []*string{&p.EnvironmentPath, &p.EnvironmentTarball} {
		if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(folder, *file)
		}
	}
	return s, err
}

// parseSettings reads the fields of settings and of their parameters.
func parseSettings(raw map[string]json.RawMessage, path string, env Environment, log *slog.Logger) (Settings, error) {
	var s Settings
	if err := env.overlay(raw, modelPrefix, settingsFields); err != nil {
		return s, err
	}
	warnIneffective(log, path, raw, modelIneffective)
	parameters := map[string]json.RawMessage{}
	if p, ok := raw["parameters"]; ok && string(p) != "null" {
		if err := json.Unmarshal(p, &parameters); err != nil {
			return s, fmt.Errorf("%s: parameters: %w", path, err)
		}
	}
	delete(raw, "parameters")
	if err := env.overlay(parameters, modelPrefix, parameterFields); err != nil {
		return s, err
	}
	if err := fill(&s, raw, path); err != nil {
		return s, err
	}
	if err := fill(&s.Parameters, parameters, path+": parameters"); err != nil {
		return s, err
	}
	nested, err := json.Marshal(parameters)
	if err != nil {
		return s, fmt.Errorf("%s: %w", path, err)
	}
	raw["parameters"] = nested
	s.Raw, err = json.Marshal(raw)
	return s, err
}

// hasScheme reports whether uri names something that is not a local file.
func hasScheme(uri string) bool {
	return strings.Contains(uri, "://") && !strings.HasPrefix(uri, "file://")
}
