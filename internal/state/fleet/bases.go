package fleet

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// baseKind is the kind in the ID of what services are laid over.
const baseKind = dialect.BaseID

// laid is a service's object laid over the Bases that it names. Where that cannot
// be done the manifest's own part is the service, and Flaw says why.
func (r *resolver) laid(o Object) Object {
	if o.Service == nil || len(o.Service.Bases) == 0 {
		return o
	}
	at := dialect.Process
	if r.cfg.Cluster {
		at = dialect.Kubernetes
	}
	o.Flaw = ""
	s, err := dialect.Over(o.Object, func(k service.Key) (dialect.Object, bool) {
		base, ok := r.object(ID{Kind: baseKind, Key: k})
		return base.Object, ok
	}, at)
	if err != nil {
		o.Flaw = err.Error()
	}
	o.Service = s
	return o
}

// over reports whether e is laid over a Base of this name.
func (e *entry) over(name string) bool { return slices.Contains(e.object.Service.Bases, name) }

// relayLocked lays every service over its Bases again that names this one, and has
// it resolved anew.
func (f *Fleet) relayLocked(name string) {
	f.services.renewLocked(func(e *entry) bool {
		if !e.over(name) {
			return false
		}
		e.object = f.resolver.laid(e.object)
		return true
	})
}
