package artifact

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/blobs"
)

// record describes the newest complete copy of a remote artifact. It is
// written last, so a copy without a record does not exist.
type record struct {
	Source  string    `json:"source"`  // redacted URI
	Version string    `json:"version"` // folder name, from names and digests
	File    string    `json:"file,omitempty"`
	Objects []object  `json:"objects"`
	Files   int       `json:"files"` // in the folder, unpacked
	Bytes   int64     `json:"bytes"`
	Fetched time.Time `json:"fetched"`
}

func (r *record) pinnedTo(sum string) bool {
	return sum == "" || len(r.Objects) == 1 && r.Objects[0].SHA256 == sum
}

// folder is the store's place on the disk: what lies where, and who may write.
type folder struct {
	dir  string
	disk disk
}

func (d *folder) modelDir(loc location) string {
	return filepath.Join(d.dir, "models", loc.key())
}

func (d *folder) partialDir(loc location) string {
	return filepath.Join(d.dir, "partial", loc.key())
}

func (d *folder) recordPath(loc location, r *record) string {
	return filepath.Join(d.modelDir(loc), r.Version, filepath.FromSlash(r.File))
}

// readRecord returns the record of a complete copy, or nil when there is none:
// a record whose files are missing or of another size counts as none.
func (d *folder) readRecord(loc location) *record {
	raw, err := os.ReadFile(filepath.Join(d.modelDir(loc), "record.json"))
	if err != nil {
		return nil
	}
	var r record
	if json.Unmarshal(raw, &r) != nil || !localName(r.Version) || len(r.Objects) == 0 {
		return nil
	}
	if r.File != "" && !localName(r.File) {
		return nil
	}
	files, bytes, err := measure(filepath.Join(d.modelDir(loc), r.Version))
	if err != nil || files != r.Files || bytes != r.Bytes {
		return nil
	}
	return &r
}

// readVersion is the version that a model's record names.
func readVersion(dir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "record.json"))
	if err != nil {
		return "", err
	}
	var r record
	return r.Version, json.Unmarshal(raw, &r)
}

// installer makes the model's folder of what was downloaded or uploaded.
type installer struct {
	folder    *folder
	blobs     *blobs.Store // where downloaded files of the Hub are linked; nil for nowhere
	limits    limits       // of what is unpacked
	expansion int          // see [Config.MaxExpansion]
}

// install moves the finished parts of a listing into the models folder and
// records them.
func (n *installer) install(ctx context.Context, loc location, l listing) (*record, error) {
	tree, file, err := n.assemble(ctx, loc, l)
	if err != nil {
		return nil, err
	}
	r := &record{Source: loc.String(), Version: version(l.objects), File: file, Objects: l.objects, Fetched: time.Now().UTC()}
	if r.Files, r.Bytes, err = measure(tree); err != nil {
		return nil, err
	}
	if err := replaceTree(tree, filepath.Join(n.folder.modelDir(loc), r.Version), r); err != nil {
		return nil, err
	}
	if err := writeJSON(filepath.Join(n.folder.modelDir(loc), "record.json"), r); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(n.folder.partialDir(loc)); err != nil {
		return nil, err
	}
	return r, nil
}

// assemble builds the artifact's folder from its parts, unpacking a single
// archive as KServe's storage initializer does.
func (n *installer) assemble(ctx context.Context, loc location, l listing) (tree, file string, err error) {
	tree = filepath.Join(n.folder.partialDir(loc), "tree")
	if err := os.RemoveAll(tree); err != nil {
		return "", "", err
	}
	if err := os.MkdirAll(tree, 0o700); err != nil {
		return "", "", err
	}
	if slices.ContainsFunc(l.objects, func(o object) bool { return o.layer != "" }) {
		return tree, "", discarded(n.unpackLayers(ctx, loc, l, tree), tree)
	}
	if len(l.objects) == 1 {
		if kind := archiveKind(loc, l.objects[0].Name); kind != "" {
			part := l.objects[0].arrived(n.folder.partialDir(loc))
			return tree, "", discarded(n.unpack(ctx, kind, part, tree, loc.String()), tree)
		}
		if !l.folder {
			file = l.objects[0].Name
		}
	}
	for _, o := range l.objects {
		dst := filepath.Join(tree, filepath.FromSlash(o.Name))
		if err := os.MkdirAll(filepath.Dir(dst), 0o700); err != nil {
			return "", "", fmt.Errorf("%s: an object is both a file and a folder: %w", loc, err)
		}
		if err := os.Rename(o.arrived(n.folder.partialDir(loc)), dst); err != nil {
			return "", "", fmt.Errorf("%s: %w", loc, err)
		}
		if n.blobs != nil && !o.linked && blobs.IsHash(o.oid) {
			n.blobs.Add(dst, o.oid, time.Now()) // what the cache had no room for
		}
	}
	return tree, file, nil
}

// discarded removes what was unpacked of an archive that failed: a refused bomb
// must not keep the disk it filled. The archive stays, so that another try does
// not download it again.
func discarded(failed error, tree string) error {
	if failed == nil {
		return nil
	}
	return errors.Join(failed, os.RemoveAll(tree))
}

// version names the content of a set of objects.
func version(objects []object) string {
	var b strings.Builder
	for _, o := range objects {
		fmt.Fprintf(&b, "%q %s\n", o.Name, o.SHA256)
	}
	return digest(b.String())[:16]
}

// replaceTree renames a finished folder into place. A folder that is there and
// whole has the same content and may be in use, so it stays.
func replaceTree(tree, dst string, r *record) error {
	if files, bytes, err := measure(dst); err == nil {
		if files == r.Files && bytes == r.Bytes {
			return os.RemoveAll(tree)
		}
		if err := os.RemoveAll(dst); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(dst), 0o700); err != nil {
		return err
	}
	if err := os.Rename(tree, dst); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dst))
}

// measure counts the files below a folder and their bytes, following no links.
func measure(dir string) (files int, bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		if info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return files, bytes, err
}

// writeJSON replaces a file in one step, with mode 0600.
func writeJSON(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".json-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(raw, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lock keeps other processes, and a cancelled download still winding down, off
// the partial folder of a location key.
func (d *folder) lock(ctx context.Context, key string) (unlock func(), err error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		unlock, err := d.tryLock(key)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
			return unlock, err
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// tryLock is lock without waiting: the error is EWOULDBLOCK when somebody else
// has it.
func (d *folder) tryLock(key string) (unlock func(), err error) {
	path := filepath.Join(d.dir, "partial", key+".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { _ = f.Close() }, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
