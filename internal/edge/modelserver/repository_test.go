package modelserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func folder(t *testing.T, files map[string]string, env ...string) (Folder, *bytes.Buffer) {
	t.Helper()
	variables, err := ReadEnvironment(env)
	if err != nil {
		t.Fatal(err)
	}
	f := Folder{Root: t.TempDir(), Engines: []Engine{newFakes().engine(), {Name: "other",
		Match: func(head []byte) bool { return bytes.HasPrefix(head, []byte("other")) }}}, Env: variables}
	log := &bytes.Buffer{}
	f.Log = slog.New(slog.NewTextHandler(log, nil))
	write(t, f.Root, files)
	return f, log
}

func TestScan(t *testing.T) {
	f, log := folder(t, map[string]string{
		"a/deep/model-settings.json":  `{"implementation":"test.Fake","parameters":{"uri":"./x.fake","extra":{"k":1}},"max_batch_size":4,"warm_workers":true}`,
		"b/model-settings.json":       `{"name":"bee","implementation":"test.Fake","platform":"p","inputs":[{"name":"x","datatype":"FP32","shape":[-1,4]}]}`,
		"bad/model-settings.json":     "{\n\"name\": }",
		"remote/model-settings.json":  `{"parameters":{"uri":"s3://bucket/x"}}`,
		"typed/model-settings.json":   `{"inputs":[{"name":"x","datatype":"FLOAT","shape":[1]}]}`,
		"local/model-settings.json":   `{"parameters":{"uri":"file:///tmp/x"}}`,
		"not-a-settings-file.json":    "{}",
		"a/deep/x.fake":               "fake double",
		"settings.json":               "{}",
		"b/sub/other-settings.json":   "{}",
		"c/d/e/f/model-settings.json": `{}`,
	}, "MLSERVER_MODEL_PLATFORM=from-env", "mlserver_model_versions=[\"1\",\"2\"]", "MLSERVER_MODEL_VERSION=v5")
	entries, err := f.Scan()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Entry{}
	for _, e := range entries {
		got[e.Settings.Name] = e
	}
	if len(got) != 7 {
		t.Errorf("%d models, want 7: %v", len(got), got)
	}
	deep := got["deep"].Settings
	if deep.Parameters.URI != filepath.Join(f.Root, "a/deep/x.fake") || deep.Parameters.Version != "v5" || deep.Platform != "from-env" || !slices.Equal(deep.Versions, []string{"1", "2"}) {
		t.Errorf("deep: %+v", deep)
	}
	bee := got["bee"].Settings
	if bee.Platform != "p" || bee.Parameters.URI != filepath.Join(f.Root, "b") || len(bee.Inputs) != 1 {
		t.Errorf("bee: %+v", bee)
	}
	for name, says := range map[string]string{"bad": "model-settings.json:2:", "typed": "FLOAT"} {
		if err := got[name].Err; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v does not say %q", name, err, says)
		}
	}
	for name, uri := range map[string]string{"remote": "s3://bucket/x", "local": "/tmp/x"} {
		if got := got[name].Settings.Parameters.URI; got != uri {
			t.Errorf("%s: %s, want %s", name, got, uri)
		}
	}
	if !strings.Contains(log.String(), "field=warm_workers") || strings.Contains(log.String(), "max_batch_size") {
		t.Errorf("warnings: %s", log)
	}
}

func TestScanWithoutSettings(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		env   []string
		uri   string // of choose; "" for none
		says  string // of the error
	}{
		{"well-known", map[string]string{"model.fake": "fake double", "notes.txt": "x"}, nil, "model.fake", ""},
		{"only", map[string]string{"weights": "fake double", "notes.txt": "x"}, nil, "weights", ""},
		{"another engine's", map[string]string{"weights": "other"}, nil, "weights", ""},
		{"well-known beside others", map[string]string{"model.fake": "fake double", "b": "fake double"}, nil, "model.fake", ""},
		{"several", map[string]string{"a": "fake double", "b": "other"}, nil, "", "several model files (a, b)"},
		{"none", map[string]string{"notes.txt": "x"}, nil, "", "no model file of a known format (fake, other)"},
		{"nothing", nil, nil, "", ""},
		{"from the environment", map[string]string{"notes.txt": "x", "sub/y": "fake"}, []string{"MLSERVER_MODEL_IMPLEMENTATION=test.Fake", "MLSERVER_MODEL_URI=sub/y"}, "sub/y", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f, _ := folder(t, test.files, test.env...)
			entries, err := f.Scan()
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("error %v does not say %q", err, test.says)
				}
				return
			}
			if err != nil || (test.uri == "") != (len(entries) == 0) {
				t.Fatalf("%d models (%v)", len(entries), err)
			}
			for _, e := range entries {
				engine, s, err := choose(e.Settings, f.Engines)
				if err != nil || engine == nil || s.Parameters.URI != filepath.Join(f.Root, test.uri) || s.Name != filepath.Base(f.Root) {
					t.Errorf("%+v (%v)", s, err)
				}
			}
		})
	}
}

func TestChooseErrors(t *testing.T) {
	f, _ := folder(t, map[string]string{"m.fake": "fake double", "text": "hello"})
	file := func(name string) SettingsParameters { return SettingsParameters{URI: filepath.Join(f.Root, name)} }
	tests := []struct {
		settings Settings
		says     string
	}{
		{Settings{Implementation: "mlserver_sklearn.SKLearnModel", Parameters: file("m.fake")}, `no engine for implementation "mlserver_sklearn.SKLearnModel"`},
		{Settings{Parameters: SettingsParameters{Format: "onnx", URI: filepath.Join(f.Root, "m.fake")}}, `no engine for format "onnx"`},
		{Settings{Implementation: "test.Fake", Parameters: file("none")}, "no such file"},
		{Settings{Parameters: file("none")}, "no such file"},
		{Settings{Parameters: file("text")}, "not a model of a known format"},
		{Settings{Parameters: SettingsParameters{URI: "s3://x/y"}}, "only local files"},
	}
	for _, test := range tests {
		if _, _, err := choose(test.settings, f.Engines); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("error %v does not say %q", err, test.says)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	want := []string{"", "v10", "v3.10", "v3.2", "v3", "v1", "10", "9", "009", "1.2"}
	for i, a := range want {
		for j, b := range want {
			got := compareVersions(a, b)
			if a == "009" && b == "9" || a == "9" && b == "009" {
				continue // equal numbers
			}
			if got != cmp.Compare(i, j) {
				t.Errorf("compareVersions(%q, %q) = %d, want %d", a, b, got, cmp.Compare(i, j))
			}
		}
	}
}

func FuzzModelSettings(f *testing.F) {
	f.Add([]byte(`{"name":"x","versions":["1"],"parameters":{"uri":"./m","extra":{}}}`))
	f.Add([]byte(`{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}],"parameters":null}`))
	f.Add([]byte(`null`))
	f.Add([]byte(`{"parameters":[]}`))
	log := slog.New(slog.DiscardHandler)
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		write(t, dir, map[string]string{modelSettingsFile: string(text)})
		s, err := readModelSettings(filepath.Join(dir, modelSettingsFile), nil, log)
		if s.Name == "" || s.Source == "" {
			t.Errorf("%q: no name or source: %+v", text, s)
		}
		if err == nil && !json.Valid(text) {
			t.Errorf("%q: accepted", text)
		}
	})
}

func TestMetrics(t *testing.T) {
	s := loaded(t, map[string]string{"m.fake": "fake double"})
	for range 3 {
		s.want(t, "POST /v2/models/only/infer", ask, 200, "4.0")
	}
	s.want(t, "POST /v2/models/only/infer", `{"inputs":[]}`, 400, "error")
	_, answer, _ := s.do(t, "GET /metrics", "")
	labels := `{model_name="only",model_version="",model="only",version=""`
	for _, want := range []string{
		"model_infer_request_success_total" + labels + "} 3\n",
		"model_infer_request_failure_total" + labels + "} 1\n",
		"model_infer_request_duration_bucket" + labels + `,le="+Inf"} 3` + "\n",
		"model_infer_request_duration_count" + labels + "} 3\n",
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("metrics lack %s:\n%s", want, answer)
		}
	}
}
