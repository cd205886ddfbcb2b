package platform

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// event is what Config.Raised and Config.Drifted are called with for a service.
type event struct {
	raised  int // to this count
	drifted bool
}

// notices holds the services that changed, for Platform.Changed, and the events
// that the callbacks have not received yet. Callbacks run in a goroutine of their
// own, because the caller of Apply or Scale may hold a lock that they need.
type notices struct {
	keys    workqueue.TypedInterface[service.Key]
	changed chan service.Key
	events  workqueue.TypedInterface[service.Key] // the services in pending

	mu      sync.Mutex
	pending map[service.Key]event // empty while its callback runs
}

func newNotices() *notices {
	return &notices{keys: workqueue.NewTyped[service.Key](), changed: make(chan service.Key),
		events: workqueue.NewTyped[service.Key](), pending: map[service.Key]event{}}
}

// add notes that a service changed.
func (n *notices) add(k service.Key, e event) {
	n.keys.Add(k)
	if e == (event{}) {
		return
	}
	n.mu.Lock()
	before := n.pending[k]
	n.pending[k] = event{max(before.raised, e.raised), before.drifted || e.drifted}
	n.mu.Unlock()
	n.events.Add(k)
}

// report reports whether the callbacks have received everything that happened to
// a service.
func (n *notices) report(k service.Key) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, pending := n.pending[k]
	return !pending
}

// run hands out the keys of changed services until ctx ends. The queue holds
// each at most once.
func (n *notices) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, n.keys.ShutDown)
	defer stop()
	for {
		k, down := n.keys.Get()
		if down {
			return
		}
		n.keys.Done(k) // a later change is queued again
		select {
		case n.changed <- k:
		case <-ctx.Done():
			return
		}
	}
}

// callBack runs the callbacks until ctx ends.
func (n *notices) callBack(ctx context.Context, raised func(service.Key, int), drifted func(service.Key)) {
	stop := context.AfterFunc(ctx, n.events.ShutDown)
	defer stop()
	for {
		k, down := n.events.Get()
		if down {
			return
		}
		n.mu.Lock()
		e := n.pending[k]
		n.pending[k] = event{} // its callback runs
		n.mu.Unlock()
		if e.raised > 0 {
			raised(k, e.raised)
		}
		if e.drifted {
			drifted(k)
		}
		n.mu.Lock()
		if n.pending[k] == (event{}) {
			delete(n.pending, k)
		}
		n.mu.Unlock()
		n.events.Done(k)
	}
}
