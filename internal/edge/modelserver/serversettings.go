package modelserver

import (
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
)

const serverSettingsFile = "settings.json"

// ServerSettings are those of settings.json, every field of MLServer's. Fields without
// effect here are logged when they are read.
type ServerSettings struct {
	GeneralSettings
	NetworkSettings
	MetricsSettings
	WorkerSettings
	PeerSettings
}

// GeneralSettings are what the server is and which models it has.
type GeneralSettings struct {
	Debug                bool            `json:"debug"` // log more
	ServerName           string          `json:"server_name"`
	ServerVersion        string          `json:"server_version"`
	Extensions           []string        `json:"extensions"`
	ModelRepositoryRoot  string          `json:"model_repository_root"` // absolute, once read
	LoadModelsAtStartup  bool            `json:"load_models_at_startup"`
	RepositoryClass      string          `json:"model_repository_implementation"`
	RepositoryClassArgs  json.RawMessage `json:"model_repository_implementation_args"`
	UseStructuredLogging bool            `json:"use_structured_logging"` // log JSON
	LoggingSettings      json.RawMessage `json:"logging_settings"`       // for Python's logging: a file's path, absolute once read, or a dictionary
	CacheEnabled         bool            `json:"cache_enabled"`
	CacheSize            int             `json:"cache_size"`
}

// NetworkSettings are how the server is reached. The TLS files are ours, and
// absolute once read.
type NetworkSettings struct {
	Host                 string `json:"host"`
	HTTPPort             int    `json:"http_port"`
	RootPath             string `json:"root_path"`
	GRPCPort             int    `json:"grpc_port"`
	GRPCMaxMessageLength *int   `json:"grpc_max_message_length"` // bytes; nil: the default; -1: no bound
	CORS                 *CORS  `json:"cors_settings"`
	GzipEnabled          bool   `json:"gzip_enabled"`
	TLSCertFile          string `json:"tls_cert_file"`
	TLSKeyFile           string `json:"tls_key_file"`
}

// MetricsSettings are where metrics are.
type MetricsSettings struct {
	MetricsEndpoint         *string `json:"metrics_endpoint"` // nil: nowhere
	MetricsPort             *int    `json:"metrics_port"`     // nil or http_port: beside the HTTP interface
	MetricsRESTServerPrefix string  `json:"metrics_rest_server_prefix"`
	// MetricsDir is where Python's prometheus_client keeps the metrics that
	// models' code makes with it; absolute once read; "": in memory.
	MetricsDir string `json:"metrics_dir"`
}

// WorkerSettings are those of the processes that run Python.
type WorkerSettings struct {
	ParallelWorkers        int    `json:"parallel_workers"`
	ParallelWorkersTimeout int    `json:"parallel_workers_timeout"` // seconds that workers have to end
	EnvironmentsDir        string `json:"environments_dir"`
	// InferenceTimeout is how many seconds a model in a worker may take for one
	// answer, ours; 0: the default.
	InferenceTimeout float64 `json:"inference_timeout"`
	// ForkWorkers has workers share what they have imported, ours.
	ForkWorkers bool `json:"fork_workers"`
}

// PeerSettings are the other services the server speaks to.
type PeerSettings struct {
	KafkaEnabled     bool    `json:"kafka_enabled"`
	KafkaServers     string  `json:"kafka_servers"`
	KafkaTopicInput  string  `json:"kafka_topic_input"`
	KafkaTopicOutput string  `json:"kafka_topic_output"`
	KafkaGroup       string  `json:"kafka_group"`             // ours; "": the server's name
	KafkaOffsetReset string  `json:"kafka_auto_offset_reset"` // ours: latest or earliest
	TracingServer    *string `json:"tracing_server"`          // an OTLP collector; nil: none
}

var (
	serverFields = map[string]kind{
		"debug": kindBoolean, "server_name": kindText, "server_version": kindText, "extensions": kindJSON, "model_repository_root": kindText,
		"load_models_at_startup": kindBoolean, "model_repository_implementation": kindText, "model_repository_implementation_args": kindJSON,
		"use_structured_logging": kindBoolean, "logging_settings": kindEither, "cache_enabled": kindBoolean, "cache_size": kindNumber,
		"host": kindText, "http_port": kindNumber, "root_path": kindText, "grpc_port": kindNumber, "grpc_max_message_length": kindNumber,
		"cors_settings": kindJSON, "gzip_enabled": kindBoolean, "tls_cert_file": kindText, "tls_key_file": kindText,
		"metrics_endpoint": kindText, "metrics_port": kindNumber, "metrics_rest_server_prefix": kindText, "metrics_dir": kindText,
		"parallel_workers": kindNumber, "parallel_workers_timeout": kindNumber, "environments_dir": kindText, "inference_timeout": kindNumber, "fork_workers": kindBoolean,
		"kafka_enabled": kindBoolean, "kafka_servers": kindText, "kafka_topic_input": kindText, "kafka_topic_output": kindText, "kafka_group": kindText, "kafka_auto_offset_reset": kindText, "tracing_server": kindText,
	}
	corsFields = map[string]kind{"allow_origins": kindJSON, "allow_origin_regex": kindText, "allow_credentials": kindBoolean,
		"allow_methods": kindJSON, "allow_headers": kindJSON, "expose_headers": kindJSON, "max_age": kindNumber}
	// serverIneffective are the fields that are read and change nothing.
	serverIneffective = []string{"model_repository_implementation", "model_repository_implementation_args"}
)

// defaultServerSettings are MLServer's, but on loopback.
func defaultServerSettings() ServerSettings {
	c := DefaultConfig()
	s := ServerSettings{}
	s.ServerName, s.ModelRepositoryRoot, s.LoadModelsAtStartup, s.CacheSize = c.ServerName, ".", c.LoadAtStartup, cacheSize
	s.Host, s.HTTPPort, s.GRPCPort, s.GzipEnabled = c.Host, c.HTTP.Port, c.GRPC.Port, c.HTTP.Gzip
	s.MetricsEndpoint, s.MetricsPort, s.MetricsRESTServerPrefix = &c.Metrics.Path, &c.Metrics.Port, c.Metrics.RESTPrefix
	s.WorkerSettings = WorkerSettings{ParallelWorkers: 1, ParallelWorkersTimeout: 5, EnvironmentsDir: ".envs", ForkWorkers: true}
	s.PeerSettings = PeerSettings{KafkaServers: "localhost:9092", KafkaTopicInput: "mlserver-input", KafkaTopicOutput: "mlserver-output", KafkaOffsetReset: "latest"}
	return s
}

// ReadServerSettings reads a folder's settings.json, if it is there, over the
// environment, over the defaults. Fields that are unknown or have no effect
// are warned of.
func ReadServerSettings(folder string, env Environment, log *slog.Logger) (ServerSettings, error) {
	s := defaultServerSettings()
	path := filepath.Join(folder, serverSettingsFile)
	raw, err := readObject(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	warnUnknown(log, path, raw, serverFields)
	if err := env.overlay(raw, serverPrefix, serverFields); err != nil {
		return s, err
	}
	warnIneffective(log, path, raw, serverIneffective)
	if err := readCORS(raw, path, env, log); err != nil {
		return s, err
	}
	if err := fill(&s, raw, path); err != nil {
		return s, err
	}
	for _, file := range []*string{&s.ModelRepositoryRoot, &s.TLSCertFile, &s.TLSKeyFile, &s.MetricsDir} {
		if *file != "" && !filepath.IsAbs(*file) {
			if *file, err = filepath.Abs(filepath.Join(folder, *file)); err != nil {
				return s, err
			}
		}
	}
	return s, s.resolveLogging(folder)
}

// Server applies the server's variables to c, for a server without a folder of
// settings.
func (e Environment) Server(c *Config) error {
	s, raw := defaultServerSettings(), map[string]json.RawMessage{}
	if err := e.overlay(raw, serverPrefix, serverFields); err != nil {
		return err
	}
	if err := fill(&s, raw, "environment"); err != nil {
		return err
	}
	*c = s.Config(*c)
	return nil
}

// readCORS puts the environment and the defaults under the CORS settings.
func readCORS(raw map[string]json.RawMessage, path string, env Environment, log *slog.Logger) error {
	given, ok := raw["cors_settings"]
	if !ok || string(given) == "null" {
		return nil
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(given, &fields); err != nil {
		return &settingError{path, "cors_settings", err}
	}
	warnUnknown(log, path+": cors_settings", fields, corsFields)
	if err := env.overlay(fields, serverPrefix, corsFields); err != nil {
		return err
	}
	for field, standard := range map[string]string{"allow_methods": `["GET"]`, "max_age": "600"} {
		if v, set := fields[field]; !set || string(v) == "null" {
			fields[field] = json.RawMessage(standard)
		}
	}
	filled, err := json.Marshal(fields)
	raw["cors_settings"] = filled
	return err
}

// settingError is a field that cannot be read.
type settingError struct {
	path, field string
	err         error
}

func (e *settingError) Error() string { return e.path + ": " + e.field + ": " + e.err.Error() }
func (e *settingError) Unwrap() error { return e.err }

// Config is base with the settings applied.
func (s ServerSettings) Config(base Config) Config {
	base.ServerName, base.ServerVersion, base.Extensions = s.ServerName, s.ServerVersion, s.Extensions
	base.Host, base.LoadAtStartup = s.Host, s.LoadModelsAtStartup
	base.HTTP = HTTPConfig{Port: s.HTTPPort, RootPath: s.RootPath, Gzip: s.GzipEnabled, CORS: s.CORS}
	base.GRPC.Port = s.GRPCPort
	if n := s.GRPCMaxMessageLength; n != nil {
		base.GRPC.MaxMessageBytes = *n
		if *n == -1 {
			base.GRPC.MaxMessageBytes = math.MaxInt32
		}
	}
	if s.CacheEnabled {
		base.Cache.Entries = s.CacheSize
	}
	base.TLS = TLSConfig{CertFile: s.TLSCertFile, KeyFile: s.TLSKeyFile}
	base.Metrics.Path = ""
	if s.MetricsEndpoint != nil {
		base.Metrics.Path = *s.MetricsEndpoint
	}
	base.Metrics.Port, base.Metrics.RESTPrefix = NoPort, s.MetricsRESTServerPrefix
	if n := s.MetricsPort; n != nil && (*n != s.HTTPPort || *n == 0) {
		base.Metrics.Port = *n
	}
	return base
}

// warnUnknown logs unknown fields.
func warnUnknown(log *slog.Logger, path string, raw map[string]json.RawMessage, known map[string]kind) {
	for _, field := range slices.Sorted(maps.Keys(raw)) {
		if _, ok := known[field]; !ok {
			log.Warn("setting is not known", "file", path, "field", field)
		}
	}
}

// warnIneffective logs the fields that are set, but change nothing here.
func warnIneffective(log *slog.Logger, path string, raw map[string]json.RawMessage, ineffective []string) {
	for _, field := range ineffective {
		switch v := strings.TrimSpace(string(raw[field])); v {
		case "", "null", "false", `""`, "0", "0.0":
		default:
			log.Warn("setting has no effect", "file", path, "field", field)
		}
	}
}
