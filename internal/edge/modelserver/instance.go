package modelserver

import (
	"context"
	"sync/atomic"
)

// instance is one loaded model and how many use it. The registry's own use
// counts as one; when the count reaches zero the instance is drained and takes
// no new users.
type instance struct {
	model   Model
	name    string
	version string
	meter   meter
	routes  *customRoutes // nil: none
	users   atomic.Int64
	drained chan struct{}
}

func newInstance(m Model, routes *customRoutes, name, version string, meter meter) *instance {
	i := &instance{model: m, routes: routes, name: name, version: version, meter: meter, drained: make(chan struct{})}
	i.users.Store(1)
	return i
}

// acquire begins a use; false if the instance is drained.
func (i *instance) acquire() bool {
	for {
		n := i.users.Load()
		if n == 0 {
			return false
		}
		if i.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// release ends a use.
func (i *instance) release() {
	if i.users.Add(-1) == 0 {
		close(i.drained)
	}
}

// retire ends the registry's use, waits for the others and closes the model.
// When ctx ends first the model is closed all the same once its last user
// leaves.
func (i *instance) retire(ctx context.Context) error {
	i.release()
	select {
	case <-i.drained:
		return i.model.Close(ctx)
	case <-ctx.Done():
		go func() {
			<-i.drained
			_ = i.model.Close(context.Background()) // nobody is left to tell
		}()
		return ctx.Err()
	}
}
