package admin

import (
	"strings"
	"sync"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/journal"
)

// failures are the last ones of services' replicas, as the journal has them. It is
// safe for concurrent use; nil has none.
type failures struct {
	events *journal.Events
	mu     struct {
		sync.Mutex
		read uint64 // the number of the last event that is known
		last map[service.Key]service.Failure
	}
}

func newFailures(events *journal.Events) *failures {
	if events == nil {
		return nil
	}
	f := &failures{events: events}
	f.mu.last = map[service.Key]service.Failure{}
	return f
}

// of is a service's; nil for none. Those of an earlier service of its name do not count.
func (f *failures) of(st fleet.ServiceState) *service.Failure {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readLocked()
	last, ok := f.mu.last[st.Object.Key]
	if !ok || last.Time.Before(st.Object.Created()) {
		return nil
	}
	return &last
}

// forget drops what is known of a service that is deleted.
func (f *failures) forget(k service.Key) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readLocked()
	delete(f.mu.last, k)
}

// readLocked takes in what has happened since.
func (f *failures) readLocked() {
	for {
		p := f.events.After(f.mu.read, pageItems)
		for _, e := range p.Items {
			if e.Reason != history.ReplicaFailed {
				continue
			}
			reason, message, _ := strings.Cut(e.Message, ": ")
			f.mu.last[service.Key{Namespace: e.Namespace, Name: e.Service}] = service.Failure{Reason: reason, Message: message, Time: e.Time,
				Replica: strings.TrimPrefix(e.Object, history.ReplicaPrefix)}
		}
		if len(p.Items) == 0 {
			return
		}
		f.mu.read = p.Last
	}
}
