package modelserver

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// everyServerSetting has all fields of settings.json, none at its default.
const everyServerSetting = `{"debug": true, "server_name": "n", "server_version": "2", "extensions": ["x"], "model_repository_root": "models",
	"load_models_at_startup": false, "model_repository_implementation": "a.B", "model_repository_implementation_args": {"k": 1},
	"use_structured_logging": true, "logging_settings": "l.conf", "cache_enabled": true, "cache_size": 7,
	"host": "0.0.0.0", "http_port": 1, "root_path": "/r", "grpc_port": 2, "grpc_max_message_length": 3,
	"cors_settings": {"allow_origins": ["o"], "allow_origin_regex": "r", "allow_credentials": true, "allow_headers": ["h"], "expose_headers": ["e"]},
	"gzip_enabled": false, "tls_cert_file": "c.pem", "tls_key_file": "/k.pem", "metrics_endpoint": "/m", "metrics_port": 4,
	"metrics_rest_server_prefix": "p", "metrics_dir": "d", "parallel_workers": 5, "parallel_workers_timeout": 6, "environments_dir": "e", "inference_timeout": 7.5, "fork_workers": false,
	"kafka_enabled": true, "kafka_servers": "k", "kafka_topic_input": "i", "kafka_topic_output": "o", "kafka_group": "g",
	"kafka_auto_offset_reset": "earliest", "tracing_server": "t"}`

// TestEveryServerSetting checks that no field is forgotten, in a file or in
// the environment.
func TestEveryServerSetting(t *testing.T) {
	f, log := folder(t, map[string]string{"settings.json": everyServerSetting})
	s, err := ReadServerSettings(f.Root, f.Env, f.Log)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(everyServerSetting), &fields); err != nil {
		t.Fatal(err)
	}
	var environ []string
	for field := range serverFields {
		raw, ok := fields[field]
		if !ok {
			t.Errorf("the test lacks %s", field)
		}
		written := string(raw)
		var plain string
		if json.Unmarshal(raw, &plain) == nil {
			written = plain
		}
		environ = append(environ, "mlserver_"+field+"="+written)
	}
	was := reflect.ValueOf(defaultServerSettings())
	for section := range was.NumField() {
		for i := range was.Field(section).NumField() {
			name := was.Field(section).Type().Field(i).Name
			if reflect.DeepEqual(reflect.ValueOf(s).Field(section).Field(i).Interface(), was.Field(section).Field(i).Interface()) {
				t.Errorf("%s is at its default", name)
			}
		}
	}
	if s.ModelRepositoryRoot != filepath.Join(f.Root, "models") || s.TLSCertFile != filepath.Join(f.Root, "c.pem") || s.TLSKeyFile != "/k.pem" || s.MetricsDir != filepath.Join(f.Root, "d") {
		t.Errorf("paths: %+v", s)
	}
	for _, field := range serverIneffective {
		if strings.Count(log.String(), "field="+field+"\n") != 1 {
			t.Errorf("%s is not warned of once: %s", field, log)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != len(serverIneffective) {
		t.Errorf("%d warnings: %s", n, log)
	}

	env, err := ReadEnvironment(environ)
	if err != nil {
		t.Fatal(err)
	}
	empty, _ := folder(t, nil)
	fromEnv, err := ReadServerSettings(empty.Root, env, empty.Log)
	if err != nil {
		t.Fatal(err)
	}
	fromEnv.ModelRepositoryRoot, fromEnv.TLSCertFile, fromEnv.MetricsDir = s.ModelRepositoryRoot, s.TLSCertFile, s.MetricsDir
	fromEnv.LoggingSettings, fromEnv.RepositoryClassArgs = s.LoggingSettings, s.RepositoryClassArgs
	if !reflect.DeepEqual(fromEnv, s) {
		t.Errorf("environment %+v\nfile        %+v", fromEnv, s)
	}
}

func TestServerConfig(t *testing.T) {
	f, _ := folder(t, map[string]string{"settings.json": everyServerSetting})
	s, err := ReadServerSettings(f.Root, f.Env, f.Log)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Config(DefaultConfig())
	pattern := "r"
	want := DefaultConfig()
	want.ServerName, want.ServerVersion, want.Extensions, want.Host, want.LoadAtStartup = "n", "2", []string{"x"}, "0.0.0.0", false
	want.HTTP = HTTPConfig{Port: 1, RootPath: "/r", CORS: &CORS{AllowOrigins: []string{"o"}, AllowOriginRegex: &pattern, AllowCredentials: true,
		AllowMethods: []string{"GET"}, AllowHeaders: []string{"h"}, ExposeHeaders: []string{"e"}, MaxAge: 600}}
	want.GRPC = GRPCConfig{Port: 2, MaxMessageBytes: 3}
	want.Metrics = MetricsConfig{Path: "/m", Port: 4, RESTPrefix: "p"}
	want.Cache.Entries = 7
	want.TLS = TLSConfig{CertFile: filepath.Join(f.Root, "c.pem"), KeyFile: "/k.pem"}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v\nwant %+v", c, want)
	}

	empty, log := folder(t, nil)
	s, err = ReadServerSettings(empty.Root, nil, empty.Log)
	if err != nil {
		t.Fatal(err)
	}
	if c := s.Config(DefaultConfig()); !reflect.DeepEqual(c, DefaultConfig()) || log.String() != "" || s.ModelRepositoryRoot != empty.Root {
		t.Errorf("defaults: %+v, log %s", c, log)
	}
	off, _ := folder(t, map[string]string{"settings.json": `{"metrics_endpoint": null, "grpc_max_message_length": -1}`})
	if s, err = ReadServerSettings(off.Root, nil, off.Log); err != nil {
		t.Fatal(err)
	}
	if c := s.Config(DefaultConfig()); c.Metrics.Path != "" || c.GRPC.MaxMessageBytes != math.MaxInt32 {
		t.Errorf("off: %+v", c)
	}
}

// TestPrecedence checks that a file wins over the environment, that over
// .env, and that over the default.
func TestPrecedence(t *testing.T) {
	f, log := folder(t, map[string]string{
		"settings.json": `{"http_port": "9000", "debug": 1, "misspelt": 1, "cors_settings": {"allow_origins": null, "max_age": 5}}`,
		".env": "# comment\nMLSERVER_HTTP_PORT=1\nMLSERVER_SERVER_NAME=dotenv\nexport mlserver_server_version=\"a \\\"b\\\"\"\n" +
			"MLSERVER_HOST='#not' # a comment\nMLSERVER_ROOT_PATH = /x # y\nOTHER=\"unfinished\nMLSERVER_EXTENSIONS=[\"e\"]\n",
		"second.env": "MLSERVER_HOST=second\nMLSERVER_METRICS_PORT=77\n",
	})
	env, err := ReadEnvironment([]string{"MLSERVER_HTTP_PORT=7", "mlserver_Server_Name=env", "MLSERVER_LOAD_MODELS_AT_STARTUP=off", "MLSERVER_ALLOW_METHODS=[\"PUT\"]", "PATH=x"},
		filepath.Join(f.Root, ".env"), filepath.Join(f.Root, "second.env"), filepath.Join(f.Root, "none"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := ReadServerSettings(f.Root, env, f.Log)
	if err != nil {
		t.Fatal(err)
	}
	if s.HTTPPort != 9000 || !s.Debug || s.ServerName != "env" || s.LoadModelsAtStartup || s.ServerVersion != `a "b"` || s.Host != "#not" ||
		s.RootPath != "/x" || !slices.Equal(s.Extensions, []string{"e"}) || *s.MetricsPort != 77 || s.GRPCPort != 8081 {
		t.Errorf("%+v", s)
	}
	if c := s.CORS; c == nil || c.AllowOrigins != nil || c.MaxAge != 5 || !slices.Equal(c.AllowMethods, []string{"PUT"}) {
		t.Errorf("CORS: %+v", c)
	}
	if !strings.Contains(log.String(), `msg="setting is not known"`) || !strings.Contains(log.String(), "misspelt") {
		t.Errorf("log: %s", log)
	}
}

func TestSettingsErrors(t *testing.T) {
	for _, test := range []struct {
		name, file, dotenv, variable, says string
	}{
		{"type", `{"http_port": "x"}`, "", "", "settings.json"},
		{"line", "{\n\n\"a\": }", "", "", "settings.json:3:"},
		{"array", `[]`, "", "", "settings.json:1:"},
		{"variable", "", "", "MLSERVER_HTTP_PORT=x", `MLSERVER_HTTP_PORT: "x" is not JSON`},
		{"boolean", "", "", "MLSERVER_DEBUG=perhaps", `MLSERVER_DEBUG: "perhaps" is neither true nor false`},
		{"cors", `{"cors_settings": 3}`, "", "", "settings.json: cors_settings"},
		{"cors type", `{"cors_settings": {"max_age": []}}`, "", "", "settings.json"},
		{"cors variable", `{"cors_settings": {}}`, "", "MLSERVER_MAX_AGE=x", "MLSERVER_MAX_AGE"},
		{"dotenv", "", "A=1\nMLSERVER_HOST=\"x\n", "", ".env:2: MLSERVER_HOST: the double quotes do not end"},
		{"dotenv single", "", "MLSERVER_HOST='x\n", "", ".env:1: MLSERVER_HOST: the single quotes do not end"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, _ := folder(t, nil)
			for name, text := range map[string]string{"settings.json": test.file, ".env": test.dotenv} {
				if text != "" {
					write(t, f.Root, map[string]string{name: text})
				}
			}
			env, err := ReadEnvironment([]string{test.variable}, filepath.Join(f.Root, ".env"))
			if err == nil {
				_, err = ReadServerSettings(f.Root, env, f.Log)
			}
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("error %v does not say %q", err, test.says)
			}
		})
	}
	f, _ := folder(t, nil)
	if err := os.Mkdir(filepath.Join(f.Root, ".env"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadEnvironment(nil, filepath.Join(f.Root, ".env")); err == nil {
		t.Error("a folder was read as a file")
	}
}

func TestModelSettings(t *testing.T) {
	f, log := folder(t, map[string]string{"m/model-settings.json": `{"implementation": "a.B", "max_batch_size": "8", "max_batch_time": 0.5, "max_batch_rows": 64, "cache_enabled": true, "parallel_workers": 2, "inference_timeout": 1.5, "warm_workers": true, "own": 1,
		"parameters": {"uri": "x", "environment_path": "env", "environment_tarball": "/e.tar.gz", "inference_pool_gid": "g", "autogenerate_inference_pool_gid": true, "content_type": "np", "extra": {"k": 1}, "threshold": 0.5}}`},
		"MLSERVER_MODEL_VERSION=v1", "MLSERVER_MODEL_PLATFORM=p")
	entries, err := f.Scan()
	if err != nil || len(entries) != 1 || entries[0].Err != nil {
		t.Fatalf("%+v (%v)", entries, err)
	}
	s := entries[0].Settings
	root := filepath.Join(f.Root, "m")
	want := SettingsParameters{URI: filepath.Join(root, "x"), Version: "v1", ContentType: "np", EnvironmentPath: filepath.Join(root, "env"), EnvironmentTarball: "/e.tar.gz",
		InferencePoolGID: "g", AutogenerateInferencePoolGID: true, Extra: map[string]any{"k": 1.0}}
	if !reflect.DeepEqual(s.Parameters, want) || s.MaxBatchSize != 8 || s.MaxBatchTime != 0.5 || s.MaxBatchRows != 64 || !s.CacheEnabled || s.ParallelWorkers != 2 || s.InferenceTimeout != 1.5 || s.Platform != "p" {
		t.Errorf("%+v", s)
	}
	var raw struct {
		Own        int
		Platform   string
		Parameters struct {
			Threshold float64
			Version   string
		}
	}
	if err := json.Unmarshal(s.Raw, &raw); err != nil || raw.Own != 1 || raw.Parameters.Threshold != 0.5 || raw.Parameters.Version != "v1" || raw.Platform != "p" {
		t.Errorf("raw %s (%v)", s.Raw, err)
	}
	for _, field := range []string{"warm_workers", "own"} {
		if !strings.Contains(log.String(), "field="+field+"\n") {
			t.Errorf("no warning of %s: %s", field, log)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings: %s", n, log)
	}
}

func FuzzDotenv(f *testing.F) {
	f.Add("MLSERVER_A=1\nexport MLSERVER_B=\"x\\n\" # c\nMLSERVER_C='y'\n=\n#")
	f.Add("MLSERVER_HOST=\"\nMLSERVER_\xff=\x00")
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(t.TempDir(), ".env")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		env, err := ReadEnvironment(nil, path)
		if err == nil && env == nil {
			t.Error("neither an environment nor an error")
		}
		for name := range env {
			if !strings.HasPrefix(name, "MLSERVER_") || !strings.Contains(strings.ToUpper(text), name) {
				t.Errorf("%q is not in the file", name)
			}
		}
	})
}
