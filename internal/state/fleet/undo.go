package fleet

import (
	"context"
	"fmt"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Earlier is a manifest that a service had, with what an Object has of it.
type Earlier struct {
	Original []byte
	URIs     map[string]string
	Patch    map[string]any
}

// after is the object with what it has of the one before: what stays of edits and,
// unless it is what Edit or Undo makes, the manifest to go back to. In a cluster, which
// has the manifests, none is kept.
func (o Object) after(before Object, cluster bool) (Object, error) {
	applied := o.Patch == nil && o.Earlier == nil && !cluster
	o, err := o.edited(before)
	if err == nil && applied {
		o.Earlier = o.earlier(before)
	}
	return o, err
}

// earlier is the manifest to go back to of a service that is applied anew: the one
// before, if the new one asks for another revision. Edits are no manifests, and
// neither they nor a change of the counts have the earlier one forgotten.
func (o Object) earlier(before Object) *Earlier {
	if o.Service == nil || before.Service == nil {
		return nil
	}
	revision := func(o Object) string {
		s := *o.Service
		s.CanaryPercent = nil
		in := workload.Input{Service: &s, Files: o.ownFiles()}
		if m := s.Model; m != nil {
			in.URI = o.FileURI(m.URI)
			for _, p := range m.Parts {
				in.Parts = append(in.Parts, service.Part{URI: o.FileURI(p.URI), Path: p.Path})
			}
			for _, a := range m.Adapters {
				in.Adapters = append(in.Adapters, workload.Adapter{Name: a.Name, URI: o.FileURI(a.URI)})
			}
		}
		return in.Hash()
	}
	if revision(o) == revision(before) {
		return before.Earlier
	}
	return &Earlier{before.Original, before.URIs, before.Patch}
}

// Undo gives a service the manifest of its revision before the last back. What edits
// have set since stays. The manifest that it had becomes the earlier one, so that a
// second Undo undoes the first.
func (f *Fleet) Undo(_ context.Context, k service.Key) (Change, error) {
	f.services.mu.Lock()
	defer f.services.mu.Unlock()
	e := f.services.presentLocked(k)
	if e == nil {
		return Change{}, errNotFound(serviceKind, k)
	}
	now, to := e.object, e.object.Earlier
	if to == nil {
		return Change{}, fmt.Errorf("%s: there is no earlier manifest: none has made another revision since it was first applied", k)
	}
	obj := now
	obj.Original, obj.URIs = to.Original, to.URIs
	obj, err := obj.patched(now.Patch)
	if err != nil {
		return Change{}, err
	}
	obj.Patch = dialect.Combine(to.Patch, now.Patch)
	obj.Earlier = &Earlier{now.Original, now.URIs, now.Patch}
	change, err := f.put(obj, ApplyOptions{})
	if err == nil && change.Action != actionUnchanged {
		f.routes.publish(f.services.membersLocked())
	}
	return change, err
}
