// Package pools watches what InferencePools and HTTPRoutes refer to: the pods that
// pools select, and Services.
package pools

import (
	"context"
	"sync"
)

// watches runs one watch for each object that pools refer to.
type watches struct {
	ctx context.Context
	end context.CancelFunc
	all sync.WaitGroup
}

func newWatches() *watches {
	w := &watches{}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

// close ends all watches and waits for them.
func (w *watches) close() {
	w.end()
	w.all.Wait()
}

// watch is one of them.
type watch struct {
	ctx  context.Context
	stop context.CancelFunc
	done chan struct{} // closed when the first list was reported, or never will be
}

func (w *watches) watch() watch {
	ctx, stop := context.WithCancel(w.ctx)
	return watch{ctx, stop, make(chan struct{})}
}

// begin calls run in a goroutine of its own; run calls listed when the first
// list was reported, and returns when the watch has ended.
func (w *watches) begin(one watch, run func(listed func())) {
	w.all.Go(func() {
		listed := sync.OnceFunc(func() { close(one.done) })
		defer listed()
		run(listed)
	})
}

// wait waits until the first list was reported.
func (w watch) wait(ctx context.Context) error {
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
