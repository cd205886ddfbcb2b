package platform

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// services is what is known of every service: the observed objects and pods, and
// what the last revision wants. It sends nothing to the cluster.
type services struct {
	now     func() time.Time
	notices *notices
	surged  func(service.Key) // called with services whose surge may be over

	mu    sync.Mutex
	all   map[service.Key]*observed
	order int // of the pod last seen
	// scalers counts the HorizontalPodAutoscalers of what they scale.
	scalers scalers
}

// observed is what is known of one service. services.mu guards it.
type observed struct {
	key     service.Key
	objects map[id]object
	pods    map[string]member
	// starts are those of the service's groups, while it has an object with groups.
	starts map[groupID]start
	// wanted are the objects of the revision last applied.
	wanted map[id]bool
	// rendered is what each of them has as applied, once it is written.
	rendered map[id]string
	roles    map[service.Role]role
	// removed: the remaining objects are being deleted.
	removed bool
}

// member is a pod and its number in the order in which pods were seen. The times
// of creation are not enough to order pods, since they are in whole seconds.
type member struct {
	*corev1.Pod // shared with the watch's cache: nobody changes it
	order       int
}

// role is what the revision last applied says of a role's replicas.
type role struct {
	pods.Role
	external bool // the manifest leaves the count to an autoscaler outside Roundhouse
	// resource: the role scales by the use of a resource; measured: our
	// autoscaler does that.
	resource, measured bool
}

func newServices(now func() time.Time, n *notices, surged func(service.Key)) *services {
	return &services{now: now, notices: n, surged: surged, all: map[service.Key]*observed{}, scalers: scalers{}}
}

// of returns what is known of a service, and makes an entry for a new one. The
// lock is held.
func (s *services) of(k service.Key) *observed {
	o := s.all[k]
	if o == nil {
		o = &observed{key: k, objects: map[id]object{}, pods: map[string]member{}}
		s.all[k] = o
	}
	return o
}

// tidy forgets a service that has nothing left. The lock is held.
func (s *services) tidy(h *observed) {
	if len(h.objects) == 0 && len(h.pods) == 0 && len(h.wanted) == 0 {
		delete(s.all, h.key)
	}
}

// saw records an object from a watch or an answer. An object with our labels and a
// name that we do not give is a copy (`kubectl expose` copies labels), which we
// must not delete.
func (s *services) saw(k service.Key, i id, o object) {
	if i.name != shape.Name(k, o.role) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(k)
	before, known := h.objects[i]
	if known && older(o.version, before.version) {
		return
	}
	var e event
	o.writing, o.since = -1, s.now()
	if known && before.uid == o.uid {
		o.writing, o.raised = before.writing, before.raised
		if o.count == before.count {
			o.since = before.since
		}
		// A leader that was stopped for longer than its lease may write late what
		// it had decided.
		if want := h.rendered[i]; want != "" && before.applied == want && o.applied != want && !o.deleting {
			e.drifted = true
		}
		// An autoscaler decides this count, not we; and an object that is being
		// deleted has no count to keep.
		if !h.scaledByOthers(i, o, s.scalers) && !o.deleting && o.count != o.writing {
			switch {
			case o.count > before.count:
				e.raised, o.raised = o.count, true
			case o.count < before.count:
				e.drifted, o.raised = true, false
			}
		}
	}
	h.objects[i] = o
	s.settle(h)
	s.notices.add(k, e)
}

// lost records that an object is gone.
func (s *services) lost(k service.Key, i id, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(k)
	// One of the same name may have been made since.
	if o, known := h.objects[i]; !known || o.uid != uid {
		s.tidy(h)
		return
	}
	delete(h.objects, i)
	if i.kind == kindGroups {
		h.starts = nil
	}
	e := event{drifted: h.wanted[i] && !h.removed}
	s.tidy(h)
	s.notices.add(k, e)
}

// sawPod records a pod; nil means that it is gone.
func (s *services) sawPod(k service.Key, name string, pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(k)
	if pod != nil {
		m, known := h.pods[name]
		if !known || m.UID != pod.UID {
			s.order++
			m.order = s.order
		}
		m.Pod = pod
		h.pods[name] = m
		h.started(pod)
	} else {
		delete(h.pods, name)
		s.tidy(h)
	}
	s.settle(h)
	s.notices.add(k, event{})
}

// want records the revision that is applied, which the watches do not show.
func (s *services) want(r workload.Revision, objects []rendered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(r.Service)
	h.removed, h.wanted, h.roles = false, map[id]bool{}, map[service.Role]role{}
	h.rendered = map[id]string{}
	for _, o := range objects {
		h.wanted[o.id], h.rendered[o.id] = true, o.applied
	}
	for _, c := range r.Components {
		http, grpc := shape.Ports(c, r.Protocol)
		main := c.Main
		if c.Leader != nil {
			main = c.Leader.Main
		}
		h.roles[c.Role] = role{Role: pods.Role{HTTP: http, GRPC: grpc, Metrics: c.Exports(), Main: main, Startup: c.Limits.StartupTimeout},
			external: shape.ExternallyScaled(r.Annotations) || shape.ExternallyScaled(c.Annotations),
			resource: c.Limits.ByResource(),
			measured: h.wanted[id{kindScaler, shape.Name(r.Service, c.Role)}]}
	}
}

// expect records how an object will be written.
func (s *services) expect(k service.Key, o rendered) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.of(k); h.rendered != nil {
		h.rendered[o.id] = o.applied
	}
}

// plan compares the wanted objects with those that exist.
func (s *services) plan(k service.Key, objects []rendered) (todo []rendered, gone []id) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(k)
	for _, o := range objects {
		if there, ok := h.objects[o.id]; !ok || there.applied != o.applied || there.deleting {
			todo = append(todo, o)
		}
	}
	for _, i := range slices.SortedFunc(maps.Keys(h.objects), id.compare) {
		if !h.wanted[i] {
			gone = append(gone, i)
		}
	}
	return todo, gone
}

// fresh reports whether an object is new, as far as the watch shows, and the count
// that a new object begins with: 0, or the count of the object of the other kind
// that it replaces.
func (s *services) fresh(k service.Key, o rendered) (count int, fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of(k)
	for i, there := range h.objects {
		if i.kind.counted() && i.kind != o.kind && there.role == o.role {
			count = there.count
		}
	}
	_, there := h.objects[o.id]
	return count, !there
}

// remove records that a service will be deleted, and lists its objects in the order
// in which to delete them.
func (s *services) remove(k service.Key) (all []id, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.all[k]
	if h == nil {
		return nil, false
	}
	h.removed, h.wanted, h.rendered, h.roles = true, nil, nil, nil
	s.tidy(h)
	return slices.SortedFunc(maps.Keys(h.objects), id.compare), true
}

// list lists the services that have objects, by name.
func (s *services) list() []service.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]service.Key, 0, len(s.all))
	for k, h := range s.all {
		if !h.removed && len(h.objects) > 0 {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b service.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.WorkloadName(), b.WorkloadName()))
	})
	return out
}

// observe returns a service's replicas, oldest first. Raised counts that the
// callbacks have received are taken as known to the caller from now on.
func (s *services) observe(k service.Key) []replica.Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.all[k]
	if h == nil {
		return nil
	}
	if s.notices.report(k) {
		for i, o := range h.objects {
			o.raised = false
			h.objects[i] = o
		}
	}
	return h.replicas()
}

// replicas lists them, as [pods.Observe] reads them.
func (h *observed) replicas() []replica.Replica {
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
	return pods.Observe(h.key, list, sets, roles)
}

// find looks a pod up by its name.
func (s *services) find(id string) (pod *corev1.Pod, main string, err error) {
	namespace, name, qualified := strings.Cut(id, "/")
	if !qualified {
		namespace, name = "", id
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, h := range s.all {
		found, there := h.pods[name]
		if !there || qualified && k.Namespace != namespace {
			continue
		}
		if pod != nil {
			return nil, "", fmt.Errorf("platform: there is a replica %q in %s and in %s: write %s/%s", name, pod.Namespace, k.Namespace, k.Namespace, name)
		}
		pod, main = found.Pod, h.roles[service.Role(found.Labels[shape.LabelRole])].Main
	}
	if pod == nil {
		return nil, "", fmt.Errorf("platform: no output is kept of replica %q: %w", id, fs.ErrNotExist)
	}
	return pod, main, nil
}

// podsOf lists the pods of a role that are not being deleted.
func (s *services) podsOf(ref workload.Ref) []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.all[ref.Service]
	if h == nil {
		return nil
	}
	var out []*corev1.Pod
	for _, pod := range h.pods {
		if pod.Labels[shape.LabelRole] == string(ref.Role) && pod.DeletionTimestamp == nil {
			out = append(out, pod.Pod)
		}
	}
	return out
}
