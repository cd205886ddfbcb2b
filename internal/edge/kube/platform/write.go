package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// maxConflicts bounds how often a write is tried again that somebody else came
// before.
const maxConflicts = 8

// writer writes objects, and has the answers noted.
type writer struct {
	client   client.Client
	reader   client.Reader // past every cache
	services *services
}

// apply applies one object. One that the watch does not show is not applied by
// force: should there be one after all, and it be another's, or its count
// somebody's, that is a conflict.
func (w *writer) apply(ctx context.Context, k service.Key, o rendered) error {
	if count, fresh := w.services.fresh(k, o); fresh {
		body := o.body.DeepCopy()
		if o.kind.counted() {
			if err := setCount(body, count); err != nil {
				return err
			}
		}
		if err := w.send(ctx, k, o.id, body); !apierrors.IsConflict(err) {
			return err
		}
		if _, err := w.ours(ctx, k, o.id); err != nil {
			return err
		}
	}
	for try := 0; ; try++ {
		body := o.body.DeepCopy()
		if err := w.count(ctx, k, o, body); err != nil {
			return err
		}
		err := w.send(ctx, k, o.id, body, client.ForceOwnership)
		if !apierrors.IsConflict(err) || try >= maxConflicts {
			return err
		}
	}
}

// ours reads an object past every cache; nil is one that is not there. That of
// somebody else is an error.
func (w *writer) ours(ctx context.Context, k service.Key, i id) (*unstructured.Unstructured, error) {
	live := newUnstructured(i.kind.gvk())
	err := w.reader.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: i.name}, live)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case live.GetLabels()[shape.LabelManagedBy] != shape.Manager:
		return nil, errors.New("there is one of this name that is not Roundhouse's: delete it, or rename the service")
	case live.GetDeletionTimestamp() != nil:
		return nil, errors.New("somebody is deleting it: it is made anew once it is gone")
	}
	return live, nil
}

func setCount(body *unstructured.Unstructured, n int) error {
	return unstructured.SetNestedField(body.Object, int64(n), "spec", "replicas")
}

// count puts the number of replicas into what is to be applied, or leaves it
// out. The API server takes an absent number for 1, and an applied field that
// is left out by the last who owned it falls back to that. So a new object is
// made with 0, which we then own, until somebody sets another by the scale
// subresource: from then on it is theirs and left out. As long as we own it,
// it is sent as it is, on condition that the object is still the one that was
// read, since between the two somebody may have raised it.
func (w *writer) count(ctx context.Context, k service.Key, o rendered, body *unstructured.Unstructured) error {
	if !o.kind.counted() {
		return nil
	}
	live, err := w.ours(ctx, k, o.id)
	switch {
	case err != nil:
		return err
	case live == nil:
		n, _ := w.services.fresh(k, o)
		return setCount(body, n)
	case o.kind == kindGroups && surging(live):
		surge(body) // as it is, until the last of them is settled
	case w.services.surges(k, o, live):
		surge(body)
		body.SetResourceVersion(live.GetResourceVersion())
		return setCount(body, replicasOf(live)+1)
	}
	if ownsCount(live.GetManagedFields()) {
		body.SetResourceVersion(live.GetResourceVersion())
		return setCount(body, replicasOf(live))
	}
	return nil
}

// ownsCount reports whether we are among those who own spec.replicas by apply.
func ownsCount(entries []metav1.ManagedFieldsEntry) bool {
	for _, e := range entries {
		if e.Manager != shape.FieldManager || e.Operation != metav1.ManagedFieldsOperationApply || e.Subresource != "" || e.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields); err == nil {
			if _, owned := fields.Spec["f:replicas"]; owned {
				return true
			}
		}
	}
	return false
}

// send writes one object and takes the answer in.
func (w *writer) send(ctx context.Context, k service.Key, i id, body *unstructured.Unstructured, how ...client.ApplyOption) error {
	body = body.DeepCopy() // becomes the answer
	how = append(how, client.FieldOwner(shape.FieldManager))
	if err := w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(body), how...); err != nil {
		return err
	}
	w.services.saw(k, i, known(body))
	return nil
}

// remove deletes one object and what it made.
func (w *writer) remove(ctx context.Context, k service.Key, i id) error {
	o := newUnstructured(i.kind.gvk())
	o.SetNamespace(k.Namespace)
	o.SetName(i.name)
	err := w.client.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("platform: delete %s %s/%s: %w", i.kind, k.Namespace, i.name, err)
	}
	return nil
}
