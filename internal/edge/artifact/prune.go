package artifact

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

const (
	// abandoned is the age after which a download that nobody resumed is removed.
	abandoned = 7 * 24 * time.Hour
	// settling is how long a copy stays that was just handed out: whoever asked
	// for it may not have said yet that it is in use.
	settling = time.Minute
)

// kept is a copy in the store: a version of a model, or an upload.
type kept struct {
	kind, key string // models or uploads, and the folder below it
	path      string
	bytes     int64            // of files that have no other name
	shared    map[uint64]int64 // bytes of those that have, by inode: other copies, or the Hub's cache
	used      time.Time
	current   bool // what the model's record speaks of; uploads are
}

// sharing counts the copies that have a file, by inode.
type sharing map[uint64]int

// add counts a copy, and returns how many bytes it takes besides those before.
func (s sharing) add(c kept) int64 {
	n := c.bytes
	for inode, size := range c.shared {
		if s[inode]++; s[inode] == 1 {
			n += size
		}
	}
	return n
}

// remove is add undone; gone are the files that no copy has any more.
func (s sharing) remove(c kept) (bytes int64, gone map[uint64]bool) {
	bytes, gone = c.bytes, map[uint64]bool{}
	for inode, size := range c.shared {
		if s[inode]--; s[inode] == 0 {
			bytes, gone[inode] = bytes+size, true
		}
	}
	return bytes, gone
}

// retention decides what stays in the store: it makes room for what comes, and
// keeps what was handed out.
type retention struct {
	folder *folder
	blobs  *blobs.Store    // loses the files that only removed copies had; may be nil
	bound  int64           // bytes of everything together; 0 is no bound
	ask    func() []string // what is in use; nil: nothing is removed
	// boundName is what errors call the bound.
	boundName string
	log       *slog.Logger

	evicting sync.Mutex // held by whoever removes copies; taken before mu

	mu       sync.Mutex
	locked   map[string]*os.File // folders of copies that were handed out
	reserved map[string]int64    // what downloads need in all, by location key
}

// Prune removes downloads left off for a week and copies that a newer one of
// the same URI has replaced, and then the least recently used copies and
// uploads until the rest is within Config.StoreBytes. What Config.InUse names,
// what another process was given, what is pinned, and what was used within the
// last minute stays. It returns the bytes freed, and does nothing without Config.InUse.
func (s *Store) Prune(ctx context.Context) (freed int64, err error) { return s.retention.prune(ctx) }

func (k *retention) prune(ctx context.Context) (freed int64, err error) {
	if k.ask == nil {
		return 0, nil
	}
	freed, err = k.prunePartial(ctx)
	n, _, rerr := k.evict(0, true)
	return freed + n, errors.Join(err, rerr)
}

// reserve makes room for need bytes of a download or upload, by removing others
// where there is a bound, and keeps it until done is called. key names its
// partial folder, what names it in errors; here bytes of it are on the disk
// already, besides those in that folder.
func (k *retention) reserve(key, what string, need, here int64) (done func(), err error) {
	k.mu.Lock()
	k.reserved[key] = max(need, k.reserved[key])
	k.mu.Unlock()
	done = func() {
		k.mu.Lock()
		delete(k.reserved, key)
		k.mu.Unlock()
	}
	if k.ask == nil {
		return done, nil
	}
	_, short, err := k.evict(need-here-onDisk(filepath.Join(k.folder.dir, "partial", key), false), false)
	if err == nil && short > 0 {
		err = fmt.Errorf("%s: %s needed, which is %s more than there is beside the models in use (of %s): delete services, or raise %s",
			what, formatBytes(need), formatBytes(short), formatBytes(k.bound), k.boundName)
	}
	if err != nil {
		done()
		return func() {}, err
	}
	return done, nil
}

// evict removes the least recently used until the store is within its bound
// and the disk has room for need bytes; replaced removes old versions besides.
// short is how far above the bound it still is.
func (k *retention) evict(need int64, replaced bool) (freed, short int64, err error) {
	k.evicting.Lock()
	defer k.evicting.Unlock()
	all, sharers, total, err := k.copies()
	if err != nil {
		return 0, 0, err
	}
	excess := func() int64 {
		over := int64(0)
		if k.bound > 0 {
			over = total - freed - k.bound
		}
		if free, err := k.folder.disk.free(k.folder.dir); err == nil && need > 0 {
			over = max(over, need-free)
		}
		return over
	}
	used := k.inUse()
	k.release(all, used)
	if !replaced && excess() <= 0 {
		return 0, 0, nil
	}
	slices.SortFunc(all, func(a, b kept) int {
		if a.current != b.current {
			return cmp.Compare(boolInt(a.current), boolInt(b.current))
		}
		return a.used.Compare(b.used)
	})
	for _, c := range all {
		if over := excess(); over <= 0 && (c.current || !replaced) {
			break
		}
		if used(c) || c.current && time.Since(c.used) < settling || !k.remove(c) { // nor one that is pinned
			continue
		}
		bytes, err := k.dropFiles(sharers, c)
		freed += bytes
		k.log.Info("a model's copy was removed", "folder", c.path, "bytes", bytes, "used", c.used.UTC().Format(time.RFC3339))
		if err != nil {
			return freed, 0, err
		}
	}
	if k.bound > 0 {
		short = max(0, total-freed-k.bound)
	}
	return freed, short, nil
}

// dropFiles takes the files that only the removed copy had out of the Hub's cache
// too, and returns how many bytes the copy took.
func (k *retention) dropFiles(sharers sharing, c kept) (int64, error) {
	bytes, gone := sharers.remove(c)
	if k.blobs == nil || len(gone) == 0 {
		return bytes, nil
	}
	return bytes, k.blobs.Drop(gone)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// copies lists what is kept, and counts everything in the store, with what
// downloads under way are going to need.
func (k *retention) copies() (all []kept, sharers sharing, total int64, err error) {
	sharers = sharing{}
	for _, kind := range []string{"models", "uploads"} {
		keys, err := os.ReadDir(filepath.Join(k.folder.dir, kind))
		if err != nil {
			return nil, nil, 0, err
		}
		for _, key := range keys {
			for _, c := range k.folder.copiesOf(kind, key.Name()) {
				all = append(all, c)
				total += sharers.add(c)
			}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	partial, err := os.ReadDir(filepath.Join(k.folder.dir, "partial"))
	if err != nil {
		return nil, nil, 0, err
	}
	for _, e := range partial {
		if _, active := k.reserved[e.Name()]; !active && e.IsDir() {
			total += onDisk(filepath.Join(k.folder.dir, "partial", e.Name()), true)
		}
	}
	for _, n := range k.reserved {
		total += n
	}
	return all, sharers, total, nil
}

func (d *folder) copiesOf(kind, key string) (all []kept) {
	dir := filepath.Join(d.dir, kind, key)
	version := ""
	var used time.Time
	if raw, err := readVersion(dir); err == nil {
		version = raw
	}
	if info, err := os.Stat(filepath.Join(dir, "record.json")); err == nil {
		used = info.ModTime()
	}
	entries, _ := os.ReadDir(dir) // removed meanwhile
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		c := kept{kind: kind, key: key, path: filepath.Join(dir, e.Name()), current: kind == "uploads" || e.Name() == version, used: used}
		if info, err := e.Info(); err == nil && (kind == "uploads" || !c.current) {
			c.used = info.ModTime()
		}
		c.bytes, c.shared = sizes(c.path)
		all = append(all, c)
	}
	return all
}

// sizes adds up the files below a folder: those that have no other name, and
// those that have, by inode.
func sizes(dir string) (bytes int64, shared map[uint64]int64) {
	shared = map[uint64]int64{}
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // what goes meanwhile takes nothing
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // likewise
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink > 1 {
			shared[st.Ino] = info.Size()
		} else {
			bytes += info.Size()
		}
		return nil
	})
	return bytes, shared
}

// inUse asks once who uses what.
func (k *retention) inUse() func(kept) bool {
	names := k.ask()
	keys, paths := map[string]bool{}, []string(nil)
	for _, n := range names {
		if !strings.Contains(n, "://") {
			keys[n] = true // or
			paths = append(paths, n)
			continue
		}
		loc, err := parse(Request{URI: n})
		switch {
		case err != nil || loc.scheme == "file":
		case loc.scheme == "upload":
			keys[loc.url.Host] = true
		default:
			keys[loc.key()] = true
		}
	}
	return func(c kept) bool {
		return c.current && keys[c.key] || slices.ContainsFunc(paths, func(p string) bool {
			return p == c.path || strings.HasPrefix(p, c.path+string(filepath.Separator))
		})
	}
}

// remove deletes a copy that nobody holds, in any process, and whose model is
// not being fetched.
func (k *retention) remove(c kept) bool {
	unlock, err := k.folder.tryLock(c.key)
	if err != nil {
		return false
	}
	defer unlock()
	d, err := os.Open(c.path)
	if err != nil {
		return false
	}
	defer func() { _ = d.Close() }()
	if syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil || c.pinned() {
		return false // it is used, or was pinned a moment ago
	}
	dir := filepath.Dir(c.path)
	if c.current {
		_ = os.Remove(filepath.Join(dir, "record.json")) // first: a copy without a record does not exist
	}
	if os.RemoveAll(c.path) != nil {
		return false
	}
	_ = os.Remove(dir) // fails while there are other versions
	return true
}

// release lets other processes remove what this one was given and uses no more.
func (k *retention) release(all []kept, used func(kept) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range all {
		if f := k.locked[c.path]; f != nil && !used(c) && (!c.current || time.Since(c.used) >= settling) {
			_ = f.Close()
			delete(k.locked, c.path)
		}
	}
}

// hold keeps a copy from being removed by other processes, until it is released
// or this one ends, and notes that it was used. path is the
// copy's folder, or a file in it.
func (k *retention) hold(path string) {
	dir, touched := k.folder.copyOf(path)
	if dir == "" {
		return
	}
	now := time.Now()
	if info, err := os.Stat(touched); err == nil && now.Sub(info.ModTime()) > settling/2 {
		_ = os.Chtimes(touched, now, now) // it only makes the copy look older
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locked[dir] != nil {
		return
	}
	d, err := os.Open(dir)
	if err != nil {
		return
	}
	if syscall.Flock(int(d.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil {
		_ = d.Close() // it is just being removed
		return
	}
	k.locked[dir] = d
}

// copyOf returns the folder of the copy that a path is in, and the path whose
// modification time is the time of last use.
func (d *folder) copyOf(path string) (dir, touched string) {
	rel, err := filepath.Rel(d.dir, path)
	if err != nil {
		return "", ""
	}
	parts := strings.SplitN(rel, string(filepath.Separator), 4)
	if len(parts) < 3 {
		return "", ""
	}
	dir = filepath.Join(append([]string{d.dir}, parts[:3]...)...)
	switch parts[0] {
	case "models":
		return dir, filepath.Join(filepath.Dir(dir), "record.json")
	case "uploads":
		return dir, dir
	}
	return "", ""
}

func (k *retention) prunePartial(ctx context.Context) (freed int64, err error) {
	root := filepath.Join(k.folder.dir, "partial")
	entries, err := os.ReadDir(root)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || time.Since(info.ModTime()) < abandoned || ctx.Err() != nil {
			continue
		}
		path := filepath.Join(root, e.Name())
		unlock := func() {}
		if !strings.HasPrefix(e.Name(), "upload-") {
			if unlock, err = k.folder.tryLock(e.Name()); err != nil {
				continue // being fetched
			}
		}
		n := onDisk(path, false)
		err = os.RemoveAll(path)
		unlock()
		if err != nil {
			return freed, err
		}
		freed += n
	}
	return freed, ctx.Err()
}

// onDisk counts what the files below a folder take; linked counts those too that
// have another name.
func onDisk(dir string, linked bool) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // what goes meanwhile takes nothing
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // likewise
		}
		if st, ok := info.Sys().(*syscall.Stat_t); linked || !ok || st.Nlink == 1 {
			bytes += stored(info)
		}
		return nil
	})
	return bytes
}
