package live

import (
	"sync"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// notifier hands out the keys of changed services, each at most once while it
// waits, so that its queue is bounded by the number of services.
type notifier struct {
	out  chan service.Key
	stop chan struct{}
	wake chan struct{} // capacity 1
	once sync.Once

	mu      sync.Mutex
	waiting map[service.Key]bool
	order   []service.Key
}

func newNotifier() *notifier {
	n := &notifier{out: make(chan service.Key), stop: make(chan struct{}), wake: make(chan struct{}, 1), waiting: map[service.Key]bool{}}
	go n.run()
	return n
}

func (n *notifier) add(k service.Key) {
	n.mu.Lock()
	if !n.waiting[k] {
		n.waiting[k] = true
		n.order = append(n.order, k)
	}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *notifier) next() (service.Key, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.order) == 0 {
		return service.Key{}, false
	}
	k := n.order[0]
	n.order = n.order[1:]
	delete(n.waiting, k) // a change from now on is another one
	return k, true
}

func (n *notifier) run() {
	for {
		k, ok := n.next()
		if !ok {
			select {
			case <-n.wake:
				continue
			case <-n.stop:
				return
			}
		}
		select {
		case n.out <- k:
		case <-n.stop:
			return
		}
	}
}

func (n *notifier) close() { n.once.Do(func() { close(n.stop) }) }
