package artifact

import (
	"encoding/json"
	"errors"
	"fmt"
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
}

// Copies lists what the store keeps, by URI and then the last used first. What
// is being downloaded is not in it.
func (s *Store) Copies() ([]Copy, error) {
	all, _, _, err := s.retention.copies()
	if err != nil {
		return nil, err
	}
	out := make([]Copy, 0, len(all))
	for _, c := range all {
		out = append(out, s.folder.described(c))
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
	out := Copy{Source: "upload://" + c.key, Path: c.path, Bytes: c.bytes, Used: c.used}
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

// Remove removes the copies of a URI, as a manifest writes it or as Copies lists
// it, and returns how many bytes that freed. What another process was given
// stays, and is an error; what is not there is fs.ErrNotExist.
func (s *Store) Remove(uri string) (freed int64, err error) {
	k := s.retention
	k.evicting.Lock()
	defer k.evicting.Unlock()
	all, sharers, _, err := k.copies()
	if err != nil {
		return 0, err
	}
	key := ""
	if loc, err := parse(Request{URI: uri}); err == nil && loc.scheme != "file" {
		key = loc.key()
	}
	found := false
	for _, c := range all {
		if c.key != key && k.folder.described(c).Source != uri {
			continue
		}
		found = true
		if !k.remove(c) {
			err = errors.Join(err, fmt.Errorf("artifact: %s: a running process of roundhouse uses it, or has used it since its start: delete the services that name it and start that process again", Redact(uri)))
			continue
		}
		bytes, dropErr := k.dropFiles(sharers, c)
		freed, err = freed+bytes, errors.Join(err, dropErr)
	}
	if !found {
		return 0, fmt.Errorf("artifact: %s: %w in the store", Redact(uri), os.ErrNotExist)
	}
	return freed, err
}
