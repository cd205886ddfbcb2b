package records

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/usage"
)

// usageTimeout bounds one call for what services used.
const usageTimeout = 10 * time.Second

// Usage keeps what services used, a ConfigMap for each day. Only the controller that
// leads may use it: a day that somebody else has written since it was loaded is not
// saved, and must be loaded again.
type Usage struct {
	client    client.Client
	namespace string

	mu     sync.Mutex
	days   []usage.Day // in order; nil: not listed yet
	loaded map[usage.Day]*corev1.ConfigMap
	// anew are days that could not be understood, which the next Save replaces.
	anew map[usage.Day]bool
}

// NewUsage makes a store in a namespace. c must not cache.
func NewUsage(c client.Client, namespace string) *Usage {
	return &Usage{client: c, namespace: namespace, loaded: map[usage.Day]*corev1.ConfigMap{}, anew: map[usage.Day]bool{}}
}

// Days implements metering.Store.
func (u *Usage) Days() ([]usage.Day, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.days != nil {
		return slices.Clone(u.days), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), usageTimeout)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	if err := u.client.List(ctx, list, client.InNamespace(u.namespace), client.HasLabels{usage.LabelDay}); err != nil {
		return nil, fmt.Errorf("list what services used: %w", err)
	}
	days := []usage.Day{}
	for i := range list.Items {
		if day, err := usage.ParseDay(list.Items[i].Labels[usage.LabelDay]); err == nil && usage.ConfigMapOf(day) == list.Items[i].Name {
			days = append(days, day)
		}
	}
	slices.Sort(days)
	u.days = days
	return slices.Clone(days), nil
}

// Load implements metering.Store. A day that cannot be understood is counted anew.
func (u *Usage) Load(day usage.Day) ([]usage.Row, time.Time, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), usageTimeout)
	defer cancel()
	clear(u.loaded) // one day is written at a time
	m := &corev1.ConfigMap{}
	err := u.client.Get(ctx, u.key(day), m)
	if apierrors.IsNotFound(err) {
		return nil, time.Time{}, nil
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("what services used on %s: %w", day, err)
	}
	u.loaded[day] = m
	rows, counted, err := usage.Decode(day, m.BinaryData[usage.ConfigMapKey])
	if err != nil && u.anew[day] {
		return nil, time.Time{}, nil
	}
	if err != nil {
		u.anew[day] = true
		return nil, time.Time{}, fmt.Errorf("ConfigMap %s/%s: %w; the day is counted anew", m.Namespace, m.Name, err)
	}
	return rows, counted, nil
}

func (u *Usage) key(day usage.Day) client.ObjectKey {
	return client.ObjectKey{Namespace: u.namespace, Name: usage.ConfigMapOf(day)}
}

// Save implements metering.Store.
func (u *Usage) Save(day usage.Day, rows []usage.Row, counted time.Time) error {
	data, err := usage.Encode(rows, counted, usage.MaxEncoded)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), usageTimeout)
	defer cancel()
	m := u.loaded[day]
	delete(u.loaded, day)
	if m == nil {
		key := u.key(day)
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	}
	m.Labels = map[string]string{usage.LabelDay: string(day), shape.LabelManagedBy: shape.Manager}
	m.Data, m.BinaryData = nil, map[string][]byte{usage.ConfigMapKey: data}
	if m.ResourceVersion == "" {
		err = u.client.Create(ctx, m, client.FieldOwner(shape.FieldManager))
	} else {
		err = u.client.Update(ctx, m, client.FieldOwner(shape.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("what services used on %s: %w", day, err)
	}
	if i, known := slices.BinarySearch(u.days, day); !known && u.days != nil {
		u.days = slices.Insert(u.days, i, day)
	}
	return nil
}

// Drop implements metering.Store.
func (u *Usage) Drop(day usage.Day) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), usageTimeout)
	defer cancel()
	key := u.key(day)
	err := u.client.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
	if err = client.IgnoreNotFound(err); err != nil {
		return errors.Join(fmt.Errorf("drop what services used on %s", day), err)
	}
	u.days = slices.DeleteFunc(u.days, func(d usage.Day) bool { return d == day })
	return nil
}
