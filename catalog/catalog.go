// Package catalog holds the runtimes that come with the program, as YAML: those
// of KServe (kserve), of OME (ome), and Roundhouse's own (builtin). The first
// two are written in their own dialects, as KServe and OME read them; how they
// run as processes is therefore said beside them (kserve/local.yaml) or follows
// from the builtin runtime of the same image.
package catalog

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Files are the manifests, by folder.
//
//go:embed kserve/*.yaml ome/*.yaml builtin/*.yaml
var Files embed.FS

// localFile of a folder holds documents of our own kind that only say, by
// name, how that folder's runtimes run as processes.
const localFile = "local.yaml"

// Runtimes are the runtimes of the catalog, ordered by name, with
// service.ScopeCatalog and no creation time. They are read once; the slice is
// the caller's, what its elements point to is shared and must not be changed.
// An error is a fault of this binary and names file and line.
func Runtimes() ([]service.Runtime, error) {
	all, err := load()
	return slices.Clone(all), err
}

var load = sync.OnceValues(func() ([]service.Runtime, error) { return read(Files) })

// read reads every manifest of a file system laid out as Files is.
func read(files fs.FS) ([]service.Runtime, error) {
	names, err := fs.Glob(files, "*/*.yaml")
	if err != nil {
		return nil, err
	}
	// Side by side: this is on the way to the first request.
	var group errgroup.Group
	read := make([][]service.Runtime, len(names))
	for i, name := range names {
		group.Go(func() (err error) {
			read[i], err = readFile(files, name)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var all []service.Runtime
	locals := map[string]*service.Local{}
	for i, name := range names {
		if path.Base(name) != localFile {
			all = append(all, read[i]...)
			continue
		}
		for _, rt := range read[i] {
			locals[rt.Name] = rt.Components.Engine.Local
		}
	}
	return joined(all, locals)
}

// joined gives the runtimes their local commands, by name or by image, and
// orders them.
func joined(all []service.Runtime, locals map[string]*service.Local) ([]service.Runtime, error) {
	builtin := slices.DeleteFunc(slices.Clone(all), func(rt service.Runtime) bool {
		return rt.Origin.Dialect() != service.DialectRoundhouse
	})
	for i := range all {
		rt := &all[i]
		if l := locals[rt.Name]; l != nil {
			rt.Components.Engine.Local = l
			delete(locals, rt.Name)
		}
		// The host is unknown here, so that only images are compared.
		if d := rt.Origin.Dialect(); d == service.DialectOME || d == service.DialectKServe && rt.Components.Engine.Local == nil {
			*rt = workload.Localize(*rt, builtin, selection.Host{})
		}
		if rt.Origin.Dialect() != service.DialectRoundhouse {
			finish(rt, builtin)
		}
	}
	for name := range locals {
		return nil, fmt.Errorf("catalog: %s speaks of %s, which no file defines", localFile, name)
	}
	slices.SortFunc(all, func(a, b service.Runtime) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// finish has a runtime's engines and decoders end as those of the builtin runtimes of
// the same image and port do, whose hooks let streams end before the program does.
func finish(rt *service.Runtime, builtin []service.Runtime) {
	for _, role := range []service.Role{service.RoleEngine, service.RoleDecoder} {
		c := rt.Components.Get(role)
		if c == nil {
			continue
		}
		filled := *c
		filled.Pod = *c.Pod.DeepCopy()
		for i := range filled.Pod.Containers {
			m := &filled.Pod.Containers[i]
			for j := range builtin {
				of := builtin[j].Components.Engine
				if of == nil || m.Lifecycle != nil {
					continue
				}
				if k := slices.IndexFunc(of.Pod.Containers, func(o corev1.Container) bool { return o.Lifecycle != nil && sameServer(&o, m) }); k >= 0 {
					m.Lifecycle = of.Pod.Containers[k].Lifecycle
				}
			}
		}
		rt.Components.Set(role, &filled)
	}
}

// sameServer reports whether two containers run one program at one port. KServe's
// state none and listen at 8080.
func sameServer(a, b *corev1.Container) bool {
	port := func(c *corev1.Container) int32 {
		if len(c.Ports) == 0 {
			return 8080
		}
		return c.Ports[0].ContainerPort
	}
	return workload.Repository(a.Image) == workload.Repository(b.Image) && port(a) == port(b)
}

// readFile reads one file's runtimes.
func readFile(files fs.FS, name string) ([]service.Runtime, error) {
	data, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, err
	}
	res := dialect.Read("catalog/"+name, data)
	var faults []string
	for _, p := range res.Errors(dialect.AnyPlatform) {
		faults = append(faults, p.String())
	}
	if len(faults) > 0 {
		return nil, errors.New(strings.Join(faults, "\n"))
	}
	var out []service.Runtime
	for _, o := range res.Objects {
		if o.Runtime == nil {
			return nil, fmt.Errorf("%s:%d: %s is not a runtime", o.Origin.File, o.Origin.Line, o.Key.Name)
		}
		o.Runtime.Scope = service.ScopeCatalog
		out = append(out, *o.Runtime)
	}
	return out, nil
}

// WithImage puts an image where engines of the runtimes name it by a word. Without
// an image these runtimes are for processes alone. The runtimes given are not
// changed.
func WithImage(runtimes []service.Runtime, word, image string) []service.Runtime {
	out := slices.Clone(runtimes)
	for i := range out {
		e := out[i].Components.Engine
		if e == nil || !slices.ContainsFunc(e.Pod.Containers, func(c corev1.Container) bool { return c.Image == word }) {
			continue
		}
		changed := *e
		changed.Pod.Containers = nil
		if image != "" {
			changed.Pod.Containers = slices.Clone(e.Pod.Containers)
		}
		for j := range changed.Pod.Containers {
			if c := &changed.Pod.Containers[j]; c.Image == word {
				c.Image = image
			}
		}
		out[i].Components.Engine = &changed
	}
	return out
}
