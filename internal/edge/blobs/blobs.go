// Package blobs keeps the files of the Hugging Face Hub by the hash of their
// content, for the Hub cache, which downloads and serves them, and for fetched
// models, which link to them. Nobody else imports it.
//
// The folder holds
//
//	blobs/<2 hex>/<hash>   complete, verified files
//	partial/<hash>         downloads under way, resumable
//
// There is no index: looking a blob up is opening a file, so several processes
// share one folder. Three attributes of a file hold what else must be known:
//
//   - its modification time: the seconds are those of last use, the nanoseconds
//     a constant that only a verified file has. Whoever writes to the file wipes
//     it out, and the blob is hashed again before it is used;
//   - a shared lock (flock): somebody reads or downloads it, so it is not evicted;
//   - its number of links: a model in use links to it, so evicting it would free
//     nothing. Such a blob is neither evicted nor counted: the models count it.
package blobs

import (
	"context"
	"crypto/sha1" //nolint:gosec // git's blob hash is what the Hub gives small files
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
	"sync"
	"syscall"
	"time"
)

var (
	// ErrCorrupt is content that does not have its hash.
	ErrCorrupt = errors.New("the content does not have its hash")
	// ErrSize is a size that a verified blob does not have.
	ErrSize = errors.New("the size is wrong")
	// ErrNoRoom is a bound, or a disk, that leaves no room for a file.
	ErrNoRoom = errors.New("no room in the cache")
)

// Store is a folder of blobs. It is safe for concurrent use, also by several
// processes.
type Store struct {
	// MinFree is how much of the disk is left to others.
	MinFree int64
	// Pinned lists the hashes that are never evicted; nil: none.
	Pinned func() (map[string]bool, error)

	dir string

	making sync.Mutex // held by whoever makes room; taken before mu

	mu        sync.Mutex
	total     int64     // bytes that count against the bound; exact after each scan
	reserved  int64     // bytes that downloads will need
	fruitless time.Time // when a scan last found nothing to remove
}

// At is the store in a folder, which is created when the first file is put
// there.
func At(dir string) *Store { return &Store{dir: dir} }

// Path is where a complete blob lies.
func (s *Store) Path(hash string) string { return filepath.Join(s.dir, "blobs", hash[:2], hash) }

// PartPath is where a blob lies while it is downloaded.
func (s *Store) PartPath(hash string) string { return filepath.Join(s.dir, "partial", hash) }

// IsHash reports whether a name is a hash that content can be verified against.
func IsHash(name string) bool {
	if len(name) != 2*sha256.Size && len(name) != 2*sha1.Size {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

// NewHash is the hash that a name of this length is of a file of size bytes:
// SHA-256, or git's SHA-1 of a blob.
func NewHash(name string, size int64) hash.Hash {
	if len(name) == 2*sha256.Size {
		return sha256.New()
	}
	h := sha1.New() //nolint:gosec // see the import
	_, _ = fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

// Check hashes the first size bytes of a file; content of another hash is
// ErrCorrupt.
func Check(ctx context.Context, f io.ReaderAt, hash string, size int64) error {
	h := NewHash(hash, size)
	n, err := io.Copy(h, ContextReader(ctx, io.NewSectionReader(f, 0, size)))
	if err != nil {
		return fmt.Errorf("blob %s: %w", hash, err)
	}
	if n != size || hex.EncodeToString(h.Sum(nil)) != hash {
		return fmt.Errorf("blob %s: %w", hash, ErrCorrupt)
	}
	return nil
}

// mark is the sub-second part of a verified blob's modification time.
const mark = 271828182

// Verified reports whether nobody has written to a blob since it was verified.
func Verified(info fs.FileInfo) bool { return info.ModTime().Nanosecond() == mark }

// Touch notes that a verified blob was used.
func Touch(path string, at time.Time) error {
	at = time.Unix(at.Unix(), mark)
	return os.Chtimes(path, at, at)
}

// Suspect has a blob hashed before it is used again.
func (s *Store) Suspect(hash string) error {
	info, err := os.Stat(s.Path(hash))
	if err != nil || !Verified(info) {
		return nil //nolint:nilerr // it is not here, or is going to be hashed
	}
	at := time.Unix(info.ModTime().Unix(), 0)
	return os.Chtimes(s.Path(hash), at, at)
}

// links is how many names a file has; more than one: models link to it.
func links(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink) //nolint:unconvert // 16 bits wide on macOS
	}
	return 1
}

// touchEvery is how exact the time of last use is.
const touchEvery = 5 * time.Minute

// Open returns a blob of the given size (-1: of any), which is not evicted until
// it is closed. One that was written to since it was verified is hashed again,
// and removed if it is wrong: then the error is ErrCorrupt. A verified one of
// another size is ErrSize, one that is not here fs.ErrNotExist.
func (s *Store) Open(ctx context.Context, hash string, size int64, now time.Time) (*os.File, error) {
	f, info, err := openLocked(s.Path(hash))
	if err != nil {
		return nil, err
	}
	if size < 0 {
		size = info.Size()
	}
	ok := Verified(info)
	switch {
	case !ok && info.Size() != size:
		err = ErrCorrupt
	case !ok:
		err = Check(ctx, f, hash, size)
	case info.Size() != size: // either the file was cut short, or the size is wrong
		if err = Check(ctx, f, hash, info.Size()); err == nil {
			err = fmt.Errorf("blob %s: %w: it has %d bytes, and %d were asked for", hash, ErrSize, info.Size(), size)
		}
	}
	if err != nil {
		if errors.Is(err, ErrCorrupt) {
			s.Remove(f.Name(), info.Size())
		}
		return nil, errors.Join(err, f.Close())
	}
	// A model that links to the blob keeps its date: it is not evicted anyway.
	if !ok || links(info) == 1 && now.Sub(info.ModTime()) > touchEvery {
		_ = Touch(f.Name(), now) // it only makes the blob look older
	}
	return f, nil
}

// openLocked opens a file and keeps it from eviction until it is closed.
func openLocked(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	if err = flock(f, syscall.LOCK_SH); err == nil {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil {
			return f, info, nil
		}
	}
	return nil, nil, errors.Join(fmt.Errorf("blob %s: %w", path, err), f.Close())
}

func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// Follow opens a blob that is being downloaded, under whichever of its two names
// it has by now.
func (s *Store) Follow(hash string) (f *os.File, err error) {
	for _, path := range []string{s.PartPath(hash), s.Path(hash)} {
		if f, _, err = openLocked(path); err == nil {
			break
		}
	}
	return f, err
}

// Part opens the partial file of a download, creating it.
func (s *Store) Part(hash string) (*os.File, error) {
	f, err := os.OpenFile(s.PartPath(hash), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(f, syscall.LOCK_SH); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Install makes a verified, complete partial file the blob. From then on it is
// read-only, since models link to it. Until it has its name it can be written
// to: who resumes a download that was killed here opens it for writing.
func (s *Store) Install(f *os.File, hash string, now time.Time) error {
	if err := f.Sync(); err != nil {
		return err
	}
	path := s.Path(hash)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := Touch(f.Name(), now); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	_ = f.Chmod(0o400) // some file systems have no modes
	return syncDir(filepath.Dir(path))
}

// Has is how many bytes of a blob are here, whole or downloaded so far; here is
// false when there is neither.
func (s *Store) Has(hash string) (bytes int64, whole, here bool) {
	if info, err := os.Stat(s.Path(hash)); err == nil {
		return info.Size(), true, true
	}
	if info, err := os.Stat(s.PartPath(hash)); err == nil {
		return info.Size(), false, true
	}
	return 0, false, false
}

// Arriving reports whether a blob is whole or somebody downloads it.
func (s *Store) Arriving(hash string) bool {
	_, whole, here := s.Has(hash)
	if !whole && here && !s.downloading(hash) {
		_, whole, _ = s.Has(hash) // it may have been installed meanwhile
		return whole
	}
	return here
}

// Linkable is how many bytes of a blob are here that a link in dir need not
// write: none where dir is on another file system.
func (s *Store) Linkable(hash, dir string) int64 {
	to, err := os.Stat(dir)
	if err != nil {
		return 0
	}
	for _, path := range []string{s.Path(hash), s.PartPath(hash)} {
		if info, err := os.Stat(path); err == nil {
			if device(info) != device(to) {
				return 0
			}
			return info.Size()
		}
	}
	return 0
}

func device(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Dev) //nolint:unconvert // 32 bits wide on macOS
	}
	return 0
}

// Await waits until a blob that is being downloaded is whole. The error is
// fs.ErrNotExist when it is not here and nobody downloads it. alive is called
// while it waits.
func (s *Store) Await(ctx context.Context, hash string, alive func()) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		if _, whole, here := s.Has(hash); whole {
			return nil
		} else if here && s.downloading(hash) {
			alive()
		} else if _, whole, _ = s.Has(hash); !whole { // it was installed meanwhile
			return fmt.Errorf("blob %s: %w", hash, fs.ErrNotExist)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// downloading reports whether somebody has the partial file of a blob open.
func (s *Store) downloading(hash string) bool {
	f, err := os.Open(s.PartPath(hash))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return errors.Is(flock(f, syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// Link makes dst another name of a blob, which must have size bytes. Where the
// file system does not link it is a copy, which shares its blocks with the blob
// where the file system can do that. A blob that is not here is fs.ErrNotExist.
func (s *Store) Link(ctx context.Context, hash string, size int64, dst string) error {
	f, err := s.Open(ctx, hash, size, time.Now())
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_ = f.Chmod(0o400) // those of earlier versions could be written to
	if err := os.Remove(dst); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if os.Link(f.Name(), dst) == nil {
		return nil
	}
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, ContextReader(ctx, f))
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		_ = os.Remove(dst)
	}
	return err
}

// Add makes a blob of a file that was just verified, by linking to it: the file
// is read-only from then on. Where it cannot be linked (the folder is on another
// file system, or cannot be written to) there is no blob: a model does not fail
// for want of one.
func (s *Store) Add(path, hash string, now time.Time) {
	to := s.Path(hash)
	if _, err := os.Stat(to); err == nil {
		return
	}
	if os.MkdirAll(filepath.Dir(to), 0o700) != nil || Touch(path, now) != nil {
		return
	}
	if os.Link(path, to) == nil {
		_ = errors.Join(os.Chmod(path, 0o400), syncDir(filepath.Dir(to))) // without them it is a blob too
	}
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ContextReader ends reading with the context's error.
func ContextReader(ctx context.Context, r io.Reader) io.Reader { return &contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
