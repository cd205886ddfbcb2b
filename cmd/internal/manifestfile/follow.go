package manifestfile

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Objects are what manifests change: a fleet's, or routes alone.
type Objects interface {
	Apply(context.Context, []fleet.Object, fleet.ApplyOptions) ([]fleet.Change, error)
	Delete(context.Context, fleet.ID) error
	Sourced(match func(source string) bool) []fleet.ID
}

// Source keeps objects equal to the manifests of files and folders. A file is the
// unit: the objects of one with a problem stay as they were, the others change.
type Source struct {
	Objects Objects
	Log     *slog.Logger
	Roots   []string
	// Watched roots may be removed and made again without that being a problem.
	Watched bool
	// Refuse returns what is wrong with a file's objects; nil takes all.
	Refuse func([]fleet.Object) error
}

// First applies the files at the start. Problems are an error, unless the files
// are watched and may be corrected.
func (s *Source) First(ctx context.Context) error {
	err := s.sync(ctx)
	if err == nil || !s.Watched {
		return err
	}
	s.Log.Error("manifests are not applied; their objects stay as they were", "error", err)
	return nil
}

// sync applies every file and deletes what a file below the roots no longer
// holds. The error holds the problems of all files.
func (s *Source) sync(ctx context.Context) error {
	if len(s.Roots) == 0 {
		return nil
	}
	var errs []error
	var objects []fleet.Object
	bad := map[string]bool{}
	for _, root := range s.Roots {
		paths, err := Paths([]string{root})
		if err != nil && (!s.Watched || !errors.Is(err, fs.ErrNotExist)) {
			errs = append(errs, err)
		}
		for _, p := range paths {
			read, err := s.read(p)
			if err != nil {
				bad[absolute(p)] = true
				errs = append(errs, err)
				continue
			}
			objects = append(objects, read...)
		}
	}
	if err := s.put(ctx, objects); err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, s.prune(ctx, objects, bad))...)
}

func (s *Source) read(path string) ([]fleet.Object, error) {
	file, err := readFile(path, nil)
	if err != nil {
		return nil, err
	}
	objects, warnings, err := admin.Objects([]admin.File{file}, absolute(path))
	for _, w := range warnings {
		s.Log.Warn(w)
	}
	if err == nil && s.Refuse != nil {
		err = s.Refuse(objects)
	}
	return objects, err
}

func (s *Source) put(ctx context.Context, objects []fleet.Object) error {
	changes, err := s.Objects.Apply(ctx, objects, fleet.ApplyOptions{})
	for _, c := range changes {
		if c.Action != "unchanged" {
			s.Log.Info(c.Action, "object", c.ID.String())
		}
	}
	return err
}

// prune deletes what came from a file below the roots and is in none now. A
// file that cannot be read keeps its objects.
func (s *Source) prune(ctx context.Context, objects []fleet.Object, bad map[string]bool) error {
	present := map[fleet.ID]bool{}
	for _, o := range objects {
		present[o.ID()] = true
	}
	var errs []error
	for _, id := range s.Objects.Sourced(func(source string) bool { return !bad[source] && s.covers(source) }) {
		if present[id] {
			continue
		}
		if err := s.Objects.Delete(ctx, id); err != nil {
			errs = append(errs, err)
			continue
		}
		s.Log.Info("deleted", "object", id.String(), "reason", "no manifest has it any more")
	}
	return errors.Join(errs...)
}

// covers reports whether a file is one of the roots or below one.
func (s *Source) covers(file string) bool {
	for _, root := range s.Roots {
		abs := absolute(root)
		if file == abs || strings.HasPrefix(file, abs+string(filepath.Separator)) {
			return true
		}
	}
	return false
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// quiet is how long files must have been left alone before they are read:
// editors write a file in several steps.
const quiet = 100 * time.Millisecond

// Watch applies the files as they change, until ctx ends.
func (s *Source) Watch(ctx context.Context) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		s.Log.Error("cannot watch the manifests; restart to apply changes", "error", err)
		return
	}
	defer func() { _ = w.Close() }()
	s.follow(w)
	changed := time.NewTimer(quiet) // what changed since the first sync
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Events:
			changed.Reset(quiet)
		case err := <-w.Errors:
			// Events may have been lost: look at everything.
			s.Log.Warn("watching the manifests failed; reading all of them again", "error", err)
			changed.Reset(quiet)
		case <-changed.C:
			s.follow(w)
			if err := s.sync(ctx); err != nil {
				s.Log.Error("manifests are not applied; their objects stay as they were", "error", err)
			}
		}
	}
}

// follow watches the folders that hold manifests: watching a folder sees
// files that editors replace.
func (s *Source) follow(w *fsnotify.Watcher) {
	for _, root := range s.Roots {
		info, err := os.Stat(root)
		if err != nil || !info.IsDir() {
			_ = w.Add(filepath.Dir(absolute(root)))
			continue
		}
		_ = filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				_ = w.Add(path)
			}
			return nil
		})
	}
}
