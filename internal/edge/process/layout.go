package process

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// laid is a file or folder of this machine, and where it lies below the folder of a
// model that comes from several URIs; "." is that folder.
type laid struct{ at, source string }

// maxLaid bounds what lies side by side where folders are merged.
const maxLaid = 1000

// layOut decides where the files of a model's parts lie, of which paths[i] has those of
// parts[i]. A part that shares its folder with no other is one entry; folders that
// several have are merged, and of a file that two of them have it cannot be known which
// one is meant.
func layOut(parts service.Parts, paths []string) ([]laid, error) {
	l := &layout{parts: parts}
	root := &place{}
	for i, at := range paths {
		info, err := os.Stat(at)
		if err != nil {
			return nil, err
		}
		below := parts.Below(parts[i])
		if !info.IsDir() {
			below = filepath.Join(below, filepath.Base(at))
		}
		if err := l.put(root, below, at, i); err != nil {
			return nil, err
		}
	}
	return root.list("."), nil
}

// layout is a model's folder as it is laid out.
type layout struct {
	parts service.Parts
	count int
}

// place is a file or folder of a part, or a folder that has several of them.
type place struct {
	source string // "" for a folder that lies nowhere on this machine
	part   int
	inside map[string]*place // of a folder that is merged, or lies nowhere
}

// put has a file or folder lie at a path below a place.
func (l *layout) put(p *place, below, source string, part int) error {
	for name := range strings.SplitSeq(filepath.ToSlash(below), "/") {
		if name == "." {
			continue
		}
		if err := l.open(p, below); err != nil {
			return err
		}
		if p.inside == nil {
			p.inside = map[string]*place{}
		}
		if p.inside[name] == nil {
			if err := l.counted(); err != nil {
				return err
			}
			p.inside[name] = &place{}
		}
		p = p.inside[name]
	}
	return l.fill(p, below, source, part)
}

// fill has a file or folder lie at a place, merged with what lies there.
func (l *layout) fill(p *place, at, source string, part int) error {
	if p.source == "" && p.inside == nil {
		p.source, p.part = source, part
		return nil
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return l.taken(p, at, part)
	}
	if p.source != "" {
		if was, err := os.Stat(p.source); err != nil || !was.IsDir() {
			return cmp.Or(err, l.taken(p, at, part))
		}
	}
	if err := l.open(p, at); err != nil {
		return err
	}
	entries, err := os.ReadDir(source)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := l.put(p, e.Name(), filepath.Join(source, e.Name()), part); err != nil {
			return err
		}
	}
	return nil
}

// open has each entry of a folder lie in its place by itself, so that others may lie
// beside them.
func (l *layout) open(p *place, at string) error {
	if p.source == "" {
		return nil
	}
	info, err := os.Stat(p.source)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("a file of %s lies where %s is to be a folder: give each URI a mountPath of its own", service.RedactURI(l.parts[p.part].URI), at)
	}
	entries, err := os.ReadDir(p.source)
	if err != nil {
		return err
	}
	inside := map[string]*place{}
	for _, e := range entries {
		if err := l.counted(); err != nil {
			return err
		}
		inside[e.Name()] = &place{source: filepath.Join(p.source, e.Name()), part: p.part}
	}
	p.source, p.inside = "", inside
	return nil
}

func (l *layout) counted() error {
	if l.count++; l.count > maxLaid {
		return fmt.Errorf("more than %d files and folders lie side by side: give each URI a mountPath of its own", maxLaid)
	}
	return nil
}

func (l *layout) taken(p *place, at string, part int) error {
	return fmt.Errorf("%s and %s both have %s: give each URI a mountPath of its own", service.RedactURI(l.parts[p.part].URI), service.RedactURI(l.parts[part].URI), at)
}

// list is what lies at a place and below it, in order.
func (p *place) list(at string) (out []laid) {
	if p.source != "" {
		return []laid{{at, p.source}}
	}
	for _, name := range slices.Sorted(maps.Keys(p.inside)) {
		out = append(out, p.inside[name].list(filepath.Join(at, name))...)
	}
	return out
}

// link makes the folder of a replica's model from links to its files.
func link(dir string, files []laid) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, f := range files {
		at := filepath.Join(dir, f.at)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			return err
		}
		if err := os.Symlink(f.source, at); err != nil {
			return err
		}
	}
	return os.MkdirAll(dir, 0o700) // where there are no files
}

// layouts is where the replicas have such folders.
func (p *Platform) layouts() string { return filepath.Join(p.cfg.Dir, "models") }

func (p *Platform) layout(id string) string { return filepath.Join(p.layouts(), id) }

// tidyLayouts deletes those of replicas that are not known.
func (p *Platform) tidyLayouts(known []record) {
	entries, _ := os.ReadDir(p.layouts()) // nobody has one
	for _, e := range entries {
		if !slices.ContainsFunc(known, func(r record) bool { return r.ID == e.Name() }) {
			p.clearLayout(e.Name())
		}
	}
}

func (p *Platform) clearLayout(id string) {
	if err := os.RemoveAll(p.layout(id)); err != nil {
		p.cfg.Logger.Warn("the links to a model's files could not be deleted", "replica", id, "error", err)
	}
}

// lay has the replica's model lie in one folder: for a program of this machine a folder
// of links, for a container the mounts of it. A repository is empty at first.
func (u *unit) lay(r *running) (err error) {
	if c := u.component.Load(); c != nil && c.Process != nil && c.Process.Repository != "" {
		// What a process before this one had is loaded by this one's keeper, not at its
		// start, which one that does not load would hold up.
		r.model = u.p.layout(u.id)
		return errors.Join(os.RemoveAll(r.model), os.MkdirAll(r.model, 0o700))
	}
	if len(r.parts) == 0 {
		return nil
	}
	if r.laid, err = layOut(u.model.Parts, r.parts); err != nil {
		return failf("ModelLoadFailed", "%s", oneLine(err.Error()))
	}
	if r.model = r.parts[0]; r.container != nil {
		return u.enclosed(r)
	}
	r.model = u.p.layout(u.id)
	if err := link(r.model, r.laid); err != nil {
		return failf("StateUnwritable", "%s", oneLine(err.Error()))
	}
	return nil
}

// enclosed is an error where a link in a folder of this machine leads out of it: what is
// mounted by itself, because folders are merged, would give a container what the folder
// as a whole does not.
func (u *unit) enclosed(r *running) error {
	for i, root := range r.parts {
		if _, local := service.LocalPath(u.model.Parts[i].URI); !local {
			continue
		}
		for _, f := range r.laid {
			below, err := filepath.Rel(root, f.source)
			if err != nil || !filepath.IsLocal(below) {
				continue
			}
			if _, err := within(root, below); err != nil {
				return failf("ModelLoadFailed", "%s of %s: %s", below, service.RedactURI(u.model.Parts[i].URI), oneLine(err.Error()))
			}
		}
	}
	return nil
}
