package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// Object is one applied manifest with what is known of its origin.
type Object struct {
	dialect.Object
	// Source is the watched file or folder it came from; "" for one applied by
	// hand. Deleting a watched file deletes what came from it.
	Source string
	// URIs maps model URIs as written to where they are: a relative file URI
	// to its absolute one, or a local file to its upload.
	URIs map[string]string
	// Patch is the merge patch of edits, which Original has in it. What of it a
	// manifest that is applied later does not state stays.
	Patch map[string]any
	// Earlier is the manifest that Undo goes back to; nil without one.
	Earlier *Earlier
	// Flaw is why the service cannot be laid over its Bases; "" where it is, or names
	// none.
	Flaw string
}

// ID names an object among all kinds.
type ID struct {
	// Kind is "service", "runtime", "model", "weight" (a model object that holds an
	// adapter), "base", "acceleratorclass", "configmap", "benchmarkjob",
	// "localmodelcache", "localmodelnodegroup", "clusterstoragecontainer", "secret", "serviceaccount", or a routing kind in lower case:
	// "pool", "route", "httproute", "inferencemodel", …
	Kind string
	service.Key
}

// String is "kind namespace/name".
func (i ID) String() string {
	if i.Namespace == "" {
		return i.Kind + " " + i.Name
	}
	return i.Kind + " " + i.Key.String()
}

// Plural names the kind for all objects of it.
func (i ID) Plural() string {
	if strings.HasSuffix(i.Kind, "s") {
		return i.Kind + "es"
	}
	return i.Kind + "s"
}

func compareIDs(a, b ID) int { return strings.Compare(a.String(), b.String()) }

// Kinds in the ID of a service and of a runtime.
const (
	serviceKind = "service"
	runtimeKind = "runtime"
)

// BenchmarkKind is the kind in the ID of a benchmark. The fleet keeps it and runs
// nothing.
const BenchmarkKind = dialect.BenchmarkID

// Kinds in the IDs of models that are fetched ahead of their use, and of the nodes that
// keep them. The fleet keeps them and fetches nothing.
const (
	CacheKind     = dialect.CacheID
	NodeGroupKind = dialect.NodeGroupID
	// storageContainerKind is that of containers that fetch models.
	storageContainerKind = dialect.StorageContainerID
)

// ingredients are the kinds of the resolver's objects.
var ingredients = []string{runtimeKind, "model", weightKind, baseKind, acceleratorKind, configMapKind, BenchmarkKind, CacheKind, NodeGroupKind, storageContainerKind, SecretKind, AccountKind}

// ID of the object. Cluster-scoped objects have no namespace.
func (o Object) ID() ID {
	switch {
	case o.Runtime != nil:
		return ID{Kind: runtimeKind, Key: o.Key}
	case o.Model != nil && o.Model.FineTuned != nil:
		return ID{Kind: weightKind, Key: o.Key}
	case o.Model != nil:
		return ID{Kind: "model", Key: o.Key}
	case o.Base != nil:
		return ID{Kind: baseKind, Key: o.Key}
	case o.Accelerator != nil:
		return ID{Kind: acceleratorKind, Key: o.Key}
	case o.ConfigMap != nil:
		return ID{Kind: configMapKind, Key: o.Key}
	case o.Benchmark != nil:
		return ID{Kind: BenchmarkKind, Key: o.Key}
	case o.ModelCache != nil:
		return ID{Kind: CacheKind, Key: o.Key}
	case o.StorageContainer != nil:
		return ID{Kind: storageContainerKind, Key: o.Key}
	case o.NodeGroup != nil:
		return ID{Kind: NodeGroupKind, Key: o.Key}
	case o.Secret != nil:
		return ID{Kind: SecretKind, Key: o.Key}
	case o.Account != nil:
		return ID{Kind: AccountKind, Key: o.Key}
	case o.Routing != nil:
		return ID{Kind: routingKind(o.Routing.RoutingKind()), Key: o.Key}
	case o.Kind == dialect.KindReserve:
		return ID{Kind: dialect.ReserveID, Key: o.Key}
	default:
		return ID{Kind: serviceKind, Key: o.Key}
	}
}

// meta is the hub object's own metadata.
func (o Object) meta() *service.Meta {
	switch {
	case o.Runtime != nil:
		return &o.Runtime.Meta
	case o.Model != nil:
		return &o.Model.Meta
	case o.Base != nil:
		return &o.Base.Meta
	case o.Accelerator != nil:
		return &o.Accelerator.Meta
	case o.ConfigMap != nil:
		return &o.ConfigMap.Meta
	case o.Benchmark != nil:
		return &o.Benchmark.Meta
	case o.ModelCache != nil:
		return &o.ModelCache.Meta
	case o.StorageContainer != nil:
		return &o.StorageContainer.Meta
	case o.NodeGroup != nil:
		return &o.NodeGroup.Meta
	case o.Secret != nil:
		return &o.Secret.Meta
	case o.Account != nil:
		return &o.Account.Meta
	case o.Routing != nil:
		return o.Routing.Common()
	case o.Service != nil:
		return &o.Service.Meta
	default: // a Reserve, which has no part in the hub
		return &service.Meta{}
	}
}

// Created is when the object was first applied.
func (o Object) Created() time.Time { return o.meta().Created }

// SetCreated sets it, and is for whoever makes the object.
func (o Object) SetCreated(t time.Time) { o.meta().Created = t }

// NotFoundError is the error for an object that does not exist.
type NotFoundError struct{ ID ID }

// Error names the object and how to see what there is.
func (e *NotFoundError) Error() string {
	list := "roundhouse"
	if e.ID.Kind == dialect.ReserveID {
		list = "kubectl" // which alone lists them
	}
	return fmt.Sprintf("no %s: `%s get %s -A` lists what there is", e.ID, list, e.ID.Plural())
}

func errNotFound(kind string, k service.Key) error {
	return &NotFoundError{ID: ID{Kind: kind, Key: k}}
}

// Change is what Apply or Delete did with one object.
type Change struct {
	ID     ID
	Action string // "created", "configured", "unchanged", "deleted"
}

const (
	actionCreated    = "created"
	actionConfigured = "configured"
	actionUnchanged  = "unchanged"
	actionDeleted    = "deleted"
)

// compare returns what applying now does where before is known, or nothing is.
// It keeps the first creation time over every re-apply, unless whoever applies
// now has set one.
func compare(now *Object, before Object, known bool, at time.Time) Change {
	if now.Created().IsZero() {
		created := at.UTC().Truncate(time.Second)
		if known {
			created = before.Created()
		}
		now.SetCreated(created)
	}
	change := Change{ID: now.ID(), Action: actionCreated}
	switch {
	case !known:
	case bytes.Equal(before.Original, now.Original) && maps.Equal(before.URIs, now.URIs) && before.Source == now.Source && fmt.Sprint(before.Patch) == fmt.Sprint(now.Patch):
		change.Action = actionUnchanged
	default:
		change.Action = actionConfigured
	}
	return change
}

// ApplyOptions steer one Apply.
type ApplyOptions struct {
	// Reselect chooses the runtime anew although it is pinned.
	Reselect bool
}

// Apply makes objects the desired ones: all of them or, when any is refused,
// none. It returns once they are stored; what follows shows in their status.
func (f *Fleet) Apply(ctx context.Context, objects []Object, o ApplyOptions) ([]Change, error) {
	var changed map[service.Key]bool
	if f.cfg.Fingerprint != nil {
		changed = f.resolver.changed(ctx, f.services.filesOf(objects))
	}
	f.services.mu.Lock()
	defer f.services.mu.Unlock()
	if err := errors.Join(f.routes.admit(objects), f.resolver.admit(objects)); err != nil {
		return nil, err
	}
	var out []Change
	defer func() {
		if slices.ContainsFunc(out, func(c Change) bool { return c.Action != actionUnchanged }) {
			f.routes.publish(f.services.membersLocked())
		}
		f.applied(out...)
	}()
	for _, obj := range objects {
		change, err := f.put(obj, o)
		if change.Action == actionUnchanged &&
			f.services.renewLocked(func(e *entry) bool { return changed[e.object.Key] && obj.concerns(e) }) {
			change.Action = actionConfigured
		}
		if err != nil {
			return out, err
		}
		out = append(out, change)
	}
	return out, nil
}

// applied tells what was done with runtimes, models, benchmarks and secrets: services and
// routes tell of themselves.
func (f *Fleet) applied(all ...Change) {
	told := slices.DeleteFunc(slices.Clone(all), func(c Change) bool {
		return c.Action == actionUnchanged || !slices.Contains(ingredients, c.ID.Kind)
	})
	if len(told) > 0 {
		f.cfg.Applied(told)
	}
}

// admit refuses runtimes between which a choice would be arbitrary.
func (r *resolver) admit(objects []Object) error {
	all := map[ID]service.Runtime{}
	for _, o := range r.objects(func(id ID, _ Object) bool { return id.Kind == runtimeKind }) {
		all[o.ID()] = *o.Runtime
	}
	fresh := map[service.Key]bool{}
	for _, o := range objects {
		if o.Runtime != nil {
			all[o.ID()] = *o.Runtime
			fresh[o.Key] = true
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	var errs []error
	for _, c := range selection.Conflicts(slices.Collect(maps.Values(all))) {
		if !c.Tolerated && (fresh[c.Runtime.Key] || c.Other != nil && fresh[c.Other.Key]) {
			errs = append(errs, errors.New(inWords(c)))
		}
	}
	return errors.Join(errs...)
}

// Conflicts are what keeps the runtimes among objects from being applied
// together, a line each, and what leaves the choice between them to their age
// and name.
func Conflicts(objects []Object) (refused, tolerated []string) {
	var runtimes []service.Runtime
	for _, o := range objects {
		if o.Runtime != nil {
			runtimes = append(runtimes, *o.Runtime)
		}
	}
	for _, c := range selection.Conflicts(runtimes) {
		if c.Tolerated {
			tolerated = append(tolerated, inWords(c))
		} else {
			refused = append(refused, inWords(c))
		}
	}
	return refused, tolerated
}

func inWords(c selection.Conflict) string {
	at := c.Runtime.Name + ": "
	if c.Tolerated {
		at = "warning: " + at
	}
	if o := c.Runtime.Origin; o.File != "" {
		at = fmt.Sprintf("%s:%d: %s", o.File, o.Line, at)
	}
	return at + c.Field + ": " + c.Message
}

// Edit changes the manifest of a service by a JSON merge patch, or refuses that with
// the problems of what would come of it. What the patch sets stays when the manifest
// is applied again without it.
func (f *Fleet) Edit(_ context.Context, k service.Key, patch map[string]any) (Change, error) {
	f.services.mu.Lock()
	defer f.services.mu.Unlock()
	e := f.services.presentLocked(k)
	if e == nil {
		return Change{}, errNotFound(serviceKind, k)
	}
	obj, err := e.object.patched(patch)
	if err != nil {
		return Change{}, err
	}
	obj.Patch = dialect.Combine(e.object.Patch, patch)
	change, err := f.put(obj, ApplyOptions{})
	if err == nil && change.Action != actionUnchanged {
		f.routes.publish(f.services.membersLocked())
	}
	return change, err
}

// patched is the object with a merge patch made in its manifest.
func (o Object) patched(patch map[string]any) (Object, error) {
	text, err := dialect.Merge(o.Original, patch)
	if err != nil {
		return o, fmt.Errorf("%s: %w", o.ID(), err)
	}
	read := dialect.Read("", text)
	if bad := read.Errors(dialect.Process); len(bad) > 0 || len(read.Objects) != 1 {
		errs := []error{fmt.Errorf("%s cannot be changed so", o.ID())}
		for _, p := range bad {
			p.Line = 0 // of a text that nobody has seen
			errs = append(errs, errors.New(p.String()))
		}
		return o, errors.Join(errs...)
	}
	next := read.Objects[0]
	if next.Key != o.Key || next.Service == nil {
		return o, fmt.Errorf("%s: a patch does not change what the manifest is called", o.ID())
	}
	next.Origin.File, next.Origin.Line = o.Origin.File, o.Origin.Line
	next.Service.Origin = next.Origin
	created := o.Created()
	o.Object = next
	o.SetCreated(created)
	return o, nil
}

// edited is the object with what stays of the edits of the one before.
func (o Object) edited(before Object) (Object, error) {
	if o.Patch != nil || before.Patch == nil || o.Service == nil {
		return o, nil
	}
	rest := dialect.Unstated(o.Original, before.Patch)
	if rest == nil {
		return o, nil
	}
	out, err := o.patched(rest)
	out.Patch = rest
	return out, err
}

func (f *Fleet) put(obj Object, o ApplyOptions) (Change, error) {
	id := obj.ID()
	before, known := f.object(id)
	obj, err := obj.after(before, f.cfg.Cluster)
	if err != nil {
		return Change{ID: id}, err
	}
	obj = f.resolver.laid(obj)
	change := compare(&obj, before, known, f.cfg.Now())
	if change.Action == actionUnchanged && !o.Reselect {
		if id.Kind == serviceKind { // who applies it again has often just mended what it lacked
			f.services.renewLocked(func(e *entry) bool { return e.object.Key == id.Key && e.failure != nil })
		}
		return change, nil
	}
	if err := f.cfg.Store.PutObject(obj); err != nil {
		return change, fmt.Errorf("%s: %w", id, err)
	}
	f.takeLocked(obj, o)
	return change, nil
}

// takeLocked has services, routes and what they are made of follow an object that has
// been stored.
func (f *Fleet) takeLocked(obj Object, o ApplyOptions) {
	id := obj.ID()
	switch id.Kind {
	case serviceKind:
		if created := f.services.putLocked(obj, o.Reselect); created != nil {
			f.cfg.Traffic.Publish(created.view(&f.cfg)) // requests wait from now on
		}
	case runtimeKind:
		f.resolver.put(obj)
		f.services.renewLocked(func(e *entry) bool {
			choosing := e.choosing(f.cfg.Now())
			e.reselect = e.reselect || choosing
			return choosing || uses(e, obj.Key.Name)
		})
	case baseKind, configMapKind:
		f.resolver.put(obj)
		f.relayLocked(id)
		f.services.renewLocked(func(e *entry) bool { return e.grantedBy(id) })
	case acceleratorKind, BenchmarkKind, CacheKind, NodeGroupKind, storageContainerKind, SecretKind, AccountKind:
		f.resolver.put(obj)
		f.services.renewLocked(func(e *entry) bool {
			return e.acceleratedBy(obj) || e.grantedBy(id) || e.keptBy(obj) || f.resolver.rekeptBy(e, obj) || e.broughtBy(obj)
		})
	case "model":
		f.resolver.put(obj)
		f.services.renewLocked(func(e *entry) bool { return modelRef(e.object) == obj.Key.Name || e.failure != nil })
	case weightKind:
		f.resolver.put(obj)
		f.services.renewLocked(func(e *entry) bool {
			return slices.Contains(e.object.Service.AdapterNames(), obj.Key.Name) || e.failure != nil
		})
	default:
		f.routes.put(obj)
	}
}

func (f *Fleet) object(id ID) (Object, bool) {
	switch {
	case slices.Contains(ingredients, id.Kind):
		return f.resolver.object(id)
	case id.Kind == serviceKind:
	default:
		return f.routes.object(id)
	}
	if e := f.services.presentLocked(id.Key); e != nil {
		return e.object, true
	}
	return Object{}, false
}

// Delete makes an object no longer desired. A service's replicas end in the
// background; a runtime in use stays in the revisions pinned to it.
func (f *Fleet) Delete(_ context.Context, id ID) error {
	f.services.mu.Lock()
	defer f.services.mu.Unlock()
	was, ok := f.object(id)
	if !ok {
		return &NotFoundError{ID: id}
	}
	if err := f.cfg.Store.DeleteObject(id); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	switch {
	case slices.Contains(ingredients, id.Kind):
		f.resolver.remove(id)
		if id.Kind == configMapKind {
			f.relayLocked(id)
		}
		f.services.renewLocked(func(e *entry) bool {
			return e.grantedBy(id) || e.keptBy(was) || f.resolver.rekeptBy(e, was) || e.broughtBy(was)
		})
		f.applied(Change{ID: id, Action: actionDeleted})
	case id.Kind == serviceKind:
		f.services.deleteLocked(id.Key)
	default:
		f.routes.remove(id)
	}
	f.routes.publish(f.services.membersLocked())
	return nil
}

// Sourced lists the objects whose source matches, in order.
func (f *Fleet) Sourced(match func(source string) bool) []ID {
	f.services.mu.Lock()
	defer f.services.mu.Unlock()
	out := f.routes.Sourced(match)
	add := func(o Object) {
		if o.Source != "" && match(o.Source) {
			out = append(out, o.ID())
		}
	}
	f.services.eachLocked(func(e *entry) { add(e.object) })
	for _, o := range f.resolver.objects(func(ID, Object) bool { return true }) {
		add(o)
	}
	slices.SortFunc(out, compareIDs)
	return out
}
