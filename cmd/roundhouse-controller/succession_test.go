package main

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// deployment is that of a service's engine.
func deployment(t *testing.T, c client.Client, k service.Key) *appsv1.Deployment {
	t.Helper()
	d := &appsv1.Deployment{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}, d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestChangedWhileAway: what a manifest says anew while no controller runs is
// done by the next one, be it that the choice of a runtime does not depend on it.
func TestChangedWhileAway(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	o := options(t, ns)
	first := begin(t, o, kubetest.Server(t))
	u := kubetest.Apply(t, c, ns, iris)[0]
	count := func(u client.Object, n int32, env string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			if made(t, c, ns, "iris")["deployments"] != 1 {
				return "a Deployment"
			}
			d := deployment(t, c, service.Key{Namespace: ns, Name: "iris"})
			if *d.Spec.Replicas != n || !strings.Contains(fmt.Sprint(d.Spec.Template.Spec.Containers), env) {
				return fmt.Sprintf("%d replicas with %q, not %d with %v", n, env, *d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Env)
			}
			return ""
		})
	}
	count(u, 1, "")
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	kubetest.Apply(t, c, ns, strings.Replace(iris, "{minReplicas: 1, maxReplicas: 3}", "{minReplicas: 2, maxReplicas: 3}\n  engine: {env: [{name: COLOUR, value: mauve}]}", 1))
	begin(t, o, kubetest.Server(t))
	count(u, 2, "mauve")
}
