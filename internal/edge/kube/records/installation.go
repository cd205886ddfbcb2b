package records

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
)

// AnnotationInstallation on a record names the namespace of the installation
// that made it, of which a cluster may have several. To change it is to hand
// the service over.
const AnnotationInstallation = "roundhouse.dev/installation"

// OtherInstallationError is the error for a service that another installation
// manages.
type OtherInstallationError struct {
	Service            service.Key
	Installation, Ours string
}

// Error returns a message with the remedy.
func (e *OtherInstallationError) Error() string {
	return fmt.Sprintf("%[2]s is managed by the installation in namespace %[1]s; the one in %[3]s leaves it alone. Only one of them may watch namespace %[4]s. If the other is gone: kubectl annotate controllerrevisions -n %[4]s -l %[5]s --overwrite %[6]s=%[3]s",
		e.Installation, e.Service, e.Ours, e.Service.Namespace, shape.LabelRecord, AnnotationInstallation)
}

// OtherInstallation returns an error if another installation manages a service,
// or its canary; nil when none does.
func (s *Store) OtherInstallation(k service.Key) *OtherInstallationError {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by := s.mu.managedBy[k.Stable()]; by != "" {
		return &OtherInstallationError{k.Stable(), by, s.mu.installation}
	}
	return nil
}

// Look decides again, from the cache, which installation manages the service of
// a record that was created, changed or deleted. changed reports whether that
// is a different one now; inherited, whether it is this one, with a decision
// that another made.
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
	s.mu.Lock()
	defer s.mu.Unlock()
	var best *appsv1.ControllerRevision
	arrived := cr.Name == s.mu.unseen[k] // though it may be gone again
	for i := range list.Items {
		one := &list.Items[i]
		if serviceOf(one) != k {
			continue
		}
		arrived = arrived || one.Name == s.mu.unseen[k]
		if best == nil || Counts(one, best) {
			best = one
		}
	}
	if s.mu.unseen[k] != "" && !arrived {
		return k, false, false, nil
	}
	delete(s.mu.unseen, k)
	before := s.mu.managedBy[k]
	s.attribute(k, best)
	now := s.mu.managedBy[k]
	return k, now != before, now != before && now == "" && best != nil, nil
}

// expect notes that a record of a service is on its way into the cache; an
// empty name: none is, since it could not be written.
func (s *Store) expect(k service.Key, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.mu.unseen, k); name != "" && !k.IsCanary() {
		s.mu.unseen[k] = name
	}
}

func serviceOf(cr *appsv1.ControllerRevision) service.Key {
	return service.WorkloadKey(cr.Namespace, cr.Annotations[shape.AnnotationService])
}

// Counts reports whether a counts rather than b, of one service: it is the later
// decision; of two with one number, which two leaders or installations made, the
// first.
func Counts(a, b *appsv1.ControllerRevision) bool { return order(a, b) > 0 }

// order sorts the record that counts last.
func order(a, b *appsv1.ControllerRevision) int {
	return cmp.Or(
		cmp.Compare(a.Revision, b.Revision),
		b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
		strings.Compare(b.Annotations[AnnotationInstallation]+b.Name, a.Annotations[AnnotationInstallation]+a.Name),
	)
}

// attribute notes which installation manages a service, by the record that
// counts; nil for none. s.mu is held.
func (s *Store) attribute(k service.Key, newest *appsv1.ControllerRevision) {
	delete(s.mu.managedBy, k)
	if newest == nil || s.mu.installation == "" {
		return
	}
	if by := newest.Annotations[AnnotationInstallation]; by != "" && by != s.mu.installation {
		s.mu.managedBy[k] = by
	}
}
