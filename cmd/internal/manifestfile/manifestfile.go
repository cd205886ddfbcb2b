// Package manifestfile finds, reads and follows the manifest files of a command
// line, and uploads the model files that they name.
package manifestfile

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"roundhouse.dev/roundhouse/cmd/internal/command"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// maxFolderFiles bounds what one -f FOLDER may hold.
const maxFolderFiles = 10_000

// Paths expands files and folders into manifest files: of a folder
// those ending in .yaml, .yml or .json that it holds, subfolders included, if
// they look like a manifest. "-" is standard input.
func Paths(args []string) ([]string, error) {
	var out []string
	for _, arg := range args {
		info, err := os.Stat(arg)
		switch {
		case arg == "-":
			out = append(out, arg)
			continue
		case err != nil:
			return nil, fmt.Errorf("%s: %w", arg, command.Cause(err))
		case !info.IsDir():
			out = append(out, arg)
			continue
		}
		found, err := folderManifests(arg)
		if err != nil {
			return nil, err
		}
		if len(found) == 0 {
			return nil, &noManifestError{arg}
		}
		out = append(out, found...)
	}
	return out, nil
}

// noManifestError is about a folder that holds none; it matches fs.ErrNotExist.
type noManifestError struct{ folder string }

func (e *noManifestError) Error() string {
	return e.folder + ": no manifest in this folder (.yaml, .yml or .json with apiVersion and kind)"
}

func (e *noManifestError) Is(target error) bool { return target == fs.ErrNotExist }

func folderManifests(dir string) ([]string, error) {
	var out []string
	seen := 0
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && path != dir && strings.HasPrefix(name, ".") {
			return filepath.SkipDir
		}
		if seen++; seen > maxFolderFiles {
			return fmt.Errorf("%s: over %d files: name the manifests' own folder", dir, maxFolderFiles)
		}
		ext := filepath.Ext(path)
		if e.IsDir() || ext != ".yaml" && ext != ".yml" && ext != ".json" {
			return nil
		}
		// A folder of manifests often holds the models' own JSON beside them.
		if ext == ".json" && !looksLikeManifest(path) {
			return nil
		}
		out = append(out, path)
		return nil
	})
	slices.Sort(out)
	return out, err
}

func looksLikeManifest(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	head, _ := io.ReadAll(io.LimitReader(f, 64<<10))
	return strings.Contains(string(head), `"apiVersion"`) && strings.Contains(string(head), `"kind"`)
}

// Read reads the manifests of files and folders. Problems of their content are
// found later, all at once.
func Read(args []string, stdin io.Reader) ([]admin.File, error) {
	paths, err := Paths(args)
	if err != nil {
		return nil, err
	}
	var out []admin.File
	for _, p := range paths {
		f, err := readFile(p, stdin)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func readFile(path string, stdin io.Reader) (admin.File, error) {
	in := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return admin.File{}, fmt.Errorf("%s: %w", path, command.Cause(err))
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, dialect.MaxBytes+1))
	if err != nil {
		return admin.File{}, fmt.Errorf("%s: %w", path, command.Cause(err))
	}
	name, dir := path, filepath.Dir(path)
	if path == "-" {
		name, dir = "stdin", "."
	}
	file := admin.File{Name: name, Data: string(data)}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return file, fmt.Errorf("%s: %w", path, err)
	}
	file.URIs = resolveURIs(file, abs)
	return file, nil
}

// resolveURIs maps the URIs of local files in a manifest to absolute ones.
func resolveURIs(f admin.File, dir string) map[string]string {
	out := map[string]string{}
	for _, o := range dialect.Read(f.Name, []byte(f.Data)).Objects {
		for _, uri := range o.ModelURIs() {
			if at := dialect.ResolveFile(uri, dir); at != uri {
				out[uri] = at
			}
		}
	}
	return out
}

// InOrder sorts problems, each "FILE:LINE: …", by the order of the files and then
// by line. Those without a file of the list come last.
func InOrder(files []admin.File, problems []string) []string {
	type place struct{ file, line int }
	at := func(problem string) place {
		for i, f := range files {
			if rest, ok := strings.CutPrefix(problem, f.Name+":"); ok {
				number, _, _ := strings.Cut(rest, ":")
				line, _ := strconv.Atoi(number) // 0: it is of the whole file
				return place{i, line}
			}
		}
		return place{file: len(files)}
	}
	slices.SortStableFunc(problems, func(a, b string) int {
		x, y := at(a), at(b)
		return cmp.Or(x.file-y.file, x.line-y.line)
	})
	return problems
}

// Missing returns a warning for each model file of this machine that objects name
// and that is not there.
func Missing(objects []fleet.Object) []string {
	var out []string
	for _, o := range objects {
		for _, uri := range o.ModelURIs() {
			path, local := service.LocalPath(o.FileURI(uri))
			path, _, _ = strings.Cut(path, "#sha256=")
			if !local {
				continue
			}
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
				out = append(out, fmt.Sprintf("%s:%d: warning: %s: no file or folder at %s on this machine", o.Origin.File, o.Origin.Line, o.ID(), path))
			}
		}
	}
	return out
}

// Server is who reads the model files that manifests name.
type Server interface {
	// Reads reports whether the server itself reads a file of this machine.
	Reads(ctx context.Context, path string, size int64, dir bool) (bool, error)
	Upload(ctx context.Context, u artifact.Upload, open func() (io.ReadCloser, error)) (uri string, err error)
}

// Upload sends the local model files of a manifest that the server cannot read
// by itself, and maps their URIs to the uploads. bar shows the progress.
func Upload(ctx context.Context, c Server, f *admin.File, bar func(name string, size int64) io.WriteCloser) error {
	var files []string
	for _, o := range dialect.Read(f.Name, []byte(f.Data)).Objects {
		if o.Service != nil {
			files = append(files, o.ModelURIs()...)
		}
	}
	for _, written := range files {
		at := written
		if abs, ok := f.URIs[written]; ok {
			at = abs
		}
		path, local := service.LocalPath(at)
		if !local {
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			// The server may have it, or reports that it has not.
			continue
		}
		if !info.Mode().IsRegular() && !info.IsDir() {
			return fmt.Errorf("%s is neither a file nor a folder (%s): name the model's file or folder", path, info.Mode().Type())
		}
		reads, err := c.Reads(ctx, path, info.Size(), info.IsDir())
		if err != nil {
			return err
		}
		if reads {
			continue
		}
		uri, err := upload(ctx, c, path, info.IsDir(), bar)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		f.URIs[written] = uri
	}
	return nil
}

// upload sends one file, or a folder as a tar archive.
func upload(ctx context.Context, c Server, path string, dir bool, bar func(string, int64) io.WriteCloser) (string, error) {
	content := func(w io.Writer) error {
		if dir {
			return artifact.WriteTar(ctx, w, path)
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		_, err = io.Copy(w, f)
		return err
	}
	sum := sha256.New()
	size := &counter{}
	if err := content(io.MultiWriter(sum, size)); err != nil {
		return "", err
	}
	u := artifact.Upload{SHA256: hex.EncodeToString(sum.Sum(nil)), Size: size.n, Name: filepath.Base(path)}
	if dir {
		u.Name = ""
	}
	return c.Upload(ctx, u, func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		progress := bar(filepath.Base(path), u.Size)
		go func() {
			err := content(io.MultiWriter(w, progress))
			_ = progress.Close()
			w.CloseWithError(err)
		}()
		return r, nil
	})
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// Exist returns an error for a file or folder that is not there. Their objects
// stay: a mistyped name deletes nothing.
func Exist(files []string) error {
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return fmt.Errorf("%s: %w", f, command.Cause(err))
		}
	}
	return nil
}
