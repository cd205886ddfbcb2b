package incluster

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	install "roundhouse.dev/roundhouse/deploy/manifests"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// forbidden keeps the lines of a log that say so.
type forbidden struct {
	mu    sync.Mutex
	lines []string
}

func (f *forbidden) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("forbidden")) {
		f.mu.Lock()
		f.lines = append(f.lines, string(b))
		f.mu.Unlock()
	}
	return len(b), nil
}

// TestAllowed runs a gateway as the account that the installed manifests give
// it, everywhere and with namespaces of its own: it wakes a service and answers
// for it, and nothing it asks for is forbidden. What it has no business with is.
func TestAllowed(t *testing.T) {
	for _, watching := range []bool{false, true} {
		t.Run(fmt.Sprintf("namespaces of its own %v", watching), func(t *testing.T) {
			r := newRig(t)
			kubetest.Published(t, r.api, kubetest.InferenceExtension)
			kubetest.Apply(t, r.api, r.ns, fmt.Sprintf(pickerPool, "llama", 8000, 8001, "epp"))
			r.pod("llama-1", map[string]string{"app": "llama"}, corev1.ConditionTrue)
			printed := install.Options{Image: "roundhouse:1", Namespace: r.ns, NoCRDs: true}
			if watching {
				printed.Watch = []string{r.ns}
			}
			var text bytes.Buffer
			if err := install.Write(&text, printed); err != nil {
				t.Fatal(err)
			}
			kubetest.Apply(t, r.api, "", text.String())
			us := r.impersonate("roundhouse-gateway")
			kubetest.Eventually(t, func() string {
				m := &corev1.ConfigMap{}
				if err := us.Get(t.Context(), client.ObjectKey{Namespace: r.ns, Name: "roundhouse-controller"}, m); !apierrors.IsNotFound(err) {
					return fmt.Sprint("the roles are not in force: ", err)
				}
				return ""
			})
			var log forbidden
			klog.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(&log, nil)))
			defer klog.ClearLogger()

			m := newModel(t)
			k := r.serve("iris", m.port(), 0)
			g := r.gateway(func(o *Options) {
				o.Logs, o.Namespaces, o.Adopt, o.transform = &log, printed.Watch, []string{"gateway"}, podsToo
			})
			// It may look for the endpoint picker that a pool names.
			if status, body := g.complete(t.Context(), "llama."+r.ns+".models.test", "/v1/completions", "llama"); status != http.StatusServiceUnavailable || !strings.Contains(body, "there is no Service epp") {
				t.Errorf("a pool whose picker is not there: %d %s", status, body)
			}
			answer := make(chan string, 1)
			go func() {
				code, body, err := g.ask(t.Context(), "iris", "iris."+r.ns+".models.test")
				answer <- fmt.Sprint(code, body, err)
			}()
			kubetest.Eventually(t, func() string {
				if n := r.replicas(k); n != 1 {
					return fmt.Sprintf("%d replicas, not 1", n)
				}
				return ""
			})
			r.endpoint(k, "iris-0", m.port(), true)
			if got := <-answer; !strings.HasPrefix(got, fmt.Sprint(http.StatusOK)) {
				t.Errorf("answered %s", got)
			}
			g.stop()
			for _, l := range log.lines {
				t.Error(l)
			}
			pod := &corev1.Pod{}
			pod.Name, pod.Namespace = "a", r.ns
			pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
			for what, err := range map[string]error{
				"list secrets": us.List(t.Context(), &corev1.SecretList{}, client.InNamespace(r.ns)),
				"get a pod":    us.Get(t.Context(), client.ObjectKeyFromObject(pod), &corev1.Pod{}),
				"create a pod": us.Create(t.Context(), pod),
			} {
				if !apierrors.IsForbidden(err) {
					t.Errorf("%s: %v, want it forbidden", what, err)
				}
			}
		})
	}
}

// impersonate has the rig's kubeconfig stand for a service account, and gives a
// client of its own.
func (r *rig) impersonate(account string) client.Client {
	r.t.Helper()
	k, err := clientcmd.LoadFromFile(r.path("kubeconfig"))
	if err != nil {
		r.t.Fatal(err)
	}
	u := k.AuthInfos["u"]
	u.Impersonate = "system:serviceaccount:" + r.ns + ":" + account
	u.ImpersonateGroups = []string{"system:serviceaccounts", "system:serviceaccounts:" + r.ns, "system:authenticated"}
	if err := clientcmd.WriteToFile(*k, r.path("kubeconfig")); err != nil {
		r.t.Fatal(err)
	}
	cfg := kube.DefaultConfig()
	cfg.Kubeconfig = r.path("kubeconfig")
	rest, err := kube.Connect(cfg, "test")
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := client.New(rest, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}
