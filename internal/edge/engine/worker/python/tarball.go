package python

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"roundhouse.dev/roundhouse/internal/edge/engine/worker"
)

// tarballs are the environments that were unpacked, by the hash of what they
// were unpacked from.
type tarballs struct {
	dir    string
	limits unpackLimits
	log    *slog.Logger

	mu sync.Mutex // also held while one is unpacked: disks gain nothing from two
	in map[string]*tarball
}

// tarball is an unpacked environment in use.
type tarball struct {
	users int
	lock  *folderLock
}

// acquire gives the folder of a tarball's content, unpacked if need be, until
// release is called. With its last use the folder is removed, unless another
// server on this machine uses it.
func (t *tarballs) acquire(ctx context.Context, path string) (root string, release func(), err error) {
	hash, err := hashFile(ctx, path)
	if err != nil {
		return "", nil, worker.NewError(worker.KindUnprocessable, fmt.Sprintf("environment tarball: %v", err))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	dir, err := filepath.Abs(t.dir)
	if err != nil {
		return "", nil, err
	}
	root = filepath.Join(dir, hash)
	if t.in == nil {
		t.in = map[string]*tarball{}
	}
	use := t.in[hash]
	if use == nil {
		if use, err = t.unpackOnce(ctx, path, root); err != nil {
			return "", nil, worker.NewError(worker.KindUnprocessable, fmt.Sprintf("environment tarball %s: %v", path, err))
		}
		t.in[hash] = use
	}
	use.users++
	return root, func() { t.leave(hash, root) }, nil
}

// unpackOnce makes root from the tarball unless it is there.
func (t *tarballs) unpackOnce(ctx context.Context, path, root string) (*tarball, error) {
	if err := os.MkdirAll(filepath.Dir(root), 0o700); err != nil {
		return nil, err
	}
	lock, err := lockFolder(ctx, root+".lock")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(root); err != nil {
		if err := t.unpack(ctx, path, root); err != nil {
			lock.remove()
			return nil, err
		}
	}
	return &tarball{lock: lock}, lock.share()
}

func (t *tarballs) unpack(ctx context.Context, path, root string) error {
	partial := root + ".partial"
	if err := os.RemoveAll(partial); err != nil { // of a server that was killed
		return err
	}
	t.log.Info("unpacking the environment", "tarball", path, "folder", root)
	err := unpackTarball(ctx, path, partial, t.limits)
	if err == nil {
		err = os.Rename(partial, root)
	}
	if err != nil {
		_ = os.RemoveAll(partial) // the first error counts
	}
	return err
}

// leave ends a use.
func (t *tarballs) leave(hash, root string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	use := t.in[hash]
	if use.users--; use.users > 0 {
		return
	}
	delete(t.in, hash)
	if !use.lock.exclusive() {
		use.lock.leave() // another server uses it
		return
	}
	// Renamed first: a folder half removed must not pass for a whole one.
	err := os.Rename(root, root+".partial")
	if err == nil {
		err = os.RemoveAll(root + ".partial")
	}
	if err != nil {
		t.log.Warn("environment cannot be removed", "folder", root, "error", err)
	}
	use.lock.remove()
}

// contextReader ends reading when ctx ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// hashFile is the SHA-256 of a file, in hexadecimal.
func hashFile(ctx context.Context, path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file: name the tarball itself", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, contextReader{ctx, f}); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// unpackLimits bounds what a tarball unpacks to.
type unpackLimits struct {
	bytes int64
	files int
}

// The bounds of an environment that is unpacked from a tarball.
const (
	maxEnvironmentBytes = 64 << 30
	maxEnvironmentFiles = 1_000_000
)

// unpackTarball unpacks a tar file, plain or compressed with gzip or bzip2,
// into dir, which it makes.
//
// Nothing is written outside dir: os.Root refuses every name and link that
// leads there. Links may not point outside either, except that of the
// interpreter (bin/python…), which in a venv is the one of the machine.
// Devices, pipes and set-id bits are refused or dropped.
func unpackTarball(ctx context.Context, archive, dir string, l unpackLimits) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	content, err := decompress(contextReader{ctx, f})
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	u := &unpacker{root: root, files: l.files, bytes: l.bytes}
	for archive := tar.NewReader(content); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return u.checkLinks()
		}
		if err == nil {
			err = u.entry(h, archive)
		}
		if err != nil {
			return err
		}
	}
}

func decompress(r io.Reader) (io.Reader, error) {
	b := bufio.NewReaderSize(r, 1<<20)
	head, _ := b.Peek(3) // a short file is no archive, which the reader says
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.HasPrefix(head, []byte("BZh")):
		return bzip2.NewReader(b), nil
	}
	return b, nil
}

// unpacker writes entries below root, within its bounds.
type unpacker struct {
	root  *os.Root
	files int   // entries left
	bytes int64 // bytes left
	links []string
}

// interpreterLink matches the links that may point anywhere.
var interpreterLink = regexp.MustCompile(`^bin/python[0-9.]*$`)

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if u.files--; u.files < 0 {
		return errors.New("it has too many files for an environment (at most 1,000,000)")
	}
	name, err := local(h.Name)
	if err != nil || name == "." {
		return err
	}
	if err := u.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return fmt.Errorf("%q: %w", h.Name, err)
	}
	if err := u.replace(name, h.Typeflag); err != nil {
		return fmt.Errorf("%q: %w", h.Name, err)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.root.MkdirAll(name, 0o700)
	case tar.TypeReg:
		err = u.file(name, h.FileInfo().Mode(), content)
	case tar.TypeSymlink:
		if !interpreterLink.MatchString(name) {
			u.links = append(u.links, name)
			if path.IsAbs(h.Linkname) || !filepath.IsLocal(path.Join(path.Dir(name), h.Linkname)) {
				return fmt.Errorf("the link %q points outside the environment", h.Name)
			}
		}
		err = u.root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		var target string
		if target, err = local(h.Linkname); err == nil {
			// A hard link to a symbolic link resolves it from another folder.
			u.links = append(u.links, name)
			err = u.root.Link(target, name)
		}
	case tar.TypeXGlobalHeader:
	default:
		err = fmt.Errorf("is neither a file, a folder nor a link (type %q)", h.Typeflag)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", h.Name, err)
	}
	return nil
}

// replace makes room for an entry of a name that was there before, as venv-pack
// writes some: the last counts, as for tar. A folder stays.
func (u *unpacker) replace(name string, kind byte) error {
	info, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() || kind == tar.TypeDir || kind == tar.TypeXGlobalHeader {
		return nil
	}
	if err != nil {
		return err
	}
	u.links = slices.DeleteFunc(u.links, func(link string) bool { return link == name })
	return u.root.Remove(name)
}

// local cleans the name of an entry and refuses one outside the archive.
func local(raw string) (string, error) {
	name := path.Clean(raw)
	if name == "" || !filepath.IsLocal(name) {
		return "", fmt.Errorf("the entry %q would be outside the environment", raw)
	}
	return name, nil
}

func (u *unpacker) file(name string, mode fs.FileMode, content io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm()&0o755|0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(content, u.bytes+1))
	if u.bytes -= n; u.bytes < 0 && err == nil {
		err = errors.New("it unpacks to more than an environment may have (64 GiB)")
	}
	return errors.Join(err, f.Close())
}

// checkLinks looks at the finished folder: a chain of harmless links can still
// lead out, which Root notices. A link to nothing is harmless, and so is one
// to the interpreter.
func (u *unpacker) checkLinks() error {
	for _, name := range u.links {
		_, err := u.root.Stat(name)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		target, readErr := u.root.Readlink(name)
		if readErr == nil && interpreterLink.MatchString(path.Join(path.Dir(name), target)) {
			continue
		}
		return fmt.Errorf("the link %q points outside the environment", name)
	}
	return nil
}

// folderLock is an advisory lock that several servers agree on: exclusive
// while a folder is made or removed, shared while it is used.
type folderLock struct{ file *os.File }

// lockPoll is how often a lock that another holds is tried.
const lockPoll = 100 * time.Millisecond

// lockFolder takes the lock at path, exclusively.
func lockFolder(ctx context.Context, path string) (*folderLock, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		l := &folderLock{f}
		if l.exclusive() || l.sharedNow() {
			// Whoever had it may have removed the file meanwhile.
			if l.current(path) {
				return l, nil
			}
		}
		l.leave()
		select {
		case <-time.After(lockPoll):
		case <-ctx.Done():
			return nil, fmt.Errorf("another server holds %s: %w", path, ctx.Err())
		}
	}
}

// exclusive tries to make the lock exclusive; false if others share it.
func (l *folderLock) exclusive() bool {
	return unix.Flock(int(l.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// sharedNow tries to share the lock with others who use the folder.
func (l *folderLock) sharedNow() bool {
	return unix.Flock(int(l.file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
}

// share makes the lock a shared one.
func (l *folderLock) share() error {
	err := unix.Flock(int(l.file.Fd()), unix.LOCK_SH)
	for errors.Is(err, unix.EINTR) {
		err = unix.Flock(int(l.file.Fd()), unix.LOCK_SH)
	}
	return err
}

func (l *folderLock) current(path string) bool {
	own, err1 := l.file.Stat()
	there, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(own, there)
}

// leave gives the lock up.
func (l *folderLock) leave() { _ = l.file.Close() }

// remove gives an exclusive lock up and removes its file.
func (l *folderLock) remove() {
	_ = os.Remove(l.file.Name()) // the next one makes it again
	l.leave()
}
