package fleet

import (
	"slices"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// baseKind is the kind in the ID of what services are laid over.
const baseKind = dialect.BaseID

// configMapKind is the kind in the ID of a ConfigMap that services name.
const configMapKind = dialect.ConfigMapID

// laid is a service's object laid over the Bases that it names, with what the ConfigMaps
// say that it names. Where the first cannot be done the manifest's own part is the
// service, and Flaw says why.
func (r *resolver) laid(o Object) Object {
	if o.Service == nil {
		return o
	}
	if len(o.Service.Bases) > 0 {
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
	}
	if from := o.Service.SchedulingFrom; from != nil {
		s := *o.Service
		s.Scheduling = nil
		if m, ok := r.configMap(o.Key.Namespace, from); ok {
			s.Scheduling = m.ConfigMap.Schedulings[from.Key]
		} else {
			r.cfg.Log.Warn("there is no such configuration yet: requests find a replica as without one", "service", o.Key.String(), "configmap", from.Name, "key", from.Key)
		}
		o.Service = &s
	}
	return o
}

// configMap finds the ConfigMap that a service of a namespace takes its scheduling from;
// false where there is none, or not with this key.
func (r *resolver) configMap(namespace string, from *service.ConfigMapKey) (Object, bool) {
	for _, k := range dialect.ConfigMapKeys(namespace, from.Name) {
		if o, ok := r.object(ID{Kind: configMapKind, Key: k}); ok {
			return o, o.ConfigMap.Schedulings[from.Key] != nil
		}
	}
	return Object{}, false
}

// made reports whether e is made of a Base, or of a ConfigMap, of this name.
func (e *entry) made(of ID) bool {
	s := e.object.Service
	if of.Kind == baseKind {
		return slices.Contains(s.Bases, of.Name)
	}
	return s.SchedulingFrom != nil && s.SchedulingFrom.Name == of.Name
}

// relayLocked lays every service that is made of this object over its Bases and
// ConfigMaps again, and has it resolved anew.
func (f *Fleet) relayLocked(of ID) {
	f.services.renewLocked(func(e *entry) bool {
		if !e.made(of) {
			return false
		}
		e.object = f.resolver.laid(e.object)
		return true
	})
}
