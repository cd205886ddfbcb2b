package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// ManifestError is every problem of the manifests of one request.
type ManifestError struct{ Problems []string }

// Error is the problems, one a line.
func (e *ManifestError) Error() string { return strings.Join(e.Problems, "\n") }

// Objects reads manifest files into what the fleet applies, with warnings.
// source is the watched file or folder they came from, "" for none. The error is a
// *ManifestError.
func Objects(files []File, source string) (objects []fleet.Object, warnings []string, err error) {
	objects, warnings, err = ObjectsOn(dialect.Process, files, source)
	for _, f := range files {
		for _, c := range dialect.Read(f.Name, []byte(f.Data)).Schedulings {
			warnings = append(warnings, fmt.Sprintf("%s:%d: warning: %s has no effect here: give its file to endpoint-picker --config-file", c.Origin.File, c.Origin.Line, c.Kind))
		}
	}
	return objects, warnings, err
}

// ObjectsOn is Objects for another platform than processes.
func ObjectsOn(platform dialect.Platform, files []File, source string) (objects []fleet.Object, warnings []string, err error) {
	var problems []string
	seen := map[fleet.ID]string{}
	for _, f := range files {
		read := dialect.Read(f.Name, []byte(f.Data))
		for _, p := range read.Errors(platform) {
			problems = append(problems, p.String())
		}
		for _, p := range read.Warnings(platform) {
			warnings = append(warnings, p.String())
		}
		for _, o := range read.Objects {
			if o.Kind == dialect.KindReserve && platform == dialect.Process {
				continue // a warning says that it has no effect
			}
			if (o.Secret != nil || o.Account != nil) && platform == dialect.Kubernetes {
				continue // a warning says who applies it
			}
			obj := fleet.Object{Object: o, Source: source, URIs: f.URIs}
			at := fmt.Sprintf("%s:%d", o.Origin.File, o.Origin.Line)
			if first, twice := seen[obj.ID()]; twice {
				problems = append(problems, fmt.Sprintf("%s: metadata.name: %s is also at %s: give one of them another name", at, obj.ID(), first))
			}
			seen[obj.ID()] = at
			objects = append(objects, obj)
		}
	}
	if len(problems) > 0 {
		return nil, warnings, &ManifestError{Problems: problems}
	}
	return objects, warnings, nil
}

func (s *Server) read(w http.ResponseWriter, r *http.Request) (req ApplyRequest, objects []fleet.Object, warnings []string, ok bool) {
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxManifestBytes)).Decode(&req); err != nil {
		failError(w, err)
		return req, nil, nil, false
	}
	objects, warnings, err := Objects(req.Files, "")
	var bad *ManifestError
	if errors.As(err, &bad) {
		failManifests(w, bad)
		return req, nil, nil, false
	}
	return req, objects, warnings, true
}

func failManifests(w http.ResponseWriter, bad *ManifestError) {
	failWith(w, http.StatusUnprocessableEntity, Error{Message: fmt.Sprintf("problems in the manifests: %d", len(bad.Problems)), Problems: bad.Problems})
}

func (s *Server) apply(w http.ResponseWriter, r *http.Request) {
	req, objects, warnings, ok := s.read(w, r)
	if !ok {
		return
	}
	if r.URL.Query().Has("dry-run") {
		s.preview(w, r, objects, warnings)
		return
	}
	changes, err := s.cfg.Fleet.Apply(r.Context(), objects, fleet.ApplyOptions{Reselect: req.Reselect})
	if err != nil {
		failError(w, err)
		return
	}
	warnings = append(warnings, s.cfg.Fleet.Warnings(objects)...)
	answer(w, ApplyResponse{Changes: wireChanges(changes), Warnings: warnings})
}

// preview answers what apply would do. Nothing is stored.
func (s *Server) preview(w http.ResponseWriter, r *http.Request, objects []fleet.Object, warnings []string) {
	if _, err := s.cfg.Fleet.Draft(r.Context(), objects); err != nil {
		failError(w, err)
		return
	}
	out := ApplyResponse{Changes: []Change{}, Warnings: warnings}
	for _, o := range objects {
		c := Change{Kind: o.ID().Kind, Namespace: o.Key.Namespace, Name: o.Key.Name, Action: "created", After: written(o)}
		if was, ok := s.applied(r.Context(), o.ID()); ok {
			c.Action, c.Before = "configured", written(was)
			if c.Before == c.After && sameValues(was, o) {
				c.Action = "unchanged"
			}
		}
		out.Changes = append(out.Changes, c)
	}
	answer(w, out)
}

// sameValues reports whether two objects have the same hidden values, which are in no
// rendering.
func sameValues(a, b fleet.Object) bool {
	return a.Secret == nil || b.Secret == nil || maps.Equal(a.Secret.Data, b.Secret.Data)
}

// applied returns an object as it was applied.
func (s *Server) applied(ctx context.Context, id fleet.ID) (fleet.Object, bool) {
	if id.Kind == "service" {
		st, err := s.cfg.Fleet.Get(ctx, id.Key)
		return st.Object, err == nil
	}
	for _, o := range s.cfg.Fleet.Objects(id.Kind) {
		if o.ID() == id {
			return o, true
		}
	}
	for _, st := range s.cfg.Fleet.RoutingObjects() {
		if st.Object.ID() == id {
			return st.Object, true
		}
	}
	return fleet.Object{}, false
}

// written is the manifest of an object without a status.
func written(o fleet.Object) string {
	if o.Routing == nil {
		return render(o, nil)
	}
	text, err := dialect.RenderRouting(o.Object, routing.Status{})
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	return string(text)
}

// maxPatchBytes bounds the body of one edit.
const maxPatchBytes = 64 << 10

// edit changes a service's manifest by a JSON merge patch.
func (s *Server) edit(w http.ResponseWriter, r *http.Request) {
	var patch map[string]any
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPatchBytes)).Decode(&patch); err != nil {
		failError(w, fmt.Errorf("the body is no JSON merge patch: %w", err))
		return
	}
	c, err := s.cfg.Fleet.Edit(r.Context(), key(r), patch)
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, Change{Kind: c.ID.Kind, Namespace: c.ID.Namespace, Name: c.ID.Name, Action: c.Action})
}

// undo gives a service its earlier manifest back.
func (s *Server) undo(w http.ResponseWriter, r *http.Request) {
	c, err := s.cfg.Fleet.Undo(r.Context(), key(r))
	if err != nil {
		failError(w, err)
		return
	}
	answer(w, wireChanges([]fleet.Change{c})[0])
}

// wake starts a replica of a service, as a request to it does.
func (s *Server) wake(w http.ResponseWriter, r *http.Request) {
	k := key(r)
	if err := s.cfg.Fleet.Wake(r.Context(), k, 1); err != nil {
		failError(w, err)
		return
	}
	answer(w, Change{Kind: "service", Namespace: k.Namespace, Name: k.Name, Action: "woken"})
}

func wireChanges(changes []fleet.Change) []Change {
	out := make([]Change, len(changes))
	for i, c := range changes {
		out[i] = Change{Kind: c.ID.Kind, Namespace: c.ID.Namespace, Name: c.ID.Name, Action: c.Action}
	}
	return out
}

func (s *Server) remove(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		k := key(r)
		if kind != "service" && k.Namespace == "_cluster" {
			k.Namespace = ""
		}
		if err := s.cfg.Fleet.Delete(r.Context(), fleet.ID{Kind: kind, Key: k}); err != nil {
			failError(w, err)
			return
		}
		answer(w, Change{Kind: kind, Namespace: k.Namespace, Name: k.Name, Action: "deleted"})
	}
}

func key(r *http.Request) service.Key {
	return service.Key{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
}

func (s *Server) services(w http.ResponseWriter, r *http.Request) {
	namespace := r.URL.Query().Get("namespace")
	out := []Service{}
	for _, st := range s.cfg.Fleet.List() {
		if namespace != "" && st.Object.Key.Namespace != namespace {
			continue
		}
		if r.URL.Query().Has("replicas") {
			full, err := s.cfg.Fleet.Get(r.Context(), st.Object.Key)
			if err != nil {
				continue // deleted meanwhile, or not to be seen now
			}
			st = full
		}
		one := ServiceOf(st, owns(r) && r.URL.Query().Has("rendered"))
		one.LastFailure = s.failed.of(st)
		one.Engines = s.engines(st)
		out = append(out, one)
	}
	answer(w, out)
}

func (s *Server) service(w http.ResponseWriter, r *http.Request) {
	st, err := s.cfg.Fleet.Get(r.Context(), key(r))
	if err != nil {
		failError(w, err)
		return
	}
	out := ServiceOf(st, owns(r))
	out.LastFailure, out.Engines = s.failed.of(st), s.engines(st)
	if owns(r) {
		out.Written = written(st.Object)
	}
	answer(w, out)
}

// engines are what the engines of a service's replicas have told lately, by id.
func (s *Server) engines(st fleet.ServiceState) map[string]Engine {
	out := map[string]Engine{}
	for _, r := range st.Replicas {
		if s.cfg.Live == nil || s.cfg.Live.cfg.Load == nil {
			break
		}
		for _, id := range append(r.Ranks(), r.ID) {
			if e := engineOf(s.cfg.Live.cfg.Load(id), s.cfg.Live.cfg.Now()); e != (Engine{}) {
				out[id] = e
			}
		}
	}
	return out
}

// ServiceOf is a service as commands show it.
func ServiceOf(st fleet.ServiceState, rendered bool) Service {
	o := st.Object
	out := Service{Namespace: o.Key.Namespace, Name: o.Key.Name, APIVersion: o.Origin.APIVersion, Kind: o.Origin.Kind,
		File: o.Origin.File, Created: o.Created(), Generation: st.Generation, Status: st.Status, Scaling: st.Scaling, Replicas: st.Replicas, InFlight: st.InFlight, LastDone: st.LastDone}
	if m := o.Service.Model; m != nil {
		out.Model = artifact.Redact(o.FileURI(m.URI))
		if m.Ref != nil {
			out.Model = m.Ref.Name
		}
		out.Adapters = adaptersOf(o, st.Revision)
	}
	if st.Revision != nil {
		out.Limits = map[service.Role]ScaleLimits{}
		for _, c := range st.Revision.Components {
			l := c.Limits
			limits := ScaleLimits{Min: l.Min, Max: l.Max, Target: l.Target, Metric: (service.MetricTarget{Metric: l.Metric, External: l.External}).Name(), Metrics: l.Metrics,
				ScaleToZeroAfter: l.ScaleToZeroAfter.String(), StartupTimeout: l.StartupTimeout.String(), Schedule: l.Schedule, Prewarm: l.Prewarm, Knative: l.Knative != nil}
			if l.Standby != "" && c.Process != nil && c.Process.Standby != nil {
				limits.StandbyFor = l.StandbyFor.String()
			}
			out.Limits[c.Role] = limits
		}
	}
	if rendered {
		out.Rendered = render(o, &st.Status)
	}
	return out
}

// render writes the manifest of an object. What was read can be written, so an
// error becomes a comment in its place.
func render(o fleet.Object, st *service.Status) string {
	out, err := dialect.Render(o.Object, o.URIs, st)
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	return string(out)
}

func (s *Server) runtimes(w http.ResponseWriter, r *http.Request) {
	out := []Object{}
	for _, o := range s.cfg.Fleet.Objects("runtime") {
		wire := RuntimeOf(*o.Runtime)
		if owns(r) {
			wire.Rendered = render(o, nil)
		}
		out = append(out, wire)
	}
	for _, rt := range s.cfg.Fleet.Catalog() {
		out = append(out, RuntimeOf(rt))
	}
	answer(w, out)
}

// RuntimeOf is a runtime as commands show it.
func RuntimeOf(rt service.Runtime) Object {
	o := Object{Kind: "runtime", Namespace: rt.Namespace, Name: rt.Name, Scope: rt.Scope, Disabled: rt.Disabled, Created: rt.Created}
	var formats, protocols []string
	for _, f := range rt.Formats {
		name := f.Format.Name
		if f.Format.Version != "" {
			name += ":" + f.Format.Version
		}
		if f.Architecture != "" {
			name += "(" + f.Architecture + ")"
		}
		formats = append(formats, name)
	}
	for _, p := range rt.Protocols {
		protocols = append(protocols, string(p))
	}
	o.Formats, o.Protocols = strings.Join(formats, ","), strings.Join(protocols, ",")
	return o
}

// objects lists those of a kind as commands show them.
func (s *Server) objects(kind string, of func(fleet.Object) Object) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out := []Object{}
		for _, o := range s.cfg.Fleet.Objects(kind) {
			wire := of(o)
			if owns(r) {
				wire.Rendered = render(o, nil)
			}
			out = append(out, wire)
		}
		answer(w, out)
	}
}

func (s *Server) benchmarks(w http.ResponseWriter, r *http.Request) {
	out := []Object{}
	for _, o := range s.cfg.Fleet.Objects(fleet.BenchmarkKind) {
		is := s.cfg.Benchmark(o)
		wire := Object{Kind: fleet.BenchmarkKind, Namespace: o.Key.Namespace, Name: o.Key.Name, Created: o.Created(), Benchmark: &is}
		if owns(r) {
			wire.Rendered = render(o, nil)
		}
		out = append(out, wire)
	}
	answer(w, out)
}

func (s *Server) modelCaches(w http.ResponseWriter, r *http.Request) {
	out := []Object{}
	for _, o := range s.cfg.Fleet.Objects(fleet.CacheKind) {
		wire := ModelCacheOf(o.Object, o.Created(), s.cfg.ModelCache(o))
		if !owns(r) {
			wire.Rendered = ""
		}
		out = append(out, wire)
	}
	answer(w, out)
}

// ModelCacheOf is a model that is fetched ahead of its use, as commands show it.
func ModelCacheOf(o dialect.Object, created time.Time, is ModelCache) Object {
	text, err := dialect.RenderCache(o, is.CacheStatus)
	if err != nil {
		text = []byte("# " + err.Error() + "\n")
	}
	return Object{Kind: fleet.CacheKind, Namespace: o.Key.Namespace, Name: o.Key.Name, Created: created, ModelCache: &is, Rendered: string(text)}
}

// StorageContainerOf is a container that fetches models, as commands show it.
func StorageContainerOf(c service.StorageContainer) Object {
	var uris []string
	for _, f := range c.URIs {
		uris = append(uris, cmp.Or(f.Prefix, f.Regex))
	}
	return Object{Kind: dialect.StorageContainerID, Name: c.Name, Formats: strings.Join(uris, ","), Disabled: c.Disabled, Created: c.Created}
}

// NodeGroupOf is a group of nodes that keep models, as commands show it.
func NodeGroupOf(g service.NodeGroup) Object {
	return Object{Kind: fleet.NodeGroupKind, Name: g.Name, Limit: g.Limit, Created: g.Created}
}

// ConfigMapOf is a ConfigMap, as commands show it.
func ConfigMapOf(o fleet.Object) Object {
	return Object{Kind: dialect.ConfigMapID, Namespace: o.Key.Namespace, Name: o.Key.Name, Created: o.Created()}
}

// secrets answers which there are, and which keys they have: to nobody what is in them.
func (s *Server) secrets(w http.ResponseWriter, r *http.Request) {
	out := []Object{}
	for _, o := range s.cfg.Fleet.Objects(fleet.SecretKind) {
		wire := Object{Kind: fleet.SecretKind, Namespace: o.Key.Namespace, Name: o.Key.Name, Created: o.Created()}
		if owns(r) {
			wire.Formats, wire.Rendered = strings.Join(slices.Sorted(maps.Keys(o.Secret.Data)), ","), render(o, nil)
		}
		out = append(out, wire)
	}
	answer(w, out)
}

// accounts answers which there are, and to the owner which secrets they list.
func (s *Server) accounts(w http.ResponseWriter, r *http.Request) {
	out := []Object{}
	for _, o := range s.cfg.Fleet.Objects(fleet.AccountKind) {
		wire := Object{Kind: fleet.AccountKind, Namespace: o.Key.Namespace, Name: o.Key.Name, Created: o.Created()}
		if owns(r) {
			wire.Formats, wire.Rendered = strings.Join(o.Account.Secrets, ","), render(o, nil)
		}
		out = append(out, wire)
	}
	answer(w, out)
}

// BaseOf is what services are laid over, as commands show it.
func BaseOf(b service.Base) Object {
	return Object{Kind: dialect.BaseID, Namespace: b.Namespace, Name: b.Name, Created: b.Created}
}

// AcceleratorOf is a class of accelerators, as commands show it.
func AcceleratorOf(c service.AcceleratorClass) Object {
	var about []string
	for _, word := range []string{c.Vendor, c.Family, c.Model} {
		if word != "" {
			about = append(about, word)
		}
	}
	if c.MemoryGB > 0 {
		about = append(about, strconv.FormatFloat(math.Round(c.MemoryGB*10)/10, 'f', -1, 64)+" GB")
	}
	return Object{Kind: dialect.AcceleratorID, Name: c.Name, Accelerator: strings.Join(about, " "), Created: c.Created}
}

// ModelOf is a model, or fine-tuned weights, as commands show it.
func ModelOf(m service.Model) Object {
	if ft := m.FineTuned; ft != nil {
		return Object{Kind: "weight", Name: m.Name, Formats: ft.Type, Base: strings.TrimPrefix(ft.Base.String(), "/"), Disabled: m.Disabled, Created: m.Created}
	}
	return Object{Kind: "model", Namespace: m.Namespace, Name: m.Name, Formats: m.Format.Name, Disabled: m.Disabled, Created: m.Created}
}

// adaptersOf are the adapters that a manifest names, with what is known of them
// where the revision that runs has them, too.
func adaptersOf(o fleet.Object, rev *workload.Revision) []workload.Adapter {
	var out []workload.Adapter
	for _, a := range o.Service.Model.Adapters {
		one := workload.Adapter{Name: a.Name, URI: o.FileURI(a.URI), Rank: a.Rank}
		if rev != nil {
			for _, known := range rev.Model.Adapters {
				if known.Name == one.Name && (one.URI == "" || one.URI == known.URI) {
					one = known
				}
			}
		}
		one.URI = artifact.Redact(one.URI)
		out = append(out, one)
	}
	return out
}
