package fleet

import (
	"slices"
	"strings"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// acceleratorKind is the kind in the ID of a class of accelerators.
const acceleratorKind = dialect.AcceleratorID

// classes are the classes of accelerators that were applied, by their names.
func (r *resolver) classes() []service.AcceleratorClass {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []service.AcceleratorClass
	for _, o := range r.mu.classes {
		out = append(out, *o.Accelerator)
	}
	slices.SortFunc(out, func(a, b service.AcceleratorClass) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// on are the classes of a choice, as its revision is rendered from them.
func on(req selection.Request, rt *service.Runtime, classes service.RoleClasses) map[service.Role]workload.Accelerator {
	entry := selection.Entry(req, rt)
	var out map[service.Role]workload.Accelerator
	for _, role := range []service.Role{service.RoleEngine, service.RoleDecoder} {
		name := classes.Get(role)
		i := slices.IndexFunc(req.Classes, func(c service.AcceleratorClass) bool { return c.Name == name })
		if name == "" || i < 0 {
			continue
		}
		c := req.Classes[i]
		one := workload.Accelerator{Class: c.Name, NodeSelector: c.NodeSelector, Affinity: c.Affinity, Resources: c.Resources}
		if config := entry.On(c.Name); config != nil {
			one.Args, one.Env, one.Parallel = config.Args, config.Env, config.Parallel
		}
		if out == nil {
			out = map[service.Role]workload.Accelerator{}
		}
		out[role] = one
	}
	return out
}

// acceleratedBy reports whether a change of o, if that is a class, could matter to e:
// it runs on it, names it, or has none to run on.
func (e *entry) acceleratedBy(o Object) bool {
	class := o.Key.Name
	if o.Accelerator == nil {
		return false
	}
	if e.failure != nil || slices.Contains(e.object.Service.AcceleratorClass, class) {
		return true
	}
	has := service.RoleClasses{}
	if e.record != nil {
		has = e.record.Revision.Runtime.Accelerators
	}
	return has.Engine == class || has.Decoder == class || has == (service.RoleClasses{}) && len(e.object.Service.Accelerators) > 0
}
