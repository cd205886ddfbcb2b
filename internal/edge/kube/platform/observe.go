package platform

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
)

// observe lists the replicas, as [pods.Observe] reads them.
func (h *held) observe(k service.Key) []replica.Replica {
	members := slices.SortedFunc(maps.Values(h.pods), func(a, b member) int { return cmp.Compare(a.order, b.order) })
	list := make([]*corev1.Pod, len(members))
	for i, m := range members {
		list[i] = m.Pod
	}
	var sets []pods.Set
	for i, o := range h.objects {
		if i.kind.counted() && !o.deleting && !h.removed {
			sets = append(sets, pods.Set{Name: i.name, Role: o.role, Revision: o.revision, Count: o.count, Since: o.since, Refused: o.refused, Failures: h.failures(o.role)})
		}
	}
	slices.SortFunc(sets, func(a, b pods.Set) int { return cmp.Compare(a.Name, b.Name) })
	roles := make(map[service.Role]pods.Role, len(h.roles))
	for name, r := range h.roles {
		roles[name] = r.Role
	}
	return pods.Observe(k, list, sets, roles)
}
