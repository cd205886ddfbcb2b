package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// Change is what Apply or Delete did with one object.
type Change struct {
	ID     ID
	Action string // "created", "configured", "unchanged", "deleted"
}

const (
	actionCreated    = "created"
	actionConfigured = "configured"
	actionUnchanged  = "unchanged"
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
	case bytes.Equal(before.Original, now.Original) && maps.Equal(before.URIs, now.URIs) && before.Source == now.Source:
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
	moved := f.moved(ctx, objects)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.admit(objects); err != nil {
		return nil, err
	}
	var out []Change
	defer func() {
		if slices.ContainsFunc(out, func(c Change) bool { return c.Action != actionUnchanged }) {
			f.publishRoutes()
		}
	}()
	for _, obj := range objects {
		change, err := f.put(obj, o)
		if change.Action == actionUnchanged && f.refresh(obj, moved) {
			change.Action = actionConfigured
		}
		if err != nil {
			return out, err
		}
		out = append(out, change)
	}
	return out, nil
}

// admit refuses runtimes between which a choice would be arbitrary, and changes
// of what may not change.
func (f *Fleet) admit(objects []Object) error {
	if err := f.routes.admit(objects); err != nil {
		return err
	}
	all := map[ID]service.Runtime{}
	for _, o := range f.resolver.objects(func(id ID, _ Object) bool { return id.Kind == runtimeKind }) {
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

func (f *Fleet) put(obj Object, o ApplyOptions) (Change, error) {
	id := obj.ID()
	before, known := f.object(id)
	change := compare(&obj, before, known, f.cfg.Now())
	if change.Action == actionUnchanged && !o.Reselect {
		f.nudge(id)
		return change, nil
	}
	if err := f.cfg.Store.PutObject(obj); err != nil {
		return change, fmt.Errorf("%s: %w", id, err)
	}
	switch id.Kind {
	case serviceKind:
		e := f.mu.services[id.Key]
		if e == nil || e.deleted {
			e = newEntry(obj)
			f.mu.services[id.Key] = e
			f.cfg.Traffic.Publish(f.view(f.workOn(id.Key, e))) // requests wait from now on
		} else {
			e.object = obj
			e.renew()
		}
		e.reselect = e.reselect || o.Reselect
		f.queue.fresh(id.Key)
	case runtimeKind:
		f.resolver.put(obj)
		f.touch(func(e *entry) bool { return uses(e, obj.Key.Name) })
	case "model":
		f.resolver.put(obj)
		f.touch(func(e *entry) bool { return modelRef(e.object) == obj.Key.Name || e.failure != nil })
	case weightKind:
		f.resolver.put(obj)
		f.touch(func(e *entry) bool {
			return slices.Contains(e.object.Service.AdapterNames(), obj.Key.Name) || e.failure != nil
		})
	default:
		f.routes.put(obj)
	}
	return change, nil
}

// refresh has the services looked at now whose model's files have changed, of
// those that obj is or is a model of; false when there is none.
func (f *Fleet) refresh(obj Object, moved map[service.Key]bool) (any bool) {
	f.touch(func(e *entry) bool {
		is := moved[e.object.Key] && obj.concerns(e)
		any = any || is
		return is
	})
	return any
}

// nudge has a service that could not be run, or whose canary could not, looked
// at now: whoever applies it again has often just mended what it lacked.
func (f *Fleet) nudge(id ID) {
	if id.Kind == serviceKind {
		f.touch(func(e *entry) bool { return e.object.Key == id.Key && e.failure != nil })
	}
}

// uses says whether a change of the runtime of this name could matter to e:
// it runs on it, asks for it, or has none.
func uses(e *entry, name string) bool {
	s := e.object.Service
	return e.failure != nil || e.record == nil || e.record.Revision.Runtime.Name == name ||
		s.Runtime != nil && s.Runtime.Name == name
}

func modelRef(o Object) string {
	if m := o.Service.Model; m != nil && m.Ref != nil {
		return m.Ref.Name
	}
	return ""
}

// renew has what is desired resolved anew, as a generation of its own: a status
// of the one before is no verdict on it.
func (e *entry) renew() {
	e.stale, e.retry, e.generation = true, retry{}, e.generation+1
}

// touch has every service that matches looked at again.
func (f *Fleet) touch(match func(*entry) bool) {
	for k, e := range f.mu.services {
		if match(e) {
			e.renew()
			f.queue.fresh(k)
		}
	}
}

func (f *Fleet) object(id ID) (Object, bool) {
	switch id.Kind {
	case runtimeKind, "model", weightKind:
		return f.resolver.object(id)
	case serviceKind:
	default:
		return f.routes.object(id)
	}
	if e := f.mu.services[id.Key]; e != nil && !e.deleted {
		return e.object, true
	}
	return Object{}, false
}

// Delete makes an object no longer desired. A service's replicas end in the
// background; a runtime in use stays in the revisions pinned to it.
func (f *Fleet) Delete(_ context.Context, id ID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.object(id); !ok {
		return &NotFoundError{ID: id}
	}
	if err := f.cfg.Store.DeleteObject(id); err != nil {
		return fmt.Errorf("%s: %w", id, err)
	}
	switch id.Kind {
	case runtimeKind, "model", weightKind:
		f.resolver.remove(id)
	case serviceKind:
		f.mu.services[id.Key].deleted = true
		f.queue.fresh(id.Key)
		f.endCanaryLocked(id.Key)
	default:
		f.routes.remove(id)
	}
	f.publishRoutes()
	return nil
}

// Sourced lists the objects whose source matches, in order.
func (f *Fleet) Sourced(match func(source string) bool) []ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.routes.Sourced(match)
	add := func(o Object) {
		if o.Source != "" && match(o.Source) {
			out = append(out, o.ID())
		}
	}
	for k, e := range f.mu.services {
		if !e.deleted && !k.IsCanary() {
			add(e.object)
		}
	}
	for _, o := range f.resolver.objects(func(ID, Object) bool { return true }) {
		add(o)
	}
	slices.SortFunc(out, compareIDs)
	return out
}
