package artifact

import (
	"context"
	"encoding/json"
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
)

// What [Materialize] leaves in its folder, and what is there meanwhile.
const (
	pullRecordName = ".roundhouse-pull"
	workName       = ".roundhouse-work"
	// lostName is what a fresh volume of ext4 holds.
	lostName = "lost+found"
	// maxPullRecord bounds the record of a folder.
	maxPullRecord = 16 << 20
)

// pullRecord is the record of a folder that holds an artifact. It is written
// before the first file is put there, so that a stop between two files is made
// good, and again after the last.
type pullRecord struct {
	Source string `json:"source"` // redacted
	Key    string `json:"key"`    // of the whole URI
	// Tree is where the files come from, below the folder; "" once all are there.
	Tree    string   `json:"tree,omitempty"`
	Entries []string `json:"entries"` // at the top of the folder; of [Merge] all files
	// Merged is what the record's own name ends in, where others may lie beside it.
	Merged string `json:"merged,omitempty"`
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
}

// Materialize puts the files of a remote artifact into dir itself, without a
// second copy: a folder's content, or the one file. Others can read what it
// puts there. It waits for another call over dir, resumes what was interrupted,
// and does nothing where dir holds the artifact. A dir that holds anything else
// is refused. cfg.Dir is ignored. progress is as for [Store.Fetch].
func Materialize(ctx context.Context, dir string, req Request, cfg Config, client *http.Client, log *slog.Logger, progress func(Progress)) error {
	dir, unlock, err := openFolder(ctx, dir, req)
	if err != nil {
		return err
	}
	defer unlock()
	want := recordOf(req)
	had, err := readPullRecord(dir, want)
	if err != nil {
		return err
	}
	if had == nil {
		cfg.Dir = filepath.Join(dir, workName)
		if had, err = fetchInto(ctx, dir, req, cfg, client, log, want, progress); err != nil {
			return err
		}
		if err := had.write(dir); err != nil {
			return err
		}
	}
	return had.finish(dir)
}

// openFolder makes the folder that a remote artifact is put into, and keeps others off
// it until unlock. It returns its absolute path.
func openFolder(ctx context.Context, dir string, req Request) (path string, unlock func(), err error) {
	loc, err := parse(req)
	if err != nil {
		return "", nil, err
	}
	if loc.scheme == "file" || loc.scheme == "upload" {
		return "", nil, fmt.Errorf("%s is on this machine already: copy it", Redact(req.URI))
	}
	if path, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", nil, err
	}
	unlock, err = lockFolder(ctx, path)
	return path, unlock, err
}

// recordOf is the record of what a request asks for, with nothing there yet.
func recordOf(req Request) pullRecord {
	return pullRecord{Source: Redact(req.URI), Key: digest(strings.TrimSpace(req.URI))[:32]}
}

// fetchInto downloads below dir and returns the record of what is to be put there.
func fetchInto(ctx context.Context, dir string, req Request, cfg Config, client *http.Client, log *slog.Logger, p pullRecord, progress func(Progress)) (*pullRecord, error) {
	s, err := New(cfg, client, log)
	if err != nil {
		return nil, err
	}
	path, err := s.Fetch(ctx, req, progress)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	tree := path
	if info.IsDir() {
		list, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			p.Entries = append(p.Entries, e.Name())
		}
	} else {
		tree, p.Entries = filepath.Dir(path), []string{filepath.Base(path)}
	}
	for _, name := range p.Entries {
		if name == pullRecordName || name == workName {
			return nil, fmt.Errorf("%s: the model has a file %s, a name that is taken; rename it at the source", p.Source, name)
		}
	}
	if p.Files, p.Bytes, err = open(tree); err != nil {
		return nil, err
	}
	if p.Tree, err = filepath.Rel(dir, tree); err != nil {
		return nil, err
	}
	return &p, nil
}

// open lets everybody read the files below a folder, and counts them: servers
// run as other users than whoever fetches for them.
func open(tree string) (files int, bytes int64, err error) {
	err = filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if d.IsDir() {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
	if err == nil {
		files, bytes, err = measure(tree)
	}
	if err != nil {
		return 0, 0, err
	}
	return files, bytes, nil
}

// finish moves into the folder what is not there yet, and cleans up.
func (p *pullRecord) finish(dir string) error {
	if p.Tree != "" {
		for _, name := range p.Entries {
			err := os.Rename(filepath.Join(dir, p.Tree, name), filepath.Join(dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				_, err = os.Lstat(filepath.Join(dir, name)) // moved before an interruption
			}
			if err != nil {
				return err
			}
		}
		p.Tree = ""
		if err := p.write(dir); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, workName)); err != nil {
		return err
	}
	return syncDir(dir)
}

func (p *pullRecord) write(dir string) error {
	path := filepath.Join(dir, pullRecordName+p.Merged)
	if err := writeJSON(path, p); err != nil {
		return err
	}
	if err := os.Chmod(path, 0o644); err != nil {
		return err
	}
	return nil
}

// readPullRecord is the record of a folder, nil for one where nothing was put yet.
// It is an error for the folder to hold anything but what want asks for.
func readPullRecord(dir string, want pullRecord) (*pullRecord, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	p, err := decodePullRecord(filepath.Join(dir, pullRecordName))
	if err != nil {
		return nil, err
	}
	if p == nil {
		for _, e := range list {
			if name := e.Name(); name != workName && name != lostName && !strings.HasPrefix(name, ".json-") {
				return nil, fmt.Errorf("%s is not empty (%s): name an empty folder", dir, name)
			}
		}
		return nil, nil
	}
	if p.Key != want.Key {
		return nil, fmt.Errorf("%s holds %s: name another folder for %s, or empty it", dir, p.Source, want.Source)
	}
	return p, p.check(dir)
}

// check reports what the folder lacks of the files that were all there.
func (p *pullRecord) check(dir string) error {
	if p.Tree != "" {
		return nil
	}
	var files int
	var bytes int64
	for _, name := range p.Entries {
		n, b, err := measure(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("%s: empty the folder to fetch the model again: %w", dir, err)
		}
		files, bytes = files+n, bytes+b
	}
	if files != p.Files || bytes != p.Bytes {
		return fmt.Errorf("%s has %d files of %d bytes, and %s has %d of %d: empty the folder to fetch it again",
			dir, files, bytes, p.Source, p.Files, p.Bytes)
	}
	return nil
}

func decodePullRecord(path string) (*pullRecord, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var raw []byte
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxPullRecord) {
		err = fmt.Errorf("%s: not a record of what was fetched", path)
	}
	if err == nil {
		raw, err = os.ReadFile(path)
	}
	var p pullRecord
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; empty the folder to fetch the model again", err)
	}
	ok := (p.Tree == "" || localName(filepath.ToSlash(p.Tree)) && strings.HasPrefix(p.Tree, workName)) && filepath.Base(path) == pullRecordName+p.Merged
	for _, name := range p.Entries {
		ok = ok && localName(name) && (p.Merged != "" || !strings.Contains(name, "/"))
	}
	if !ok {
		return nil, fmt.Errorf("%s: not a record of what was fetched; empty the folder to fetch the model again", path)
	}
	return &p, nil
}

// lockFolder keeps other processes off a folder until unlock. A process that
// is killed lets go of it.
func lockFolder(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = sleep(ctx, wait)
		}
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
	}
}
