package python

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// environment is an interpreter and what belongs to it.
type environment struct {
	python  string // the interpreter, absolute
	root    string // the venv or conda folder; "" is the default interpreter
	release func() // ends the use of it
}

// environment finds what the key of a pool names. Errors are *Error with the
// status 422, or say what to install.
func (e *Engine) environment(ctx context.Context, key poolKey) (*environment, error) {
	if key.environment == "" && len(e.config.Command) > 0 {
		return &environment{release: func() {}}, nil
	}
	if key.environment == "" {
		return defaultEnvironment(e.config.Python)
	}
	root, release := key.environment, func() {}
	if key.tarball {
		var err error
		if root, release, err = e.tarballs.acquire(ctx, key.environment); err != nil {
			return nil, err
		}
	}
	python, err := interpreter(root)
	if err != nil {
		release()
		return nil, err
	}
	return &environment{python: python, root: root, release: release}, nil
}

// defaultEnvironment finds an interpreter by its path or name.
func defaultEnvironment(name string) (*environment, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		e := newError(kindMissing, "")
		e.Install = "apt-get install python3 python3-venv && python3 -m venv .venv && .venv/bin/pip install numpy pydantic"
		e.Message = fmt.Sprintf("no Python interpreter %q (%v); this model needs Python 3.9 or later with numpy and pydantic: %s, then point the server at .venv/bin/python",
			name, err, e.Install)
		return nil, e
	}
	return &environment{python: path, release: func() {}}, nil
}

// interpreter finds the Python of a venv or conda folder.
func interpreter(root string) (string, error) {
	info, err := os.Stat(root)
	if err != nil || !info.IsDir() {
		return "", newError(kindUnprocessable, fmt.Sprintf("environment %s is no folder; name a venv or conda environment", root))
	}
	for _, name := range []string{"python", "python3"} {
		path := filepath.Join(root, "bin", name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", newError(kindUnprocessable, fmt.Sprintf("environment %s has no bin/python that runs; name a venv or conda environment (conda-pack makes a tarball of one)", root))
}

// variables is the environment of a worker's process. Packages of another
// environment are kept out of it.
func (v *environment) variables(environ []string, packageDir string) []string {
	path, paths := "", packageDir
	env := make([]string, 0, len(environ)+4)
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "PATH":
			path = value
			continue
		case "PYTHONPATH":
			if v.root == "" && value != "" {
				paths += string(filepath.ListSeparator) + value
			}
			continue
		case "PYTHONUNBUFFERED", tokenVariable:
			continue
		case "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV":
			if v.root != "" {
				continue
			}
		}
		env = append(env, pair)
	}
	if v.root != "" {
		path = strings.TrimSuffix(filepath.Join(v.root, "bin")+string(filepath.ListSeparator)+path, string(filepath.ListSeparator))
		marker := "VIRTUAL_ENV="
		if _, err := os.Stat(filepath.Join(v.root, "conda-meta")); err == nil {
			marker = "CONDA_PREFIX="
		}
		env = append(env, marker+v.root)
	}
	return append(env, "PATH="+path, "PYTHONPATH="+paths, "PYTHONUNBUFFERED=1")
}

// tarballs are the environments that were unpacked, by the hash of what they
// were unpacked from.
type tarballs struct {
	dir    string
	limits Limits
	log    *slog.Logger

	mu sync.Mutex // also held while one is unpacked: disks gain nothing from two
	in map[string]*tarball
}

// tarball is an unpacked environment in use.
type tarball struct {
	users int
	lock  *folderLock
}

// acquire gives the folder of a tarball's content, unpacked if need be, until
// release is called. With its last use the folder is removed, unless another
// server on this machine uses it.
func (t *tarballs) acquire(ctx context.Context, path string) (root string, release func(), err error) {
	hash, err := hashFile(ctx, path)
	if err != nil {
		return "", nil, newError(kindUnprocessable, fmt.Sprintf("environment tarball: %v", err))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	dir, err := filepath.Abs(t.dir)
	if err != nil {
		return "", nil, err
	}
	root = filepath.Join(dir, hash)
	if t.in == nil {
		t.in = map[string]*tarball{}
	}
	use := t.in[hash]
	if use == nil {
		if use, err = t.unpackOnce(ctx, path, root); err != nil {
			return "", nil, newError(kindUnprocessable, fmt.Sprintf("environment tarball %s: %v", path, err))
		}
		t.in[hash] = use
	}
	use.users++
	return root, func() { t.leave(hash, root) }, nil
}

// unpackOnce makes root from the tarball unless it is there.
func (t *tarballs) unpackOnce(ctx context.Context, path, root string) (*tarball, error) {
	if err := os.MkdirAll(filepath.Dir(root), 0o700); err != nil {
		return nil, err
	}
	lock, err := lockFolder(ctx, root+".lock")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(root); err != nil {
		if err := t.unpack(ctx, path, root); err != nil {
			lock.remove()
			return nil, err
		}
	}
	return &tarball{lock: lock}, lock.share()
}

func (t *tarballs) unpack(ctx context.Context, path, root string) error {
	partial := root + ".partial"
	if err := os.RemoveAll(partial); err != nil { // of a server that was killed
		return err
	}
	t.log.Info("unpacking the environment", "tarball", path, "folder", root)
	err := unpackTarball(ctx, path, partial, t.limits)
	if err == nil {
		err = os.Rename(partial, root)
	}
	if err != nil {
		_ = os.RemoveAll(partial) // the first error counts
	}
	return err
}

// leave ends a use.
func (t *tarballs) leave(hash, root string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	use := t.in[hash]
	if use.users--; use.users > 0 {
		return
	}
	delete(t.in, hash)
	if !use.lock.exclusive() {
		use.lock.leave() // another server uses it
		return
	}
	// Renamed first: a folder half removed must not pass for a whole one.
	err := os.Rename(root, root+".partial")
	if err == nil {
		err = os.RemoveAll(root + ".partial")
	}
	if err != nil {
		t.log.Warn("environment cannot be removed", "folder", root, "error", err)
	}
	use.lock.remove()
}
