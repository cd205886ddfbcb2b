package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// inputs hashes the objects that a service's revision is made from, by ID: its
// own, its model's, its adapters', and its runtime's unless that is of the
// catalog.
func (r *resolver) inputs(o Object, pinned service.RuntimeChoice) map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]string{o.ID().String(): o.digest()}
	add := func(in Object, ok bool) {
		if ok {
			out[in.ID().String()] = in.digest()
		}
	}
	if m := o.Service.Model; m != nil && m.Ref != nil {
		add(r.findModelLocked(*m.Ref, o.Key.Namespace))
	}
	for _, name := range o.Service.AdapterNames() {
		w, ok := r.mu.models[ID{Kind: weightKind, Key: service.Key{Name: name}}]
		add(w, ok)
	}
	if pinned.Scope != service.ScopeCatalog {
		rt, ok := r.mu.runtimes[ID{Kind: runtimeKind, Key: service.Key{Namespace: pinned.Namespace, Name: pinned.Name}}]
		add(rt, ok)
	}
	return out
}

// digest is of what was applied.
func (o Object) digest() string {
	h := sha256.New()
	_, _ = h.Write(o.Original)
	if len(o.URIs) > 0 {
		_ = json.NewEncoder(h).Encode(o.URIs) // a map's keys are sorted; its strings can be encoded
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// outdated reports whether what is desired of a restored service is no longer
// what its record was made from: stored by an owner that did not live to act
// on it, or changed while there was none. An object that is gone changes
// nothing, as its deletion did not. Fleet.mu is held.
func (f *Fleet) outdated(ctx context.Context, k service.Key, e *entry) bool {
	r := e.record
	if r == nil || r.Selection != selectionHash(e.object) {
		return true
	}
	if made, ok := f.cfg.Store.(Made); ok && !made.MadeFrom(k, e.object.Original) {
		return true
	}
	e.files = f.resolver.fingerprints(ctx, r.Revision.Model)
	if was := r.Revision.Model.Fingerprint; !workload.SameFiles(was, e.files) {
		return true
	}
	if r.Inputs == nil { // of a version that did not note them
		return !f.cfg.Cluster && f.resolver.known(r.Revision.Runtime)
	}
	for id, hash := range f.resolver.inputs(e.object, r.Revision.Runtime) {
		if r.Inputs[id] != hash {
			return true
		}
	}
	return false
}

// known reports whether a pinned runtime is still there, so that to resolve
// its service anew chooses no other.
func (r *resolver) known(pinned service.RuntimeChoice) bool {
	if pinned.Scope != service.ScopeCatalog && pinned.Name != "" {
		_, ok := r.object(ID{Kind: runtimeKind, Key: service.Key{Namespace: pinned.Namespace, Name: pinned.Name}})
		return ok
	}
	for i := range r.cfg.Catalog {
		if r.cfg.Catalog[i].Name == pinned.Name {
			return true
		}
	}
	return pinned.Name == ""
}

// fingerprints tells the files of a model and its adapters from others; "" when
// nothing is known of them.
func (r *resolver) fingerprints(ctx context.Context, m workload.Model) string {
	if r.cfg.Fingerprint == nil {
		return ""
	}
	return m.Fingerprints(func(uri string) string { return r.cfg.Fingerprint(ctx, uri) })
}

// settleFiles has the files of a model count as an input of its revision. One
// that was made before all of them were known stands, until they are other than
// those first seen or those that its replicas serve.
func (w *work) settleFiles(in *workload.Input, files string) {
	first := w.files
	if first == "" {
		w.files = files
	}
	in.Fingerprint = files
	sameURI := func(a, b workload.Adapter) bool { return a.URI == b.URI }
	if w.record == nil || w.record.Revision.Model.URI != in.URI || !slices.EqualFunc(w.record.Revision.Model.Adapters, in.Adapters, sameURI) {
		w.files = files
		return
	}
	was := w.record.Revision.Model.Fingerprint
	if files != "" && (w.refused() || !workload.SameFiles(was, files) || !workload.SameFiles(first, files)) {
		w.files = files
		return
	}
	if in.Fingerprint = was; files != "" && in.Hash() != w.record.Revision.Hash { // another revision anyway
		in.Fingerprint = files
	}
}

// learnFiles notes the files that the revision's replicas serve: its model may
// have been fetched after the revision was made.
func (w *work) learnFiles() {
	for _, r := range w.replicas {
		if r.Files != "" && w.record != nil && r.Revision == w.record.Revision.Hash {
			w.files = r.Files
			return
		}
	}
}

// refused reports whether a replica would not start since the files of its
// model are no longer those of its revision.
func (w *work) refused() bool {
	for _, r := range w.replicas {
		if r.Reason == replica.ReasonModelChanged && w.record != nil && r.Revision == w.record.Revision.Hash {
			return true
		}
	}
	return false
}

// moved are the services that objects are of, or are models of, whose files are
// no longer those of their revision.
func (f *Fleet) moved(ctx context.Context, objects []Object) map[service.Key]bool {
	if f.cfg.Fingerprint == nil {
		return nil
	}
	type known struct {
		model workload.Model
		files string // as first seen, or as its replicas serve
	}
	of := map[service.Key]known{}
	f.mu.Lock()
	for _, o := range objects {
		for k, e := range f.mu.services {
			if e.record == nil || e.deleted || !o.concerns(e) {
				continue
			}
			of[k] = known{e.record.Revision.Model, e.files}
		}
	}
	f.mu.Unlock()
	maps.DeleteFunc(of, func(_ service.Key, was known) bool {
		now := f.resolver.fingerprints(ctx, was.model)
		return workload.SameFiles(was.model.Fingerprint, now) && workload.SameFiles(was.files, now)
	})
	out := map[service.Key]bool{}
	for k := range of {
		out[k.Stable()] = true
	}
	return out
}

// concerns reports whether o is e's service, or a model that it serves.
func (o Object) concerns(e *entry) bool {
	switch o.ID().Kind {
	case serviceKind:
		return e.object.Key == o.Key
	case "model":
		return modelRef(e.object) == o.Key.Name
	case weightKind:
		for _, name := range e.object.Service.AdapterNames() {
			if name == o.Key.Name {
				return true
			}
		}
	}
	return false
}
