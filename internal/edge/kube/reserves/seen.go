package reserves

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/reserve"
)

// seen is the state of the cluster as the watches have told it. Objects in it do not
// change; others take their place.
type seen struct {
	changed func()
	pod     func(before, now *corev1.Pod) // before is nil of one that is new

	mu          sync.Mutex
	listed      [2]bool // the Reserves, and the other objects
	reserves    map[client.ObjectKey]*unstructured.Unstructured
	nodes       map[string]reserve.Node
	deployments map[client.ObjectKey]*appsv1.Deployment
	pods        map[client.ObjectKey]*corev1.Pod
	jobs        map[client.ObjectKey]*batchv1.Job
}

func newSeen(changed func(), pod func(before, now *corev1.Pod)) *seen {
	s := &seen{changed: changed, pod: pod}
	s.reset()
	return s
}

// reset forgets everything, before new watches begin.
func (s *seen) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = [2]bool{}
	s.reserves, s.nodes = map[client.ObjectKey]*unstructured.Unstructured{}, map[string]reserve.Node{}
	s.deployments, s.pods, s.jobs = map[client.ObjectKey]*appsv1.Deployment{}, map[client.ObjectKey]*corev1.Pod{}, map[client.ObjectKey]*batchv1.Job{}
}

// reserve notes a Reserve.
func (s *seen) reserve(o any, exists bool) {
	if u, ok := o.(*unstructured.Unstructured); ok {
		s.mu.Lock()
		put(s.reserves, client.ObjectKeyFromObject(u), u, exists)
		s.mu.Unlock()
		s.changed()
	}
}

// object notes a node, or what belongs to a Reserve.
func (s *seen) object(o any, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := o.(type) {
	case *corev1.Node:
		n := nodeOf(o)
		if before, there := s.nodes[o.Name]; there && exists && reflect.DeepEqual(before, n) {
			return // a heartbeat
		}
		put(s.nodes, o.Name, n, exists)
	case *appsv1.Deployment:
		put(s.deployments, client.ObjectKeyFromObject(o), o, exists)
	case *corev1.Pod:
		s.pod(s.pods[client.ObjectKeyFromObject(o)], o)
		put(s.pods, client.ObjectKeyFromObject(o), o, exists)
	case *batchv1.Job:
		put(s.jobs, client.ObjectKeyFromObject(o), o, exists)
	default:
		return
	}
	s.changed()
}

func put[K comparable, V any](into map[K]V, k K, v V, exists bool) {
	if into[k] = v; !exists {
		delete(into, k)
	}
}

func (s *seen) listedReserves() { s.list(0) }
func (s *seen) listedObjects()  { s.list(1) }

func (s *seen) list(i int) {
	s.mu.Lock()
	s.listed[i] = true
	s.mu.Unlock()
	s.changed()
}

// ready reports whether everything that is watched has been listed; all includes
// the other objects.
func (s *seen) ready(all bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed[0] && (!all || s.listed[1])
}

// any reports whether there is a Reserve.
func (s *seen) any() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reserves) > 0
}

// world is the state at one moment.
type world struct {
	reserves    []*unstructured.Unstructured // by namespace and name
	nodes       []reserve.Node
	deployments map[client.ObjectKey]*appsv1.Deployment
	pods        []*corev1.Pod
	jobs        []*batchv1.Job
}

func (s *seen) world() world {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := world{reserves: slices.Collect(maps.Values(s.reserves)), nodes: slices.Collect(maps.Values(s.nodes)),
		deployments: maps.Clone(s.deployments), pods: slices.Collect(maps.Values(s.pods)), jobs: slices.Collect(maps.Values(s.jobs))}
	slices.SortFunc(w.reserves, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return w
}
