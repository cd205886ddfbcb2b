// Package python finds what runs models of Python code: the interpreter of an
// environment, or of a tarball of one, which is unpacked, with the roundhouse
// package, which the server carries.
package python

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"roundhouse.dev/roundhouse/internal/edge/engine/worker"
)

// Config is what the programs of Python's workers are made of.
type Config struct {
	// Interpreter is that of the default environment: a path, or a name on PATH.
	Interpreter string
	// Environ is the environment of workers, "NAME=value".
	Environ []string
	// Package holds the roundhouse package, in a folder of that name. It is
	// unpacked below CacheDir, once for each content.
	Package  fs.FS
	CacheDir string
	// EnvironmentsDir is where environment tarballs are unpacked.
	EnvironmentsDir string
}

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, field, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("python: %s: %s", field, what))
		}
	}
	check(c.Interpreter != "", "interpreter", "is empty; name an interpreter")
	check(c.Package != nil, "package", "is missing; give the roundhouse package")
	check(c.CacheDir != "", "cacheDir", "is empty; name a folder for the unpacked package")
	check(c.EnvironmentsDir != "", "environments_dir", "is empty; name a folder for unpacked environments")
	return errors.Join(errs...)
}

// Environments finds the programs of Python's workers.
type Environments struct {
	config     Config
	packageDir func() (string, error)
	tarballs   *tarballs
}

// New makes Environments. Nothing is looked for or unpacked before a program is
// asked for.
func New(c Config, log *slog.Logger) (*Environments, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Environments{
		config:     c,
		packageDir: sync.OnceValues(func() (string, error) { return unpackPackage(c.Package, c.CacheDir) }),
		tarballs:   &tarballs{dir: c.EnvironmentsDir, limits: unpackLimits{bytes: maxEnvironmentBytes, files: maxEnvironmentFiles}, log: log},
	}, nil
}

// Program finds the program of an environment. It is a worker.Programs. Errors
// are *worker.Error, with the status 422 or the command that installs what is
// missing.
func (e *Environments) Program(ctx context.Context, wanted worker.Environment) (*worker.Program, error) {
	var root, path string
	var err error
	release := func() {}
	switch {
	case wanted.Path == "":
		path, err = defaultInterpreter(e.config.Interpreter)
	case wanted.Tarball:
		if root, release, err = e.tarballs.acquire(ctx, wanted.Path); err == nil {
			path, err = interpreter(root)
		}
	default:
		root = wanted.Path
		path, err = interpreter(root)
	}
	var dir string
	if err == nil {
		dir, err = e.packageDir()
	}
	if err != nil {
		if release != nil {
			release()
		}
		return nil, err
	}
	return &worker.Program{
		Command:    []string{path, "-m", "roundhouse.worker"},
		ForkServer: []string{path, "-m", "roundhouse.forkserver"},
		Env:        variables(e.config.Environ, root, dir),
		Explain:    func(line string) *worker.Error { return explain(path, line) },
		Release:    release,
	}, nil
}

// defaultInterpreter finds an interpreter by its path or name.
func defaultInterpreter(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		e := worker.NewError(worker.KindMissing, "")
		e.Install = "apt-get install python3 python3-venv && python3 -m venv .venv && .venv/bin/pip install numpy pydantic"
		e.Message = fmt.Sprintf("no Python interpreter %q (%v); this model needs Python 3.9 or later with numpy and pydantic: %s, then point the server at .venv/bin/python",
			name, err, e.Install)
		return "", e
	}
	return path, nil
}

// interpreter finds the Python of a venv or conda folder.
func interpreter(root string) (string, error) {
	info, err := os.Stat(root)
	if err != nil || !info.IsDir() {
		return "", worker.NewError(worker.KindUnprocessable, fmt.Sprintf("environment %s is no folder; name a venv or conda environment", root))
	}
	for _, name := range []string{"python", "python3"} {
		path := filepath.Join(root, "bin", name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", worker.NewError(worker.KindUnprocessable, fmt.Sprintf("environment %s has no bin/python that runs; name a venv or conda environment (conda-pack makes a tarball of one)", root))
}

// variables is the environment of a worker's process, with the folder of the
// roundhouse package. Packages of other environments are kept out of that of the
// environment at root, "" for the default one.
func variables(environ []string, root, packageDir string) []string {
	path, paths := "", packageDir
	env := make([]string, 0, len(environ)+4)
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "PATH":
			path = value
			continue
		case "PYTHONPATH":
			if root == "" && value != "" {
				paths += string(filepath.ListSeparator) + value
			}
			continue
		case "PYTHONUNBUFFERED":
			continue
		case "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV":
			if root != "" {
				continue
			}
		}
		env = append(env, pair)
	}
	if root != "" {
		path = strings.TrimSuffix(filepath.Join(root, "bin")+string(filepath.ListSeparator)+path, string(filepath.ListSeparator))
		marker := "VIRTUAL_ENV="
		if _, err := os.Stat(filepath.Join(root, "conda-meta")); err == nil {
			marker = "CONDA_PREFIX="
		}
		env = append(env, marker+root)
	}
	return append(env, "PATH="+path, "PYTHONPATH="+paths, "PYTHONUNBUFFERED=1")
}

// explain is what a line of an interpreter's output means, nil where it is not
// known.
func explain(interpreter, line string) *worker.Error {
	if _, rest, ok := strings.Cut(line, "No module named "); ok {
		module, _, _ := strings.Cut(strings.Trim(rest, `'"; `), "'")
		module, _, _ = strings.Cut(module, ".")
		e := worker.NewError(worker.KindMissing, "")
		if e.Install = interpreter + " -m pip install " + module; module == "numpy" || module == "pydantic" {
			e.Install = interpreter + " -m pip install numpy pydantic"
		}
		e.Message = fmt.Sprintf("%s lacks the package %q; install it: %s", interpreter, module, e.Install)
		return e
	}
	if strings.Contains(line, "cannot import name ") && strings.Contains(line, " from 'pydantic'") {
		e := worker.NewError(worker.KindMissing, "")
		e.Install = interpreter + " -m pip install numpy 'pydantic>=2'"
		e.Message = fmt.Sprintf("%s has a pydantic before version 2; install a later one: %s", interpreter, e.Install)
		return e
	}
	return nil
}
