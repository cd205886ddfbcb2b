package controller

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
)

// TestForgedRecord: a record of a later format that a tenant wrote stops that
// service, whose status says so, and no other.
func TestForgedRecord(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	forged := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mine", Labels: map[string]string{shape.LabelRecord: "true"},
		Annotations: map[string]string{records.AnnotationFormat: fmt.Sprint(records.Format + 1), shape.AnnotationService: "iris"}}, Data: runtime.RawExtension{Raw: []byte("{}")}, Revision: 1}
	if err := c.Create(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	begin(t, options(t), kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, iris)[0]
	other := kubetest.Apply(t, c, ns, strings.Replace(iris, "name: iris", "name: other", 1))[0]
	kubetest.Eventually(t, func() string {
		if made(t, c, ns, "other")["deployments"] != 1 {
			return "a Deployment of " + other.GetName()
		}
		if got := condition(get(t, c, u), "Ready"); !strings.Contains(got, "mine claims format 2") || !strings.Contains(got, "status:False") {
			return "the forgery, not " + got
		}
		return ""
	})
	if got := made(t, c, ns, "iris"); got["deployments"] != 0 {
		t.Errorf("its service has %v", got)
	}
	if err := c.Delete(t.Context(), forged); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if made(t, c, ns, "iris")["deployments"] != 1 {
			return "a Deployment, without the forgery"
		}
		return ""
	})
}
