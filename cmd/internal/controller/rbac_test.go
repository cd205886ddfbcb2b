package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/deploy/manifests"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// refusals notes the requests that were forbidden.
type refusals struct {
	mu  sync.Mutex
	all map[string]bool
}

func (r *refusals) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil && resp.StatusCode == http.StatusForbidden {
			r.mu.Lock()
			r.all[req.Method+" "+req.URL.Path] = true
			r.mu.Unlock()
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// account is how a program with that service account reaches the API server.
func account(t *testing.T, ns, name string) (*rest.Config, *refusals) {
	t.Helper()
	cfg, r := kubetest.Server(t), &refusals{all: map[string]bool{}}
	cfg.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + ns + ":" + name,
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + ns, "system:authenticated"}}
	cfg.Wrap(r.wrap)
	return cfg, r
}

// looking has a router that looks for pods itself.
const looking = `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: looking}
spec:
  engine: {containers: [{name: main, image: sglang}]}
  router: {containers: [{name: main, image: router, args: [--service-discovery]}]}
`

// TestAllowed runs a controller as the account that the installed manifests
// give it, from a service's application to its end, everywhere and with
// namespaces of its own: nothing it asks for is forbidden. What it has no
// business with is.
func TestAllowed(t *testing.T) {
	for _, watching := range []bool{false, true} {
		t.Run(fmt.Sprintf("namespaces of its own %v", watching), func(t *testing.T) {
			c := kubetest.Client(t, "kserve", "ome")
			system, ns, elsewhere := kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, nil), kubetest.Namespace(t, c, nil)
			printed := manifests.Options{Image: "roundhouse:1", Namespace: system, NoCRDs: true, InstallCRDs: []string{"kserve"}}
			if watching {
				printed.Watch = []string{ns}
			}
			var text bytes.Buffer
			if err := manifests.Write(&text, printed); err != nil {
				t.Fatal(err)
			}
			kubetest.Apply(t, c, "", text.String())
			cfg, refused := account(t, system, "roundhouse-controller")
			us, err := client.New(cfg, client.Options{Scheme: kube.Scheme()})
			if err != nil {
				t.Fatal(err)
			}
			kubetest.Eventually(t, func() string {
				if err := us.List(t.Context(), &corev1.PodList{}, client.InNamespace(ns)); err != nil {
					return err.Error()
				}
				return ""
			})
			refused.all = map[string]bool{}

			o := options(t, printed.Watch...)
			o.system, o.install, o.elect = system, []string{"kserve"}, true
			o.lease, o.priorityClass = minLease, "reserve"
			r := begin(t, o, cfg)
			reserved(t, c, ns)
			keeping(t, c, ns)
			benchmarked(t, c, ns)
			for _, manifest := range []string{iris, kserveSklearn, looking} {
				u := kubetest.Apply(t, c, ns, manifest)[0]
				kubetest.Eventually(t, func() string {
					if field(get(t, c, u), "status", "conditions") == "<nil>" || made(t, c, ns, u.GetName())["deployments"] == 0 {
						return "status and a Deployment of " + u.GetName()
					}
					return lacks(events(t, c, u), "Scaled")
				})
				if manifest == looking {
					binding := &unstructured.Unstructured{}
					binding.SetAPIVersion("rbac.authorization.k8s.io/v1")
					binding.SetKind("RoleBinding")
					binding.SetNamespace(ns)
					binding.SetName("looking-router")
					get(t, c, binding)
				}
				if err := r.fleet.Wake(t.Context(), service.Key{Namespace: ns, Name: u.GetName()}, 2); err != nil {
					t.Error(err)
				}
				if err := c.Delete(t.Context(), u); err != nil {
					t.Fatal(err)
				}
				kubetest.Eventually(t, func() string { return strings.Join(keys(made(t, c, ns, u.GetName())), " ") })
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			for call := range refused.all {
				t.Errorf("forbidden: %s", call)
			}
			forbidden(t, us, elsewhere, watching)
		})
	}
}

// reserved has a Reserve kept: its placeholders, an image on a node, and no more of
// either.
func reserved(t *testing.T, c client.Client, ns string) {
	t.Helper()
	node := &corev1.Node{}
	node.Name, node.Labels = ns, map[string]string{"pool": ns}
	if err := c.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Delete(context.Background(), node) }()
	node.Spec.Taints = nil
	if err := c.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := c.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	const manifest = `{apiVersion: roundhouse.dev/v1alpha1, kind: Reserve, metadata: {name: room}, spec: {nodeSelector: {pool: NS}, %s}}`
	u := kubetest.Apply(t, c, ns, strings.ReplaceAll(fmt.Sprintf(manifest, "placeholders: {percent: 100, resources: {cpu: 1}}, images: {names: [engine]}"), "NS", ns))[0]
	count := func(jobs, deployments int) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			var j, d unstructured.UnstructuredList
			j.SetAPIVersion("batch/v1")
			j.SetKind("JobList")
			d.SetAPIVersion("apps/v1")
			d.SetKind("DeploymentList")
			if err := errors.Join(c.List(t.Context(), &j, client.InNamespace(ns)), c.List(t.Context(), &d, client.InNamespace(ns))); err != nil {
				return err.Error()
			}
			if len(j.Items) != jobs || len(d.Items) != deployments {
				return fmt.Sprintf("%d Jobs of %d, %d Deployments of %d", len(j.Items), jobs, len(d.Items), deployments)
			}
			return ""
		})
	}
	count(1, 1)
	kubetest.Eventually(t, func() string {
		if got := field(get(t, c, u), "status", "placeholders", "wanted"); got != "1" {
			return "a status; it has " + got
		}
		return ""
	})
	kubetest.Apply(t, c, ns, strings.ReplaceAll(fmt.Sprintf(manifest, "images: {names: [another]}"), "NS", ns))
	count(1, 0)
	if err := c.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

// keeping has a model kept on nodes, told of, and removed.
func keeping(t *testing.T, c client.Client, ns string) {
	t.Helper()
	k, cache, reader := cachedModel(t, c, ns)
	kubetest.Eventually(t, func() string {
		if k.set() == nil || field(get(t, c, cache), "status", "copies") == "<nil>" {
			return "a DaemonSet and a status"
		}
		return ""
	})
	if err := errors.Join(c.Delete(t.Context(), reader), c.Delete(t.Context(), cache)); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		d := k.set()
		if d == nil {
			return ""
		}
		if d.Annotations[shape.AnnotationDropping] != "" && d.Status.ObservedGeneration < d.Generation {
			d.Status.ObservedGeneration = d.Generation
			_ = c.Status().Update(t.Context(), d) // tried again
		}
		return "no DaemonSet"
	})
}

// benchmarked has a BenchmarkJob run, kept from its Job, changed and deleted.
func benchmarked(t *testing.T, c client.Client, ns string) {
	t.Helper()
	u := kubetest.Apply(t, c, ns, chatLoad)[0]
	kubetest.Eventually(t, func() string {
		if field(get(t, c, u), "status", "state") != "Pending" || len(jobs(t, c, ns)) == 0 {
			return "a Job and a status"
		}
		return ""
	})
	var j *batchv1.Job
	its := func() string { // Reserves have Jobs too
		for _, one := range jobs(t, c, ns) {
			if metav1.IsControlledBy(&one, u) {
				j = &one
				return ""
			}
		}
		return "a Job of its own"
	}
	kubetest.Eventually(t, its)
	j.OwnerReferences, j.Labels = nil, nil // as if it were somebody else's
	if err := c.Update(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	says(t, c, u, map[string]string{"details": "is not this BenchmarkJob's"})
	if err := c.Delete(t.Context(), j, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, its)
	kubetest.Apply(t, c, ns, strings.ReplaceAll(chatLoad, "D(100,100)", "D(200,100)"))
	says(t, c, u, map[string]string{"details": "waits until the pod of the former Job has ended"})
	if err := c.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

// forbidden tries what no controller is allowed.
func forbidden(t *testing.T, us client.Client, elsewhere string, watching bool) {
	t.Helper()
	tries := map[string]func(context.Context) error{
		"list secrets": func(ctx context.Context) error {
			return us.List(ctx, &corev1.SecretList{}, client.InNamespace(elsewhere))
		},
		"create a pod": func(ctx context.Context) error {
			p := &corev1.Pod{}
			p.Name, p.Namespace = "a", elsewhere
			p.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
			return us.Create(ctx, p)
		},
		"create a namespace": func(ctx context.Context) error {
			n := &corev1.Namespace{}
			n.Name = "made-by-a-controller"
			return us.Create(ctx, n)
		},
	}
	if watching {
		tries["list pods elsewhere"] = func(ctx context.Context) error { return us.List(ctx, &corev1.PodList{}, client.InNamespace(elsewhere)) }
	}
	for what, try := range tries {
		if err := try(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it forbidden", what, err)
		}
	}
}
