package modelserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// Settings is what model-settings.json says of one version of a model.
type Settings struct {
	Name           string                  `json:"name"`
	Implementation string                  `json:"implementation"`
	Platform       string                  `json:"platform"`
	Versions       []string                `json:"versions"`
	Inputs         []tensor.TensorMetadata `json:"inputs"`
	Outputs        []tensor.TensorMetadata `json:"outputs"`
	Parameters     SettingsParameters      `json:"parameters"`

	// Source is the file the settings were read from; "" if from none.
	Source string `json:"-"`
}

// SettingsParameters are the parameters of Settings.
type SettingsParameters struct {
	// URI is the model's file or folder. A Repository makes local ones
	// absolute.
	URI     string `json:"uri"`
	Version string `json:"version"`
	Format  string `json:"format"`
	// ContentType is the content type of requests that name none.
	ContentType string         `json:"content_type"`
	Extra       map[string]any `json:"extra"`
}

// settingsFields and parameterFields are what is read of model-settings.json,
// each with whether it is a string (from the environment: others are JSON).
var (
	settingsFields = map[string]bool{"name": true, "implementation": true, "platform": true,
		"versions": false, "inputs": false, "outputs": false, "parameters": false}
	parameterFields = map[string]bool{"uri": true, "version": true, "format": true,
		"content_type": true, "extra": false}
	serverFields = map[string]bool{"host": true, "http_port": false, "model_repository_root": true,
		"load_models_at_startup": false, "server_name": true, "server_version": true, "metrics_endpoint": true}
)

// The names of MLServer's files and the prefixes of its variables.
const (
	serverSettingsFile = "settings.json"
	modelSettingsFile  = "model-settings.json"
	serverPrefix       = "MLSERVER_"
	modelPrefix        = "MLSERVER_MODEL_"
)

// Environment holds environment variables by upper-case name, as MLServer
// ignores their case.
type Environment map[string]string

// ReadEnvironment keeps MLServer's variables of environ ("KEY=value").
func ReadEnvironment(environ []string) Environment {
	e := Environment{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if name = strings.ToUpper(name); strings.HasPrefix(name, serverPrefix) {
			e[name] = value
		}
	}
	return e
}

// ReadConfig reads a folder's settings.json, if it is there, over the
// environment, over base. The second result is the folder with the models,
// absolute. Fields without effect are warned of.
func ReadConfig(base Config, folder string, env Environment, log *slog.Logger) (Config, string, error) {
	path := filepath.Join(folder, serverSettingsFile)
	raw, err := readObject(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return base, "", err
	}
	warnUnknown(log, path, raw, serverFields)
	if err := env.overlay(raw, serverPrefix, serverFields); err != nil {
		return base, "", err
	}
	s := struct {
		Host          *string `json:"host"`
		HTTPPort      *int    `json:"http_port"`
		Root          string  `json:"model_repository_root"`
		LoadAtStartup *bool   `json:"load_models_at_startup"`
		ServerName    *string `json:"server_name"`
		ServerVersion *string `json:"server_version"`
		Metrics       *string `json:"metrics_endpoint"`
	}{&base.Host, &base.HTTP.Port, ".", &base.LoadAtStartup, &base.ServerName, &base.ServerVersion, &base.Metrics.Path}
	if err := fill(&s, raw, path); err != nil {
		return base, "", err
	}
	if s.Metrics == nil { // null turns them off
		base.Metrics.Path = ""
	}
	root := s.Root
	if !filepath.IsAbs(root) {
		root = filepath.Join(folder, root)
	}
	root, err = filepath.Abs(root)
	return base, root, err
}

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
// environment. Name and URI default to the folder, to which a URI is relative.
func newSettings(raw map[string]json.RawMessage, folder, path string, env Environment, log *slog.Logger) (Settings, error) {
	s, err := parseSettings(raw, path, env, log)
	if s.Name == "" {
		s.Name = filepath.Base(folder)
	}
	if !hasScheme(s.Parameters.URI) {
		s.Parameters.URI = strings.TrimPrefix(s.Parameters.URI, "file://")
		if !filepath.IsAbs(s.Parameters.URI) {
			s.Parameters.URI = filepath.Join(folder, s.Parameters.URI)
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
	parameters := map[string]json.RawMessage{}
	if p, ok := raw["parameters"]; ok && string(p) != "null" {
		if err := json.Unmarshal(p, &parameters); err != nil {
			return s, fmt.Errorf("%s: parameters: %w", path, err)
		}
		warnUnknown(log, path+": parameters", parameters, parameterFields)
	}
	delete(raw, "parameters")
	if err := env.overlay(parameters, modelPrefix, parameterFields); err != nil {
		return s, err
	}
	if err := fill(&s, raw, path); err != nil {
		return s, err
	}
	return s, fill(&s.Parameters, parameters, path+": parameters")
}

// hasScheme reports whether uri names something that is not a local file.
func hasScheme(uri string) bool {
	return strings.Contains(uri, "://") && !strings.HasPrefix(uri, "file://")
}

// maxSettingsBytes bounds a settings file.
const maxSettingsBytes = 1 << 20

// readObject reads a JSON object from a file. The result is never nil.
func readObject(path string) (map[string]json.RawMessage, error) {
	raw := map[string]json.RawMessage{}
	info, err := os.Stat(path)
	if err != nil {
		return raw, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSettingsBytes {
		return raw, fmt.Errorf("%s: a settings file is a regular file of at most %d bytes", path, maxSettingsBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return raw, err
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		line := 1
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			line += bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n"))
		}
		return map[string]json.RawMessage{}, fmt.Errorf("%s:%d: %w", path, line, err)
	}
	if raw == nil { // the file says null
		raw = map[string]json.RawMessage{}
	}
	return raw, nil
}

// overlay fills the fields that raw lacks from the environment.
func (e Environment) overlay(raw map[string]json.RawMessage, prefix string, fields map[string]bool) error {
	for field, text := range fields {
		value, ok := e[prefix+strings.ToUpper(field)]
		if _, set := raw[field]; set || !ok {
			continue
		}
		switch {
		case text:
			quoted, err := json.Marshal(value)
			if err != nil {
				return err
			}
			raw[field] = quoted
		case !json.Valid([]byte(value)):
			return fmt.Errorf("%s%s=%s: is not JSON", prefix, strings.ToUpper(field), value)
		default:
			raw[field] = json.RawMessage(value)
		}
	}
	return nil
}

// warnUnknown logs the fields that have no effect.
func warnUnknown(log *slog.Logger, path string, raw map[string]json.RawMessage, known map[string]bool) {
	for _, field := range slices.Sorted(maps.Keys(raw)) {
		if _, ok := known[field]; !ok {
			log.Warn("setting has no effect", "file", path, "field", field)
		}
	}
}

// fill unmarshals raw into target.
func fill(target any, raw map[string]json.RawMessage, path string) error {
	text, err := json.Marshal(raw)
	if err == nil {
		err = json.Unmarshal(text, target)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
