package modelserver

import (
	"context"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// instance is one loaded model and how many use it. The registry's own use
// counts as one; when the count reaches zero the instance is drained and takes
// no new users.
type instance struct {
	model   Model
	name    string
	version string
	stated  []string // the versions that the model's settings state
	meter   meter
	routes  *customRoutes // nil: none
	batcher *batcher      // nil: every request runs alone
	number  uint64        // its own, never given again
	cached  bool          // responses may be kept
	// unfilled is set once a tensor whose data do not fill its shape has been logged.
	unfilled atomic.Bool
	users    atomic.Int64
	loaded   time.Time
	drained  chan struct{}
}

var instances atomic.Uint64 // that there have been

func newInstance(m Model, name, version string) *instance {
	i := &instance{model: m, name: name, version: version, number: instances.Add(1), loaded: time.Now(), drained: make(chan struct{}), meter: meter{stats: &statistics{}}}
	i.users.Store(1)
	return i
}

// infer answers a request. The caller holds a use.
func (i *instance) infer(ctx context.Context, r *tensor.Request) (*tensor.Response, error) {
	if i.batcher != nil {
		return i.batcher.infer(ctx, r)
	}
	began := time.Now()
	response, err := i.model.Infer(ctx, r)
	if err == nil {
		i.meter.stats.waited(0)
		i.meter.stats.executed(1, time.Since(began))
	}
	return response, err
}

// ready reports whether the model can answer.
func (i *instance) ready() bool {
	r, ok := i.model.(Readier)
	return !ok || r.Ready()
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
