package modelserver

import (
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogging reads logging settings in every form that MLServer takes.
func TestLogging(t *testing.T) {
	const dictionary = `{"version":1,"formatters":{"j":{"()":"pythonjsonlogger.json.JsonFormatter"}},"handlers":{"h":{"class":"logging.StreamHandler","formatter":"j"}},` +
		`"loggers":{"mlserver":{"level":"WARNING","handlers":["h"]}},"root":{"level":"ERROR"}}`
	const ini = "# comment\n[loggers]\nkeys=root,ml\n[handlers]\nkeys=h\n[formatters]\nkeys=f\n[logger_root]\nlevel=ERROR\nhandlers=h\n[logger_ml]\nlevel = DEBUG\nhandlers=h\nqualname=mlserver\n" +
		"propagate=0\n[handler_h]\nclass=StreamHandler\nformatter=f\nargs=(sys.stdout,\n   )\n[formatter_f]\nformat={\"m\": \"%(message)s\"}\n"
	for _, c := range []struct {
		name, settings string
		files          map[string]string
		want           Logging
		python         string // below the folder; "=" as it was given
		warns          bool
	}{
		{name: "nothing", settings: `{}`},
		{name: "null", settings: `{"logging_settings": null, "debug": true, "use_structured_logging": true}`, want: Logging{Level: slog.LevelDebug, JSON: true}},
		{name: "dictionary", settings: `{"logging_settings": ` + dictionary + `}`, want: Logging{Level: slog.LevelWarn, JSON: true}, python: "="},
		{name: "over debug", settings: `{"debug": true, "logging_settings": {"version": 1, "root": {"level": 40}}}`, want: Logging{Level: slog.LevelError}, python: "="},
		{name: "JSON file", settings: `{"logging_settings": "l.json"}`, files: map[string]string{"l.json": dictionary}, want: Logging{Level: slog.LevelWarn, JSON: true}, python: "l.json"},
		{name: "INI file", settings: `{"logging_settings": "./l.conf"}`, files: map[string]string{"l.conf": ini}, want: Logging{Level: slog.LevelDebug, JSON: true}, python: "l.conf"},
		{name: "text after all", settings: `{"use_structured_logging": true, "logging_settings": {"formatters":{"f":{"format":"%(message)s"}},"handlers":{"h":{"formatter":"f"}},"root":{"handlers":["h"]}}}`, want: Logging{}, python: "="},
		{name: "no file", settings: `{"logging_settings": "none.conf", "debug": true}`, want: Logging{Level: slog.LevelDebug}, warns: true},
		{name: "no INI", settings: `{"logging_settings": "l.conf"}`, files: map[string]string{"l.conf": "what"}, warns: true},
		{name: "no loggers", settings: `{"logging_settings": "l.conf"}`, files: map[string]string{"l.conf": "[a]\nb=c"}, warns: true},
		{name: "a number", settings: `{"logging_settings": 5}`, warns: true},
		{name: "a level nobody knows", settings: `{"logging_settings": {"root": {"level": "LOUD"}}}`, python: "="},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{"settings.json": c.settings}
			for name, text := range c.files {
				files[name] = text
			}
			f, log := folder(t, files)
			s, err := ReadServerSettings(f.Root, nil, f.Log)
			if err != nil {
				t.Fatal(err)
			}
			got := s.Logging(f.Log)
			switch {
			case c.python == "=":
				c.want.Python = string(s.LoggingSettings)
				if !json.Valid([]byte(got.Python)) {
					t.Errorf("Python gets %s", got.Python)
				}
			case c.python != "":
				c.want.Python = filepath.Join(f.Root, c.python)
			}
			if got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if warned := strings.Contains(log.String(), "logging_settings cannot be read"); warned != c.warns {
				t.Errorf("log: %s", log)
			}
		})
	}
}

// TestMetricsPortNull: without a port of its own, or with HTTP's, the metrics
// are beside the HTTP interface.
func TestMetricsPortNull(t *testing.T) {
	for settings, want := range map[string]int{`{}`: 8082, `{"metrics_port": null}`: NoPort, `{"http_port": 9, "metrics_port": 9}`: NoPort,
		`{"http_port": 0, "metrics_port": 0}`: 0, `{"metrics_port": 7}`: 7} {
		f, _ := folder(t, map[string]string{"settings.json": settings})
		s, err := ReadServerSettings(f.Root, nil, f.Log)
		if got := s.Config(DefaultConfig()).Metrics.Port; err != nil || got != want {
			t.Errorf("%s: %d, want %d (%v)", settings, got, want, err)
		}
	}
}

func FuzzINI(f *testing.F) {
	f.Add("[loggers]\nkeys=root\n[logger_root]\nlevel=INFO\n")
	f.Add("[\n=\n]\n [x]")
	f.Fuzz(func(t *testing.T, text string) {
		var c loggingConfig
		if c.readINI([]byte(text)) == nil {
			var l Logging
			c.apply(&l)
		}
	})
}
