package ort

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Search is where to look for the shared library. The first that can be loaded
// is used, in the order of the fields.
type Search struct {
	// Explicit is the library, or the folder that holds it. Where it is given
	// nothing else is tried.
	Explicit string
	// Dirs are folders that may hold the library.
	Dirs []string
	// Then comes what the system's loader finds by the library's bare name.

	// Python is an interpreter that is asked for its onnxruntime package, a
	// path or a name on PATH; "" asks none.
	Python string
	// NodeModules are folders of npm packages, in which onnxruntime-node is
	// looked for.
	NodeModules []string
}

// Install is the command that installs the library.
const Install = "pip install onnxruntime"

// NotFoundError is the error where there is no library.
type NotFoundError struct {
	Tried []string // what could not be loaded, with the reason
}

// Error returns a message with the remedy.
func (e *NotFoundError) Error() string {
	message := "no ONNX Runtime library was found; install it (" + Install + ") or set ROUNDHOUSE_ONNXRUNTIME to the path of " + fileName
	if len(e.Tried) > 0 {
		message += "; tried " + strings.Join(e.Tried, ", ")
	}
	return message
}

// fileName is the library's name, suffix what may stand behind it.
var fileName, versioned = names()

func names() (name, pattern string) {
	if runtime.GOOS == "darwin" {
		return "libonnxruntime.dylib", "libonnxruntime.*.dylib"
	}
	return "libonnxruntime.so", "libonnxruntime.so.*"
}

// Open loads the library. Failing that the error is a *NotFoundError, or the
// loader's own for an explicit path.
func (s Search) Open(ctx context.Context, threads int) (*Library, error) {
	if s.Explicit != "" {
		path := s.Explicit
		if inside := inFolder(path); len(inside) > 0 {
			path = inside[0]
		}
		l, err := Open(path, threads)
		if err != nil {
			return nil, fmt.Errorf("cannot load ONNX Runtime: %w", err)
		}
		return l, nil
	}
	missing := &NotFoundError{}
	for find := range slices.Values([]func(context.Context) []string{s.inDirs, bareNames, s.inPython, s.inNode}) {
		for _, path := range find(ctx) {
			l, err := Open(path, threads)
			if err == nil {
				return l, nil
			}
			if failed := new(Error); errors.As(err, &failed) {
				return nil, err // it is ONNX Runtime, and it does not start
			}
			if filepath.IsAbs(path) {
				missing.Tried = append(missing.Tried, fmt.Sprintf("%s (%v)", path, err))
			}
		}
	}
	return nil, missing
}

// inFolder lists the libraries of a folder, the newest version first.
func inFolder(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(escape(dir), versioned)) // the pattern is well-formed
	slices.SortFunc(found, func(a, b string) int { return compareVersions(b, a) })
	plain, _ := filepath.Glob(filepath.Join(escape(dir), fileName))
	return append(plain, found...)
}

// escape has a pattern mean path itself.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// compareVersions puts 1.20.1 after 1.9.0: of names that differ in a version
// alone the longer is almost always the newer.
func compareVersions(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}

func (s Search) inDirs(context.Context) (paths []string) {
	for _, dir := range s.Dirs {
		paths = append(paths, inFolder(dir)...)
	}
	return paths
}

// bareNames are what the system's loader is asked for.
func bareNames(context.Context) []string { return []string{fileName, fileName + ".1"} }

// askTimeout bounds the wait for an interpreter.
const askTimeout = 15 * time.Second

// whereIs prints the folder of the package without importing it.
const whereIs = `import importlib.util as u
s = u.find_spec("onnxruntime")
for p in (s.submodule_search_locations or []) if s else []: print(p)`

// inPython asks the interpreter. It runs isolated, so that the current folder
// and PYTHON variables have no say in what is loaded.
func (s Search) inPython(ctx context.Context) (paths []string) {
	if s.Python == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, s.Python, "-I", "-c", whereIs).Output()
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(out)) {
		if dir := strings.TrimSpace(line); filepath.IsAbs(dir) {
			paths = append(paths, inFolder(filepath.Join(dir, "capi"))...)
		}
	}
	return paths
}

// inNode looks for the npm package, which carries a library for each platform.
func (s Search) inNode(context.Context) (paths []string) {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	for _, dir := range s.NodeModules {
		folders, _ := filepath.Glob(filepath.Join(escape(dir), "onnxruntime-node", "bin", "napi-v*", runtime.GOOS, arch))
		for _, folder := range slices.Backward(folders) {
			paths = append(paths, inFolder(folder)...)
		}
	}
	return paths
}
