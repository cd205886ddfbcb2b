package keeper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// repository is the folder of models that a replica's server reads. It has no model's
// files, but what leads to them.
type repository struct {
	dir    string
	layout workload.Layout
}

const settingsName = "model-settings.json"

// maxSettings bounds a model-settings.json among a model's files, in bytes.
const maxSettings = 1 << 20

// path is where a model lies.
func (r repository) path(name string) string { return filepath.Join(r.dir, name) }

// mark is the file that says which files of a model are loaded. Servers look at folders.
func (r repository) mark(name string) string { return filepath.Join(r.dir, "."+name+".json") }

// marked is what the mark of a model says.
func marked(g workload.Guest, files string) []byte {
	b, _ := json.Marshal([]string{g.Model.URI, g.Model.Fingerprint, g.Model.Format, files}) // strings can be encoded
	return b
}

// list is what lies in the repository: the models that were loaded, and those of which
// nobody has said so.
func (r repository) list() (loaded, begun []string) {
	entries, _ := os.ReadDir(r.dir) // it is made when a model is put into it
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".tmp") {
			continue
		}
		if _, err := os.Stat(r.mark(name)); err == nil {
			loaded = append(loaded, name)
		} else {
			begun = append(begun, name)
		}
	}
	return loaded, begun
}

// sign notes that a model has been loaded with these files, for an owner after this one.
func (r repository) sign(g workload.Guest, files string) error {
	return replaceFile(r.mark(g.Name), marked(g, files))
}

// has reports whether a model has been loaded with these files.
func (r repository) has(g workload.Guest, files string) bool {
	b, err := os.ReadFile(r.mark(g.Name))
	return err == nil && bytes.Equal(b, marked(g, files))
}

// put has a model lie in the repository with its files, which are not loaded yet.
func (r repository) put(g workload.Guest, files string) error {
	if g.Name == "" || strings.ContainsAny(g.Name, `/\`) || strings.HasPrefix(g.Name, ".") {
		return fmt.Errorf("%q is no name of a folder", g.Name)
	}
	if err := os.Remove(r.mark(g.Name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if r.layout == workload.LayoutTriton {
		return r.lead(g.Name, files)
	}
	return r.describe(g, files)
}

// lead has a model's folder be a link to its files.
func (r repository) lead(name, files string) error {
	if info, err := os.Stat(files); err != nil {
		return err
	} else if !info.IsDir() {
		return fmt.Errorf("%s is a file, and Triton loads a folder with a config.pbtxt and versions", filepath.Base(files))
	}
	if err := os.RemoveAll(r.path(name)); err != nil {
		return err
	}
	return os.Symlink(files, r.path(name))
}

// describe writes the settings of a model whose files lie elsewhere.
func (r repository) describe(g workload.Guest, files string) error {
	b, err := settings(r.layout, g, files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.path(g.Name), 0o700); err != nil {
		return err
	}
	return replaceFile(filepath.Join(r.path(g.Name), settingsName), b)
}

// remove deletes a model from the repository, and none of its files.
func (r repository) remove(name string) error {
	return errors.Join(os.RemoveAll(r.mark(name)), os.RemoveAll(r.path(name)))
}

// replaceFile replaces a file at once or not at all.
func replaceFile(path string, b []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// settings are a model's for MLServer, and for this program's own server: those among
// its files, with its name, where they are, and what serves them.
func settings(l workload.Layout, g workload.Guest, files string) ([]byte, error) {
	out, err := ownSettings(files)
	if err != nil {
		return nil, err
	}
	parameters, _ := out["parameters"].(map[string]any)
	if parameters == nil {
		parameters = map[string]any{}
	}
	own, _ := parameters["uri"].(string)
	switch {
	case own == "":
		parameters["uri"] = files
	case filepath.IsLocal(own):
		parameters["uri"] = filepath.Join(files, own)
	default:
		return nil, fmt.Errorf("%s: parameters.uri %q leads out of the model's folder", settingsName, own)
	}
	out["name"], out["parameters"] = g.Name, parameters
	if out["implementation"] != nil {
		return json.Marshal(out)
	}
	if l == workload.LayoutRoundhouse {
		if parameters["format"] == nil {
			parameters["format"] = g.Model.Format
		}
		return json.Marshal(out)
	}
	class := mlserverClasses[strings.ToLower(g.Model.Format)]
	if class == "" {
		return nil, fmt.Errorf("MLServer has no runtime for %q: add a %s with an implementation to the model's files", g.Model.Format, settingsName)
	}
	out["implementation"] = class
	return json.Marshal(out)
}

// ownSettings are those among a model's files; empty where there are none.
func ownSettings(files string) (map[string]any, error) {
	out := map[string]any{}
	path := filepath.Join(files, settingsName)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return out, nil //nolint:nilerr // a model may be a file, and most folders have none
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read from
	b, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxSettings {
		return nil, fmt.Errorf("%s has over %d bytes", settingsName, maxSettings)
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", settingsName, err)
	}
	if out == nil {
		out = map[string]any{}
	}
	return out, nil
}

// mlserverClasses are MLServer's own runtimes, by the formats that they serve.
var mlserverClasses = map[string]string{
	"sklearn":     "mlserver_sklearn.SKLearnModel",
	"xgboost":     "mlserver_xgboost.XGBoostModel",
	"lightgbm":    "mlserver_lightgbm.LightGBMModel",
	"catboost":    "mlserver_catboost.CatboostModel",
	"mlflow":      "mlserver_mlflow.MLflowRuntime",
	"huggingface": "mlserver_huggingface.HuggingFaceRuntime",
}
