package controller

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// requests notes what is asked of an API server, watches aside.
type requests struct {
	mu    sync.Mutex
	calls []string
	last  time.Time
}

func (r *requests) attach(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.URL.Query().Get("watch") == "" {
				r.mu.Lock()
				r.calls, r.last = append(r.calls, req.Method+" "+req.URL.Path), time.Now()
				r.mu.Unlock()
			}
			return next.RoundTrip(req)
		})
	})
}

// TestNothingPolls: once all is as it should be, the API server is asked for
// nothing, and no service is reconciled, until something changes.
func TestNothingPolls(t *testing.T) {
	c := kubetest.Client(t, "kserve", "ome", "gie")
	ns := kubetest.Namespace(t, c, nil)
	t.Parallel()
	cfg, asked := kubetest.Server(t), &requests{last: time.Now()}
	asked.attach(cfg)
	r := begin(t, options(t, ns), cfg)
	n := &nodes{t: t, c: c, ns: ns}
	k := service.Key{Namespace: ns, Name: "iris"}
	own := strings.Replace(iris, "uri: s3://models/iris, ", "", 1)
	ready := kubetest.Apply(t, c, ns, strings.Replace(own, "xgboost", "simulator", 1))[0]
	kubetest.Apply(t, c, ns, strings.NewReplacer("xgboost", "simulator", "name: iris", "name: asleep", "minReplicas: 1", "minReplicas: 0").Replace(own))
	kubetest.Apply(t, c, ns, "{apiVersion: roundhouse.dev/v1alpha1, kind: Pool, metadata: {name: ours}, spec: {selector: {app: iris}}}")
	eventuallyIs(t, "applied", func() string { return fmt.Sprint(n.count(k, service.RoleEngine)) }, "1")
	n.becomes(n.pod(k, service.RoleEngine), "", "")
	kubetest.Eventually(t, func() string {
		if got := condition(get(t, c, ready), "Ready"); !strings.Contains(got, "status:True") {
			return "a service that is ready, not " + got
		}
		return ""
	})
	reconciles := func() float64 {
		m := gather(t, r.operator)
		return m["roundhouse_controller_reconcile_seconds done"] + m["roundhouse_controller_reconcile_seconds failed"]
	}
	// Nothing tells that nothing more will come: a stillness of longer than any
	// write waits for, or is tried again after.
	const stillness = 6 * time.Second
	looked := reconciles()
	kubetest.Eventually(t, func() string {
		now := reconciles()
		asked.mu.Lock()
		defer asked.mu.Unlock()
		if now != looked {
			looked, asked.last = now, time.Now()
		}
		if time.Since(asked.last) < stillness {
			return fmt.Sprintf("rest; %v reconciles, the last requests: %s", now, asked.calls[max(0, len(asked.calls)-10):])
		}
		asked.calls = nil
		return ""
	})
	if looked == 0 {
		t.Error("nothing was reconciled at all")
	}
	// It does hear of what changes.
	if err := c.Delete(t.Context(), ready, client.PropagationPolicy("Background")); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		asked.mu.Lock()
		defer asked.mu.Unlock()
		if !slices.ContainsFunc(asked.calls, func(s string) bool { return strings.HasPrefix(s, "DELETE ") && strings.Contains(s, "iris") }) {
			return fmt.Sprint("its end, not ", asked.calls)
		}
		return ""
	})
}
