package modelserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// Logging is how the server logs.
type Logging struct {
	Level slog.Level
	JSON  bool
	// Python is what the workers configure Python's logging with: the path of a
	// file, or JSON; "" for nothing.
	Python string
}

// Logging combines debug, use_structured_logging and logging_settings; the last
// overrides the others, as in MLServer. Of logging_settings the
// server's own log takes the level of the logger mlserver, else of the root, and
// whether its records are JSON; the rest is for Python. Settings that cannot be
// read are logged and ignored, as in MLServer.
func (s ServerSettings) Logging(log *slog.Logger) Logging {
	l := Logging{JSON: s.UseStructuredLogging}
	if s.Debug {
		l.Level = slog.LevelDebug
	}
	given := bytes.TrimSpace(s.LoggingSettings)
	if len(given) == 0 || string(given) == "null" {
		return l
	}
	config, python, err := readLogging(given)
	if err != nil {
		log.Warn("logging_settings cannot be read and changes nothing", "error", err)
		return l
	}
	l.Python = python
	config.apply(&l)
	return l
}

// readLogging reads the value of logging_settings: a path as JSON, or a
// dictionary.
func readLogging(given json.RawMessage) (config *loggingConfig, python string, err error) {
	var path string
	if json.Unmarshal(given, &path) != nil {
		config = &loggingConfig{}
		return config, string(given), json.Unmarshal(given, config)
	}
	text, err := readSettingsFile(path)
	if err != nil {
		return nil, "", err
	}
	config = &loggingConfig{}
	if strings.Contains(filepath.Ext(path), "json") {
		err = json.Unmarshal(text, config)
	} else {
		err = config.readINI(text)
	}
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	return config, path, nil
}

// loggingConfig is what is read of a dictionary for Python's
// logging.config.dictConfig.
type loggingConfig struct {
	Root       loggerConfig               `json:"root"`
	Loggers    map[string]loggerConfig    `json:"loggers"`
	Handlers   map[string]handlerConfig   `json:"handlers"`
	Formatters map[string]formatterConfig `json:"formatters"`
}

type loggerConfig struct {
	Level    any      `json:"level"` // a name or a number
	Handlers []string `json:"handlers"`
}

type handlerConfig struct {
	Formatter string `json:"formatter"`
}

type formatterConfig struct {
	Format  string `json:"format"`
	Class   string `json:"class"`
	Factory any    `json:"()"`
}

// json reports whether records become JSON: by their format, or by the name
// of a formatter.
func (f formatterConfig) json() bool {
	return strings.HasPrefix(strings.TrimSpace(f.Format), "{") || strings.Contains(strings.ToLower(fmt.Sprint(f.Class, f.Factory)), "json")
}

// apply sets in l what the configuration has.
func (c *loggingConfig) apply(l *Logging) {
	own := c.Loggers["mlserver"]
	if level, ok := pythonLevel(own.Level); ok {
		l.Level = level
	} else if level, ok := pythonLevel(c.Root.Level); ok {
		l.Level = level
	}
	handlers := own.Handlers
	if len(handlers) == 0 {
		handlers = c.Root.Handlers
	}
	for _, name := range handlers {
		if f, ok := c.Formatters[c.Handlers[name].Formatter]; ok {
			l.JSON = f.json()
		}
	}
}

// pythonLevel is a level of Python's logging; false for none.
func pythonLevel(level any) (slog.Level, bool) {
	names := map[string]slog.Level{"CRITICAL": slog.LevelError + 4, "FATAL": slog.LevelError + 4, "ERROR": slog.LevelError,
		"WARNING": slog.LevelWarn, "WARN": slog.LevelWarn, "INFO": slog.LevelInfo, "DEBUG": slog.LevelDebug}
	switch level := level.(type) {
	case string:
		l, ok := names[strings.ToUpper(strings.TrimSpace(level))]
		return l, ok
	case float64:
		// 10, 20, 30, 40 are -4, 0, 4, 8 here; 0 is no level.
		return slog.Level((level - 20) * 0.4), level > 0 && level <= 100
	}
	return 0, false
}

// readINI reads a file for Python's logging.config.fileConfig.
func (c *loggingConfig) readINI(text []byte) error {
	sections, err := readSections(text)
	if err != nil {
		return err
	}
	if sections["loggers"] == nil {
		return errors.New("there is no section [loggers]; expected a file for Python's logging.config.fileConfig, or .json")
	}
	c.Loggers, c.Handlers, c.Formatters = map[string]loggerConfig{}, map[string]handlerConfig{}, map[string]formatterConfig{}
	for name, fields := range sections {
		kind, key, _ := strings.Cut(name, "_")
		switch kind {
		case "logger":
			l := loggerConfig{Level: fields["level"]}
			for handler := range strings.SplitSeq(fields["handlers"], ",") {
				if handler = strings.TrimSpace(handler); handler != "" {
					l.Handlers = append(l.Handlers, handler)
				}
			}
			if key == "root" {
				c.Root = l
			} else {
				c.Loggers[fields["qualname"]] = l
			}
		case "handler":
			c.Handlers[key] = handlerConfig{fields["formatter"]}
		case "formatter":
			c.Formatters[key] = formatterConfig{Format: fields["format"], Class: fields["class"]}
		}
	}
	return nil
}

// readSections reads an INI file: its sections, their keys in lower case.
func readSections(text []byte) (map[string]map[string]string, error) {
	sections := map[string]map[string]string{}
	var section map[string]string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxSettingsBytes)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '[' && line[len(line)-1] == ']':
			section = map[string]string{}
			sections[line[1:len(line)-1]] = section
		case lines.Text()[0] == ' ' || lines.Text()[0] == '\t': // the value before goes on
		default:
			at := strings.IndexAny(line, "=:")
			if at < 0 || section == nil {
				return nil, fmt.Errorf("line %d: expected [section] or key=value", number)
			}
			section[strings.ToLower(strings.TrimSpace(line[:at]))] = strings.TrimSpace(line[at+1:])
		}
	}
	return sections, lines.Err()
}

// resolveLogging makes the path of logging_settings absolute: below the folder
// of the settings, or where there is none below the working directory, as in
// MLServer.
func (s *ServerSettings) resolveLogging(folder string) error {
	var path string
	if json.Unmarshal(s.LoggingSettings, &path) != nil || path == "" || filepath.IsAbs(path) {
		return nil
	}
	below := filepath.Join(folder, path)
	if _, err := os.Stat(below); err == nil {
		path = below
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	s.LoggingSettings, err = json.Marshal(path)
	return err
}
