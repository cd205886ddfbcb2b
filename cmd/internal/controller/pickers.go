package controller

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"roundhouse.dev/roundhouse/cmd/internal/incluster"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	judge "roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube/pools"
)

// pickersWait is how long the status of pools waits until their endpoint pickers
// are known.
const pickersWait = 5 * time.Second

// named are the endpoint pickers that pools name, as far as their status says.
type named struct {
	watch *pools.Pickers // nil: gateways ask none

	mu    sync.Mutex
	known map[service.Key]judge.Picker
}

// name makes what watches them.
func (op *operator) name(cfg *rest.Config) error {
	op.pickers = &named{known: map[service.Key]judge.Picker{}}
	if op.opts.pickers == incluster.PickersIgnore {
		return nil
	}
	w := pools.DefaultPickersConfig()
	w.REST, w.Mapper, w.Namespaces, w.Log = cfg, op.manager.GetRESTMapper(), op.opts.namespaces, op.log
	w.Changed = func(pool service.Key, s pools.PickerState) {
		if op.pickers.put(pool, judge.Picker{Known: true, Own: s.Own, Problem: s.Problem}) {
			op.reroute()
		}
	}
	var err error
	op.pickers.watch, err = pools.NewPickers(w)
	return err
}

// put notes what is known of a pool's picker; false if that is nothing new.
func (n *named) put(pool service.Key, p judge.Picker) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known[pool] == p {
		return false
	}
	n.known[pool] = p
	return true
}

// of says what is known of the pools' pickers; nil where they are ignored. It
// waits for what is not known yet, so that no status is written twice.
func (n *named) of(ctx context.Context, all []*routing.Pool) func(service.Key) judge.Picker {
	if n.watch == nil {
		return nil
	}
	n.forget(all)
	n.watch.Set(all)
	bound, cancel := context.WithTimeout(ctx, pickersWait)
	defer cancel()
	_ = n.watch.Listed(bound) // what is not known is said to be
	return func(pool service.Key) judge.Picker {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.known[pool]
	}
}

// forget forgets the pools that are gone.
func (n *named) forget(all []*routing.Pool) {
	there := make(map[service.Key]bool, len(all))
	for _, p := range all {
		there[p.Key] = true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for k := range n.known {
		if !there[k] {
			delete(n.known, k)
		}
	}
}

func (n *named) close() {
	if n.watch != nil {
		n.watch.Close()
	}
}
