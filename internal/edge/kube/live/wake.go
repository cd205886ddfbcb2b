package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// FieldManager writes the counts that gateways raise.
const FieldManager = "roundhouse-gateway"

// Waker starts services at zero. It is safe for concurrent use.
type Waker struct {
	client   client.Client
	revision func(service.Key) *workload.Revision
	log      *slog.Logger

	mu      sync.Mutex
	running map[service.Key]chan struct{} // closed when the wake has ended
}

// NewWaker returns a Waker that patches counts through c, which must not read
// from a cache. revision returns how a service runs, nil while that is unknown.
func NewWaker(c client.Client, revision func(service.Key) *workload.Revision, log *slog.Logger) *Waker {
	return &Waker{client: c, revision: revision, log: log, running: map[service.Key]chan struct{}{}}
}

// The wait between two attempts of a wake grows from firstWakeRetry to
// maxWakeRetry; half of it is random. wakeTimeout bounds one attempt: one that
// is lost is better sent again than waited for.
const (
	firstWakeRetry = 50 * time.Millisecond
	maxWakeRetry   = time.Second
	wakeTimeout    = 5 * time.Second
)

// Wake raises every role of a service that is at 0 to 1, so that a request
// does not wait for the controller, which may be down. Further replicas are the
// controller's to decide. Wake tries until ctx ends; a call for a service that is
// being woken waits for that wake.
func (w *Waker) Wake(ctx context.Context, k service.Key) error {
	w.mu.Lock()
	if done := w.running[k]; done != nil {
		w.mu.Unlock()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	w.running[k] = done
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.running, k)
		w.mu.Unlock()
		close(done)
	}()
	rev := w.revision(k)
	if rev == nil {
		return fmt.Errorf("wake %s: the controller has not decided yet how to run it", k)
	}
	for wait := firstWakeRetry; ; wait = min(2*wait, maxWakeRetry) {
		once, cancel := context.WithTimeout(ctx, wakeTimeout)
		err := w.wakeAll(once, k, rev)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done():
			return fmt.Errorf("wake %s: %w", k, err)
		}
	}
}

func (w *Waker) wakeAll(ctx context.Context, k service.Key, rev *workload.Revision) error {
	var errs []error
	for i := range rev.Components {
		c := &rev.Components[i]
		if c.Limits.Max == 0 {
			continue // the role may have no replica
		}
		if err := w.raise(ctx, k, c); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Role, err))
		}
	}
	return errors.Join(errs...)
}

// raise sets a count from 0 to 1. The patch names the resource version that was
// read, so that it fails if the count was changed meanwhile.
func (w *Waker) raise(ctx context.Context, k service.Key, c *workload.Component) error {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"})
	if c.Leader != nil || c.Worker != nil {
		o.SetAPIVersion(shape.GroupAPIVersion)
		o.SetKind("LeaderWorkerSet")
	}
	o.SetNamespace(k.Namespace)
	o.SetName(shape.Name(k, c.Role))
	scale := &unstructured.Unstructured{}
	scale.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	sub := w.client.SubResource("scale")
	if err := sub.Get(ctx, o, scale); err != nil {
		return err
	}
	if n, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas"); n > 0 || err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": scale.GetResourceVersion()}, "spec": map[string]any{"replicas": 1}})
	if err != nil {
		return err
	}
	err = sub.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(FieldManager), client.WithSubResourceBody(scale))
	if err == nil {
		w.log.Info("woken", "service", k.String(), "role", c.Role)
	} else if apierrors.IsConflict(err) {
		return fmt.Errorf("the count was changed meanwhile: %w", err) // the caller tries again
	}
	return err
}
