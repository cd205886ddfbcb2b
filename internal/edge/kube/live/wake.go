package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// waker runs one wake of a service at a time.
type waker struct {
	sync.Mutex
	running map[service.Key]chan struct{} // closed at the end
}

// Between two tries of a wake, half of it by chance, and how long one may take:
// a request that is lost on its way is not waited for when it can be sent again.
const (
	firstWakeRetry = 50 * time.Millisecond
	maxWakeRetry   = time.Second
	wakeTimeout    = 5 * time.Second
)

// Wake raises every role of a service that is at 0 to 1, so that a request
// does not wait for the controller, which may be gone. More than that is the
// controller's to decide. It tries until ctx ends; calls for a service that is
// being woken wait for that.
func (v *View) Wake(ctx context.Context, k service.Key) error {
	v.waker.Lock()
	if done := v.waker.running[k]; done != nil {
		v.waker.Unlock()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	done := make(chan struct{})
	v.waker.running[k] = done
	v.waker.Unlock()
	defer func() {
		v.waker.Lock()
		delete(v.waker.running, k)
		v.waker.Unlock()
		close(done)
	}()
	v.mu.Lock()
	record := v.mu.records[k]
	v.mu.Unlock()
	if record == nil {
		return fmt.Errorf("wake %s: the controller has not decided yet how to run it", k)
	}
	for wait := firstWakeRetry; ; wait = min(2*wait, maxWakeRetry) {
		once, cancel := context.WithTimeout(ctx, wakeTimeout)
		err := v.wakeAll(once, k, &record.Revision)
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

func (v *View) wakeAll(ctx context.Context, k service.Key, rev *workload.Revision) error {
	var errs []error
	for i := range rev.Components {
		c := &rev.Components[i]
		if c.Limits.Max == 0 {
			continue // nobody may have one
		}
		if err := v.raise(ctx, k, c); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Role, err))
		}
	}
	return errors.Join(errs...)
}

// raise sets a count that is 0 to 1. The resource version it was read at goes
// along, so that whoever changes it meanwhile has the last word.
func (v *View) raise(ctx context.Context, k service.Key, c *workload.Component) error {
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
	sub := v.cfg.Client.SubResource("scale")
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
		v.cfg.Log.Info("woken", "service", k.String(), "role", c.Role)
	} else if apierrors.IsConflict(err) {
		return fmt.Errorf("its count was changed meanwhile: %w", err) // tried again by the caller
	}
	return err
}
