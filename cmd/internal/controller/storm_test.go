package controller

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestConflictStorm: somebody comes before every write to a Deployment, for
// longer than it is tried. The status says so, and once there is peace the
// count is set without anybody's help.
func TestConflictStorm(t *testing.T) {
	c := kubetest.Client(t)
	ns := kubetest.Namespace(t, c, nil)
	t.Parallel()
	k := service.Key{Namespace: ns, Name: "iris"}
	name := shape.Name(k, service.RoleEngine)
	var peace atomic.Bool
	var struck atomic.Int32
	cfg := kubetest.Server(t)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if !peace.Load() && req.Method == http.MethodPatch && strings.Contains(req.URL.Path, "/deployments/"+name) {
				d := &appsv1.Deployment{}
				d.Namespace, d.Name = ns, name
				patch := fmt.Appendf(nil, `{"metadata":{"labels":{"storm":"%d"}}}`, struck.Add(1))
				if err := client.IgnoreNotFound(c.Patch(context.Background(), d, client.RawPatch(types.MergePatchType, patch))); err != nil {
					t.Error(err)
				}
			}
			return next.RoundTrip(req)
		})
	})
	begin(t, options(t, ns), cfg)
	n := &nodes{t: t, c: c, ns: ns}
	u := kubetest.Apply(t, c, ns, iris)[0]
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, u), "Ready"); !strings.Contains(got, "the object has been modified") || !strings.Contains(got, "scale "+k.String()) {
			return "the conflict, not " + got
		}
		return lacks(events(t, c, u), "PlatformFailed")
	})
	if got := n.count(k, service.RoleEngine); got != 0 {
		t.Errorf("no write passed, and the count is %d", got)
	}
	peace.Store(true)
	eventuallyIs(t, "after the storm", func() string { return fmt.Sprint(n.count(k, service.RoleEngine)) }, "1")
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, u), "Ready"); strings.Contains(got, "modified") {
			return "no word of the storm: " + got
		}
		return ""
	})
}

// TestLongNames: names that fill the room of a host's part, and differ in their
// last letter, are two services, each with its own objects, events and end;
// what is longer is refused in words.
func TestLongNames(t *testing.T) {
	c := kubetest.Client(t, "kserve")
	ns := kubetest.Namespace(t, c, nil)
	t.Parallel()
	begin(t, options(t, ns), kubetest.Server(t))
	long := strings.Repeat("long-", 50)
	for i, manifest := range []string{strings.Replace(iris, "name: iris", "name: NAME", 1), strings.Replace(kserveSklearn, "example-sklearn-isvc", "NAME", 1)} {
		u := kubetest.Parse(t, manifest)[0]
		u.SetNamespace(ns)
		names := []string{fmt.Sprint(long[:61], i, "a"), fmt.Sprint(long[:61], i, "b")}
		for _, name := range names {
			kubetest.Apply(t, c, ns, strings.Replace(manifest, "NAME", name, 1))
		}
		for _, name := range names {
			u.SetName(name)
			kubetest.Eventually(t, func() string {
				if got := made(t, c, ns, name); got["deployments"] != 1 || got["services"] != 1 || got["budgets"] != 1 || got["records"] != 1 {
					return fmt.Sprint("one of each, not ", got, get(t, c, u).Object["status"])
				}
				return lacks(events(t, c, u), "RuntimeSelected", "RevisionMade", "Scaled")
			})
		}
		u.SetName(names[0])
		if err := c.Delete(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		kubetest.Eventually(t, func() string { return strings.Join(keys(made(t, c, ns, names[0])), " ") })
		if got := made(t, c, ns, names[1]); got["deployments"] != 1 {
			t.Errorf("the other one has %v", got)
		}
	}
	own := kubetest.Parse(t, strings.Replace(iris, "name: iris", "name: "+long[:63]+"c", 1))[0]
	own.SetNamespace(ns)
	if err := c.Create(t.Context(), own); err == nil || !strings.Contains(err.Error(), "metadata.name: Too long: may not be more than 63") {
		t.Errorf("64 characters: %v", err)
	}
	theirs := kubetest.Apply(t, c, ns, strings.Replace(kserveSklearn, "example-sklearn-isvc", long+"abc", 1))[0]
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, theirs), "Ready"); !strings.Contains(got, "is not a name: use up to 63") {
			return "why it is not served, not " + got
		}
		return ""
	})
}
