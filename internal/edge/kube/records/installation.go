package records

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// AnnotationInstallation on a record names the namespace of the installation
// that made it, of which a cluster may have several. Who changes it hands the
// service over.
const AnnotationInstallation = "roundhouse.dev/installation"

// ElsewhereError says that another installation looks after a service.
type ElsewhereError struct {
	Service            service.Key
	Installation, Ours string
}

// Error says what to do.
func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("the installation in namespace %[1]s looks after %[2]s, and the one in %[3]s stands back: have one of them leave namespace %[4]s out. If that one is gone: kubectl annotate controllerrevisions -n %[4]s -l %[5]s --overwrite %[6]s=%[3]s",
		e.Installation, e.Service, e.Ours, e.Service.Namespace, shape.LabelRecord, AnnotationInstallation)
}

// Elsewhere says that another installation looks after a service, or its
// canary; nil when none does.
func (s *Store) Elsewhere(k service.Key) *ElsewhereError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by := s.mu.elsewhere[k.Stable()]; by != "" {
		return &ElsewhereError{k.Stable(), by, s.mu.installation}
	}
	return nil
}

// Look finds out anew who looks after the service of a record that has come,
// changed or gone, from the cache, and says whether that is another now, and
// whether that is us, with a decision that was another's.
func (s *Store) Look(ctx context.Context, cr *appsv1.ControllerRevision) (k service.Key, changed, inherited bool, err error) {
	k = serviceOf(cr).Stable()
	if k.Name == "" {
		return k, false, false, nil
	}
	var list appsv1.ControllerRevisionList
	err = s.client.List(ctx, &list, client.InNamespace(k.Namespace), client.MatchingLabels{shape.LabelRecord: "true"}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return k, false, false, fmt.Errorf("list the records of %s: %w", k, err)
	}
	var best *appsv1.ControllerRevision
	for i := range list.Items {
		if one := &list.Items[i]; serviceOf(one) == k && (best == nil || Counts(one, best)) {
			best = one
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.mu.elsewhere[k]
	s.attribute(k, best)
	now := s.mu.elsewhere[k]
	return k, now != before, now != before && now == "" && best != nil, nil
}

func serviceOf(cr *appsv1.ControllerRevision) service.Key {
	return service.Key{Namespace: cr.Namespace, Name: cr.Annotations[shape.AnnotationService]}
}

// Counts says whether a counts rather than b, of one service: it is the later
// decision; of two with one number, which two leaders or installations made, the
// first.
func Counts(a, b *appsv1.ControllerRevision) bool {
	x, y := a.CreationTimestamp.Time, b.CreationTimestamp.Time
	switch {
	case a.Revision != b.Revision:
		return a.Revision > b.Revision
	case !x.Equal(y):
		return x.Before(y)
	}
	return strings.Compare(a.Annotations[AnnotationInstallation]+a.Name, b.Annotations[AnnotationInstallation]+b.Name) < 0
}

// attribute notes whose a service is by the record that counts, nil for none.
// s.mu is held.
func (s *Store) attribute(k service.Key, newest *appsv1.ControllerRevision) {
	delete(s.mu.elsewhere, k)
	if newest == nil || s.mu.installation == "" {
		return
	}
	if by := newest.Annotations[AnnotationInstallation]; by != "" && by != s.mu.installation {
		s.mu.elsewhere[k] = by
	}
}
