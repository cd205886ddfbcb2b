package workload

import (
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// own is a service on this program's image, for pods.
func own(t *testing.T, image, version string, edit func(*service.Service)) Revision {
	t.Helper()
	s := &service.Service{Meta: service.Meta{Key: service.Key{Namespace: "team", Name: "iris"}}, RuntimeVersion: version,
		Components: service.Components{Engine: &service.Component{Main: "main"}}}
	if edit != nil {
		edit(s)
	}
	rt := service.Runtime{Meta: service.Meta{Key: service.Key{Name: "roundhouse-xgboost"}}, Scope: service.ScopeCatalog,
		Components: service.Components{Engine: &service.Component{Main: "main", Pod: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "before", Image: "roundhouse"}},
			Containers:     []corev1.Container{{Name: "main", Image: "roundhouse"}, {Name: "beside", Image: "other:1"}}}}}}
	rev, err := Render(Input{Service: s, Runtime: &rt, Choice: service.RuntimeChoice{Name: rt.Name, Scope: rt.Scope}, Cluster: true, Image: image})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// TestOwnImage: the word stands for the image of the program that rendered the
// revision, and another program's image makes no other revision.
func TestOwnImage(t *testing.T) {
	a, b := own(t, "registry:5000/roundhouse:v1", "", nil), own(t, "registry:5000/roundhouse:v2", "", nil)
	if a.Hash != b.Hash {
		t.Error("another image of this program is another revision")
	}
	pod := a.Component(service.RoleEngine).Pod
	for name, got := range map[string]string{"revision": a.Image, "main": pod.Containers[0].Image, "before": pod.InitContainers[0].Image} {
		if got != "registry:5000/roundhouse:v1" {
			t.Errorf("%s has the image %q", name, got)
		}
	}
	if pod.Containers[1].Image != "other:1" {
		t.Errorf("another's image became %q", pod.Containers[1].Image)
	}
	if c := own(t, "registry:5000/roundhouse:v1", "v9", nil); c.Component(service.RoleEngine).Pod.Containers[0].Image != "registry:5000/roundhouse:v9" {
		t.Error("the version that is asked for is not the image's tag")
	}
	if c := own(t, "", "", nil); c.Component(service.RoleEngine).Pod.Containers[0].Image != "roundhouse" {
		t.Error("without an image the word does not stay")
	}
}

// TestScaled: a rendering of the same inputs by a newer program changes counts
// alone.
func TestScaled(t *testing.T) {
	before := own(t, "roundhouse:v1", "", nil)
	after := own(t, "roundhouse:v2", "", func(s *service.Service) { s.Components.Engine.Scaling.MaxReplicas = ptr(9) })
	after.Components[0].Limits.StartupTimeout = time.Hour // of the newer catalog
	got := before.Scaled(after)
	if got.Components[0].Limits.Max != 9 || got.Components[0].Limits.StartupTimeout != 10*time.Minute {
		t.Errorf("limits %+v", got.Components[0].Limits)
	}
	got.Components[0].Limits = before.Components[0].Limits
	if !reflect.DeepEqual(got, before) {
		t.Errorf("more than the limits differs:\n%+v\n%+v", got, before)
	}
	if before.Components[0].Limits.Max == 9 {
		t.Error("the revision it was made from changed")
	}
}

// TestHashOnACluster: the time that a pod gets to start stands in the pod.
func TestHashOnACluster(t *testing.T) {
	base := own(t, "", "", nil).Hash
	if own(t, "", "", func(s *service.Service) { s.Components.Engine.Scaling.StartupTimeout = ptr(time.Hour) }).Hash == base {
		t.Error("another startup timeout is the same revision")
	}
	if own(t, "", "", func(s *service.Service) { s.Components.Engine.Scaling.MinReplicas = ptr(0) }).Hash != base {
		t.Error("another count is another revision")
	}
	annotated := func(v string) string {
		return own(t, "", "", func(s *service.Service) { s.Annotations = map[string]string{"a": "b", lastApplied: v} }).Hash
	}
	if annotated("x") != annotated("y") {
		t.Error("kubectl's copy of the manifest counts")
	}
}

// TestReplacement: how replicas come and go is no input of the hash, is the service's
// before the runtime's, and reaches a revision that is pinned.
func TestReplacement(t *testing.T) {
	one := intstr.FromInt32(1)
	plain := own(t, "", "", nil)
	stated := own(t, "", "", func(s *service.Service) {
		s.Components.Engine.Strategy, s.Components.Engine.Budget = &service.Strategy{Recreate: true}, &service.Budget{MinAvailable: &one}
	})
	if plain.Hash != stated.Hash {
		t.Error("another strategy is another revision")
	}
	for name, r := range map[string]Revision{"rendered": stated, "pinned": plain.Scaled(stated)} {
		c := r.Component(service.RoleEngine)
		if c.Strategy == nil || !c.Strategy.Recreate || c.Budget == nil || *c.Budget.MinAvailable != one {
			t.Errorf("%s: %+v, %+v", name, c.Strategy, c.Budget)
		}
	}
	bare := stated.Scaled(plain)
	if c := bare.Component(service.RoleEngine); c.Strategy != nil || c.Budget != nil {
		t.Errorf("what is stated no more stays: %+v, %+v", c.Strategy, c.Budget)
	}
}
