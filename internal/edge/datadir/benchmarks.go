package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const benchmarksDir = "benchmarks"

// maxReport bounds the file of one report.
const maxReport = 4 << 20

// BenchmarkFiles are the reports of benchmarks.
type BenchmarkFiles struct{ dir *Dir }

// Benchmarks are those of the data directory.
func (d *Dir) Benchmarks() BenchmarkFiles { return BenchmarkFiles{d} }

func (f BenchmarkFiles) path(k service.Key) string {
	return f.dir.Path(benchmarksDir, namespaceDir(k.Namespace), k.Name+".json")
}

// Load returns every report that can be read.
func (f BenchmarkFiles) Load() (map[service.Key][]byte, error) {
	out := map[service.Key][]byte{}
	files, err := filepath.Glob(f.dir.Path(benchmarksDir, "*", "*.json"))
	errs := []error{err}
	for _, path := range files {
		info, err := os.Lstat(path)
		if err == nil && (!info.Mode().IsRegular() || info.Size() > maxReport) {
			err = fmt.Errorf("%s: is not a report of at most %d bytes", path, maxReport)
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(path)
		}
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		name := filepath.Base(path)
		out[service.Key{Namespace: filepath.Base(filepath.Dir(path)), Name: name[:len(name)-len(".json")]}] = text
	}
	return out, errors.Join(errs...)
}

// Save writes a report.
func (f BenchmarkFiles) Save(k service.Key, text []byte) error { return f.dir.put(f.path(k), text) }

// Remove removes a report.
func (f BenchmarkFiles) Remove(k service.Key) error { return f.dir.remove(f.path(k)) }
