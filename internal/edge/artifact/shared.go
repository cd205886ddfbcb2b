package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

const (
	placesName = "places"
	// modelName is the link in a place that leads to its copy.
	modelName = "model"
	// endedName is a file in a place: its time is when it was first seen that
	// nobody holds the place.
	endedName = "ended"
	// endedFor is how long a place counts as in use that nobody holds: whoever
	// held it may be started again.
	endedFor = 15 * time.Minute
)

// Shared is a store that many processes share, one for each pod of a node, with
// a place for one of them:
//
//	places/<name>/model   a symbolic link to the folder of the copy that it was given
//	places/<name>/ended   when it was first seen that nobody holds the place
//
// A place is held by a lock on its folder, and its copy is not removed while it
// is held, and some minutes more. Whoever reads the copy needs none of the
// store's other files: it may see the copy's folder alone.
//
// Files of a copy have the modification time that marks a verified blob. Those
// that were written to since are hashed again before they are handed out.
type Shared struct {
	store *Store
	dir   string // of the place
	held  *os.File
}

// OpenShared opens the store in cfg.Dir and takes the place of a name in it.
// What the store may hold is cfg.StoreBytes; cfg.InUse is not asked.
func OpenShared(cfg Config, name string, client *http.Client, log *slog.Logger) (*Shared, error) {
	if !localName(name) || strings.Contains(name, "/") {
		return nil, fmt.Errorf("%q names no place in a store: write a name without slashes", name)
	}
	s := &Shared{}
	cfg.InUse, cfg.Confirmed, cfg.BoundName = s.inUse, true, "the store's bound"
	var err error
	if s.store, err = New(cfg, client, log); err != nil {
		return nil, err
	}
	s.dir = filepath.Join(s.store.cfg.Dir, placesName, name)
	if err := s.hold(); err != nil {
		return nil, err
	}
	return s, nil
}

// hold locks the place, which is made where it is not there.
func (s *Shared) hold() error {
	for {
		if err := os.MkdirAll(s.dir, 0o700); err != nil {
			return err
		}
		now, err := os.Lstat(s.dir)
		if err != nil {
			return err
		}
		if !now.IsDir() {
			return fmt.Errorf("%s is no folder: remove it", s.dir)
		}
		f, err := os.Open(s.dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // somebody has just removed it
		}
		if err != nil {
			return err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil { // those who look hold it for an instant
			return errors.Join(err, f.Close())
		}
		mine, err := f.Stat()
		if now, there := os.Lstat(s.dir); err == nil && there == nil && os.SameFile(mine, now) {
			s.held = f
			_ = os.Remove(filepath.Join(s.dir, endedName)) // it is held again
			return nil
		}
		_ = f.Close()
	}
}

// Held is the folder of the place, opened: the place is held while it is open,
// in whichever process.
func (s *Shared) Held() *os.File { return s.held }

// Close gives the place back.
func (s *Shared) Close() error { return s.held.Close() }

// Fetch puts a link to the artifact's files into the place and returns its path.
// The link leads to a folder, which everybody may read, also where the artifact
// is one file. A place that has a copy of the URI keeps it: those who read it
// need not see its files change. progress is as for [Store.Fetch].
func (s *Shared) Fetch(ctx context.Context, req Request, progress func(Progress)) (string, error) {
	loc, err := parse(req)
	if err != nil {
		return "", err
	}
	if loc.scheme == "file" || loc.scheme == "upload" {
		return "", fmt.Errorf("%s is on this machine already", Redact(req.URI))
	}
	link := filepath.Join(s.dir, modelName)
	whole, err := s.inspect(ctx, loc, s.linked())
	if err != nil {
		return "", err
	}
	if whole {
		return link, nil
	}
	path, err := s.store.Fetch(ctx, req, progress)
	if err != nil {
		return "", err
	}
	tree, _ := s.store.folder.copyOf(path)
	if err := seal(tree); err != nil {
		return "", err
	}
	return link, s.point(link, tree)
}

// Drop gives the place back for good, and removes the copies of the artifact and what
// there is of its download, unless other places have them; a copy that stays is
// the next to go when room is needed. It returns how many bytes it freed.
func (s *Shared) Drop(req Request) (freed int64, err error) {
	loc, err := parse(req)
	if err != nil {
		return 0, err
	}
	for _, name := range []string{modelName, modelName + ".new"} {
		if err := os.Remove(filepath.Join(s.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
	}
	if unlock, err := s.store.folder.tryLock(loc.key()); err == nil { // else another place fetches it
		partial := filepath.Join(s.store.folder.dir, "partial", loc.key())
		n := onDisk(partial, false)
		if err := os.RemoveAll(partial); err == nil {
			freed += n
		}
		unlock()
	}
	n, err := s.store.Remove(req.URI)
	freed += n
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		s.store.log.Info("a model stays in the store", "reason", err)
	}
	return freed, os.RemoveAll(s.dir)
}

// linked is the copy that the place was given before; "" is none.
func (s *Shared) linked() string {
	to, err := os.Readlink(filepath.Join(s.dir, modelName))
	if err != nil {
		return ""
	}
	return filepath.Join(s.dir, to)
}

// point makes link lead to tree, in one step.
func (s *Shared) point(link, tree string) error {
	to, err := filepath.Rel(s.dir, tree)
	if err != nil {
		return err
	}
	// The kubelet makes a folder of a subPath that is not there, as of a place that was
	// given back a moment ago. An empty one is nobody's copy.
	if info, err := os.Lstat(link); err == nil && info.IsDir() {
		if err := os.Remove(link); err != nil {
			return err
		}
	}
	fresh := link + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := errors.Join(os.Symlink(to, fresh), os.Rename(fresh, link)); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// inspect looks at the newest copy of an artifact, and at the one that a place
// was given. A damaged one is moved away, so that it is fetched again. whole
// reports that given is a copy of loc that can be used.
func (s *Shared) inspect(ctx context.Context, loc location, given string) (whole bool, err error) {
	d := s.store.folder
	unlock, err := d.lock(ctx, loc.key())
	if err != nil {
		return false, err
	}
	defer unlock()
	rec := d.readRecord(loc)
	if rec == nil || given != "" && filepath.Dir(given) == d.modelDir(loc) && filepath.Base(given) != rec.Version {
		return s.marked(given, loc), nil // a newer one does not change what the place was given
	}
	tree := filepath.Join(d.modelDir(loc), rec.Version)
	ok, err := intact(ctx, tree, rec)
	if err != nil {
		return false, err
	}
	if !ok {
		s.store.log.Warn("the files of a model in the store were changed: it is fetched again", "uri", loc.String(), "folder", tree)
		away := fmt.Sprintf("%s.damaged-%d", tree, time.Now().UnixNano())
		if err := errors.Join(os.Remove(filepath.Join(d.modelDir(loc), "record.json")), os.Rename(tree, away)); err != nil {
			return false, err
		}
		return false, nil
	}
	return given == tree && rec.pinnedTo(loc.sha256), nil
}

// marked reports whether a folder is a copy of loc, of an earlier version, to
// whose files nobody has written.
func (s *Shared) marked(tree string, loc location) bool {
	if tree == "" || filepath.Dir(tree) != s.store.folder.modelDir(loc) {
		return false
	}
	files := 0
	err := filepath.WalkDir(tree, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		if info, err := e.Info(); err != nil || !blobs.Verified(info) {
			return errors.Join(err, errWritten)
		}
		return nil
	})
	return err == nil && files > 0
}

// errWritten is about a file that is not as it was verified.
var errWritten = errors.New("the file was written to")

// seal lets everybody read the files of a verified copy, nobody write to them,
// and marks them.
func seal(tree string) error {
	now := time.Now()
	return filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			return os.Chmod(path, 0o755)
		case !e.Type().IsRegular():
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm() == 0o444 && blobs.Verified(info) {
			return nil
		}
		return errors.Join(os.Chmod(path, 0o444), blobs.Touch(path, now))
	})
}

// intact reports whether the files of a copy are those that were verified. One
// without the mark is hashed; what came in an archive cannot be, and counts as
// changed.
func intact(ctx context.Context, tree string, rec *record) (bool, error) {
	sums := map[string]string{}
	for _, o := range rec.Objects {
		sums[o.Name] = o.SHA256
	}
	err := filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(tree, path)
		if err != nil {
			return err
		}
		return unchanged(ctx, path, e, sums[filepath.ToSlash(name)])
	})
	if errors.Is(err, errWritten) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, nil
}

// unchanged returns errWritten for a file that is not the one of a sum; "" is
// that of one which came in an archive.
func unchanged(ctx context.Context, path string, e fs.DirEntry, sum string) error {
	if e.Type()&fs.ModeSymlink != 0 && sum == "" {
		return nil // of an archive: where it leads was checked
	}
	info, err := e.Info()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errWritten
	}
	if blobs.Verified(info) {
		return nil
	}
	got, err := hashFile(ctx, path)
	if err != nil {
		return err
	}
	if got != sum {
		return errWritten
	}
	return blobs.Touch(path, time.Now())
}

// inUse lists the copies of the places that are held, or were until a moment
// ago. Places that have not been held for longer are removed.
func (s *Shared) inUse() (paths []string) {
	root := filepath.Join(s.store.cfg.Dir, placesName)
	places, err := os.ReadDir(root)
	if err != nil { // nobody knows: all of it
		paths, _ = filepath.Glob(filepath.Join(s.store.cfg.Dir, "models", "*", "*"))
		return paths
	}
	for _, e := range places {
		dir := filepath.Join(root, e.Name())
		if !e.IsDir() || given(dir, time.Now()) {
			continue
		}
		if to, err := os.Readlink(filepath.Join(dir, modelName)); err == nil {
			paths = append(paths, filepath.Join(dir, to))
		}
	}
	return paths
}

// given reports whether a place was given back for good, and removes it then.
func given(dir string, now time.Time) bool {
	f, err := os.Open(dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer func() { _ = f.Close() }()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false
	}
	ended := filepath.Join(dir, endedName)
	info, err := os.Lstat(ended)
	if err != nil {
		if f, err := os.OpenFile(ended, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			_ = f.Close()
		}
		return false
	}
	return now.Sub(info.ModTime()) >= endedFor && os.RemoveAll(dir) == nil
}
