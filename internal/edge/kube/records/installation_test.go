package records_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// cache is what one installation sees of the API server: seen, which may be
// older than what it has written.
type cache struct {
	client.Client
	seen    []appsv1.ControllerRevision
	written []appsv1.ControllerRevision
	deleted []string
	// during is called within each write, whose outcome it decides.
	during func() error
}

func (c *cache) List(_ context.Context, l client.ObjectList, _ ...client.ListOption) error {
	l.(*appsv1.ControllerRevisionList).Items = slices.Clone(c.seen)
	return nil
}

func (c *cache) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	if c.during != nil {
		if err := c.during(); err != nil {
			return err
		}
	}
	if cr, ok := o.(*appsv1.ControllerRevision); ok {
		c.written = append(c.written, *cr)
	}
	return nil
}

func (c *cache) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	c.deleted = append(c.deleted, o.GetName())
	return nil
}

// noted is the ConfigMap that Lead reads: it has nothing to write there.
type noted struct{ client.Client }

func (noted) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetAnnotations(map[string]string{records.AnnotationFormat: "1"})
	return nil
}

var tied = service.Key{Namespace: "models", Name: "iris"}

// installed is the store of the installation in a namespace.
func installed(t *testing.T, namespace string) (*records.Store, *cache) {
	t.Helper()
	c := &cache{}
	s := records.New(c)
	s.Use(&manifests{document: `{"kind":"ModelService"}`, owner: &metav1.OwnerReference{APIVersion: "v1", Kind: "ModelService", Name: tied.Name, UID: "u"}})
	if err := s.Lead(t.Context(), noted{}, client.ObjectKey{Namespace: namespace, Name: "c"}); err != nil {
		t.Fatal(err)
	}
	return s, c
}

// decided is the record that the installation in a namespace writes, as the API
// server has it.
func decided(t *testing.T, namespace string, at time.Time) appsv1.ControllerRevision {
	t.Helper()
	s, c := installed(t, namespace)
	put(t, s, record(tied, "of-"+namespace))
	cr := c.written[0]
	cr.CreationTimestamp = metav1.NewTime(at)
	return cr
}

// TestTwoDecideAtOnce: of two installations that decide of a service in the same
// second, the one whose decision counts never stands back, whichever record it
// sees first: it would have to start anew to serve it. The other stands back
// once it sees both.
func TestTwoDecideAtOnce(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a, b := decided(t, "a", at), decided(t, "b", at)
	if !records.Counts(&a, &b) || records.Counts(&b, &a) {
		t.Fatal("of equals the first by name counts")
	}
	type seen struct {
		cr   *appsv1.ControllerRevision
		when string
	}
	for _, tt := range []struct {
		name, ours string
		order      []seen
		managedBy  string // in the end
	}{
		{"ours counts and is seen first", "a", []seen{{&a, "after"}, {&b, "after"}}, ""},
		{"ours counts and is seen last", "a", []seen{{&b, "after"}, {&a, "after"}}, ""},
		{"ours counts and is seen last, theirs while it is written", "a", []seen{{&b, "during"}, {&a, "after"}}, ""},
		{"ours counts and both are seen while it is written", "a", []seen{{&b, "during"}, {&a, "during"}}, ""},
		{"theirs counts and is seen last", "b", []seen{{&b, "after"}, {&a, "after"}}, "a"},
		{"theirs counts and is seen first", "b", []seen{{&a, "after"}, {&b, "after"}}, "a"},
		{"theirs counts and is seen while ours is written", "b", []seen{{&a, "during"}, {&b, "after"}}, "a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, c := installed(t, tt.ours)
			look := func(when string) {
				for _, e := range tt.order {
					if e.when != when {
						continue
					}
					c.seen = append(c.seen, *e.cr)
					_, changed, inherited, err := s.Look(t.Context(), e.cr)
					last := e == tt.order[len(tt.order)-1]
					if err != nil || inherited || changed != (last && tt.managedBy != "") {
						t.Errorf("on %s: changed %v, inherited %v, %v", e.cr.Name, changed, inherited, err)
					}
					if other := s.OtherInstallation(tied); other != nil && tt.managedBy == "" {
						t.Errorf("on %s it stands back: %v", e.cr.Name, other)
					}
				}
			}
			c.during = func() error { look("during"); return nil }
			put(t, s, record(tied, "of-"+tt.ours))
			look("after")
			got := ""
			if other := s.OtherInstallation(tied); other != nil {
				got = other.Installation
			}
			if got != tt.managedBy {
				t.Errorf("it is looked after by %q", got)
			}
		})
	}
}

// TestHandedOver: what goes from another installation to us is inherited; so is
// our own decision that had to give way to another's. One that could not be
// written holds up nothing.
func TestHandedOver(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a, b := decided(t, "a", at), decided(t, "b", at)
	s, c := installed(t, "b")
	look := func(cr appsv1.ControllerRevision, wantChanged, wantInherited bool, seen ...appsv1.ControllerRevision) {
		t.Helper()
		c.seen = seen
		if _, changed, inherited, err := s.Look(t.Context(), &cr); err != nil || changed != wantChanged || inherited != wantInherited {
			t.Errorf("changed %v, inherited %v, %v", changed, inherited, err)
		}
	}
	refused := errors.New("refused")
	c.during = func() error { return refused }
	if err := s.PutRecord(record(tied, "of-b")); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	look(a, true, false, a)
	ours := *a.DeepCopy()
	ours.Annotations[records.AnnotationInstallation] = "b"
	look(ours, true, true, ours)

	c.during = nil
	put(t, s, record(tied, "of-b"))
	look(b, false, false, ours, b)
	look(a, true, false, a, b)
	look(a, true, true, b)
}

// TestTidyAfterATie: after a restart, of two decisions with one number the one
// that counts stays.
func TestTidyAfterATie(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a, b := decided(t, "a", at), decided(t, "b", at)
	for _, seen := range [][]appsv1.ControllerRevision{{a, b}, {b, a}} {
		s, c := installed(t, "a")
		c.seen = seen
		if _, all, err := s.Load(); err != nil || !slices.EqualFunc(all, []string{"of-a"}, func(r fleet.Record, name string) bool { return r.Revision.Name == name }) {
			t.Errorf("loaded %+v, %v", all, err)
		}
		s.Tidy(t.Context(), tied)
		if !slices.Equal(c.deleted, []string{b.Name}) {
			t.Errorf("deleted %v, and %s counts", c.deleted, a.Name)
		}
	}
}
