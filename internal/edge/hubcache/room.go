package hubcache

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

var errNoRoom = errors.New("no room in the cache")

// entry is a blob or a partial file as a scan finds it.
type entry struct {
	name    string // the hash
	size    int64
	used    int64 // Unix time
	partial bool
	marked  bool
}

func (s *Store) entryPath(e entry) string {
	if e.partial {
		return s.partPath(e.name)
	}
	return s.blobPath(e.name)
}

// scan lists what takes room, until ctx ends. Files that are no blobs by name are
// not ours.
func (s *Store) scan(ctx context.Context, each func(entry)) error {
	read := func(dir string, partial bool) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		list, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hubcache: %w", err)
		}
		for _, e := range list {
			if !isBlob(e.Name()) {
				continue
			}
			info, err := e.Info()
			if err != nil || !info.Mode().IsRegular() {
				continue // removed meanwhile
			}
			each(entry{e.Name(), info.Size(), info.ModTime().Unix(), partial, marked(info)})
		}
		return nil
	}
	shards, err := os.ReadDir(filepath.Join(s.dir, "blobs"))
	if err != nil {
		return fmt.Errorf("hubcache: %w", err)
	}
	for _, d := range shards {
		if err := read(filepath.Join(s.dir, "blobs", d.Name()), false); err != nil {
			return err
		}
	}
	return read(filepath.Join(s.dir, "partial"), true)
}

// count finds out how full the store is. It runs beside everything else, so
// what is installed meanwhile may be counted twice until the next scan.
func (s *Store) count(ctx context.Context) error {
	var total int64
	if err := s.scan(ctx, func(e entry) { total += e.size }); err != nil {
		return err
	}
	records, err := s.countRecords()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total += total
	s.records += records
	return err
}

// reserve promises a download need bytes more, removing others for it. Where
// nothing can go the error is errNoRoom. The returned func gives back what was
// not used; its argument is how many bytes were.
func (s *Store) reserve(need, limit int64, now time.Time) (done func(used int64), evicted []entry, err error) {
	if need > limit {
		return nil, nil, errNoRoom
	}
	s.making.Lock()
	defer s.making.Unlock()
	if !s.take(need, limit) {
		s.mu.Lock()
		recently := now.Sub(s.fruitless) < fruitlessFor
		s.mu.Unlock()
		if recently {
			return nil, nil, errNoRoom
		}
		if evicted, err = s.evict(need, limit); err != nil {
			return nil, evicted, err
		}
		if !s.take(need, limit) {
			s.mu.Lock()
			s.fruitless = now
			s.mu.Unlock()
			return nil, evicted, errNoRoom
		}
	}
	return func(used int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved -= need
		s.total += used
	}, evicted, nil
}

// take reserves need bytes if they fit.
func (s *Store) take(need, limit int64) bool {
	free := s.free()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total+s.reserved+need > limit || free < s.reserved+need+s.minFree {
		return false
	}
	s.reserved += need
	return true
}

// fruitlessFor is how long a scan that could not make room is not repeated.
const fruitlessFor = 10 * time.Second

// free is what the disk has left for ordinary users.
func (s *Store) free() int64 {
	var st syscall.Statfs_t
	if syscall.Statfs(s.dir, &st) != nil {
		return 1 << 62 // then the write will tell
	}
	return int64(min(st.Bavail, 1<<40)) * int64(st.Bsize) //nolint:unconvert // Bsize is 32 bits wide on macOS
}

// evict removes the least recently used until need bytes fit, and a little
// more, so that the next download need not look again. s.making is held: the
// downloads that wait want the same room.
func (s *Store) evict(need, limit int64) (evicted []entry, err error) {
	var all []entry
	var total int64
	if err := s.scan(context.Background(), func(e entry) { all, total = append(all, e), total+e.size }); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.total = total
	reserved := s.reserved
	s.mu.Unlock()
	goal := max(limit-limit/20, 0) - reserved - need
	short := reserved + need + s.minFree - s.free()
	if total <= goal && short <= 0 {
		return nil, nil
	}
	pinned, err := s.pinned()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.used, b.used) })
	for _, e := range all {
		if total <= goal && short <= 0 {
			break
		}
		if pinned[e.name] || !removeUnused(s.entryPath(e)) {
			continue
		}
		total -= e.size
		short -= e.size
		evicted = append(evicted, e)
		s.mu.Lock()
		s.total -= e.size
		s.mu.Unlock()
	}
	return evicted, nil
}

// removeUnused removes a file that nobody has locked: readers and downloads
// hold a shared lock, in whichever process they are.
func removeUnused(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && os.Remove(path) == nil
}

// Pin names a revision of a repository whose files are kept. An empty Revision
// means every revision that is here.
type Pin struct {
	Kind     string `json:"kind"` // "models", "datasets" or "spaces"
	Repo     string `json:"repo"`
	Revision string `json:"revision,omitempty"`
}

// Pins are what is never evicted.
func (s *Store) Pins() (pins []Pin, err error) {
	raw, err := os.ReadFile(filepath.Join(s.dir, pinsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &pins)
	}
	if err != nil {
		return nil, fmt.Errorf("hubcache: %s: %w", pinsFile, err)
	}
	return pins, nil
}

// maxPins is how many there may be.
const maxPins = 10000

// SetPin adds a pin, or takes it away. A running cache follows.
func (s *Store) SetPin(p Pin, on bool) error {
	t, err := parseTarget("/api/"+p.Kind+"/"+p.Repo, "")
	if err != nil || t.route != "info" {
		return fmt.Errorf("hubcache: %q is no repository: want NAME or OWNER/NAME", p.Repo)
	}
	// Other processes pin too.
	lock, err := os.OpenFile(filepath.Join(s.dir, pinsFile+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("hubcache: %w", err)
	}
	defer func() { _ = lock.Close() }() // which lets go of it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("hubcache: lock %s: %w", lock.Name(), err)
	}
	pins, err := s.Pins()
	if err != nil {
		return err
	}
	pins = slices.DeleteFunc(pins, func(q Pin) bool { return q == p })
	if on {
		if len(pins) >= maxPins {
			return fmt.Errorf("hubcache: there are %d pins already; take some away", maxPins)
		}
		pins = append(pins, p)
	}
	raw, err := json.MarshalIndent(pins, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(s.dir, pinsFile), append(raw, '\n'))
}

// pinned are the hashes of the pinned revisions' files, as far as they are
// known.
func (s *Store) pinned() (map[string]bool, error) {
	pins, err := s.Pins()
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, p := range pins {
		r := repo{p.Kind, p.Repo}
		commits, err := s.commits(r, p.Revision)
		if err != nil {
			return nil, err
		}
		for _, c := range commits {
			if err := s.eachFile(r, c, func(f fileRecord) { out[f.ETag] = true }); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}
