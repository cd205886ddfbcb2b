package python

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"roundhouse.dev/roundhouse/internal/edge/engine/worker"
)

// archive writes a tarball.
func archive(t *testing.T, zipped bool, entries ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := "content of " + h.Name
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte(content)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	data := b.Bytes()
	if zipped {
		var z bytes.Buffer
		g := gzip.NewWriter(&z)
		if _, err := g.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		data = z.Bytes()
	}
	path := filepath.Join(t.TempDir(), "env.tar")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func file(name string) tar.Header { return tar.Header{Typeflag: tar.TypeReg, Name: name} }
func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target}
}

func TestUnpackTarball(t *testing.T) {
	program := file("./bin/tool")
	program.Mode = 0o6777
	for _, zipped := range []bool{false, true} {
		path := archive(t, zipped, tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}, program, link("lib/a.py", "nowhere"), file("lib/a.py"), file("lib/a.py"), link("bin/python3", "/usr/bin/python3"),
			link("bin/python", "python3"), link("lib64", "lib"), link("lib64", "lib"), link("lib/b.py", "../lib/a.py"), tar.Header{Typeflag: tar.TypeLink, Name: "c.py", Linkname: "lib/a.py"})
		dir := filepath.Join(t.TempDir(), "out")
		if err := unpackTarball(t.Context(), path, dir, unpackLimits{files: 100, bytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"lib/a.py", "lib64/a.py", "lib/b.py", "c.py"} {
			if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != "content of lib/a.py" {
				t.Errorf("%s: %q, %v", name, text, err)
			}
		}
		if info, err := os.Stat(filepath.Join(dir, "bin/tool")); err != nil || info.Mode()&^0o022 != 0o755 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		if target, err := os.Readlink(filepath.Join(dir, "bin/python3")); err != nil || target != "/usr/bin/python3" {
			t.Errorf("the interpreter is %q, %v", target, err)
		}
	}
}

func TestHostileTarball(t *testing.T) {
	outside := t.TempDir()
	for name, entries := range map[string][]tar.Header{
		"a name that climbs":          {file("../evil")},
		"a name that climbs within":   {file("lib/../../evil")},
		"an absolute name":            {file("/tmp/evil")},
		"a link that climbs":          {link("lib", "../..")},
		"an absolute link":            {link("lib", outside)},
		"a file through a link":       {link("bin/python3", outside), file("bin/python3/evil")},
		"a chain of links":            {file("a/b"), link("a/x", ".."), link("y", "a/x/..")},
		"a hard link that climbs":     {{Typeflag: tar.TypeLink, Name: "a", Linkname: "../../etc/passwd"}},
		"a hard link through a link":  {link("bin/python3", "/etc"), {Typeflag: tar.TypeLink, Name: "a", Linkname: "bin/python3/passwd"}},
		"a hard link to a link":       {link("a/b/s", "../../evil"), {Typeflag: tar.TypeLink, Name: "h", Linkname: "a/b/s"}},
		"a device":                    {{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}},
		"a pipe":                      {{Typeflag: tar.TypeFifo, Name: "pipe"}},
		"a folder in a file's place":  {file("a"), {Typeflag: tar.TypeDir, Name: "a"}},
		"more files than are allowed": slices.Repeat([]tar.Header{{Typeflag: tar.TypeDir, Name: "d/"}}, 20),
		"more bytes than are allowed": {{Typeflag: tar.TypeReg, Name: strings.Repeat("x", 200)}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			err := unpackTarball(t.Context(), archive(t, true, entries...), dir, unpackLimits{files: 10, bytes: 100})
			if err == nil {
				t.Error("unpacked")
			}
			if left, _ := os.ReadDir(outside); len(left) > 0 {
				t.Errorf("written outside: %v", left)
			}
		})
	}
	for name, content := range map[string]string{"empty gzip": "\x1f\x8b", "text": strings.Repeat("no archive ", 200), "cut bzip2": "BZh9"} {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unpackTarball(t.Context(), path, filepath.Join(t.TempDir(), "out"), unpackLimits{files: 100, bytes: 1 << 20}); err == nil {
			t.Errorf("%s: unpacked", name)
		}
	}
}

func TestTarballs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "envs")
	open := func() *tarballs {
		return &tarballs{dir: dir, limits: unpackLimits{files: 100, bytes: 1 << 20}, log: slog.New(slog.DiscardHandler)}
	}
	path, same := archive(t, true, file("a")), archive(t, true, file("a"))
	one, two := open(), open() // two servers
	root, release, err := one.acquire(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again, releaseAgain, err := one.acquire(t.Context(), same)
	if err != nil || again != root {
		t.Fatalf("%s, %s: %v", root, again, err)
	}
	other, releaseOther, err := two.acquire(t.Context(), path)
	if err != nil || other != root {
		t.Fatalf("%s, %s: %v", root, other, err)
	}
	there := func(want bool) {
		t.Helper()
		if _, err := os.Stat(filepath.Join(root, "a")); errors.Is(err, fs.ErrNotExist) == want {
			t.Errorf("there is %v, want %v", err == nil, want)
		}
	}
	release()
	there(true)
	releaseAgain()
	there(true) // the other server's
	releaseOther()
	there(false)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	// A whole one that a killed server left is used, half a one is not.
	if err := os.MkdirAll(root+".partial", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, release, err = one.acquire(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	there(true)
	release()
	_, _, err = one.acquire(t.Context(), filepath.Join(dir, "none"))
	wantError(t, err, worker.KindUnprocessable, 422, "environment tarball")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := one.acquire(ctx, path); err == nil {
		t.Error("unpacked after the context ended")
	}
}

func TestUnpackPackage(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	files := fstest.MapFS{"roundhouse/worker.py": {Data: []byte("1")}, "roundhouse/a/b.py": {Data: []byte("2")}, "roundhouse/__pycache__/x.pyc": {Data: []byte("3")}, "other/c.py": {Data: []byte("3")}}
	first, err := unpackPackage(files, cache)
	if err != nil {
		t.Fatal(err)
	}
	again, err := unpackPackage(files, cache)
	if err != nil || again != first {
		t.Errorf("%s, %s: %v", first, again, err)
	}
	files["roundhouse/a/b.py"] = &fstest.MapFile{Data: []byte("4")}
	changed, err := unpackPackage(files, cache)
	if err != nil || changed == first {
		t.Errorf("%s, %s: %v", first, changed, err)
	}
	if text, err := os.ReadFile(filepath.Join(changed, "roundhouse", "a", "b.py")); err != nil || string(text) != "4" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(changed, "roundhouse", "__pycache__")); err == nil {
		t.Error("byte code was unpacked")
	}
	if info, err := os.Stat(changed); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if list, err := os.ReadDir(cache); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := unpackPackage(fstest.MapFS{}, cache); err == nil {
		t.Error("an empty folder passed for the package")
	}
}

func TestVariables(t *testing.T) {
	environ := []string{"PATH=/bin", "PYTHONPATH=/mine", "PYTHONHOME=/home", "A=b=c"}
	own := variables(environ, "", "/pkg")
	if want := []string{"PYTHONHOME=/home", "A=b=c", "PATH=/bin", "PYTHONPATH=/pkg:/mine", "PYTHONUNBUFFERED=1"}; !slices.Equal(own, want) {
		t.Errorf("default: %v", own)
	}
	venv := variables(environ, "/env", "/pkg")
	if want := []string{"A=b=c", "VIRTUAL_ENV=/env", "PATH=/env/bin:/bin", "PYTHONPATH=/pkg", "PYTHONUNBUFFERED=1"}; !slices.Equal(venv, want) {
		t.Errorf("venv: %v", venv)
	}
}

func TestValidate(t *testing.T) {
	c := Config{Interpreter: "python3", Package: fstest.MapFS{}, CacheDir: "/cache", EnvironmentsDir: ".envs"}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*Config){
		"interpreter:":     func(c *Config) { c.Interpreter = "" },
		"package:":         func(c *Config) { c.Package = nil },
		"cacheDir:":        func(c *Config) { c.CacheDir = "" },
		"environments_dir": func(c *Config) { c.EnvironmentsDir = "" },
	} {
		bad := c
		change(&bad)
		if _, err := New(bad, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

func TestExplain(t *testing.T) {
	for line, says := range map[string]string{
		"ModuleNotFoundError: No module named 'numpy.core'":                                         "py -m pip install numpy pydantic",
		"/py: No module named joblib; ":                                                             "py -m pip install joblib",
		"ImportError: cannot import name 'TypeAdapter' from 'pydantic' (/lib/pydantic/__init__.py)": "has a pydantic before version 2; install a later one: py -m pip install numpy 'pydantic>=2'",
	} {
		if e := explain("py", line); e == nil || e.Kind != worker.KindMissing || !strings.Contains(e.Message, says) {
			t.Errorf("%s: %v", line, e)
		}
	}
	if e := explain("py", "about to fail"); e != nil {
		t.Error(e)
	}
}

// TestMissingPackageIsOneLine: an interpreter without the packages ends with the
// line that explain reads, and without a traceback.
func TestMissingPackageIsOneLine(t *testing.T) {
	interpreter, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not on PATH")
	}
	for _, module := range []string{"roundhouse.worker", "roundhouse.forkserver"} {
		cmd := exec.CommandContext(t.Context(), interpreter, "-S", "-m", module) // -S: without any package
		cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join("..", "..", "..", "..", "..", "python"), "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		line := strings.TrimSpace(string(out))
		if e := explain("py", line); err == nil || strings.Contains(line, "\n") || e == nil || !strings.Contains(e.Message, "py -m pip install numpy pydantic") {
			t.Errorf("%s: %v, %v:\n%s", module, err, e, out)
		}
	}
}

func TestNoInterpreter(t *testing.T) {
	e, err := New(Config{Interpreter: "no-such-python", Package: fstest.MapFS{}, CacheDir: t.TempDir(), EnvironmentsDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Program(t.Context(), worker.Environment{})
	wantError(t, err, worker.KindMissing, 500, "pip install numpy pydantic")
	_, err = e.Program(t.Context(), worker.Environment{Path: t.TempDir()})
	wantError(t, err, worker.KindUnprocessable, 422, "has no bin/python that runs")
}

func wantError(t *testing.T, err error, kind string, status int, says string) {
	t.Helper()
	e, ok := errors.AsType[*worker.Error](err)
	if !ok || e.Kind != kind || e.Status != status || !strings.Contains(e.Message, says) {
		t.Errorf("error %v (%T), want %s %d %q", err, err, kind, status, says)
	}
}
