package modelcaches

import (
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// seen is the state of the cluster as the watches have told it. Objects in it do not
// change; others take their place.
type seen struct {
	changed func()

	mu     sync.Mutex
	listed bool
	sets   map[client.ObjectKey]*appsv1.DaemonSet
	pods   map[client.ObjectKey]*corev1.Pod
}

func newSeen(changed func()) *seen {
	s := &seen{changed: changed}
	s.reset()
	return s
}

// reset forgets everything, before new watches begin.
func (s *seen) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed, s.sets, s.pods = false, map[client.ObjectKey]*appsv1.DaemonSet{}, map[client.ObjectKey]*corev1.Pod{}
}

// object notes what keeps a model, or a pod.
func (s *seen) object(o any, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := o.(type) {
	case *appsv1.DaemonSet:
		put(s.sets, client.ObjectKeyFromObject(o), o, exists)
	case *corev1.Pod:
		put(s.pods, client.ObjectKeyFromObject(o), o, exists)
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

func (s *seen) list() {
	s.mu.Lock()
	s.listed = true
	s.mu.Unlock()
	s.changed()
}

func (s *seen) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed
}

// world is the state at one moment.
type world struct {
	sets map[client.ObjectKey]*appsv1.DaemonSet // of the controller of a namespace
	// keepers are the pods that make copies, and readers those that say they use one, by its
	// name.
	keepers, readers map[string][]*corev1.Pod
}

func (s *seen) world(system string) world {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := world{sets: map[client.ObjectKey]*appsv1.DaemonSet{}, keepers: map[string][]*corev1.Pod{}, readers: map[string][]*corev1.Pod{}}
	for k, d := range s.sets {
		if d.Labels[shape.LabelKeeper] == system {
			w.sets[k] = d
		}
	}
	for _, p := range slices.Collect(maps.Values(s.pods)) {
		of := w.readers
		switch p.Labels[shape.LabelKeeper] {
		case "":
		case system:
			of = w.keepers
		default:
			continue
		}
		name := p.Labels[shape.LabelModelCache]
		of[name] = append(of[name], p)
	}
	return w
}
