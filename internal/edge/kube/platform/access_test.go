package platform_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform"
	"roundhouse.dev/roundhouse/internal/edge/kube/platform/clustertest"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

var accessKinds = []schema.GroupVersionKind{
	{Version: "v1", Kind: "ServiceAccount"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "Role"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
}

// discovering gives a revision a router that looks for pods itself, or one that
// does not.
func discovering(r workload.Revision, looks bool) workload.Revision {
	router := r.Components[0]
	router.Role = service.RoleRouter
	router.Pod = *router.Pod.DeepCopy()
	if looks {
		router.Pod.Containers[0].Args = append(router.Pod.Containers[0].Args, "--service-discovery")
	}
	r.Components = append(slices.Clone(r.Components), router)
	return r
}

// access names the kinds that are there for a service's router.
func (f *fixture) access(k service.Key) (out []string) {
	f.t.Helper()
	for _, gvk := range accessKinds {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(gvk)
		err := f.direct.Get(f.t.Context(), client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleRouter)}, u)
		if err == nil {
			out = append(out, gvk.Kind)
		} else if !apierrors.IsNotFound(err) {
			f.t.Fatal(err)
		}
	}
	return out
}

// TestRouterAccess: a router that looks for pods gets an account that may, for
// as long as it does; a restart writes nothing, and what somebody deletes comes
// back.
func TestRouterAccess(t *testing.T) {
	f := open(t)
	k := platformtest.Key("looking")
	r := discovering(revision(k, platformtest.Server{}), true)
	f.MustApply(r)
	if got := f.access(k); len(got) != 3 {
		t.Fatalf("made %v", got)
	}
	f.MustScale(k, 1)
	if pods := f.await(k, func(pods []corev1.Pod) bool { return len(pods) > 0 }); pods[0].Labels[shape.LabelRole] != "engine" || pods[0].Spec.ServiceAccountName != "" {
		t.Errorf("the engine's pod runs as %s", pods[0].Spec.ServiceAccountName)
	}
	again := open(t)
	again.MustApply(r)
	if got := again.calls.writes(); len(got) != 0 {
		t.Errorf("a restart wrote %v", got)
	}
	binding := &unstructured.Unstructured{}
	binding.SetGroupVersionKind(accessKinds[2])
	binding.SetNamespace(k.Namespace)
	binding.SetName(shape.Name(k, service.RoleRouter))
	if err := f.direct.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.drifted:
	case <-within(t).Done():
		t.Fatal("nobody was told of the deleted binding")
	}
	f.MustApply(r)
	if got := f.access(k); len(got) != 3 {
		t.Errorf("after somebody deleted the binding there are %v", got)
	}
	f.MustApply(discovering(revision(k, platformtest.Server{Salt: "2"}), false))
	if got := f.access(k); len(got) != 0 {
		t.Errorf("a router that no longer looks for pods has %v", got)
	}
	f.MustApply(r)
	if err := f.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	f.AwaitNone(k)
	if got := f.access(k); len(got) != 0 {
		t.Errorf("a service that is gone has %v", got)
	}
}

// await waits until the service's pods are as wanted.
func (f *fixture) await(k service.Key, ok func([]corev1.Pod) bool) []corev1.Pod {
	f.t.Helper()
	ctx := within(f.t)
	for {
		var list corev1.PodList
		if err := f.direct.List(ctx, &list, client.InNamespace(k.Namespace), client.MatchingLabels{shape.LabelService: shape.LabelValue(k.Name)}); err != nil {
			f.t.Fatal(err)
		}
		if ok(list.Items) {
			return list.Items
		}
		select {
		case <-f.Changed():
		case <-ctx.Done():
			f.t.Fatalf("the pods of %s are %d", k, len(list.Items))
		}
	}
}

// TestRouterAccessForbidden: a controller that holds less than a router needs
// can give it nothing, and says what is lacking; everything else goes on.
func TestRouterAccessForbidden(t *testing.T) {
	d := direct(t)
	rule := func(group string, verbs []string, resources ...string) map[string]any {
		return map[string]any{"apiGroups": []any{group}, "resources": anys(resources), "verbs": anys(verbs)}
	}
	all := []string{"get", "list", "watch", "create", "patch", "delete"}
	plain := []any{rule("", all, "services"), rule("apps", all, "deployments"), rule("policy", all, "poddisruptionbudgets"),
		rule("autoscaling", all, "horizontalpodautoscalers"), rule("leaderworkerset.x-k8s.io", all, "leaderworkersets"),
		rule("", []string{"list", "watch"}, "pods"), rule("", []string{"create"}, "namespaces")}
	for name, c := range map[string]struct {
		rules []any
		want  string
	}{
		"cannot read accounts": {nil, "allow the controller to"},
		"holds less than it gives": {[]any{rule("", all, "serviceaccounts"),
			rule("rbac.authorization.k8s.io", all, "roles", "rolebindings")}, "attempting to grant RBAC permissions not currently held"},
		"holds what it gives": {[]any{rule("", all, "serviceaccounts"), rule("", []string{"get"}, "pods"),
			rule("rbac.authorization.k8s.io", all, "roles", "rolebindings")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			who := "controller-" + strings.ReplaceAll(name, " ", "-")
			allow(t, d, who, append(slices.Clone(plain), c.rules...))
			cfg := cluster(t)
			cfg.Impersonate = rest.ImpersonationConfig{UserName: who, Groups: []string{"system:authenticated"}}
			p := platformtest.On(t, clustertest.Open(t, platform.Config{REST: cfg}))
			k := platformtest.Key("looking")
			// The roles take effect as the API server's caches learn of them.
			var err error
			for ctx := within(t); ctx.Err() == nil; {
				if err = p.Apply(ctx, discovering(revision(k, platformtest.Server{}), true)); err == nil && c.want == "" || err != nil && c.want != "" && strings.Contains(err.Error(), c.want) {
					break
				}
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err := p.Apply(t.Context(), revision(platformtest.Key("plain"), platformtest.Server{})); err != nil {
				t.Errorf("a service without a router: %v", err)
			}
		})
	}
}

func anys(in []string) (out []any) {
	for _, s := range in {
		out = append(out, s)
	}
	return out
}

// allow gives a user the rules everywhere, for as long as the test lasts.
func allow(t *testing.T, c client.Client, who string, rules []any) {
	t.Helper()
	for _, o := range []map[string]any{
		{"kind": "ClusterRole", "rules": rules},
		{"kind": "ClusterRoleBinding", "roleRef": map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": who},
			"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who}}},
	} {
		u := &unstructured.Unstructured{Object: o}
		u.SetAPIVersion("rbac.authorization.k8s.io/v1")
		u.SetName(who)
		if err := c.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Delete(context.Background(), u)
		})
	}
}
