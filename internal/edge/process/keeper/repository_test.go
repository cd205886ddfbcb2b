package keeper

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

func TestSettings(t *testing.T) {
	folder := t.TempDir()
	for name, tt := range map[string]struct {
		layout workload.Layout
		format string
		own    string // model-settings.json among the files
		want   string // or what the error says
	}{
		"ours":               {workload.LayoutRoundhouse, "xgboost", "", `{"name":"m","parameters":{"format":"xgboost","uri":"DIR"}}`},
		"mlserver":           {workload.LayoutMLServer, "SKLearn", "", `{"implementation":"mlserver_sklearn.SKLearnModel","name":"m","parameters":{"uri":"DIR"}}`},
		"unknown":            {workload.LayoutMLServer, "tensorflow", "", `no runtime for "tensorflow"`},
		"its own":            {workload.LayoutMLServer, "x", `{"name":"other","implementation":"a.B","parameters":{"uri":"./f.bin","version":"2"}}`, `{"implementation":"a.B","name":"m","parameters":{"uri":"DIR/f.bin","version":"2"}}`},
		"another format":     {workload.LayoutRoundhouse, "x", `{"parameters":{"format":"y"}}`, `{"name":"m","parameters":{"format":"y","uri":"DIR"}}`},
		"leads out":          {workload.LayoutRoundhouse, "x", `{"parameters":{"uri":"../secret"}}`, "leads out of the model's folder"},
		"leads to the root":  {workload.LayoutRoundhouse, "x", `{"parameters":{"uri":"/etc/passwd"}}`, "leads out of the model's folder"},
		"leads elsewhere":    {workload.LayoutRoundhouse, "x", `{"parameters":{"uri":"s3://b/m"}}`, `{"name":"m","parameters":{"format":"x","uri":"DIR/s3:/b/m"}}`},
		"no object":          {workload.LayoutRoundhouse, "x", `[]`, "cannot unmarshal array"},
		"null":               {workload.LayoutRoundhouse, "x", `null`, `{"name":"m","parameters":{"format":"x","uri":"DIR"}}`},
		"parameters no more": {workload.LayoutRoundhouse, "x", `{"parameters":7}`, `{"name":"m","parameters":{"format":"x","uri":"DIR"}}`},
		"large":              {workload.LayoutRoundhouse, "x", strings.Repeat(" ", maxSettings+1), "has over"},
	} {
		dir := filepath.Join(folder, strings.ReplaceAll(name, " ", "-"))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if tt.own != "" {
			if err := os.WriteFile(filepath.Join(dir, settingsName), []byte(tt.own), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b, err := settings(tt.layout, workload.Guest{Name: "m", Model: workload.Model{Format: tt.format}}, dir)
		got := strings.ReplaceAll(string(b), dir, "DIR")
		if err != nil {
			got = err.Error()
		}
		if got != tt.want && (err == nil || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// TestRepositoryOfTriton: a model is a link to its folder, and nothing of the folder goes
// with it.
func TestRepositoryOfTriton(t *testing.T) {
	files, repo := t.TempDir(), repository{t.TempDir(), workload.LayoutTriton}
	if err := os.WriteFile(filepath.Join(files, "config.pbtxt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	g := workload.Guest{Name: "m", Model: workload.Model{URI: "test://m"}}
	for range 2 {
		if err := repo.put(g, files); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(repo.dir, "m", "config.pbtxt")); err != nil {
		t.Error(err)
	}
	if repo.has(g, files) || repo.sign(g, files) != nil || !repo.has(g, files) || repo.has(g, files+"2") {
		t.Error("what is loaded is not what is signed")
	}
	if err := repo.put(workload.Guest{Name: "n"}, filepath.Join(files, "config.pbtxt")); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("a file: %v", err)
	}
	for _, name := range []string{"", "..", "a/b", ".hidden"} {
		if err := repo.put(workload.Guest{Name: name}, files); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
	if err := repo.remove("m"); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(repo.dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(files, "config.pbtxt")); err != nil {
		t.Error(err)
	}
}
