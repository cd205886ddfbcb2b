// Package datadir is the data directory of `roundhouse up`: the applied
// manifests and the pinned revisions as plain YAML, one file each, and what
// services used, one file a day, written atomically; a lock, so that two never
// share it; a version, so that a newer layout is never misread.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Version is the layout this build reads and writes.
const Version = 1

const (
	versionFile  = "VERSION"
	lockFile     = "lock"
	tokenFile    = "admin-token"
	sessionsFile = "console-sessions.json"
	viewerFile   = "viewer-token"
	modelsDir    = "models" // the owner's, see Models
	hubDir       = "hub"    // the owner's too
)

// Dir is an open, locked data directory.
type Dir struct {
	path string
	lock *os.File
	disk Disk
}

// Disk is the operations by which a Dir changes its files. A crash may come
// between any two of them.
type Disk interface {
	// CreateTemp is os.CreateTemp, MkdirAll os.MkdirAll with 0700, Rename os.Rename
	// and Remove os.Remove. Their effects may be undone by a power failure until
	// SyncDir has returned for the folder that they changed.
	CreateTemp(folder, pattern string) (File, error)
	MkdirAll(folder string) error
	Rename(from, to string) error
	Remove(path string) error
	SyncDir(folder string) error
}

// File is a file that is being written. What was written may be lost by a power
// failure until Sync has returned.
type File interface {
	Name() string
	Write(data []byte) (int, error)
	Sync() error
	Close() error
}

// SystemDisk is the disk of the operating system.
type SystemDisk struct{}

// CreateTemp implements Disk.
func (SystemDisk) CreateTemp(folder, pattern string) (File, error) {
	return os.CreateTemp(folder, pattern)
}

// MkdirAll implements Disk.
func (SystemDisk) MkdirAll(folder string) error { return os.MkdirAll(folder, 0o700) }

// Rename implements Disk.
func (SystemDisk) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements Disk.
func (SystemDisk) Remove(path string) error { return os.Remove(path) }

// SyncDir implements Disk. File systems that cannot sync a folder are left to
// sync it when they do.
func (SystemDisk) SyncDir(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// Open makes or opens the directory, takes its lock and checks its version.
// Everything in it is for the owner's eyes alone (0700).
func Open(path string) (*Dir, error) { return OpenOn(SystemDisk{}, path) }

// OpenOn is Open on a disk.
func OpenOn(disk Disk, path string) (*Dir, error) {
	if path == "" {
		return nil, ErrHomeless
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", path, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w: choose another with --data-dir", err)
	}
	for _, folder := range []string{abs, filepath.Join(abs, modelsDir), filepath.Join(abs, hubDir)} {
		if err := Trusted(folder, false); err != nil {
			return nil, fmt.Errorf("data directory: %w, and what lies there is run: mend that, or choose another with --data-dir", err)
		}
	}
	lock, err := takeLock(filepath.Join(abs, lockFile))
	if err != nil {
		return nil, err
	}
	d := &Dir{path: abs, lock: lock, disk: disk}
	if err := present.check(abs); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	for _, sub := range []string{objectsDir, recordsDir, usageDir} {
		if err := d.makeFolder(filepath.Join(abs, sub)); err != nil {
			return nil, errors.Join(fmt.Errorf("data directory: %w", err), lock.Close())
		}
	}
	if err := d.sweep(); err != nil {
		return nil, errors.Join(fmt.Errorf("data directory: %w", err), lock.Close())
	}
	return d, nil
}

// sweep removes files that a crash left half written, and syncs the folders: the
// crash may have come before that. Nobody else writes there while the lock is held.
func (d *Dir) sweep() error {
	if err := d.disk.SyncDir(d.path); err != nil {
		return err
	}
	for _, sub := range []string{objectsDir, recordsDir, usageDir} {
		err := filepath.WalkDir(filepath.Join(d.path, sub), func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil: // Load reports what cannot be read
			case e.IsDir():
				return d.disk.SyncDir(path)
			case e.Type().IsRegular() && strings.HasPrefix(e.Name(), newPrefix):
				_ = d.disk.Remove(path) // what cannot be removed is in nobody's way
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// makeFolder makes a folder of the directory and those above it. A power failure
// leaves it there.
func (d *Dir) makeFolder(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := d.disk.MkdirAll(path); err != nil {
		return err
	}
	for at := filepath.Dir(path); strings.HasPrefix(at, d.path); at = filepath.Dir(at) {
		if err := d.disk.SyncDir(at); err != nil {
			return err
		}
	}
	return nil
}

// newPrefix begins the names of files that are being written.
const newPrefix = ".new-"

// lockGrace is how long the lock of a process that has ended may stay taken.
const lockGrace = 2 * time.Second

// takeLock holds the lock for as long as the file is open; the file names the
// holder for whoever finds it taken.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory lock: %w: choose another with --data-dir", err)
	}
	for deadline := time.Now().Add(lockGrace); syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil; {
		held, _ := os.ReadFile(path)
		pid := strings.TrimSpace(string(held))
		// A holder that was killed as it started a process leaves the lock to that until it
		// has begun its program.
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) == syscall.ESRCH && time.Now().Before(deadline) {
			time.Sleep(lockGrace / 100)
			continue
		}
		who := "another roundhouse"
		if pid != "" {
			who = "the roundhouse with pid " + pid
		}
		return nil, errors.Join(fmt.Errorf("data directory %s is in use by %s: stop it, or choose another with --data-dir", filepath.Dir(path), who), f.Close())
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("data directory lock: %w", err), f.Close())
		}
	}
	return f, nil
}

// layout is what a directory should be: its version, and the steps that take
// an older one from the version they are filed under to the next. A step
// leaves modelsDir alone and may run twice, when it was interrupted.
type layout struct {
	version int
	steps   map[int]func(dir string) error
}

// present is this build's. Version 1 is the first, so there are no steps yet.
var present = layout{version: Version}

// check brings dir to the layout's version; a newer one is refused.
func (l layout) check(dir string) error {
	file := filepath.Join(dir, versionFile)
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return l.mark(dir, l.version)
	}
	if err != nil {
		return fmt.Errorf("data directory version: %w", err)
	}
	have, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || have < 1 {
		return fmt.Errorf("%s: %q is no version: this does not look like a roundhouse data directory; choose another with --data-dir", file, strings.TrimSpace(string(raw)))
	}
	if have > l.version {
		return fmt.Errorf("data directory %s has version %d, this roundhouse reads %d: use the newer roundhouse that wrote it, or choose another with --data-dir", dir, have, l.version)
	}
	if have < l.version {
		return l.migrate(dir, have)
	}
	return nil
}

func (l layout) mark(dir string, version int) error {
	return writeFile(SystemDisk{}, filepath.Join(dir, versionFile), []byte(strconv.Itoa(version)+"\n"))
}

// migrate copies the directory to a sibling first, so that a failed step
// loses nothing. What has been done is marked after every step.
func (l layout) migrate(dir string, from int) error {
	kept := fmt.Sprintf("%s.v%d.backup", dir, from)
	if err := backup(dir, kept); err != nil {
		return fmt.Errorf("data directory: backup to %s before migrating from version %d: %w", kept, from, err)
	}
	for v := from; v < l.version; v++ {
		step := l.steps[v]
		if step == nil {
			return fmt.Errorf("data directory %s has version %d, which this roundhouse cannot migrate", dir, v)
		}
		err := step(dir)
		if err == nil {
			err = l.mark(dir, v+1)
		}
		if err != nil {
			return fmt.Errorf("data directory: migrate from version %d: %w: the state before is in %s", v, err, kept)
		}
	}
	return nil
}

// backup copies what is in dir to a new folder, once: one that is there is
// whole. Models are left out: they are large, and no step touches them.
func backup(dir, to string) error {
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	partial := to + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return err
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case rel == modelsDir:
			return fs.SkipDir
		case e.IsDir():
			return os.MkdirAll(filepath.Join(partial, rel), 0o700)
		case !e.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(partial, rel), data, 0o600)
	})
	if err != nil {
		return err
	}
	return os.Rename(partial, to)
}

// Path joins elements below the directory.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Models is the folder for model files, which is the caller's to fill.
func (d *Dir) Models() string { return d.Path(modelsDir) }

// Close gives up the lock.
func (d *Dir) Close() error { return d.lock.Close() }

// writeFile replaces a file atomically: a crash or a power failure leaves the
// old or the new content, never a part, and the new content once it has returned.
func writeFile(disk Disk, path string, data []byte) (err error) {
	f, err := disk.CreateTemp(filepath.Dir(path), newPrefix+"*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	renamed := false
	defer func() {
		if err != nil && !renamed {
			_ = disk.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = disk.Rename(f.Name(), path)
		renamed = err == nil
	}
	if err == nil {
		err = disk.SyncDir(filepath.Dir(path)) // else the name may be lost
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Trusted refuses a folder in which another user could put files. Every folder
// on the way to it counts, since whoever may write to one can put another in the
// place of what is below. What is not there yet is no concern. A shared folder,
// such as a volume in a pod, may be root's and its group's.
func Trusted(path string, shared bool) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ways := []string{real}
	if real != path {
		ways = append(ways, path) // its links must not be another's
	}
	for _, way := range ways {
		for at := way; ; at = filepath.Dir(at) {
			info, err := os.Lstat(at)
			if err != nil {
				return err
			}
			if why := untrusted(info, at == real, shared); why != "" {
				return fmt.Errorf("%s %s: another user could put files into %s", at, why, path)
			}
			if at == filepath.Dir(at) {
				break
			}
		}
	}
	return nil
}

// untrusted is what is wrong with one folder or link, in words with what to do;
// "" when nothing is. The folder itself has to be ours; those above may be
// root's.
func untrusted(info fs.FileInfo, itself, shared bool) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	uid, mode := int(st.Uid), info.Mode()
	if me := os.Geteuid(); uid != me && (itself && !shared || uid != 0) {
		return fmt.Sprintf("belongs to user %d, and you are user %d (chown it)", uid, me)
	}
	if mode&fs.ModeSymlink != 0 {
		return "" // a link has no mode of its own
	}
	// In a sticky folder, such as /tmp, nobody can replace what is another's.
	if mode&fs.ModeSticky != 0 && !itself {
		return ""
	}
	var who []string
	if mode.Perm()&0o002 != 0 {
		who = append(who, "anybody")
	}
	// A group with the number of its user is that user's own by convention.
	if mode.Perm()&0o020 != 0 && st.Gid != st.Uid && !shared {
		who = append(who, fmt.Sprintf("group %d", st.Gid))
	}
	if len(who) == 0 {
		return ""
	}
	return "may be written by " + strings.Join(who, " and ") + " (chmod go-w it)"
}
