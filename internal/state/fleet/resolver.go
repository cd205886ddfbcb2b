package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// resolver makes revisions of what is desired. It keeps the runtimes and models
// that were applied, looks at models' files and asks the host; it knows nothing
// of services but what it is given. It is safe for concurrent use, and calls no
// Fleet back.
type resolver struct {
	cfg *Config

	mu struct {
		sync.Mutex
		runtimes map[ID]Object
		models   map[ID]Object // and weights
		bases    map[ID]Object
		classes  map[ID]Object // of accelerators
		configs  map[ID]Object // ConfigMaps
		// benchmarks are kept for whoever runs them.
		benchmarks map[ID]Object
		caches     map[ID]Object // ModelCaches, NodeGroups and StorageContainers: what models are fetched by
		secrets    map[ID]Object
		accounts   map[ID]Object
	}
}

func newResolver(cfg *Config) *resolver {
	r := &resolver{cfg: cfg}
	r.mu.runtimes, r.mu.models, r.mu.bases, r.mu.benchmarks = map[ID]Object{}, map[ID]Object{}, map[ID]Object{}, map[ID]Object{}
	r.mu.classes, r.mu.configs = map[ID]Object{}, map[ID]Object{}
	r.mu.caches = map[ID]Object{}
	r.mu.secrets, r.mu.accounts = map[ID]Object{}, map[ID]Object{}
	return r
}

// of returns the map of a kind's objects; mu is held.
func (r *resolver) of(kind string) map[ID]Object {
	switch kind {
	case runtimeKind:
		return r.mu.runtimes
	case baseKind:
		return r.mu.bases
	case acceleratorKind:
		return r.mu.classes
	case configMapKind:
		return r.mu.configs
	case BenchmarkKind:
		return r.mu.benchmarks
	case CacheKind, NodeGroupKind, storageContainerKind:
		return r.mu.caches
	case SecretKind:
		return r.mu.secrets
	case AccountKind:
		return r.mu.accounts
	}
	return r.mu.models
}

func (r *resolver) put(o Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of(o.ID().Kind)[o.ID()] = o
}

func (r *resolver) remove(id ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of(id.Kind), id)
}

func (r *resolver) object(id ID) (Object, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.of(id.Kind)[id]
	return o, ok
}

// objects lists those that match, by namespace and name.
func (r *resolver) objects(match func(ID, Object) bool) []Object {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Object
	for _, kept := range []map[ID]Object{r.mu.runtimes, r.mu.models, r.mu.bases, r.mu.classes, r.mu.configs, r.mu.benchmarks, r.mu.caches, r.mu.secrets, r.mu.accounts} {
		for id, o := range kept {
			if match(id, o) {
				out = append(out, o)
			}
		}
	}
	slices.SortFunc(out, func(a, b Object) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return out
}

// resolved makes the record for w's inputs, or returns why it cannot be made.
// With neither, the time of the next attempt has not come.
func (r *resolver) resolved(ctx context.Context, w *work) (*Record, time.Duration, *service.Failure) {
	if flaw := w.object.Flaw; flaw != "" {
		return nil, 0, &service.Failure{Reason: reasonInvalidSpec, Message: flaw}
	}
	host, err := r.cfg.Platform.Host(ctx)
	if err != nil {
		return nil, retryAfter, &service.Failure{Reason: "HostUnknown", Message: err.Error()}
	}
	plain := r.asks(*w.object.Service)
	plain.CanaryPercent = nil // makes no other revision
	svc := &plain
	m, err := r.model(ctx, w.object)
	if err == nil {
		m.own, err = r.ownFiles(ctx, w)
	}
	switch {
	case busy(err):
		return nil, busyAfter, nil
	case err != nil:
		return nil, retryAfter, &service.Failure{Reason: reasonModelLoadFailed, Message: err.Error()}
	}
	in := workload.Input{Service: svc, URI: m.uri, Files: m.own, Credentials: m.credentials, Attributes: m.attributes, Adapters: m.adapters, Parts: m.parts, Cluster: r.cfg.Cluster, NoGPUs: host.Accelerators == 0, Image: r.cfg.Image, Delivery: r.cfg.Delivery}
	if r.cfg.Cluster {
		in.Placement, in.Secret, in.Brought, in.Kept = m.placement, m.secret, r.brought(m), r.kept(svc, m)
	}
	req := selection.Request{Service: svc, Attributes: m.attributes, Classes: r.classes()}
	hash := selectionHash(w.object)
	if svc.Custom {
		local := workload.LocalizeService(*svc, r.cfg.Catalog, host)
		req.Service = &local
		if host, err = r.ask(ctx, host, &req, nil, m); err != nil {
			return nil, retryAfter, &service.Failure{Reason: "HostUnknown", Message: err.Error()}
		}
		if rule := selection.HostRule(local.Components, host); !rule.Pass {
			if selection.MissingProgram(local.Components, host) {
				again := programAfter
				if m.inspected && !onMachine(m.uri) {
					again = retryAfter // to look at the model again costs requests
				}
				return nil, again, &service.Failure{Reason: replica.ReasonProgramMissing, Message: rule.Why}
			}
			return nil, retryAfter, &service.Failure{Reason: selection.NoSupportingRuntime, Message: rule.Why}
		}
		in.Service, in.Protocol = &local, svc.Protocol
		in.Containers = selection.Contained(local.Components, service.Components{}, host, service.Attributes{})
	} else {
		if !r.cfg.Cluster {
			beside := workload.LocalizeBeside(*svc, r.cfg.Catalog, host)
			in.Service, req.Service = &beside, &beside
		}
		choice, protocol, again, failure := r.choose(ctx, w, m, req, host, hash)
		if failure != nil {
			return nil, again, failure
		}
		in.Runtime, in.Protocol = choice.runtime, protocol
		in.Choice, in.Containers = choice.RuntimeChoice, choice.containers
		in.Accelerators = on(req, choice.runtime, choice.Accelerators)
	}
	w.settleFiles(&in, m.files)
	if again, failure := r.ranks(ctx, w, &in); again > 0 {
		return nil, again, failure
	}
	rev, err := workload.Render(in)
	if err != nil {
		return nil, 0, &service.Failure{Reason: reasonInvalidSpec, Message: err.Error()}
	}
	rev.Service = w.key
	next := &Record{Service: w.key, Selection: hash, Revision: rev, Inputs: r.inputs(w.object, rev.Runtime)}
	if w.record != nil {
		next.Learned, next.Revision.Guests = w.record.Learned, w.record.Revision.Guests
		next.keepMeasured(w.record)
	}
	return next, 0, nil
}

// asks is a service with what it asks of a runtime. One without a model of its own that
// names a runtime for several models asks for such a one.
func (r *resolver) asks(s service.Service) service.Service {
	if !s.Repository || s.Runtime == nil {
		return s
	}
	for _, ns := range []string{s.Namespace, ""} {
		if o, ok := r.object(ID{Kind: runtimeKind, Key: service.Key{Namespace: ns, Name: s.Runtime.Name}}); ok {
			s.MultiModel = s.MultiModel || o.Runtime.MultiModel
			break
		}
	}
	return s
}

type choice struct {
	service.RuntimeChoice
	runtime    *service.Runtime
	containers []service.Role // that run as containers here
}

// choose keeps the pinned runtime while what it was chosen for stays, and
// selects otherwise.
func (r *resolver) choose(ctx context.Context, w *work, m resolvedModel, req selection.Request, host selection.Host, hash string) (choice, service.Protocol, time.Duration, *service.Failure) {
	runtimes := r.runtimesFor(w.key.Namespace, host)
	if w.record != nil && w.record.Selection == hash && !w.reselect {
		pin := w.record.Revision.Runtime
		for i := range runtimes {
			rt := &runtimes[i]
			if rt.Name == pin.Name && rt.Scope == pin.Scope && rt.Namespace == pin.Namespace {
				if host.Containers.Engine != "" { // what its program requires may be lacking
					var err error
					if host, err = r.ask(ctx, host, &req, runtimes[i:i+1], m); err != nil {
						return choice{}, "", retryAfter, &service.Failure{Reason: "HostUnknown", Message: err.Error()}
					}
				}
				pin.Accelerators = selection.Classes(req, rt, pin.Accelerators, host)
				return choice{pin, rt, selection.Contained(rt.Components, req.Service.Components, host, req.Attributes)}, w.record.Revision.Protocol, 0, nil
			}
		}
	}
	host, err := r.ask(ctx, host, &req, runtimes, m)
	if err != nil {
		return choice{}, "", retryAfter, &service.Failure{Reason: "HostUnknown", Message: err.Error()}
	}
	result := selection.Choose(req, runtimes, host)
	if result.Chosen == nil {
		return choice{}, "", retryAfter, &service.Failure{Reason: result.Reason, Message: result.Message}
	}
	rt := result.Chosen.Runtime
	w.chosen = r.cfg.Now()
	return choice{service.RuntimeChoice{Name: rt.Name, Namespace: rt.Namespace, Scope: rt.Scope, Why: result.Chosen.Why, Accelerators: result.Chosen.Classes}, rt,
		selection.Contained(rt.Components, req.Service.Components, host, req.Attributes)}, result.Protocol, 0, nil
}

// ask asks the host what choosing for req turns on. Where it lacks something,
// a model whose files were not needed before is inspected after all: it may
// bring what is lacking.
func (r *resolver) ask(ctx context.Context, host selection.Host, req *selection.Request, runtimes []service.Runtime, m resolvedModel) (selection.Host, error) {
	checks := selection.Checks(*req, runtimes, host)
	if len(checks) == 0 {
		return host, nil
	}
	host, err := r.cfg.Platform.Host(ctx, checks...)
	if err != nil || m.inspected || m.uri == "" || !host.Lacking() {
		return host, err
	}
	found, err := r.cfg.Models.Inspect(ctx, m.credentials.Of(m.uri))
	if err != nil {
		r.cfg.Log.Warn("model not inspected", "service", req.Service.Name, "error", err)
	}
	req.Attributes.Environment = found.Environment
	return host, nil
}

// runtimesFor are the runtimes a namespace sees, with how they run here.
func (r *resolver) runtimesFor(namespace string, host selection.Host) []service.Runtime {
	r.mu.Lock()
	objects := slices.Collect(maps.Values(r.mu.runtimes))
	r.mu.Unlock()
	var out []service.Runtime
	for _, o := range objects {
		if o.Runtime.Namespace == "" || o.Runtime.Namespace == namespace {
			out = append(out, *o.Runtime)
		}
	}
	out = append(out, r.cfg.Catalog...)
	for i := range out {
		out[i] = workload.Adapted(out[i], r.cfg.Catalog)
		if !r.cfg.Cluster {
			out[i] = workload.Localize(out[i], r.cfg.Catalog, host)
		}
	}
	return out
}

// resolvedModel is a service's model after references and inspection.
type resolvedModel struct {
	uri         string
	credentials service.Credentials
	secret      *service.SecretKey // of the model object, where pods may have it
	attributes  service.Attributes
	adapters    []workload.Adapter
	parts       service.Parts
	own         map[service.Role]workload.Model // files that roles have of their own
	placement   service.Placement
	files       string // fingerprint of its own and of the adapters'
	inspected   bool   // or tried to
}

// model follows a service's model to its URI and attributes, and fills what
// the manifest does not state from the files.
func (r *resolver) model(ctx context.Context, o Object) (resolvedModel, error) {
	src := o.Service.Model
	if src == nil {
		return resolvedModel{}, nil
	}
	m := resolvedModel{uri: o.FileURI(src.URI), attributes: src.Attributes}
	var base *Object
	if src.Ref != nil {
		obj, ok := r.findModel(src.Ref.In(o.Origin.Dialect()), o.Key.Namespace)
		if !ok {
			return m, fmt.Errorf("spec.model.name: no model named %q in namespace %q or the cluster: apply a BaseModel or ClusterBaseModel of that name", src.Ref.Name, o.Key.Namespace)
		}
		if obj.Model.Disabled {
			return m, fmt.Errorf("spec.model.name: model %q is disabled", src.Ref.Name)
		}
		m.attributes = m.attributes.Fill(obj.Model.Attributes, obj.Origin.Kind+" "+obj.Key.Name)
		if m.uri == "" {
			m.uri = obj.FileURI(obj.Model.URI)
		}
		m.placement = obj.Model.Placement
		base = &obj
	}
	var err error
	var model *service.Model
	if base != nil && src.URI == "" { // its secret opens its own files alone
		model = base.Model
	}
	m.secret = secretInPods(model, o.Key.Namespace)
	if m.credentials, err = r.credentials(o.Service, model, m.uri); err != nil {
		return m, err
	}
	if m.adapters, err = r.adapters(ctx, o, base, m.credentials); err != nil {
		return m, err
	}
	for _, p := range src.Parts {
		m.parts = append(m.parts, service.Part{URI: o.FileURI(p.URI), Path: p.Path})
	}
	m.files = r.fingerprints(ctx, workload.Model{URI: m.uri, Credentials: m.credentials, Adapters: m.adapters, Parts: m.parts})
	if m.uri == "" || !worthInspecting(m) {
		return m, nil
	}
	m.inspected = true
	found, err := r.cfg.Models.Inspect(ctx, m.credentials.Of(m.uri))
	if err != nil {
		var missing interface{ NotExist() bool }
		if errors.As(err, &missing) && missing.NotExist() || m.attributes.Format.Name == "" || busy(err) {
			return m, err
		}
		// What the manifest says is enough to choose by; fetching will tell.
		r.cfg.Log.Warn("model not inspected", "service", o.Key.String(), "error", err)
		m.attributes.Environment = found.Environment
		return m, nil
	}
	m.attributes = m.attributes.Fill(found, "model files")
	return m, nil
}

// busy reports that a model was not looked at because too many others are.
func busy(err error) bool {
	var e interface{ Busy() bool }
	return errors.As(err, &e) && e.Busy()
}

// worthInspecting reports whether the files could tell what selection needs. Ones
// on this machine are always looked at, which also finds out early that they
// are missing; remote ones only where the manifest leaves open what a runtime
// of that format is chosen by.
func worthInspecting(m resolvedModel) bool {
	if onMachine(m.uri) {
		return true
	}
	a := m.attributes
	switch strings.ToLower(a.Format.Name) {
	case "":
		return true
	case "safetensors", "huggingface", "pytorch", "gguf":
		return a.Architecture == "" || a.Parameters == 0
	case "diffusers":
		return a.Diffusion == nil
	}
	return false
}

// onMachine reports whether a model's files are on this machine already.
func onMachine(uri string) bool {
	scheme, _, _ := strings.Cut(uri, "://")
	return scheme == "file" || scheme == "upload"
}

// FileURI is where a model file is that the manifest names as written.
func (o Object) FileURI(written string) string {
	if at, ok := o.URIs[written]; ok {
		return at
	}
	return written
}

func (r *resolver) findModel(ref service.ObjectRef, namespace string) (Object, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.findModelLocked(ref, namespace)
}

// findModelLocked is findModel with mu held.
func (r *resolver) findModelLocked(ref service.ObjectRef, namespace string) (Object, bool) {
	for _, ns := range []string{namespace, ""} {
		if o, ok := r.mu.models[ID{Kind: "model", Key: service.Key{Namespace: ns, Name: ref.Name}}]; ok &&
			(ref.Kind == "" || ref.Kind == o.Origin.Kind) {
			return o, true
		}
	}
	return Object{}, false
}

func selectionHash(o Object) string {
	return selection.InputsHash(selection.Request{Service: o.Service, Attributes: modelAttributes(o)})
}

func modelAttributes(o Object) service.Attributes {
	if o.Service.Model == nil {
		return service.Attributes{}
	}
	return o.Service.Model.Attributes
}
