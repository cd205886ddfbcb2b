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

// maxConflicts bounds how often a write is tried again because another client
// changed the object first.
const maxConflicts = 8

// writer writes objects and records the answers.
type writer struct {
	client   client.Client
	reader   client.Reader // without a cache
	services *services
}

// apply applies one object. An object that the watch does not show is not applied
// by force: if it exists after all, and another client owns it or its count, the
// result is a conflict.
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

// ours reads an object without a cache; nil means that it does not exist. An
// object that is not Roundhouse's is an error.
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

// count sets the number of replicas of an object that will be applied, or leaves
// it out. If the number is absent, or if its last owner leaves it out, the API
// server sets it to 1. So a new object is made with 0, and we own the field until a
// client sets another number by the scale subresource. From then on that client
// owns the field, and we leave it out. While we own it we send the number that was
// read, on condition that the object has not changed since, because a client may
// have raised the number meanwhile.
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

// ownsCount reports whether we own spec.replicas by apply, alone or with others.
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

// send writes one object and records the answer.
func (w *writer) send(ctx context.Context, k service.Key, i id, body *unstructured.Unstructured, how ...client.ApplyOption) error {
	body = body.DeepCopy() // becomes the answer
	how = append(how, client.FieldOwner(shape.FieldManager))
	if err := w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(body), how...); err != nil {
		return err
	}
	w.services.saw(k, i, known(body))
	return nil
}

// remove deletes one object and the objects that it made.
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
