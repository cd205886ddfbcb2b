package hubcache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Stats say what a store holds.
type Stats struct {
	Blobs, Bytes           int64
	Partials, PartialBytes int64
	Unverified             int64 // blobs written to since they were verified: hashed again when next read
	Pinned, PinnedBytes    int64
	Records                int64 // files of metadata
	Repositories           int64
	OldestUse, NewestUse   time.Time // of blobs; zero without any
}

// Stats reads the whole store. It may run beside a cache.
func (s *Store) Stats() (st Stats, err error) {
	pinned, err := s.pinned()
	if err != nil {
		return st, err
	}
	err = s.scan(context.Background(), func(e entry) {
		if e.partial {
			st.Partials++
			st.PartialBytes += e.size
			return
		}
		st.Blobs++
		st.Bytes += e.size
		if !e.marked {
			st.Unverified++
		}
		if pinned[e.name] {
			st.Pinned++
			st.PinnedBytes += e.size
		}
		used := time.Unix(e.used, 0)
		if st.OldestUse.IsZero() || used.Before(st.OldestUse) {
			st.OldestUse = used
		}
		if used.After(st.NewestUse) {
			st.NewestUse = used
		}
	})
	if err != nil {
		return st, err
	}
	if repos, err := os.ReadDir(filepath.Join(s.dir, "repos")); err == nil {
		st.Repositories = int64(len(repos))
	}
	st.Records, err = s.countRecords()
	return st, err
}

const (
	abandoned = 7 * 24 * time.Hour  // age of a download that nobody resumed, and is removed
	forgotten = 90 * 24 * time.Hour // age of metadata that is removed: it is asked for again
)

// GC removes the least recently used until the store holds at most limit bytes,
// and what was left behind: downloads of a week ago, metadata of three months
// ago. What is read, downloaded or pinned stays. It may run beside a cache.
func (s *Store) GC(limit int64, now time.Time) (files, freed int64, err error) {
	err = s.scan(context.Background(), func(e entry) {
		if e.partial && now.Sub(time.Unix(e.used, 0)) > abandoned && removeUnused(s.partPath(e.name)) {
			files, freed = files+1, freed+e.size
		}
	})
	if err != nil {
		return files, freed, err
	}
	s.making.Lock()
	evicted, err := s.evict(0, limit)
	s.making.Unlock()
	for _, e := range evicted {
		files, freed = files+1, freed+e.size
	}
	return files, freed, errors.Join(err, s.sweepRecords(now))
}

// sweepRecords removes metadata that is old, and what a crash left of a write.
func (s *Store) sweepRecords(now time.Time) error {
	pins, err := s.Pins()
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, p := range pins {
		keep[repo{p.Kind, p.Repo}.key()] = true
	}
	repos, err := os.ReadDir(filepath.Join(s.dir, "repos"))
	if err != nil {
		return err
	}
	for _, r := range repos {
		if keep[r.Name()] {
			continue
		}
		err := filepath.WalkDir(filepath.Join(s.dir, "repos", r.Name()), func(path string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return nil //nolint:nilerr // removed meanwhile
			}
			info, err := e.Info()
			if err != nil {
				return nil //nolint:nilerr // likewise
			}
			age := now.Sub(info.ModTime())
			if age > forgotten || strings.HasPrefix(e.Name(), ".new-") && age > abandoned {
				_ = os.Remove(path) // the next run tries again
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Verify hashes every blob and removes those that are wrong, telling each of
// them. It may run beside a cache.
func (s *Store) Verify(ctx context.Context, wrong func(hash string)) (blobs, bytes, removed int64, err error) {
	var all []entry
	if err := s.scan(ctx, func(e entry) {
		if !e.partial {
			all = append(all, e)
		}
	}); err != nil {
		return 0, 0, 0, err
	}
	for _, e := range all {
		ok, err := s.verify(ctx, e)
		if err != nil {
			return blobs, bytes, removed, err
		}
		blobs, bytes = blobs+1, bytes+e.size
		if !ok {
			removed++
			wrong(e.name)
		}
	}
	return blobs, bytes, removed, nil
}

func (s *Store) verify(ctx context.Context, e entry) (ok bool, err error) {
	path := s.blobPath(e.name)
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil // evicted meanwhile
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	err = check(ctx, f, e.name, info.Size())
	if errors.Is(err, errCorrupt) {
		s.remove(path, info.Size())
		return false, nil
	}
	if err == nil && !marked(info) {
		err = touch(path, info.ModTime())
	}
	return true, err
}

// collect runs GC now and then, for what size alone does not bound.
func (c *Cache) collect() {
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if _, _, err := c.store.GC(c.cfg.MaxBytes, time.Now()); err != nil {
				c.log.Error("the cache's folder cannot be swept", "error", err)
			}
			if n, err := c.store.countRecords(); err == nil {
				c.store.mu.Lock()
				c.store.records = n
				c.store.mu.Unlock()
			}
		case <-c.background.Done():
			return
		}
	}
}

// collectEvery is the time between two sweeps.
const collectEvery = 6 * time.Hour
