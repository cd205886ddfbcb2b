package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// desired are the objects that manifests change: a fleet's, or routes alone.
type desired interface {
	Apply(context.Context, []fleet.Object, fleet.ApplyOptions) ([]fleet.Change, error)
	Delete(context.Context, fleet.ID) error
	Sourced(match func(source string) bool) []fleet.ID
}

// sources keep objects equal to the manifests of `-f`. A file is the unit: one
// with a problem keeps what it said before, the others go on.
type sources struct {
	objects desired
	log     *slog.Logger
	roots   []string
	// watched: a root may go, and come again, without that being a problem.
	watched bool
	// refuse says what is wrong with a file's objects; nil takes all.
	refuse func([]fleet.Object) error
}

// first is the sync at the start: problems end it, unless the files are watched
// and may be put right.
func (s *sources) first(ctx context.Context) error {
	err := s.sync(ctx)
	if err == nil || !s.watched {
		return err
	}
	s.log.Error("a manifest keeps what it said before", "error", err)
	return nil
}

// sync applies every file and deletes what a file below the roots no longer
// holds. The error holds the problems of all files.
func (s *sources) sync(ctx context.Context) error {
	if len(s.roots) == 0 {
		return nil
	}
	var errs []error
	var objects []fleet.Object
	bad := map[string]bool{}
	for _, root := range s.roots {
		paths, err := manifestPaths([]string{root})
		if err != nil && (!s.watched || !isNotExist(err)) {
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

func (s *sources) read(path string) ([]fleet.Object, error) {
	file, err := readManifest(path, nil)
	if err != nil {
		return nil, err
	}
	objects, warnings, err := admin.Objects([]admin.File{file}, absolute(path))
	for _, w := range warnings {
		s.log.Warn(w)
	}
	if err == nil && s.refuse != nil {
		err = s.refuse(objects)
	}
	return objects, err
}

func (s *sources) put(ctx context.Context, objects []fleet.Object) error {
	changes, err := s.objects.Apply(ctx, objects, fleet.ApplyOptions{})
	for _, c := range changes {
		if c.Action != "unchanged" {
			s.log.Info(c.Action, "object", c.ID.String())
		}
	}
	return err
}

// prune deletes what came from a file below the roots and is in none now. A
// file that cannot be read keeps its objects.
func (s *sources) prune(ctx context.Context, objects []fleet.Object, bad map[string]bool) error {
	present := map[fleet.ID]bool{}
	for _, o := range objects {
		present[o.ID()] = true
	}
	var errs []error
	for _, id := range s.objects.Sourced(func(source string) bool { return !bad[source] && s.covers(source) }) {
		if present[id] {
			continue
		}
		if err := s.objects.Delete(ctx, id); err != nil {
			errs = append(errs, err)
			continue
		}
		s.log.Info("deleted", "object", id.String(), "why", "its manifest is gone")
	}
	return errors.Join(errs...)
}

// covers says whether a file is one of the roots or below one.
func (s *sources) covers(file string) bool {
	for _, root := range s.roots {
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

// watch reads the manifests again as they change, until ctx ends.
func (s *sources) watch(ctx context.Context) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		s.log.Error("manifests are not watched", "error", err)
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
			s.log.Warn("watching manifests", "error", err)
			changed.Reset(quiet)
		case <-changed.C:
			s.follow(w)
			if err := s.sync(ctx); err != nil {
				s.log.Error("a manifest keeps what it said before", "error", err)
			}
		}
	}
}

// follow watches the folders that hold manifests: watching a folder sees
// files that editors replace.
func (s *sources) follow(w *fsnotify.Watcher) {
	for _, root := range s.roots {
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
