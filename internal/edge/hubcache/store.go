package hubcache

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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Store is the cache's folder. Blobs are found by their names, without an
// index: opening a store reads nothing. It is safe for concurrent use, also by
// several processes; Lock keeps a second cache out.
type Store struct {
	dir     string
	minFree int64

	making sync.Mutex // held by whoever makes room; taken before mu

	mu        sync.Mutex
	total     int64     // bytes of blobs and partial files; counted from the start on, exact after each scan
	reserved  int64     // bytes that downloads will need
	records   int64     // files of metadata
	fruitless time.Time // when a scan last found nothing to remove
}

const (
	lockFile = "lock"
	pinsFile = "pins.json"
)

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
	return &Store{dir: abs}, nil
}

// Dir is the store's folder.
func (s *Store) Dir() string { return s.dir }

// Lock keeps the folder to this process until the returned func is called.
func (s *Store) Lock() (unlock func(), err error) {
	path := filepath.Join(s.dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hubcache: lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		held, _ := os.ReadFile(path)
		return nil, errors.Join(fmt.Errorf("hubcache: %s is in use by the process %s: stop it, or choose another folder with --dir",
			s.dir, strings.TrimSpace(string(held))), f.Close())
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

func (s *Store) blobPath(etag string) string {
	return filepath.Join(s.dir, "blobs", etag[:2], etag)
}

func (s *Store) partPath(etag string) string { return filepath.Join(s.dir, "partial", etag) }

// mark is the sub-second part of a verified blob's modification time; the
// seconds are when it was last used. Whoever writes to the file wipes the mark
// out, and a blob without it is hashed again before it is served: nothing
// beside the file can get out of step with it.
const mark = 271828182

func marked(info fs.FileInfo) bool { return info.ModTime().Nanosecond() == mark }

// touch notes that a verified blob was used.
func touch(path string, at time.Time) error {
	at = time.Unix(at.Unix(), mark)
	return os.Chtimes(path, at, at)
}

// touchEvery is how exact the time of last use is.
const touchEvery = 5 * time.Minute

var errCorrupt = errors.New("the content does not have its hash")

// errSize is a size that content of this hash does not have: whoever said it is
// wrong, not what is kept.
var errSize = fmt.Errorf("%w: the size is wrong", errOdd)

// open returns a blob of the given size, held against eviction until it is
// closed. One that was written to since it was verified is hashed again, and
// removed if it is wrong: then the error is errCorrupt. A verified one of another
// size is errSize, one that is not here fs.ErrNotExist.
func (s *Store) open(ctx context.Context, etag string, size int64, now time.Time) (*os.File, error) {
	path := s.blobPath(etag)
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	keep := false
	defer func() {
		if !keep {
			_ = f.Close()
		}
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		return nil, fmt.Errorf("hubcache: %s: %w", path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("hubcache: %w", err)
	}
	if size < 0 {
		size = info.Size()
	}
	ok := marked(info)
	switch {
	case !ok && info.Size() != size:
		err = errCorrupt
	case !ok:
		err = check(ctx, f, etag, size)
	case info.Size() != size: // either it was cut behind our back, or the size is wrong
		if err = check(ctx, f, etag, info.Size()); err == nil {
			err = fmt.Errorf("hubcache: %s: %w: it has %d bytes, and %d were asked for", etag, errSize, info.Size(), size)
		}
	}
	if err != nil {
		if errors.Is(err, errCorrupt) {
			s.remove(path, info.Size())
		}
		return nil, err
	}
	if !ok || now.Sub(info.ModTime()) > touchEvery {
		_ = touch(path, now) // it only makes the blob look older
	}
	keep = true
	return f, nil
}

// check hashes an open blob.
func check(ctx context.Context, f io.ReaderAt, etag string, size int64) error {
	h := newHash(etag, size)
	n, err := io.Copy(h, &contextReader{ctx, io.NewSectionReader(f, 0, size)})
	if err != nil {
		return fmt.Errorf("hubcache: %s: %w", etag, err)
	}
	if n != size || hex.EncodeToString(h.Sum(nil)) != etag {
		return fmt.Errorf("hubcache: %s: %w", etag, errCorrupt)
	}
	return nil
}

// newHash is the hash that an ETag of this length is of a file of size bytes.
func newHash(etag string, size int64) hash.Hash {
	if len(etag) == 64 {
		return sha256.New()
	}
	h := sha1.New() //nolint:gosec // see the import
	_, _ = fmt.Fprintf(h, "blob %d\x00", size)
	return h
}

// remove deletes a blob or partial file.
func (s *Store) remove(path string, size int64) {
	if os.Remove(path) == nil {
		s.mu.Lock()
		s.total -= size
		s.mu.Unlock()
	}
}

// install makes a verified, complete partial file the blob.
func (s *Store) install(f *os.File, etag string, now time.Time) error {
	path := s.blobPath(etag)
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := touch(f.Name(), now); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// writeFile replaces a file atomically.
func writeFile(path string, data []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// contextReader ends reading with the context's error.
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
