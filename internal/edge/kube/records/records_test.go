package records_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

func TestMain(m *testing.M) { kubetest.Main(m) }

// manifests are those of one namespace.
type manifests struct {
	owner    *metav1.OwnerReference
	document string
}

func (m *manifests) Objects() []fleet.Object { return nil }
func (m *manifests) Owner(service.Key) (metav1.OwnerReference, bool) {
	if m.owner == nil {
		return metav1.OwnerReference{}, false
	}
	return *m.owner, true
}
func (m *manifests) Manifest(service.Key) []byte { return []byte(m.document) }

func record(k service.Key, revision string) fleet.Record {
	return fleet.Record{Service: k, Selection: "s", Revision: workload.Revision{Service: k, Name: revision, Hash: revision,
		Components: []workload.Component{{Role: service.RoleEngine}}}}
}

func rig(t *testing.T) (*records.Store, *manifests, client.Client, *kubetest.Writes, service.Key) {
	t.Helper()
	c := kubetest.Client(t)
	k := service.Key{Namespace: kubetest.Namespace(t, c, nil), Name: "iris"}
	u := kubetest.Apply(t, c, k.Namespace, "{apiVersion: roundhouse.dev/v1alpha1, kind: ModelService, metadata: {name: iris}, spec: {model: {uri: s3://m/i}}}")[0]
	m := &manifests{document: `{"kind":"ModelService"}`, owner: &metav1.OwnerReference{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Name: u.GetName(), UID: u.GetUID()}}
	s, w := open(t, m)
	return s, m, c, w, k
}

// open is a store as a new process has it.
func open(t *testing.T, m *manifests) (*records.Store, *kubetest.Writes) {
	t.Helper()
	cfg := kubetest.Server(t)
	w := kubetest.Count(cfg)
	c, err := client.New(cfg, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	s := records.New(c)
	s.Use(m)
	return s, w
}

// load is what a store has of a namespace.
func load(t *testing.T, s *records.Store, namespace string) (out []fleet.Record) {
	t.Helper()
	_, all, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if r.Service.Namespace == namespace {
			out = append(out, r)
		}
	}
	return out
}

func put(t *testing.T, s *records.Store, r fleet.Record) {
	t.Helper()
	if err := s.PutRecord(r); err != nil {
		t.Fatal(err)
	}
}

func TestRecords(t *testing.T) {
	s, m, c, w, k := rig(t)
	put(t, s, record(k, "a"))
	put(t, s, record(k, "a"))
	if got := w.Take(); len(got) != 1 {
		t.Errorf("the same twice wrote %v", got)
	}
	var list appsv1.ControllerRevisionList
	if err := c.List(t.Context(), &list, client.InNamespace(k.Namespace)); err != nil || len(list.Items) != 1 {
		t.Fatalf("%d records, %v", len(list.Items), err)
	}
	cr := list.Items[0]
	if len(cr.OwnerReferences) != 1 || cr.OwnerReferences[0].UID != m.owner.UID || cr.Labels[shape.LabelService] != "iris" || !strings.HasPrefix(cr.Name, "roundhouse-iris-") {
		t.Errorf("%s: %+v %v", cr.Name, cr.OwnerReferences, cr.Labels)
	}
	if r, err := records.Decode(&cr); err != nil || r.Revision.Name != "a" || r.Service != k {
		t.Errorf("decoded %+v, %v", r, err)
	}
	put(t, s, record(k, "b"))
	canary := record(k.Canary(), "c")
	put(t, s, canary)

	s, w = open(t, m)
	got := load(t, s, k.Namespace)
	if len(got) != 2 {
		t.Fatalf("loaded %+v", got)
	}
	for _, r := range got {
		if want := map[service.Key]string{k: "b", k.Canary(): "c"}[r.Service]; r.Revision.Name != want {
			t.Errorf("%s is at %s, not %s", r.Service, r.Revision.Name, want)
		}
	}
	if string(s.Manifest(k)) != m.document {
		t.Errorf("manifest %s", s.Manifest(k))
	}
	put(t, s, record(k, "b"))
	if got := w.Take(); len(got) > 0 {
		t.Errorf("a restart wrote %v", got)
	}
	put(t, s, record(k, "a")) // back
	m.owner, m.document = nil, ""
	put(t, s, record(k, "d")) // the owner it had
	if err := s.DeleteRecord(k); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteRecord(k); err != nil {
		t.Errorf("deleted twice: %v", err)
	}
	if err := s.PutRecord(record(k, "e")); err == nil || !strings.Contains(err.Error(), "no longer there") {
		t.Errorf("without a manifest: %v", err)
	}
	if err := s.DeleteRecord(k.Canary()); err != nil {
		t.Fatal(err)
	}
	if left := load(t, s, k.Namespace); len(left) > 0 {
		t.Errorf("left %+v", left)
	}
}

// TestAnotherOwner: a record goes with its object, not with the next one of
// the name.
func TestAnotherOwner(t *testing.T) {
	s, m, c, _, k := rig(t)
	put(t, s, record(k, "a"))
	other := *m.owner
	other.UID = "7f1a2c1e-0000-4000-8000-000000000001"
	m.owner = &other
	s, _ = open(t, m)
	if got := load(t, s, k.Namespace); len(got) > 0 {
		t.Errorf("loaded %+v, of another object", got)
	}
	put(t, s, record(k, "a")) // the same decision, for the new one
	var list appsv1.ControllerRevisionList
	if err := c.List(t.Context(), &list, client.InNamespace(k.Namespace)); err != nil || len(list.Items) != 1 || list.Items[0].OwnerReferences[0].UID != other.UID {
		t.Fatalf("%+v, %v", list.Items, err)
	}
	s, _ = open(t, m)
	if got := load(t, s, k.Namespace); len(got) != 1 {
		t.Errorf("loaded %+v", got)
	}
}

// TestCrashBetweenTwoWrites leaves two records, of which the newer counts; one
// that is back is not taken for the newest by its name alone. Tidying takes the
// other along.
func TestCrashBetweenTwoWrites(t *testing.T) {
	s, m, c, _, k := rig(t)
	put(t, s, record(k, "a"))
	put(t, s, record(k, "b"))
	s, _ = open(t, m)
	if got := load(t, s, k.Namespace); len(got) != 1 || got[0].Revision.Name != "b" {
		t.Fatalf("loaded %+v", got)
	}
	put(t, s, record(k, "a"))
	s, w := open(t, m)
	if got := load(t, s, k.Namespace); len(got) != 1 || got[0].Revision.Name != "a" {
		t.Errorf("loaded %+v", got)
	}
	s.Tidy(t.Context(), k)
	w.Take()
	s.Tidy(t.Context(), k)
	if got := w.Take(); len(got) > 0 {
		t.Errorf("there was nothing to tidy, and it wrote %v", got)
	}
	var list appsv1.ControllerRevisionList
	if err := c.List(t.Context(), &list, client.InNamespace(k.Namespace)); err != nil || len(list.Items) != 1 {
		t.Errorf("%d records are left, %v", len(list.Items), err)
	}
}

// TestUnreadable records are reported in words; those of a later version stop
// whoever reads them.
func TestUnreadable(t *testing.T) {
	cr := func(format, data string) *appsv1.ControllerRevision {
		return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "roundhouse-iris-1", Annotations: map[string]string{records.AnnotationFormat: format, shape.AnnotationService: "iris"}},
			Data: runtime.RawExtension{Raw: []byte(data)}}
	}
	for _, c := range []struct{ format, data, want string }{
		{"", "{}", "is no number"},
		{"1", "{", "cannot be read"},
		{"1", `{"service":{"namespace":"b","name":"iris"}}`, "for the service b/iris, and its annotation names a/iris"},
		{"1", `{"service":{"namespace":"a","name":"other"}}`, "the service a/other"},
		// What it has applied must not be in a namespace that its writer may not write in.
		{"1", `{"service":{"namespace":"a","name":"iris"},"revision":{"service":{"namespace":"kube-system","name":"iris"}}}`, "the service kube-system/iris"},
		{"1", `{"service":{"namespace":"a","name":"iris"},"revision":{"service":{"namespace":"a","name":"other"}}}`, "the service a/other"},
		{fmt.Sprint(records.Format + 1), "{}", "later version of the controller"},
	} {
		_, err := records.Decode(cr(c.format, c.data))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "a/roundhouse-iris-1") {
			t.Errorf("format %q, data %s: %v", c.format, c.data, err)
		}
		var newer *records.NewerError
		if errors.As(err, &newer) != (c.format == "2") {
			t.Errorf("format %q: %T", c.format, err)
		}
	}
}

// TestLaterFormat: a record of a later format stops the decisions of its
// service alone, unless this installation has written that format: then it
// stops whoever reads it, and none of them is written over.
func TestLaterFormat(t *testing.T) {
	_, m, c, _, k := rig(t)
	forged := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: "roundhouse-iris-forged", Labels: map[string]string{shape.LabelRecord: "true"},
		Annotations: map[string]string{records.AnnotationFormat: fmt.Sprint(records.Format + 6), shape.AnnotationService: "iris"}}, Data: runtime.RawExtension{Raw: []byte("{}")}, Revision: 9}
	if err := c.Create(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), forged) })
	system := client.ObjectKey{Namespace: kubetest.Namespace(t, c, nil), Name: "roundhouse-controller"}
	other := service.Key{Namespace: k.Namespace, Name: "other"}
	var newer *records.NewerError

	s, _ := open(t, m)
	if _, err := s.Read(t.Context()); !errors.As(err, &newer) {
		t.Errorf("while it is not known what has been written: %v", err)
	}
	seen := ""
	for range 2 { // the second time there is nothing to note
		s, _ = open(t, m)
		if err := s.Lead(t.Context(), c, system); err != nil {
			t.Fatal(err)
		}
		_, err := s.Read(t.Context())
		var strange *records.StrangeError
		if errors.As(err, &newer) || !errors.As(err, &strange) || strange.Format != records.Format+6 {
			t.Fatalf("a format that nobody wrote: %v", err)
		}
		if err := s.PutRecord(record(k, "a")); !errors.As(err, &strange) || !strings.Contains(err.Error(), "delete it") {
			t.Errorf("its service is decided: %v", err)
		}
		put(t, s, record(other, "a"))
		var noted corev1.ConfigMap
		if err := c.Get(t.Context(), system, &noted); err != nil || seen != "" && seen != noted.ResourceVersion {
			t.Errorf("noted again at %s: %v", noted.ResourceVersion, err)
		}
		seen = noted.ResourceVersion
	}
	// A newer controller leads, which notes its own.
	var noted corev1.ConfigMap
	if err := c.Get(t.Context(), system, &noted); err != nil {
		t.Fatal(err)
	}
	noted.Annotations[records.AnnotationFormat] = fmt.Sprint(records.Format + 6)
	if err := c.Update(t.Context(), &noted); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, m)
	if err := s.Lead(t.Context(), c, system); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(t.Context()); !errors.As(err, &newer) {
		t.Errorf("a format that was written here: %v", err)
	}
	if err := c.Get(t.Context(), system, &noted); err != nil || noted.Annotations[records.AnnotationFormat] != fmt.Sprint(records.Format+6) {
		t.Errorf("the note was taken back: %v, %v", noted.Annotations, err)
	}
}
