package records

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Who may write records in a namespace can write any format into them. The
// highest format that the installation has written is noted where tenants
// cannot write: in its own namespace.

// StrangeError is the error for a record with a later format than this
// installation has ever written: somebody else wrote it.
type StrangeError struct {
	At     string
	Format int
}

// Error returns a message with the remedy.
func (e *StrangeError) Error() string {
	return fmt.Sprintf("%s claims format %d, which this installation has never written (it writes %d): delete it, and the decision is made anew", e.At, e.Format, Format)
}

// conflicts is how many conflicts with other writers are retried.
const conflicts = 10

// Lead notes in a ConfigMap of the installation's own namespace, as an
// annotation, that records are written in this format from now on, and learns
// from it whether a later one has been. Call it before Read, once this process
// leads. The namespace is the installation's name from then on. After an error
// every later format counts as written: it is better to have no leader than one
// that overwrites a newer version's decisions. api must not read from a cache.
func (s *Store) Lead(ctx context.Context, api client.Client, name client.ObjectKey) (err error) {
	s.mu.Lock()
	s.mu.installation = name.Namespace
	s.mu.Unlock()
	s.setLater(math.MaxInt)
	for range conflicts {
		var later int
		if later, err = note(ctx, api, name); err == nil {
			s.setLater(later)
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return fmt.Errorf("the format of records, in ConfigMap %s: %w", name, err)
}

// familiar leaves out strange records that no longer exist; one that exists is
// an error.
func (s *Store) familiar(ctx context.Context, k service.Key, of []kept) ([]kept, error) {
	for i := range of {
		if of[i].strange == nil {
			continue
		}
		err := s.client.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: of[i].name}, &appsv1.ControllerRevision{})
		if err == nil {
			err = of[i].strange
		}
		if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	return slices.DeleteFunc(of, func(one kept) bool { return one.strange != nil }), nil
}

func (s *Store) setLater(format int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.later = format
}

// note returns the highest format noted, at least ours.
func note(ctx context.Context, api client.Client, name client.ObjectKey) (int, error) {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	err := api.Get(ctx, name, m)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return 0, err
	}
	text := m.Annotations[AnnotationFormat]
	if text != "" {
		noted, err := strconv.Atoi(text)
		if err != nil {
			return 0, fmt.Errorf("its annotation %s is no number: remove it", AnnotationFormat)
		}
		if noted >= Format {
			return noted, nil
		}
	}
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, AnnotationFormat, strconv.Itoa(Format))
	if missing {
		return Format, api.Create(ctx, m)
	}
	return Format, api.Update(ctx, m)
}
