package artifact

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Copy is a copy of a model, or an upload, that the store keeps.
type Copy struct {
	// Source is the URI, without its secrets.
	Source string `json:"source"`
	Path   string `json:"path"`
	// Bytes counts all files, those too that another copy or the Hub's cache has.
	Bytes int64     `json:"bytes"`
	Used  time.Time `json:"used"` // last
	// Pinned: it is not removed to make room.
	Pinned bool `json:"pinned,omitempty"`
	// Files are the first by name, FileCount is how many there are.
	Files     []CopyFile `json:"files,omitempty"`
	FileCount int        `json:"fileCount"`
}

// CopyFile is a file of a copy. Name is slash-separated, below the copy's folder.
type CopyFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// maxListed is how many files of a copy are listed.
const maxListed = 200

// Copies lists what the store keeps, by URI and then the last used first. What
// is being downloaded is not in it.
func (s *Store) Copies() ([]Copy, error) {
	all, _, _, err := s.retention.copies()
	if err != nil {
		return nil, err
	}
	out := make([]Copy, 0, len(all))
	for _, c := range all {
		one := s.folder.described(c)
		one.list()
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Copy) int {
		if a.Source != b.Source {
			return strings.Compare(a.Source, b.Source)
		}
		return b.Used.Compare(a.Used)
	})
	return out, nil
}

// described is a copy as Copies lists it.
func (d *folder) described(c kept) Copy {
	out := Copy{Source: "upload://" + c.key, Path: c.path, Bytes: c.bytes, Used: c.used, Pinned: c.pinned()}
	for _, n := range c.shared {
		out.Bytes += n
	}
	if c.kind == "models" {
		out.Source = ""
		var r record
		if raw, err := os.ReadFile(filepath.Join(filepath.Dir(c.path), "record.json")); err == nil && json.Unmarshal(raw, &r) == nil {
			out.Source = r.Source
		}
	}
	return out
}

// list names the files of a copy.
func (c *Copy) list() {
	_ = filepath.WalkDir(c.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // what goes meanwhile is not listed
		}
		if c.FileCount++; len(c.Files) == maxListed {
			return nil
		}
		name, nameErr := filepath.Rel(c.Path, path)
		info, infoErr := d.Info()
		if nameErr == nil && infoErr == nil {
			c.Files = append(c.Files, CopyFile{filepath.ToSlash(name), info.Size()})
		}
		return nil
	})
}

// pinFile is beside a copy that is pinned, whichever version of the model it has.
const pinFile = "pinned"

// pinned reports whether a copy stays when others make room.
func (c kept) pinned() bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(c.path), pinFile))
	return err == nil && c.current
}

// SetPin has the copy of a URI stay when the store makes room, in every process, or
// lets it go again; changed is false if it was so already. What is not there is
// fs.ErrNotExist.
func (s *Store) SetPin(uri string, on bool) (changed bool, err error) {
	k := s.retention
	k.evicting.Lock()
	defer k.evicting.Unlock()
	all, _, _, err := k.copies()
	if err != nil {
		return false, err
	}
	found := false
	for _, c := range k.named(all, uri) {
		if !c.current {
			continue
		}
		found = true
		if c.pinned() == on {
			continue
		}
		pin := filepath.Join(filepath.Dir(c.path), pinFile)
		if on {
			err = errors.Join(err, os.WriteFile(pin, nil, 0o600))
		} else {
			err = errors.Join(err, os.Remove(pin))
		}
		changed = true
		if _, gone := os.Stat(c.path); gone != nil { // another process removed it meanwhile
			_ = os.Remove(pin)
			found = false
		}
	}
	if err == nil && !found {
		return false, notInStore(uri)
	}
	return changed && err == nil, err
}

// named are the copies of a URI, as a manifest writes it or as Copies lists it.
func (k *retention) named(all []kept, uri string) (out []kept) {
	key := ""
	if loc, err := parse(Request{URI: uri}); err == nil && loc.scheme != "file" {
		key = loc.key()
	}
	for _, c := range all {
		if c.key == key || k.folder.described(c).Source == uri {
			out = append(out, c)
		}
	}
	return out
}

// KeysOf are the keys of the copies of a URI as a manifest writes it, whatever
// credentials they were fetched with.
func (s *Store) KeysOf(uri string) (keys []string) {
	source := Redact(uri)
	dirs, _ := filepath.Glob(filepath.Join(s.folder.dir, "models", "*"))
	for _, dir := range dirs {
		var r record
		if raw, err := os.ReadFile(filepath.Join(dir, "record.json")); err == nil && json.Unmarshal(raw, &r) == nil && r.Source == source {
			keys = append(keys, filepath.Base(dir))
		}
	}
	return keys
}

func notInStore(uri string) error {
	return fmt.Errorf("%s: %w in the store", Redact(uri), os.ErrNotExist)
}

// Remove removes the copies of a URI, as a manifest writes it or as Copies lists
// it, and returns how many bytes that freed. What Config.InUse names, what another
// process was given, and what is pinned stays, and is an error; what is not there is
// fs.ErrNotExist.
func (s *Store) Remove(uri string) (freed int64, err error) {
	k := s.retention
	k.evicting.Lock()
	defer k.evicting.Unlock()
	all, sharers, _, err := k.copies()
	if err != nil {
		return 0, err
	}
	used := func(kept) bool { return false }
	if k.ask != nil {
		used = k.inUse()
		k.release(all, used)
	}
	found := k.named(all, uri)
	for _, c := range found {
		switch {
		case c.pinned():
			err = errors.Join(err, fmt.Errorf("%s: it is pinned: unpin it first", Redact(uri)))
		case used(c):
			err = errors.Join(err, fmt.Errorf("%s: services or their replicas use it: delete those first", Redact(uri)))
		case !k.remove(c):
			err = errors.Join(err, fmt.Errorf("%s: a running process of roundhouse uses it, or has used it since its start or within the last minute: delete the services that name it, or start that process again", Redact(uri)))
		default:
			bytes, dropErr := k.dropFiles(sharers, c)
			freed, err = freed+bytes, errors.Join(err, dropErr)
		}
	}
	if len(found) == 0 {
		return 0, notInStore(uri)
	}
	return freed, err
}
