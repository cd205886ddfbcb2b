package modelserver

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Repository knows the models there are. Scan is called at the start and at
// every load, so what was added since is found.
type Repository interface {
	Scan() ([]Entry, error)
}

// RepositoryError is a repository that cannot be read at all.
type RepositoryError struct{ Err error }

// Error is the reason.
func (e *RepositoryError) Error() string { return "model repository: " + e.Err.Error() }

// Unwrap gives the reason.
func (e *RepositoryError) Unwrap() error { return e.Err }

// Entry is one version of a model in a repository, or why it cannot be read;
// its Name and Source are set in any case.
type Entry struct {
	Settings Settings
	Err      error
}

// Single is a repository of one model that is known already.
type Single Settings

// Scan gives the model.
func (s Single) Scan() ([]Entry, error) { return []Entry{{Settings: Settings(s)}}, nil }

// Folder is a repository laid out as MLServer's: model-settings.json files at
// any depth, beside which there may be models with Triton's config.pbtxt. A folder without
// any is one model: that of its well-known or only
// file an engine knows, else that of the environment.
type Folder struct {
	Root    string
	Name    string // of a model without settings; default: the folder's name
	Format  string // that all models are to have; "": by their settings, or their first bytes
	Engines []Engine
	Env     Environment
	Log     *slog.Logger
}

// The bounds on what Scan looks at.
const (
	maxFolderDepth = 16
	maxFolderFiles = 100_000
)

// Scan reads the settings files, in order of their paths.
func (f Folder) Scan() ([]Entry, error) {
	paths, configs, err := f.settingsFiles()
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, path := range paths {
		s, err := readModelSettings(path, f.Env, f.Log)
		if err != nil {
			f.Log.Warn("model settings cannot be read", "file", path, "error", err)
		} else if err = f.checkFormat(s); err != nil {
			f.Log.Warn("model is refused", "file", path, "error", err)
		} else if s.Implementation == "" {
			s.Parameters.Format = cmp.Or(f.Format, s.Parameters.Format)
		}
		entries = append(entries, Entry{Settings: s, Err: err})
	}
	for _, path := range configs {
		found := readTritonModel(path)
		for _, e := range found {
			if e.Err != nil {
				f.Log.Warn("model's configuration cannot be used", "file", path, "error", e.Err)
			}
		}
		entries = append(entries, found...)
	}
	if len(entries) > 0 {
		return entries, nil
	}
	if f.Format == "" && f.Env[modelPrefix+"IMPLEMENTATION"] != "" {
		// As MLServer: one model that the environment describes.
		s, err := newSettings(map[string]json.RawMessage{}, f.Root, "environment", f.Env, f.Log)
		s.Name = cmp.Or(f.Name, s.Name)
		return []Entry{{Settings: s, Err: err}}, nil
	}
	if emptyFolder(f.Root) {
		return nil, nil // models may be put here later
	}
	s := Settings{Name: cmp.Or(f.Name, filepath.Base(f.Root))}
	s.Parameters.URI, s.Parameters.Format = f.Root, f.Format
	if _, _, err = choose(s, f.Engines); err != nil {
		return nil, err
	}
	return []Entry{{Settings: s}}, nil
}

// checkFormat refuses settings that want another engine than that of the stated
// format. Who states a format wants nothing else run: the folder may have been
// downloaded, and settings in it can name code beside them.
func (f Folder) checkFormat(s Settings) error {
	if f.Format == "" || s.Implementation == "" && (s.Parameters.Format == "" || s.Parameters.Format == f.Format) {
		return nil
	}
	for _, e := range f.Engines {
		if e.Name == f.Format && s.Implementation != "" && slices.Contains(e.Implementations, s.Implementation) {
			return nil
		}
	}
	if s.Implementation == "" {
		return fmt.Errorf("%s: format %q is not the stated format %s", s.Source, s.Parameters.Format, f.Format)
	}
	return fmt.Errorf("%s: implementation %q is not of the stated format %s; a runtime that states no format, such as kserve-mlserver, runs what a model's settings name", s.Source, s.Implementation, f.Format)
}

// emptyFolder reports whether a folder holds nothing, or only what is no model:
// the server's settings and hidden files.
func emptyFolder(path string) bool {
	list, err := os.ReadDir(path)
	return err == nil && !slices.ContainsFunc(list, func(d fs.DirEntry) bool {
		return d.Name() != serverSettingsFile && !strings.HasPrefix(d.Name(), ".")
	})
}

// settingsFiles finds them, and Triton's configurations of models that have none, without
// following links to folders. Who states a format has no use for the latter.
func (f Folder) settingsFiles() (paths, configs []string, _ error) {
	files := 0
	err := filepath.WalkDir(f.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == f.Root {
				return err
			}
			f.Log.Warn("folder of the repository cannot be read", "path", path, "error", err)
			return nil
		}
		if files++; files > maxFolderFiles {
			return fmt.Errorf("%s: more than %d files; is it a model repository?", f.Root, maxFolderFiles)
		}
		if d.IsDir() && path != f.Root {
			within, _ := filepath.Rel(f.Root, path)
			if strings.Count(within, string(filepath.Separator)) >= maxFolderDepth {
				return fs.SkipDir
			}
		}
		switch {
		case d.IsDir():
		case d.Name() == modelSettingsFile:
			paths = append(paths, path)
		case d.Name() == tritonConfigFile && f.Format == "":
			configs = append(configs, path)
		}
		return nil
	})
	configs = slices.DeleteFunc(configs, func(path string) bool {
		return slices.Contains(paths, filepath.Join(filepath.Dir(path), modelSettingsFile))
	})
	return paths, configs, err
}

// SniffBytes is how much of a file an engine's Match sees.
const SniffBytes = 512

// findModel finds the model a path stands for: the file itself, or in a folder
// the first well-known name, else its only file that an engine knows. For an
// engine that finds models itself it is the path.
func findModel(path string, engines []Engine) (string, *Engine, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", nil, err
	}
	if !info.IsDir() {
		engine, err := match(path, engines)
		if err == nil && engine == nil {
			engine = named(path, engines)
		}
		if err == nil && engine == nil {
			err = fmt.Errorf("%s: not a model of a known format (%s)", path, names(engines))
		}
		return path, engine, err
	}
	for i := range engines {
		for _, name := range engines[i].Files {
			file := filepath.Join(path, name)
			if err := readable(file); err != nil {
				return "", nil, err
			}
			if engines[i].Match == nil {
				if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
					return path, &engines[i], nil
				}
			} else if engine, err := match(file, engines); err == nil && engine != nil {
				return file, engine, nil
			}
		}
	}
	return onlyModel(path, engines)
}

// onlyModel finds the one file in a folder that an engine knows, by what is in
// it or else by its name.
func onlyModel(folder string, engines []Engine) (string, *Engine, error) {
	list, err := os.ReadDir(folder)
	if err != nil {
		return "", nil, err
	}
	list = list[:min(len(list), maxFolderFiles)]
	file, engine, err := only(folder, list, func(path string) *Engine {
		found, _ := match(path, engines) // what cannot be read is no model
		return found
	})
	if engine == nil && err == nil {
		file, engine, err = only(folder, list, func(path string) *Engine { return named(path, engines) })
	}
	if engine == nil && err == nil {
		err = fmt.Errorf("%s: no model-settings.json and no model file of a known format (%s)", folder, names(engines))
	}
	return file, engine, err
}

// only finds the one file among list that is known.
func only(folder string, list []fs.DirEntry, known func(path string) *Engine) (file string, engine *Engine, err error) {
	for _, d := range list {
		path := filepath.Join(folder, d.Name())
		found := known(path)
		if found == nil {
			continue
		}
		if engine != nil {
			return "", nil, fmt.Errorf("%s: several model files (%s, %s): name one in model-settings.json", folder, filepath.Base(file), d.Name())
		}
		file, engine = path, found
	}
	return file, engine, nil
}

// named finds the engine that goes by names for a file; nil if there is none.
func named(path string, engines []Engine) *Engine {
	for i := range engines {
		known := func(name string) bool {
			extension := filepath.Ext(name)
			return filepath.Base(path) == name || extension != "" && filepath.Ext(path) == extension
		}
		if engines[i].Match == nil && slices.ContainsFunc(engines[i].Files, known) {
			return &engines[i]
		}
	}
	return nil
}

// readable returns an error for a pipe, a socket or a device: reading a model
// from it might never end. What is not there it leaves to who needs it.
func readable(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode().IsRegular() || info.IsDir() {
		return nil
	}
	return fmt.Errorf("%s is neither a file nor a folder (%s): name the model's file or folder", path, info.Mode().Type())
}

// match finds the engine for a regular file by its first bytes; nil if none
// knows it.
func match(path string, engines []Engine) (*Engine, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	head := make([]byte, SniffBytes)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for i := range engines {
		if engines[i].Match != nil && engines[i].Match(head[:n]) {
			return &engines[i], nil
		}
	}
	return nil, nil
}

func names(engines []Engine) string {
	list := make([]string, len(engines))
	for i, e := range engines {
		list[i] = e.Name
	}
	return strings.Join(list, ", ")
}

// choose finds the engine for s and the file it should read: by
// implementation, else format, else the file's first bytes.
func choose(s Settings, engines []Engine) (*Engine, Settings, error) {
	find := func(known func(Engine) bool) *Engine {
		if i := slices.IndexFunc(engines, known); i >= 0 {
			return &engines[i]
		}
		return nil
	}
	var engine *Engine
	switch {
	case s.Implementation != "":
		engine = find(func(e Engine) bool { return slices.Contains(e.Implementations, s.Implementation) })
		if engine == nil {
			engine = find(func(e Engine) bool { return e.Others })
		}
		if engine == nil {
			return nil, s, fmt.Errorf("no engine for implementation %q (formats served here: %s)", s.Implementation, names(engines))
		}
	case s.Parameters.Format != "":
		engine = find(func(e Engine) bool { return e.Name == s.Parameters.Format })
		if engine == nil {
			return nil, s, fmt.Errorf("no engine for format %q (have %s)", s.Parameters.Format, names(engines))
		}
	}
	if err := readable(s.Parameters.URI); err != nil {
		return nil, s, err
	}
	if engine != nil && engine.Match == nil {
		return engine, s, nil
	}
	if hasScheme(s.Parameters.URI) {
		return nil, s, fmt.Errorf("%s: only local files are loaded here; download the model first", s.Parameters.URI)
	}
	among := engines
	if engine != nil {
		among = []Engine{*engine}
	}
	file, found, err := findModel(s.Parameters.URI, among)
	if err != nil {
		info, statErr := os.Stat(s.Parameters.URI)
		if engine == nil || statErr != nil || info.IsDir() {
			return nil, s, err
		}
		// The file was named and so was its format: let the engine report what
		// is wrong with it.
		file, found = s.Parameters.URI, engine
	}
	if err := readable(file); err != nil {
		return nil, s, err
	}
	s.Parameters.URI = file
	return found, s, nil
}
