package artifact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	// maxDigested is the largest file of which a fingerprint reads all.
	maxDigested = 8 << 20
	// sampled is what it reads of a larger one, at each end.
	sampled = 64 << 10
)

// errTooMany ends the walk of a folder.
var errTooMany = errors.New("too many files")

// Fingerprint tells the files of a model from those that take their place
// later: a fetched model's by the content of its newest copy, a model's in
// place by content, and of a file larger than 8 MiB by its size, its time of
// change and its ends. It is "" for what is not there, for folders of more than
// Config.MaxFiles entries, and for uploads, which never change. Hidden files and
// what servers leave in a folder do not count.
func (s *Store) Fingerprint(ctx context.Context, req Request) string {
	loc, err := parse(req)
	switch {
	case err != nil || loc.scheme == "upload":
		return ""
	case loc.scheme != "file":
		if r := s.folder.readRecord(loc); r != nil {
			return r.Version
		}
		return ""
	}
	h, n := sha256.New(), 0
	err = filepath.WalkDir(loc.path, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if n++; n > s.cfg.MaxFiles {
			return errTooMany
		}
		name, _ := filepath.Rel(loc.path, path)
		if name != "." && left(e.Name()) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		return fingerprint(h, path, name)
	})
	if err != nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// left reports whether a server or tool may have left a file or folder of this
// name, so that it says nothing of the model.
func left(name string) bool {
	switch filepath.Ext(name) {
	case ".pyc", ".log", ".lock", ".tmp":
		return true
	}
	return name == "__pycache__" || strings.HasPrefix(name, ".")
}

// fingerprint adds one file. What a link leads to counts; what cannot be read
// for being no file adds its name alone.
func fingerprint(h hash.Hash, path, name string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) && name != "." {
		return nil // it went meanwhile, or is a link to nothing
	}
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(h, "%q %v\n", name, info.Mode().Type())
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size := info.Size()
	_, _ = fmt.Fprintf(h, "%d\n", size)
	if size <= maxDigested {
		_, err = io.Copy(h, io.LimitReader(f, maxDigested))
		return err
	}
	_, _ = fmt.Fprintf(h, "%d\n", info.ModTime().UnixNano())
	for _, at := range []int64{0, size - sampled} {
		if _, err := io.Copy(h, io.NewSectionReader(f, at, sampled)); err != nil {
			return err
		}
	}
	return nil
}
