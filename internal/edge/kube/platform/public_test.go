package platform_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform/clustertest"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// TestPublicModels: a controller that allows no internal addresses leaves what
// runs as it was made, and refuses the next revision.
func TestPublicModels(t *testing.T) {
	f := open(t)
	k := platformtest.Key("inside")
	with := func(salt, uri string) workload.Revision {
		r := revision(k, platformtest.Server{Salt: salt, ModelURI: uri})
		r.Image = "roundhouse"
		return r
	}
	variables := func() string {
		var d appsv1.Deployment
		if err := f.direct.Get(t.Context(), client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}, &d); err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, e := range d.Spec.Template.Spec.InitContainers[0].Env {
			out += e.Name + "=" + e.Value
		}
		return out
	}
	f.MustApply(with("1", "http://10.0.0.1/iris"))
	if got := variables(); got != "" {
		t.Errorf("where they are allowed the pod has %s", got)
	}
	cfg, calls := cluster(t), &counter{}
	calls.attach(cfg)
	strict := clustertest.Open(t, platform.Config{REST: cfg, PublicModels: true})
	t.Cleanup(func() { calls.set(nil, false) })
	on := platformtest.On(t, strict)
	calls.writes()
	on.MustApply(with("1", "http://10.0.0.1/iris"))
	if got := calls.writes(); len(got) != 0 {
		t.Errorf("what runs was written: %v", got)
	}
	if err := strict.Apply(t.Context(), with("2", "http://10.0.0.1/iris")); err == nil || !strings.Contains(err.Error(), "--allow-internal-models") {
		t.Errorf("the next revision: %v", err)
	}
	if got := variables(); got != "" {
		t.Errorf("it was written all the same: %s", got)
	}
	on.MustApply(with("3", "https://models.example.com/iris"))
	if got := variables(); !strings.HasPrefix(got, "ROUNDHOUSE_PUBLIC_ONLY=true") {
		t.Errorf("a public model is fetched with %q", got)
	}
}
