package image

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// Bounds on a folder.
const (
	maxFiles         = 100_000
	maxSettingsBytes = 1 << 20
	maxIgnoreBytes   = 1 << 20
	maxNeeds         = 5 // reasons listed
)

const (
	serverSettings = "settings.json"
	modelSettings  = "model-settings.json"
	ignoreFile     = ".dockerignore"
	pipFile        = "requirements.txt"
)

// condaFiles are the names of a Conda environment, first wins.
var condaFiles = []string{"environment.yaml", "environment.yml", "conda.yaml", "conda.yml"}

// DefaultIgnore is the .dockerignore of folders without one.
const DefaultIgnore = `# What an image does not need.
Dockerfile
.dockerignore
.git
.gitignore
.env
.envs
.metrics
.venv
venv
**/__pycache__
**/*.py[cod]
**/.ipynb_checkpoints
**/.DS_Store
.cache
.coverage
.mypy_cache
.pytest_cache
.ruff_cache
.tox
**/*.egg-info
`

// pythonFiles are suffixes of models that only Python or a native library
// beside the program can serve.
var pythonFiles = []string{".py", ".joblib", ".pickle", ".pkl", ".cbm", ".pt", ".pth", ".onnx", ".safetensors", ".pdmodel", ".pmml", "MLmodel", "saved_model.pb"}

// ReadFolder plans the image of a folder, after its .dockerignore. Native
// lists the implementations that need no Python. Nothing but settings is read.
func ReadFolder(folder string, native []string) (*Plan, error) {
	root, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(root)
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, err
	}
	if info, err := os.Stat(root); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%s: an image is made of a folder", folder)
	}
	p := &Plan{Folder: root, Name: name}
	if p.Ignore, err = readIgnore(filepath.Join(root, ignoreFile)); err != nil {
		return nil, err
	}
	if err := p.walk(); err != nil {
		return nil, err
	}
	if err := p.readDefaults(); err != nil {
		return nil, err
	}
	return p, p.findNeeds(native)
}

func readIgnore(path string) (string, error) {
	text, err := readBounded(path, maxIgnoreBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return DefaultIgnore, nil
	}
	return string(text), err
}

// readBounded reads a small regular file.
func readBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > limit {
		return nil, fmt.Errorf("%s: must be a regular file of at most %d bytes", path, limit)
	}
	return os.ReadFile(path)
}

// walk lists the files of the folder that are not ignored.
func (p *Plan) walk() error {
	patterns, err := ignorefile.ReadAll(strings.NewReader(p.Ignore))
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(p.Folder, ignoreFile), err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(p.Folder, ignoreFile), err)
	}
	err = filepath.WalkDir(p.Folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == p.Folder {
			return err
		}
		within, err := filepath.Rel(p.Folder, file)
		if err != nil {
			return err
		}
		skip, err := ignored.MatchesOrParentMatches(within)
		if err != nil {
			return err
		}
		switch {
		case skip && d.IsDir() && !ignored.Exclusions():
			return fs.SkipDir
		case skip:
			return nil
		case len(p.Files) == maxFiles:
			return fmt.Errorf("%s: more than %d files: name what the image does not need in %s", p.Folder, maxFiles, ignoreFile)
		}
		f, err := p.file(within, d)
		p.Files = append(p.Files, f)
		return err
	})
	slices.SortFunc(p.Files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return err
}

// file describes one file of the folder.
func (p *Plan) file(within string, d fs.DirEntry) (File, error) {
	full := filepath.Join(p.Folder, within)
	info, err := d.Info()
	if err != nil {
		return File{}, err
	}
	f := File{Path: filepath.ToSlash(within), Mode: info.Mode()}
	switch {
	case info.IsDir():
	case info.Mode().IsRegular():
		f.Size = info.Size()
	case info.Mode()&fs.ModeSymlink != 0:
		if f.Link, err = os.Readlink(full); err != nil {
			return f, err
		}
		f.Link = filepath.ToSlash(f.Link)
		if path.IsAbs(f.Link) || !filepath.IsLocal(path.Join(path.Dir(f.Path), f.Link)) {
			return f, fmt.Errorf("%s: the link leads to %s, outside the folder: put the file itself here, or name the link in %s", full, f.Link, ignoreFile)
		}
	default:
		return f, fmt.Errorf("%s: an image holds files, folders and links, and this is none: name it in %s", full, ignoreFile)
	}
	return f, nil
}

// readDefaults turns the settings at the root into variables, and takes the
// files out: in the image they would win over variables from outside.
func (p *Plan) readDefaults() error {
	named, nested := false, false
	files := p.Files[:0]
	for _, f := range p.Files {
		prefix := ""
		switch f.Path {
		case serverSettings:
			prefix = "MLSERVER_"
		case modelSettings:
			prefix = "MLSERVER_MODEL_"
		default:
			nested = nested || path.Base(f.Path) == modelSettings
			files = append(files, f)
			continue
		}
		env, err := settingsEnv(filepath.Join(p.Folder, f.Path), prefix)
		if err != nil {
			return err
		}
		p.Defaults = append(p.Defaults, env...)
	}
	p.Files = files
	for _, d := range p.Defaults {
		named = named || strings.HasPrefix(d, "MLSERVER_MODEL_NAME=")
	}
	if !named && !nested && slices.ContainsFunc(p.Files, isContent) {
		p.Defaults = append(p.Defaults, "MLSERVER_MODEL_NAME="+p.Name)
	}
	slices.Sort(p.Defaults)
	return nil
}

// isContent reports whether a file may belong to a model. Files that only
// configure the image do not: an image of those alone is for models from
// elsewhere.
func isContent(f File) bool {
	return f.Path != pipFile && !slices.Contains(condaFiles, f.Path)
}

// findNeeds looks for what the native engines do not serve.
func (p *Plan) findNeeds(native []string) error {
	need := func(format string, args ...any) {
		if len(p.Needs) < maxNeeds {
			p.Needs = append(p.Needs, fmt.Sprintf(format, args...))
		}
	}
	for _, d := range p.Defaults {
		if i, found := strings.CutPrefix(d, "MLSERVER_MODEL_IMPLEMENTATION="); found && !slices.Contains(native, i) {
			need("%s names the implementation %s", modelSettings, i)
		}
	}
	for _, f := range p.Files {
		switch {
		case slices.Contains(condaFiles, f.Path) && p.Conda == "":
			p.Conda = f.Path
			need("%s states a Conda environment", f.Path)
		case f.Path == pipFile:
			p.Pip = f.Path
			need("%s states Python packages", f.Path)
		case path.Base(f.Path) == modelSettings:
			i, err := implementation(filepath.Join(p.Folder, f.Path))
			if err != nil {
				return err
			}
			if i != "" && !slices.Contains(native, i) {
				need("%s names the implementation %s", f.Path, i)
			}
		case f.Mode.IsRegular() && slices.ContainsFunc(pythonFiles, func(s string) bool { return strings.HasSuffix(f.Path, s) }):
			need("%s is not for a native engine", f.Path)
		}
	}
	return nil
}

// implementation is what a model-settings.json names, "" for none.
func implementation(file string) (string, error) {
	text, err := readBounded(file, maxSettingsBytes)
	if err != nil {
		return "", err
	}
	var s struct {
		Implementation string `json:"implementation"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return s.Implementation, nil
}

var fieldName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// settingsEnv reads a settings file as the variables that mean the same:
// the prefix and the field's name in capitals, with text as it is and anything
// else as JSON. The parameters of a model are fields like the others; null is
// no setting.
func settingsEnv(file, prefix string) ([]string, error) {
	text, err := readBounded(file, maxSettingsBytes)
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if parameters, found := fields["parameters"]; found && prefix == "MLSERVER_MODEL_" {
		var inner map[string]json.RawMessage
		if err := json.Unmarshal(parameters, &inner); err != nil {
			return nil, fmt.Errorf("%s: parameters: %w", file, err)
		}
		delete(fields, "parameters")
		for name, value := range inner {
			if _, twice := fields[name]; !twice {
				fields[name] = value
			}
		}
	}
	var env []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !fieldName.MatchString(name) {
			return nil, fmt.Errorf("%s: %q cannot be a setting: letters, digits and underscores can", file, name)
		}
		value, err := envValue(fields[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", file, name, err)
		}
		if value != "null" {
			env = append(env, prefix+strings.ToUpper(name)+"="+value)
		}
	}
	return env, nil
}

// envValue is a JSON value as a variable has it.
func envValue(raw json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		if strings.ContainsAny(text, "\x00\r\n") {
			return "", fmt.Errorf("%q: a variable has one line", text)
		}
		return text, nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return "", err
	}
	return compact.String(), nil
}
