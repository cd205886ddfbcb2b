package hubcache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
	"roundhouse.dev/roundhouse/internal/edge/hubcache/peers"
)

// Store is the cache's folder: blobs, records of what the Hub said of them, and
// pins. It is safe for concurrent use, also by several processes; Lock keeps a
// second cache out.
type Store struct {
	dir     string
	blobs   *blobs.Store
	records records
}

const (
	lockFile = "lock"
	pinsFile = "pins.json"
)

// At is the store in a folder that may not be there yet.
func At(dir string) *Store {
	s := &Store{dir: dir, blobs: blobs.At(dir), records: records{dir: filepath.Join(dir, "repos")}}
	s.blobs.Pinned = s.pinned
	return s
}

// OpenStore makes or opens the folder.
func OpenStore(dir string) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("hubcache: %s: %w", dir, err)
	}
	for _, sub := range []string{"blobs", "partial", "repos"} {
		if err := os.MkdirAll(filepath.Join(abs, sub), 0o700); err != nil {
			return nil, fmt.Errorf("hubcache: cannot create the cache's folder: %w: choose another with --dir", err)
		}
	}
	return At(abs), nil
}

// Blobs are the files that the store keeps, for models to link to.
func (s *Store) Blobs() *blobs.Store { return s.blobs }

// Lock keeps the folder to this process until the returned func is called.
func (s *Store) Lock() (unlock func(), err error) {
	path := filepath.Join(s.dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hubcache: lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := os.ReadFile(path)
		return nil, errors.Join(fmt.Errorf("hubcache: %s is in use by the process %s: stop it, or choose another folder with --dir",
			s.dir, strings.TrimSpace(string(owner))), f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hubcache: lock: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// Pin names a revision of a repository whose files are kept. An empty Revision
// means every revision that is here.
type Pin struct {
	Kind     string `json:"kind"` // "models", "datasets" or "spaces"
	Repo     string `json:"repo"`
	Revision string `json:"revision,omitempty"`
}

// String is the pin as commands take it: [datasets/|spaces/]REPOSITORY[@REVISION].
func (p Pin) String() string {
	name := p.Repo
	if p.Kind != "models" {
		name = p.Kind + "/" + name
	}
	if p.Revision != "" {
		name += "@" + p.Revision
	}
	return name
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

// SetPin adds a pin, or takes it away; changed is false if it was so already. A
// running cache follows. Some old repositories have no owner: one that is cached
// may be pinned, another name without an owner is taken for a typing error.
func (s *Store) SetPin(p Pin, on bool) (changed bool, err error) {
	t, err := parseTarget("/api/"+p.Kind+"/"+p.Repo, "")
	if err != nil || t.route != "info" {
		return false, fmt.Errorf("hubcache: %q is no repository: want OWNER/NAME", p.Repo)
	}
	if _, err := os.Stat(s.records.repoDir(t.repo)); on && err != nil && !strings.Contains(p.Repo, "/") {
		return false, fmt.Errorf("hubcache: %q is no repository that is cached: want OWNER/NAME", p.Repo)
	}
	// Other processes pin too.
	lock, err := os.OpenFile(filepath.Join(s.dir, pinsFile+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, fmt.Errorf("hubcache: %w", err)
	}
	defer func() { _ = lock.Close() }() // which lets go of it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return false, fmt.Errorf("hubcache: lock %s: %w", lock.Name(), err)
	}
	pins, err := s.Pins()
	if err != nil {
		return false, err
	}
	if slices.Contains(pins, p) == on {
		return false, nil
	}
	pins = slices.DeleteFunc(pins, func(q Pin) bool { return q == p })
	if on {
		if len(pins) >= maxPins {
			return false, fmt.Errorf("hubcache: there are %d pins already; take some away", maxPins)
		}
		pins = append(pins, p)
	}
	raw, err := json.MarshalIndent(pins, "", "  ")
	if err != nil {
		return false, err
	}
	return true, writeFile(filepath.Join(s.dir, pinsFile), append(raw, '\n'))
}

// pinned are the hashes of the pinned revisions' files, as far as they are
// known.
func (s *Store) pinned() (map[string]bool, error) {
	pins, err := s.Pins()
	if err != nil {
		return nil, err
	}
	return s.hashes(pins...)
}

func (s *Store) hashes(pins ...Pin) (map[string]bool, error) {
	out := map[string]bool{}
	for _, p := range pins {
		r := repo{p.Kind, p.Repo}
		commits, err := s.records.commits(r, p.Revision)
		if err != nil {
			return nil, err
		}
		for _, c := range commits {
			if err := s.records.eachFile(r, c, func(f fileRecord) { out[f.ETag] = true }); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// Cached returns how many files of a pin are here, and their bytes.
func (s *Store) Cached(p Pin) (files, bytes int64, err error) {
	hashes, err := s.hashes(p)
	delete(hashes, "") // of files that the Hub does not have
	for h := range hashes {
		if n, whole, _ := s.blobs.Has(h); whole {
			files, bytes = files+1, bytes+n
		}
	}
	return files, bytes, err
}

// Stats describes what a store holds.
type Stats struct {
	Blobs, Bytes           int64
	Partials, PartialBytes int64
	Linked, LinkedBytes    int64 // blobs that fetched models link to: not evicted, and not counted against the bound
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
	err = s.blobs.Scan(context.Background(), func(e blobs.Entry) {
		if e.Partial {
			st.Partials++
			st.PartialBytes += e.Size
			return
		}
		st.Blobs++
		st.Bytes += e.Size
		if e.Linked {
			st.Linked++
			st.LinkedBytes += e.Size
		}
		if !e.Verified {
			st.Unverified++
		}
		if pinned[e.Hash] {
			st.Pinned++
			st.PinnedBytes += e.Size
		}
		if st.OldestUse.IsZero() || e.Used.Before(st.OldestUse) {
			st.OldestUse = e.Used
		}
		if e.Used.After(st.NewestUse) {
			st.NewestUse = e.Used
		}
	})
	if err != nil {
		return st, err
	}
	if repos, err := os.ReadDir(s.records.dir); err == nil {
		st.Repositories = int64(len(repos))
	}
	st.Records, err = s.records.count()
	return st, err
}

const (
	abandoned = 7 * 24 * time.Hour  // age of a download that nobody resumed, and is removed
	forgotten = 90 * 24 * time.Hour // age of metadata that is removed: it is asked for again
)

// GC removes the least recently used until the store holds at most limit bytes,
// and what was left behind: downloads of a week ago, metadata of three months
// ago. What is read, downloaded, pinned or linked to by a model stays. It may run
// beside a cache.
func (s *Store) GC(limit int64, now time.Time) (files, freed int64, err error) {
	err = s.blobs.Scan(context.Background(), func(e blobs.Entry) {
		if e.Partial && now.Sub(e.Used) > abandoned && blobs.RemoveUnused(s.blobs.PartPath(e.Hash)) {
			files, freed = files+1, freed+e.Size
		}
	})
	if err != nil {
		return files, freed, err
	}
	evicted, err := s.blobs.Evict(limit)
	for _, e := range evicted {
		files, freed = files+1, freed+e.Size
	}
	pins, perr := s.Pins()
	if err = errors.Join(err, perr); err != nil {
		return files, freed, err
	}
	pinned := map[string]bool{}
	for _, p := range pins {
		pinned[repo{p.Kind, p.Repo}.key()] = true
	}
	return files, freed, s.records.sweep(pinned, now)
}

// Verify hashes every blob and removes those that are wrong, telling each of
// them. It may run beside a cache.
func (s *Store) Verify(ctx context.Context, wrong func(hash string)) (files, bytes, removed int64, err error) {
	return s.blobs.Verify(ctx, wrong)
}

// ringFile is what the running cache knows of its ring.
const ringFile = "ring.json"

// Ring is what a cache that runs over the store, or ran last, knew of its ring;
// ok is false where it was in none.
func (s *Store) Ring() (st peers.State, ok bool) {
	ok = readRecord(filepath.Join(s.dir, ringFile), &st)
	return st, ok
}
