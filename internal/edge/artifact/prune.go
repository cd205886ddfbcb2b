package artifact

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// abandoned is the age after which a download that nobody resumed is removed.
const abandoned = 7 * 24 * time.Hour

// Prune removes every copy and upload that inUse does not claim, and downloads
// left off for a week. inUse gets folders: those in use are the ones that
// contain a path returned by Fetch or Lookup. It returns the bytes freed.
func (s *Store) Prune(ctx context.Context, inUse func(folder string) bool) (freed int64, err error) {
	var errs []error
	for _, kind := range []string{"models", "uploads"} {
		keys, err := os.ReadDir(filepath.Join(s.cfg.Dir, kind))
		errs = append(errs, err)
		for _, key := range keys {
			n, err := s.pruneKey(ctx, kind, key.Name(), inUse)
			freed += n
			errs = append(errs, err)
		}
	}
	n, err := s.prunePartial(ctx)
	return freed + n, errors.Join(append(errs, err)...)
}

// pruneKey removes the unused copies below one key while no download of it
// runs.
func (s *Store) pruneKey(ctx context.Context, kind, key string, inUse func(string) bool) (freed int64, err error) {
	unlock, err := s.lock(ctx, key)
	if err != nil {
		return 0, err
	}
	defer unlock()
	dir := filepath.Join(s.cfg.Dir, kind, key)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	kept := 0
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case !e.IsDir(): // the record goes with its copy
		case inUse(path):
			kept++
		default:
			_, n, _ := measure(path)
			// A half-removed folder no longer measures as its record says, so
			// it is never taken for whole.
			if err := os.RemoveAll(path); err != nil {
				return freed, err
			}
			freed += n
		}
	}
	if kept == 0 {
		return freed, os.RemoveAll(dir)
	}
	return freed, nil
}

func (s *Store) prunePartial(ctx context.Context) (freed int64, err error) {
	root := filepath.Join(s.cfg.Dir, "partial")
	entries, err := os.ReadDir(root)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || time.Since(info.ModTime()) < abandoned {
			continue
		}
		path := filepath.Join(root, e.Name())
		if !strings.HasPrefix(e.Name(), "upload-") {
			unlock, err := s.lock(ctx, e.Name())
			if err != nil {
				return freed, err
			}
			defer unlock()
		}
		_, n, _ := measure(path)
		if err := os.RemoveAll(path); err != nil {
			return freed, err
		}
		freed += n
	}
	return freed, nil
}
