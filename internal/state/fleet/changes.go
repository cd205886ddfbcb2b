package fleet

import (
	"sync"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Changes hands out the keys of changed services, as Platform.Changed wants
// them: each at most once while it waits, so that its queue is bounded by the
// number of services and a slow reader delays nobody. It is safe for concurrent
// use.
type Changes struct {
	out  chan service.Key
	stop chan struct{}
	wake chan struct{} // capacity 1
	once sync.Once

	mu struct {
		sync.Mutex
		waiting map[service.Key]bool
		order   []service.Key
	}
}

// NewChanges makes one that must be closed.
func NewChanges() *Changes {
	c := &Changes{out: make(chan service.Key), stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	c.mu.waiting = map[service.Key]bool{}
	go c.run()
	return c
}

// Add notes that a service changed. It never blocks.
func (c *Changes) Add(k service.Key) {
	c.mu.Lock()
	if !c.mu.waiting[k] {
		c.mu.waiting[k] = true
		c.mu.order = append(c.mu.order, k)
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Changed carries the keys.
func (c *Changes) Changed() <-chan service.Key { return c.out }

// Close ends the handing out. Calls after the first do nothing.
func (c *Changes) Close() { c.once.Do(func() { close(c.stop) }) }

func (c *Changes) next() (service.Key, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.order) == 0 {
		return service.Key{}, false
	}
	k := c.mu.order[0]
	c.mu.order = c.mu.order[1:]
	// Forgotten before it is read: a change from now on is another one.
	delete(c.mu.waiting, k)
	return k, true
}

func (c *Changes) run() {
	for {
		k, ok := c.next()
		if !ok {
			select {
			case <-c.wake:
				continue
			case <-c.stop:
				return
			}
		}
		select {
		case c.out <- k:
		case <-c.stop:
			return
		}
	}
}
