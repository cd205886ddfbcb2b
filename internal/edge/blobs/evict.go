package blobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Entry is a blob or a partial file as a scan finds it.
type Entry struct {
	Hash     string
	Size     int64
	Used     time.Time
	Partial  bool
	Verified bool // not written to since it was verified
	Linked   bool // by a model, which counts its bytes

	inode uint64
}

// EntryPath is where an entry lies.
func (s *Store) EntryPath(e Entry) string {
	if e.Partial {
		return s.PartPath(e.Hash)
	}
	return s.Path(e.Hash)
}

// Scan lists what the folder holds, until ctx ends. Files that are no blobs by
// name are left alone.
func (s *Store) Scan(ctx context.Context, each func(Entry)) error {
	read := func(dir string, partial bool) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		list, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("blobs: %w", err)
		}
		for _, e := range list {
			if !IsHash(e.Name()) {
				continue
			}
			info, err := e.Info()
			if err != nil || !info.Mode().IsRegular() {
				continue // removed meanwhile
			}
			each(Entry{Hash: e.Name(), Size: info.Size(), Used: time.Unix(info.ModTime().Unix(), 0), Partial: partial,
				Verified: Verified(info), Linked: links(info) > 1, inode: inode(info)})
		}
		return nil
	}
	shards, err := os.ReadDir(filepath.Join(s.dir, "blobs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("blobs: %w", err)
	}
	for _, d := range shards {
		if err := read(filepath.Join(s.dir, "blobs", d.Name()), false); err != nil {
			return err
		}
	}
	return read(filepath.Join(s.dir, "partial"), true)
}

func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}

// Count finds out how full the store is. It runs beside everything else, so
// what is installed meanwhile may be counted twice until the next scan.
func (s *Store) Count(ctx context.Context) error {
	var total int64
	if err := s.Scan(ctx, func(e Entry) {
		if !e.Linked {
			total += e.Size
		}
	}); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total += total
	return nil
}

// Total is how many bytes count against the bound.
func (s *Store) Total() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total
}

// Remove deletes a blob or partial file.
func (s *Store) Remove(path string, size int64) {
	if info, err := os.Lstat(path); err == nil && links(info) > 1 {
		size = 0 // a model has it
	}
	if os.Remove(path) == nil {
		s.mu.Lock()
		s.total -= size
		s.mu.Unlock()
	}
}

// Reserve promises a download need bytes more, removing others for it. Where
// nothing can go the error is ErrNoRoom. The returned func gives back what was
// not used; its argument is how many bytes were.
func (s *Store) Reserve(need, limit int64, now time.Time) (done func(used int64), evicted []Entry, err error) {
	if need > limit {
		return nil, nil, ErrNoRoom
	}
	s.making.Lock()
	defer s.making.Unlock()
	if !s.take(need, limit) {
		s.mu.Lock()
		recently := now.Sub(s.fruitless) < fruitlessFor
		s.mu.Unlock()
		if recently {
			return nil, nil, ErrNoRoom
		}
		if evicted, err = s.evict(need, limit); err != nil {
			return nil, evicted, err
		}
		if !s.take(need, limit) {
			s.mu.Lock()
			s.fruitless = now
			s.mu.Unlock()
			return nil, evicted, ErrNoRoom
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
	if s.total+s.reserved+need > limit || free < s.reserved+need+s.MinFree {
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

// Evict removes the least recently used until the store holds at most limit
// bytes.
func (s *Store) Evict(limit int64) ([]Entry, error) {
	s.making.Lock()
	defer s.making.Unlock()
	return s.evict(0, limit)
}

// evict removes the least recently used until need bytes fit, and a little
// more, so that the next download need not look again. s.making is held: the
// downloads that wait want the same room.
func (s *Store) evict(need, limit int64) (evicted []Entry, err error) {
	var all []Entry
	var total int64
	err = s.Scan(context.Background(), func(e Entry) {
		if !e.Linked {
			all, total = append(all, e), total+e.Size
		}
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.total = total
	reserved := s.reserved
	s.mu.Unlock()
	goal := max(limit-limit/20, 0) - reserved - need
	short := reserved + need + s.MinFree - s.free()
	if total <= goal && short <= 0 {
		return nil, nil
	}
	pinned, err := s.pinned()
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Used.Unix(), b.Used.Unix()) })
	for _, e := range all {
		if total <= goal && short <= 0 {
			break
		}
		if pinned[e.Hash] || !RemoveUnused(s.EntryPath(e)) {
			continue
		}
		total -= e.Size
		short -= e.Size
		evicted = append(evicted, e)
		s.mu.Lock()
		s.total -= e.Size
		s.mu.Unlock()
	}
	return evicted, nil
}

func (s *Store) pinned() (map[string]bool, error) {
	if s.Pinned == nil {
		return nil, nil
	}
	return s.Pinned()
}

// RemoveUnused removes a file that nobody has locked: readers and downloads
// hold a shared lock, in whichever process they are.
func RemoveUnused(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil && os.Remove(path) == nil
}

// Drop evicts the blobs of these inodes that no model links to any more: a model
// that was removed to make room takes its files with it. Those that are pinned
// or read stay.
func (s *Store) Drop(inodes map[uint64]bool) error {
	pinned, err := s.pinned()
	if err != nil {
		return err
	}
	return s.Scan(context.Background(), func(e Entry) {
		if inodes[e.inode] && !e.Linked && !e.Partial && !pinned[e.Hash] {
			RemoveUnused(s.Path(e.Hash))
		}
	})
}

// Verify hashes every blob and removes those that are wrong, telling each of
// them. It may run beside a cache.
func (s *Store) Verify(ctx context.Context, wrong func(hash string)) (blobs, bytes, removed int64, err error) {
	var all []Entry
	if err := s.Scan(ctx, func(e Entry) {
		if !e.Partial {
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
		blobs, bytes = blobs+1, bytes+e.Size
		if !ok {
			removed++
			wrong(e.Hash)
		}
	}
	return blobs, bytes, removed, nil
}

func (s *Store) verify(ctx context.Context, e Entry) (ok bool, err error) {
	f, err := os.Open(s.Path(e.Hash))
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
	err = Check(ctx, f, e.Hash, info.Size())
	if errors.Is(err, ErrCorrupt) {
		s.Remove(f.Name(), info.Size())
		return false, nil
	}
	if err == nil && !Verified(info) {
		err = Touch(f.Name(), info.ModTime())
	}
	return true, err
}
