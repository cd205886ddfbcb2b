package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// inputs hashes the objects that a service's revision is made from, by ID: its
// own, its model's, its adapters', its classes' of accelerators, and its runtime's
// unless that is of the catalog.
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
	for _, name := range o.Service.Bases {
		for _, k := range dialect.BaseKeys(o.Key.Namespace, name) {
			base, ok := r.mu.bases[ID{Kind: baseKind, Key: k}]
			add(base, ok)
		}
	}
	if from := o.Service.SchedulingFrom; from != nil {
		for _, k := range dialect.ConfigMapKeys(o.Key.Namespace, from.Name) {
			m, ok := r.mu.configs[ID{Kind: configMapKind, Key: k}]
			add(m, ok)
		}
	}
	for _, name := range o.Service.AdapterNames() {
		w, ok := r.mu.models[ID{Kind: weightKind, Key: service.Key{Name: name}}]
		add(w, ok)
	}
	for _, name := range []string{pinned.Accelerators.Engine, pinned.Accelerators.Decoder} {
		c, ok := r.mu.classes[ID{Kind: acceleratorKind, Key: service.Key{Name: name}}]
		add(c, ok)
	}
	if pinned.Scope != service.ScopeCatalog {
		rt, ok := r.mu.runtimes[ID{Kind: runtimeKind, Key: service.Key{Namespace: pinned.Namespace, Name: pinned.Name}}]
		add(rt, ok)
	}
	return out
}

// Mark tells a manifest from any other that it is changed into.
func (o Object) Mark() string {
	sum := sha256.Sum256(o.Original)
	return hex.EncodeToString(sum[:8])
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
// nothing, as its deletion did not. The lock of services is held.
func (r *resolver) outdated(ctx context.Context, k service.Key, e *entry) bool {
	rec := e.record
	if rec == nil || rec.Selection != selectionHash(e.object) {
		return true
	}
	if made, ok := r.cfg.Store.(Made); ok && !made.MadeFrom(k, e.object.Original) {
		return true
	}
	e.files = r.fingerprints(ctx, rec.Revision.Model)
	if was := rec.Revision.Model.Fingerprint; !workload.SameFiles(was, e.files) || !r.sameOwn(ctx, &rec.Revision) {
		return true
	}
	if r.cfg.Cluster && !r.keptSo(e.object.Service, &rec.Revision) {
		return true
	}
	if rec.Inputs == nil { // of a version that did not note them
		return !r.cfg.Cluster && r.known(rec.Revision.Runtime)
	}
	for id, hash := range r.inputs(e.object, rec.Revision.Runtime) {
		if rec.Inputs[id] != hash {
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
	return m.Fingerprints(func(uri string) string { return r.cfg.Fingerprint(ctx, m.Credentials.Of(uri)) })
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
	if w.record == nil || w.record.Revision.Model.URI != in.URI || !slices.Equal(w.record.Revision.Model.Parts, in.Parts) || !slices.EqualFunc(w.record.Revision.Model.Adapters, in.Adapters, sameURI) {
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

// ownFiles are those that roles of a service have of their own, and nothing of what they
// are fetched with.
func (o Object) ownFiles() map[service.Role]workload.Model {
	out := map[service.Role]workload.Model{}
	for _, role := range service.Roles {
		c := o.Service.Components.Get(role)
		if c == nil || len(c.Parts) == 0 {
			continue
		}
		own := workload.Model{URI: o.FileURI(c.Parts[0].URI)}
		for _, p := range c.Parts {
			own.Parts = append(own.Parts, service.Part{URI: o.FileURI(p.URI), Path: p.Path})
		}
		out[role] = own
	}
	return out
}

// ownFiles are those of w's service, and what they are fetched with. Files that may be
// those of its revision are those: the revision stands.
func (r *resolver) ownFiles(ctx context.Context, w *work) (map[service.Role]workload.Model, error) {
	out := w.object.ownFiles()
	for role, own := range out {
		var err error
		if own.Credentials, err = r.ownCredentials(w.object.Service, w.object.Service.Components.Get(role), own.Parts); err != nil {
			return nil, fmt.Errorf("the %s's files: %w", role, err)
		}
		if r.cfg.Cluster {
			own.Storage = w.object.Service.Components.Get(role).Storage
		}
		own.Fingerprint = r.fingerprints(ctx, own)
		if was := w.filesOf(role); was != nil && slices.Equal(was.Parts, own.Parts) && !w.refused() && workload.SameFiles(was.Fingerprint, own.Fingerprint) {
			own.Fingerprint = was.Fingerprint
		}
		out[role] = own
	}
	return out, nil
}

// filesOf are the files that a role of w's revision has of its own; nil for none.
func (w *work) filesOf(role service.Role) *workload.Model {
	if w.record == nil {
		return nil
	}
	if c := w.record.Revision.Component(role); c != nil {
		return c.Files
	}
	return nil
}

// sameOwn reports whether the files that a revision's roles have of their own may still
// be those that it was made for.
func (r *resolver) sameOwn(ctx context.Context, rev *workload.Revision) bool {
	for i := range rev.Components {
		if own := rev.Components[i].Files; own != nil && !workload.SameFiles(own.Fingerprint, r.fingerprints(ctx, *own)) {
			return false
		}
	}
	return true
}

// learnFiles notes the files that the revision's replicas serve: its model may
// have been fetched after the revision was made.
func (w *work) learnFiles() {
	for _, r := range w.replicas {
		if r.Files != "" && w.record != nil && r.Revision == w.record.Revision.Hash && w.filesOf(r.Role) == nil {
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

// changed are the services, among of, whose model's files are no longer those of
// their revision.
func (r *resolver) changed(ctx context.Context, of map[service.Key]files) map[service.Key]bool {
	out := map[service.Key]bool{}
	for k, was := range of {
		now := r.fingerprints(ctx, was.revision.Model)
		if !workload.SameFiles(was.revision.Model.Fingerprint, now) || !workload.SameFiles(was.known, now) || !r.sameOwn(ctx, was.revision) {
			out[k.Stable()] = true
		}
	}
	return out
}

// weightKind is the kind in the ID of a model object that holds an adapter.
const weightKind = "weight"

// adapters follows a service's adapters to where they are. base is the model
// object they are laid over, nil for a model in place.
func (r *resolver) adapters(ctx context.Context, o Object, base *Object, by service.Credentials) ([]workload.Adapter, error) {
	var out []workload.Adapter
	for i, a := range o.Service.Model.Adapters {
		got := workload.Adapter{Name: a.Name, URI: o.FileURI(a.URI), Rank: a.Rank}
		if a.Ref != nil {
			weight, err := r.weight(a.Ref.Name, base)
			if err != nil {
				return nil, fmt.Errorf("spec.model.fineTunedWeights[%d]: %w", i, err)
			}
			got.URI, got.Rank = weight.FileURI(weight.Model.URI), weight.Model.FineTuned.Rank
		}
		if scheme, _, _ := strings.Cut(got.URI, "://"); scheme == "file" || scheme == "upload" {
			found, err := r.cfg.Models.Inspect(ctx, by.Of(got.URI))
			if err != nil {
				return nil, fmt.Errorf("adapter %q: %w", a.Name, err)
			}
			if got.Rank == 0 {
				got.Rank = found.AdapterRank
			}
		}
		out = append(out, got)
	}
	return out, nil
}

// weight finds a FineTunedWeight that can be laid over base as an adapter.
func (r *resolver) weight(name string, base *Object) (Object, error) {
	r.mu.Lock()
	o, ok := r.mu.models[ID{Kind: weightKind, Key: service.Key{Name: name}}]
	r.mu.Unlock()
	if !ok {
		return o, fmt.Errorf("no FineTunedWeight named %q: apply it", name)
	}
	ft := o.Model.FineTuned
	switch {
	case o.Model.Disabled:
		return o, fmt.Errorf("FineTunedWeight %q is disabled", name)
	case ft.Merged:
		return o, fmt.Errorf("FineTunedWeight %q holds merged weights, which are a whole model and no adapter: publish them as a BaseModel and serve that", name)
	case base != nil && (ft.Base.Name != base.Key.Name || ft.Base.Namespace != "" && ft.Base.Namespace != base.Key.Namespace):
		return o, fmt.Errorf("FineTunedWeight %q is of base model %q, and the service serves %q: it needs weights made from that", name, keyName(ft.Base), keyName(base.Key))
	}
	return o, nil
}

func keyName(k service.Key) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.String()
}

// ranks reads the adapters' ranks from their files where the runtime has to be
// told. A revision that stands keeps those it has. Where pods alone can read the
// files the ranks stay unknown. Busy: its time has not come.
func (r *resolver) ranks(ctx context.Context, w *work, in *workload.Input) (again time.Duration, failure *service.Failure) {
	if len(in.Adapters) == 0 || in.Runtime == nil || in.Runtime.Adapters == nil || len(in.Runtime.Adapters.Rank) == 0 {
		return 0, nil
	}
	if w.record != nil && w.record.Revision.Hash == in.Hash() {
		in.Adapters = w.record.Revision.Model.Adapters
		return 0, nil
	}
	for i := range in.Adapters {
		a := &in.Adapters[i]
		if a.Rank > 0 {
			continue
		}
		found, err := r.cfg.Models.Inspect(ctx, in.Credentials.Of(a.URI))
		var missing interface{ NotExist() bool }
		switch {
		case err == nil:
			a.Rank = found.AdapterRank
		case busy(err):
			return busyAfter, nil
		case r.cfg.Cluster && (!errors.As(err, &missing) || !missing.NotExist()):
			r.cfg.Log.Warn("adapter not inspected", "service", w.key.String(), "adapter", a.Name, "error", err)
		default:
			return retryAfter, &service.Failure{Reason: reasonModelLoadFailed, Message: fmt.Sprintf("adapter %q: %v", a.Name, err)}
		}
	}
	return 0, nil
}
