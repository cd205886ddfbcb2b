package fleet

import "roundhouse.dev/roundhouse/internal/core/service"

// Drifted says that what the platform made of a service is no longer so, by
// somebody else's doing. Its revision is applied and its counts are set again.
func (f *Fleet) Drifted(k service.Key) {
	f.mu.Lock()
	e := f.mu.services[k]
	if e != nil {
		e.drifted = true
	}
	f.mu.Unlock()
	if e != nil {
		f.queue.add(k)
	}
}

// doubt forgets what the platform was given.
func (w *work) doubt() {
	w.applied = false
	for r, s := range w.roles {
		s.scaled = -1
		w.roles[r] = s
	}
}
