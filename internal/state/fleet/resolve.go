package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// failureReasons beyond selection's own.
const (
	reasonModelLoadFailed = "ModelLoadFailed"
	reasonInvalidSpec     = "InvalidPredictorSpec"
	reasonStore           = "StoreFailed"
)

// resolve turns changed inputs into a revision: model, runtime, rendering. On
// failure the record before stays and goes on serving; the failure says what
// is lacking. It returns when to try again, 0 when only a change can help.
func (f *Fleet) resolve(ctx context.Context, w *work) time.Duration {
	if w.forCanary() {
		w.failure = nil
		f.startCanary(w)
		return 0
	}
	next, again, failure := f.resolved(ctx, w)
	if failure != nil {
		return f.fail(w, failure, again)
	}
	if next == nil {
		return f.postpone(w, again)
	}
	w.failure = nil
	if w.key.IsCanary() && f.redundant(w.key, next.Revision.Hash) {
		return 0
	}
	if f.cfg.Cluster && w.record != nil && w.record.Revision.Hash == next.Revision.Hash {
		next.Revision = w.record.Revision.Scaled(next.Revision) // pods stay as they are
	}
	next.Revision.Before = f.before(ctx, w, next.Revision.Hash)
	if w.record != nil && w.record.Revision.Hash == next.Revision.Hash && w.record.Selection == next.Selection {
		// The same to run: only counts may differ, which live in the limits, and
		// the names that replicas know adapters by.
		if !sameLimits(w.record.Revision, next.Revision) || !slices.Equal(w.record.Revision.Model.Adapters, next.Revision.Model.Adapters) {
			w.applied = false
		}
	} else {
		w.applied = false
	}
	defer f.endCanary(w.key) // what it was the canary of, it is now
	if w.record != nil && w.applied && !f.renote(w, next) {
		return 0
	}
	if err := f.cfg.Store.PutRecord(*next); err != nil {
		w.applied = w.record != nil
		return f.fail(w, &service.Failure{Reason: reasonStore, Message: err.Error()}, retryAfter)
	}
	w.record = next
	return 0
}

// renote reports whether a record is to be written again although the revision
// stays, for what it was made from. On a cluster that is not worth a write: the
// service is looked at anew after a restart, and comes to the same.
func (f *Fleet) renote(w *work, next *Record) bool {
	return !f.cfg.Cluster && w.record.Inputs != nil && !maps.Equal(w.record.Inputs, next.Inputs)
}

// fail notes why w cannot be run, and has its inputs resolved again after
// again although they stay; 0 when only a change can help. It returns when.
func (f *Fleet) fail(w *work, failure *service.Failure, again time.Duration) time.Duration {
	failure.Time = f.cfg.Now()
	if old := w.failure; old != nil && old.Message == failure.Message {
		failure.Time = old.Time
	} else {
		f.cfg.Log.Warn("cannot be run", "service", w.key.String(), "reason", failure.Reason, "message", failure.Message)
	}
	w.failure = failure
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.mu.services[w.key]
	if e != nil {
		e.reselect = e.reselect || w.reselect // not done yet
	}
	if again == 0 || e == nil || e.stale { // stale again: they changed meanwhile
		return again
	}
	again = f.cfg.Jitter(min(again<<min(e.retry.tries, 8), maxRetryAfter))
	e.retry.tries++
	e.stale, e.retry.at = true, f.cfg.Now().Add(again)
	return again
}

// postpone has w's inputs resolved after again, and says nothing of it. One
// that has failed before gives way to others.
func (f *Fleet) postpone(w *work, again time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.mu.services[w.key]; e != nil {
		e.reselect = e.reselect || w.reselect
		if again = min(again<<min(e.retry.tries, 8), maxRetryAfter); !e.stale {
			e.stale, e.retry.at = true, f.cfg.Now().Add(again)
		}
	}
	return again
}

func sameLimits(a, b workload.Revision) bool {
	return slices.EqualFunc(a.Components, b.Components, func(x, y workload.Component) bool {
		return x.Role == y.Role && x.Limits == y.Limits
	})
}

// resolved makes the record for w's inputs, or says why it cannot be made. With
// neither, its time has not come yet.
func (f *Fleet) resolved(ctx context.Context, w *work) (*Record, time.Duration, *service.Failure) {
	host, err := f.cfg.Platform.Host(ctx)
	if err != nil {
		return nil, retryAfter, &service.Failure{Reason: "HostUnknown", Message: err.Error()}
	}
	plain := *w.object.Service
	plain.CanaryPercent = nil // makes no other revision
	svc := &plain
	m, err := f.model(ctx, w.object)
	switch {
	case busy(err):
		return nil, busyAfter, nil
	case err != nil:
		return nil, retryAfter, &service.Failure{Reason: reasonModelLoadFailed, Message: err.Error()}
	}
	in := workload.Input{Service: svc, URI: m.uri, Attributes: m.attributes, Adapters: m.adapters, Cluster: f.cfg.Cluster, Image: f.cfg.Image}
	req := selection.Request{Service: svc, Attributes: m.attributes}
	hash := f.selectionHash(w.object)
	if svc.Custom {
		local := workload.LocalizeService(*svc, f.cfg.Catalog, host)
		req.Service = &local
		if host, err = f.ask(ctx, host, &req, nil, m); err != nil {
			return nil, retryAfter, &service.Failure{Reason: "HostUnknown", Message: err.Error()}
		}
		if rule := selection.HostRule(local.Components, host); !rule.Pass {
			return nil, retryAfter, &service.Failure{Reason: selection.NoSupportingRuntime, Message: rule.Why}
		}
		in.Service, in.Protocol = &local, svc.Protocol
	} else {
		choice, protocol, again, failure := f.choose(ctx, w, m, req, host, hash)
		if failure != nil {
			return nil, again, failure
		}
		in.Runtime, in.Protocol = choice.runtime, protocol
		in.Choice = choice.RuntimeChoice
	}
	w.settleFiles(&in, m.files)
	if again, failure := f.ranks(ctx, w, &in); again > 0 {
		return nil, again, failure
	}
	rev, err := workload.Render(in)
	if err != nil {
		return nil, 0, &service.Failure{Reason: reasonInvalidSpec, Message: err.Error()}
	}
	if !f.cfg.Cluster && rev.Component(service.RoleTransformer) != nil {
		return nil, 0, &service.Failure{Reason: reasonInvalidSpec,
			Message: "spec.transformer: not run on one machine yet: serve it as a service of its own that calls this one"}
	}
	rev.Service = w.key
	f.mu.Lock()
	defer f.mu.Unlock()
	return &Record{Service: w.key, Selection: hash, Revision: rev, Inputs: f.inputs(w.object, rev.Runtime)}, 0, nil
}

type choice struct {
	service.RuntimeChoice
	runtime *service.Runtime
}

// choose keeps the pinned runtime while what it was chosen for stays, and
// selects otherwise.
func (f *Fleet) choose(ctx context.Context, w *work, m resolvedModel, req selection.Request, host selection.Host, hash string) (choice, service.Protocol, time.Duration, *service.Failure) {
	runtimes := f.runtimesFor(w.key.Namespace, host)
	if w.record != nil && w.record.Selection == hash && !w.reselect {
		pin := w.record.Revision.Runtime
		for i := range runtimes {
			r := &runtimes[i]
			if r.Name == pin.Name && r.Scope == pin.Scope && r.Namespace == pin.Namespace {
				return choice{pin, r}, w.record.Revision.Protocol, 0, nil
			}
		}
	}
	host, err := f.ask(ctx, host, &req, runtimes, m)
	if err != nil {
		return choice{}, "", retryAfter, &service.Failure{Reason: "HostUnknown", Message: err.Error()}
	}
	result := selection.Choose(req, runtimes, host)
	if result.Chosen == nil {
		return choice{}, "", retryAfter, &service.Failure{Reason: result.Reason, Message: result.Message}
	}
	r := result.Chosen.Runtime
	return choice{service.RuntimeChoice{Name: r.Name, Namespace: r.Namespace, Scope: r.Scope, Why: result.Chosen.Why}, r}, result.Protocol, 0, nil
}

// ask asks the host what choosing for req turns on. Where it lacks something,
// a model whose files were not needed before is inspected after all: it may
// bring what is lacking.
func (f *Fleet) ask(ctx context.Context, host selection.Host, req *selection.Request, runtimes []service.Runtime, m resolvedModel) (selection.Host, error) {
	checks := selection.Checks(*req, runtimes, host)
	if len(checks) == 0 {
		return host, nil
	}
	host, err := f.cfg.Platform.Host(ctx, checks...)
	if err != nil || m.inspected || m.uri == "" || !host.Lacking() {
		return host, err
	}
	found, err := f.cfg.Models.Inspect(ctx, m.uri)
	if err != nil {
		f.cfg.Log.Warn("model not inspected", "service", req.Service.Name, "error", err)
	}
	req.Attributes.Environment = found.Environment
	return host, nil
}

// runtimesFor are the runtimes a namespace sees, with how they run here.
func (f *Fleet) runtimesFor(namespace string, host selection.Host) []service.Runtime {
	f.mu.Lock()
	objects := slices.Collect(maps.Values(f.mu.runtimes))
	f.mu.Unlock()
	var out []service.Runtime
	for _, o := range objects {
		if o.Runtime.Namespace == "" || o.Runtime.Namespace == namespace {
			out = append(out, *o.Runtime)
		}
	}
	out = append(out, f.cfg.Catalog...)
	for i := range out {
		out[i] = workload.Adapted(out[i], f.cfg.Catalog)
		if !f.cfg.Cluster {
			out[i] = workload.Localize(out[i], f.cfg.Catalog, host)
		}
	}
	return out
}

// resolvedModel is a service's model after references and inspection.
type resolvedModel struct {
	uri        string
	attributes service.Attributes
	adapters   []workload.Adapter
	files      string // fingerprint of its own and of the adapters'
	inspected  bool   // or tried to
}

// model follows a service's model to its URI and attributes, and fills what
// the manifest does not state from the files.
func (f *Fleet) model(ctx context.Context, o Object) (resolvedModel, error) {
	src := o.Service.Model
	if src == nil {
		return resolvedModel{}, nil
	}
	m := resolvedModel{uri: o.uri(src.URI), attributes: src.Attributes}
	var base *Object
	if src.Ref != nil {
		obj, ok := f.findModel(src.Ref.In(o.Origin.Dialect()), o.Key.Namespace)
		if !ok {
			return m, fmt.Errorf("spec.model.name: no model named %q in namespace %q or the cluster: apply a BaseModel or ClusterBaseModel of that name", src.Ref.Name, o.Key.Namespace)
		}
		if obj.Model.Disabled {
			return m, fmt.Errorf("spec.model.name: model %q is disabled", src.Ref.Name)
		}
		m.attributes = m.attributes.Fill(obj.Model.Attributes, obj.Origin.Kind+" "+obj.Key.Name)
		if m.uri == "" {
			m.uri = obj.uri(obj.Model.URI)
		}
		base = &obj
	}
	var err error
	if m.adapters, err = f.adapters(ctx, o, base); err != nil {
		return m, err
	}
	m.files = f.fingerprints(ctx, workload.Model{URI: m.uri, Adapters: m.adapters})
	if m.uri == "" || !worthInspecting(m) {
		return m, nil
	}
	m.inspected = true
	found, err := f.cfg.Models.Inspect(ctx, m.uri)
	if err != nil {
		var missing interface{ NotExist() bool }
		if errors.As(err, &missing) && missing.NotExist() || m.attributes.Format.Name == "" || busy(err) {
			return m, err
		}
		// What the manifest says is enough to choose by; fetching will tell.
		f.cfg.Log.Warn("model not inspected", "service", o.Key.String(), "error", err)
		m.attributes.Environment = found.Environment
		return m, nil
	}
	m.attributes = m.attributes.Fill(found, "model files")
	return m, nil
}

// busy says that a model was not looked at because too many others are.
func busy(err error) bool {
	var e interface{ Busy() bool }
	return errors.As(err, &e) && e.Busy()
}

// worthInspecting says whether the files could tell what selection needs. Ones
// on this machine are always looked at, which also finds out early that they
// are missing; remote ones only where the manifest leaves open what a runtime
// of that format is chosen by.
func worthInspecting(m resolvedModel) bool {
	scheme, _, _ := strings.Cut(m.uri, "://")
	if scheme == "file" || scheme == "upload" {
		return true
	}
	a := m.attributes
	switch strings.ToLower(a.Format.Name) {
	case "":
		return true
	case "safetensors", "huggingface", "pytorch", "gguf":
		return a.Architecture == "" || a.Parameters == 0
	}
	return false
}

func (o Object) uri(written string) string {
	if at, ok := o.URIs[written]; ok {
		return at
	}
	return written
}

func (f *Fleet) findModel(ref service.ObjectRef, namespace string) (Object, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.findModelLocked(ref, namespace)
}

// findModelLocked is findModel with Fleet.mu held.
func (f *Fleet) findModelLocked(ref service.ObjectRef, namespace string) (Object, bool) {
	for _, ns := range []string{namespace, ""} {
		if o, ok := f.mu.models[ID{Kind: "model", Key: service.Key{Namespace: ns, Name: ref.Name}}]; ok &&
			(ref.Kind == "" || ref.Kind == o.Origin.Kind) {
			return o, true
		}
	}
	return Object{}, false
}

func (f *Fleet) selectionHash(o Object) string {
	return selection.InputsHash(selection.Request{Service: o.Service, Attributes: modelAttributes(o)})
}

func modelAttributes(o Object) service.Attributes {
	if o.Service.Model == nil {
		return service.Attributes{}
	}
	return o.Service.Model.Attributes
}
