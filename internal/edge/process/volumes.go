package process

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
)

// folder is what the container of a replica has on this machine besides its model:
// its variables and its own volumes.
func (p *Platform) folder(id string) string { return filepath.Join(p.folders(), id) }

func (p *Platform) folders() string { return filepath.Join(p.cfg.Dir, "containers") }

// tidyFolders deletes those of replicas that are not known.
func (p *Platform) tidyFolders(known []record) {
	entries, _ := os.ReadDir(p.folders()) // nobody has run a container
	for _, e := range entries {
		if !slices.ContainsFunc(known, func(r record) bool { return r.ID == e.Name() }) {
			_ = p.clearFolder(e.Name(), containers.At(containers.Podman)) // logged
		}
	}
}

// binds are the folders and files of this machine that the container gets. Volumes
// of its own are made; links in them are not followed out of them.
func (u *unit) binds(r *running) (out []containers.Bind, err error) {
	add := func(source, target string, readOnly bool) {
		if at, err := filepath.EvalSymlinks(source); err == nil {
			source = at
		}
		out = append(out, containers.Bind{Source: source, Target: target, ReadOnly: readOnly})
	}
	root := cmp.Or(r.root, workload.ModelAt)
	if !u.model.Verbatim {
		r.mount(root, func(source, target string) { add(source, target, true) })
	}
	models := out
	for _, m := range r.spec.Container.Mounts {
		switch {
		case m.Memory, m.Target == root && r.model != "" && len(r.laid) == 0 && !u.model.Verbatim:
		case slices.ContainsFunc(models, func(b containers.Bind) bool { return b.Target == m.Target }): // files of the model lie there
		case m.Source != "" && m.SubPath == "":
			add(m.Source, m.Target, m.ReadOnly)
		case m.Source != "":
			at, err := within(m.Source, m.SubPath)
			if err != nil {
				return nil, failf("InvalidVolume", "subPath %s of %s: %s", m.SubPath, m.Source, oneLine(err.Error()))
			}
			out = append(out, containers.Bind{Source: at, Target: m.Target, ReadOnly: m.ReadOnly})
		default:
			at, err := ownVolume(filepath.Join(u.p.folder(u.id), "volumes", fileName(m.Volume)), m.SubPath)
			if err != nil {
				return nil, failf("InvalidVolume", "volume %s: %s", m.Volume, oneLine(err.Error()))
			}
			out = append(out, containers.Bind{Source: at, Target: m.Target, ReadOnly: m.ReadOnly})
		}
	}
	for _, b := range out {
		if strings.Contains(b.Source, ":") {
			return nil, failf("InvalidVolume", "%s cannot be mounted into a container: its path has a colon", b.Source)
		}
	}
	return out, nil
}

// mount has a container get the model, at root, and its adapters.
func (r *running) mount(root string, add func(source, target string)) {
	whole := func(source, target string) {
		if st, err := os.Stat(source); err == nil && !st.IsDir() {
			target += "/" + filepath.Base(source)
		}
		add(source, target)
	}
	if len(r.laid) == 0 && r.model != "" {
		whole(r.model, root)
	}
	for _, f := range r.laid {
		add(f.source, path.Join(root, f.at))
	}
	for name, at := range r.adapters {
		whole(at, workload.AdapterAt(name))
	}
}

// within is the path of a place in a folder of this machine. A container that may
// write to the folder may have put links there: one that leads out of it is an error.
func within(dir, sub string) (string, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	at, err := filepath.EvalSymlinks(filepath.Join(root, sub))
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(root, at); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("it is a link to %s, which lies outside: mount that folder itself, or remove the link", at)
	}
	return at, nil
}

// ownVolume makes a place in a volume of the replica's own, and returns its path. A
// container that has the whole volume may have put links there: one that leads out
// of the volume is an error.
func ownVolume(dir, sub string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	sub = filepath.Clean(sub)
	if err := root.MkdirAll(sub, 0o700); err != nil {
		return "", err
	}
	// As an emptyDir of Kubernetes: for whoever the image runs as. Only its
	// container gets there, since the folders above are closed to others.
	if err := root.Chmod(sub, 0o777); err != nil {
		return "", err
	}
	return filepath.Join(dir, sub), nil
}

// clearFolder deletes what a container had on this machine besides its model. The
// engine, nil for none, deletes what belongs to other users.
func (p *Platform) clearFolder(id string, e *containers.Engine) error {
	dir := p.folder(id)
	remove := os.RemoveAll
	if e != nil {
		remove = e.RemoveAll
	}
	err := remove(dir)
	if err == nil {
		return nil
	}
	p.cfg.Logger.Warn("what a container had could not be deleted: delete the folder as root", "replica", id, "folder", dir, "error", err)
	return fmt.Errorf("%s, which a container had, could not be deleted, and no other may have it: delete it as root: %w", dir, err)
}
