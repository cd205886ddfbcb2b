package objects_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// TestConflictEnds: a manifest that was refused for another counts once that
// one is gone, without anybody touching it.
func TestConflictEnds(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	s, _ := start(t)
	other := kubetest.Apply(t, c, ns, strings.ReplaceAll(iris, "iris", "other"))[0]
	is(t, s, "service", ns, "other", ownKind)
	s.mu.Lock()
	s.refuse = fmt.Errorf("it conflicts")
	s.mu.Unlock()
	kubetest.Apply(t, c, ns, iris)
	kubetest.Eventually(t, func() string {
		if r := s.refusal("ModelService " + ns + "/iris"); r.Reason != objects.ReasonConflict {
			return "no conflict"
		}
		return ""
	})
	s.mu.Lock()
	s.refuse = nil
	s.mu.Unlock()
	if err := c.Delete(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	is(t, s, "service", ns, "iris", ownKind)
}

// TestAnotherOfTheName is a new life, however fast the one follows the other.
func TestAnotherOfTheName(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	s, src := start(t)
	k := service.Key{Namespace: ns, Name: "iris"}
	var uids []string
	for range 3 {
		u := kubetest.Apply(t, c, ns, iris)[0]
		uids = append(uids, string(u.GetUID()))
		kubetest.Eventually(t, func() string {
			if owner, _ := src.Owner(k); string(owner.UID) != uids[len(uids)-1] {
				return "the new owner"
			}
			return ""
		})
		is(t, s, "service", ns, "iris", ownKind)
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	is(t, s, "service", ns, "iris", "")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deleted != 3 {
		t.Errorf("told of %d ends of 3", s.deleted)
	}
}

// TestOneNameTwoManifests has the older count until it goes.
func TestOneNameTwoManifests(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	first := kubetest.Apply(t, c, ns, iris)
	s, _ := start(t, service.DialectKServe)
	kubetest.Apply(t, c, ns, kserveIris)
	kubetest.Eventually(t, func() string {
		if r := s.refusal("InferenceService " + ns + "/iris"); r.Reason != objects.ReasonTaken || !strings.Contains(r.Message, "older ModelService") {
			return fmt.Sprintf("a refusal, not %+v", r)
		}
		return ""
	})
	is(t, s, "service", ns, "iris", ownKind)
	if err := c.Delete(t.Context(), first[0]); err != nil {
		t.Fatal(err)
	}
	is(t, s, "service", ns, "iris", kserveKind)
	kubetest.Eventually(t, func() string {
		if r := s.refusal("InferenceService " + ns + "/iris"); r.Reason != "" {
			return fmt.Sprintf("no refusal, not %+v", r)
		}
		return ""
	})
}

// TestOtherManagers keep what they serve, until they are gone or it is handed
// over.
func TestOtherManagers(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	u := kubetest.Apply(t, c, ns, kserveIris)[0]
	patch := []byte(`{"status":{"url":"http://iris.example.com"}}`)
	if err := c.Status().Patch(t.Context(), u.DeepCopy(), client.RawPatch("application/merge-patch+json", patch), client.FieldOwner("kserve-controller-manager")); err != nil {
		t.Fatal(err)
	}
	s, _ := start(t, service.DialectKServe)
	kubetest.Eventually(t, func() string {
		r := s.refusal("InferenceService " + ns + "/iris")
		if r.Reason != objects.ReasonManaged || r.Manager != "kserve-controller-manager" || !strings.Contains(r.Message, "kubectl annotate") {
			return fmt.Sprintf("a refusal that names the manager, not %+v", r)
		}
		return ""
	})
	if got := s.origin("service", ns, "iris"); got != "" {
		t.Errorf("it was read all the same, as %s", got)
	}
	// What a person is told to type.
	hint := s.refusal("InferenceService " + ns + "/iris").Message
	at := hint[strings.LastIndex(hint, "=")+1:]
	note := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, kube.AnnotationTakeOver, at)
	if err := c.Patch(t.Context(), u.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(note))); err != nil {
		t.Fatal(err)
	}
	is(t, s, "service", ns, "iris", kserveKind)

	// One that ran goes on although somebody else writes.
	s.mu.Lock()
	s.records[service.Key{Namespace: ns, Name: "iris"}] = []byte("{}")
	s.mu.Unlock()
	patch = []byte(`{"status":{"url":"http://iris.example.org"}}`)
	kubetest.Eventually(t, func() string { // its time has whole seconds
		if err := c.Status().Patch(t.Context(), u, client.RawPatch("application/merge-patch+json", patch), client.FieldOwner("kserve-controller-manager")); err != nil {
			t.Fatal(err)
		}
		patch = fmt.Appendf(nil, `{"status":{"url":"http://%d.example.org"}}`, time.Now().UnixNano())
		if kube.OtherWriter(u) == nil {
			return "another's later write"
		}
		return ""
	})
	is(t, s, "service", ns, "iris", kserveKind)
}
