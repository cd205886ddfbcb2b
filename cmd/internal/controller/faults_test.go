package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/edge/kube/records"
)

// fault is what happens at one write.
type fault string

const (
	refused fault = "not sent"              // and all is well again
	unheard fault = "sent, its answer lost" // likewise
	before  fault = "killed before it"      // nothing comes from this process any more
	after   fault = "killed before its answer"
)

var errFault = errors.New("a fault of the test")

// faulty is a way to the API server with a fault at its nth write.
type faulty struct {
	mu     sync.Mutex
	what   fault
	left   int
	dead   bool
	struck chan struct{} // closed when it happened
	at     string
}

func (f *faulty) attach(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			send, lose := f.judge(r)
			if !send {
				return nil, errFault
			}
			resp, err := next.RoundTrip(r)
			if err == nil && lose {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				return nil, errFault
			}
			return resp, err
		})
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// judge says whether a request is sent, and whether its answer is lost.
func (f *faulty) judge(r *http.Request) (send, lose bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.dead:
		return false, true
	case r.Method == http.MethodGet, !strings.Contains(r.URL.Path, "/namespaces/test-"), strings.Contains(r.URL.Path, "/events"):
		return true, false
	}
	f.left--
	if f.left != 0 {
		return true, false
	}
	f.dead = f.what == after
	f.at = r.Method + " " + r.URL.Path
	close(f.struck)
	return true, true
}

// TestFaults strikes the controller at each write of a service's life: its
// answer is lost, or (every other one) the process ends at that moment and
// another starts. In the end all is as if nothing had been:
// one of each object, and the count that somebody else has set.
func TestFaults(t *testing.T) {
	c := kubetest.Client(t)
	const writes, least = 14, 10 // there is not always a status for each step
	var all atomic.Int32
	t.Run("all", func(t *testing.T) {
		for n := 1; n <= writes; n++ {
			what := []fault{unheard, after}[n%2]
			t.Run(fmt.Sprintf("%s/%d", what, n), func(t *testing.T) {
				t.Parallel()
				if strike(t, c, what, n) {
					all.Add(1)
				}
			})
		}
	})
	if n := all.Load(); n < least {
		t.Errorf("only %d writes were struck", n)
	}
}

// strike takes a service through its life with a fault at the nth write, and
// says whether there were as many.
func strike(t *testing.T, c client.Client, what fault, n int) (struck bool) {
	ns := kubetest.Namespace(t, c, nil)
	f := &faulty{what: what, left: n, struck: make(chan struct{})}
	cfg := kubetest.Server(t)
	f.attach(cfg)
	r := begin(t, options(t, ns), cfg)
	// reborn starts another process where this one has been killed.
	reborn := func() {
		select {
		case <-f.struck:
		default:
			return
		}
		f.mu.Lock()
		dead := f.dead
		f.mu.Unlock()
		if dead && !struck {
			_ = r.stop()
			r = begin(t, options(t, ns), kubetest.Server(t))
		}
		struck = true
	}
	until := func(ok func() string) {
		t.Helper()
		kubetest.Eventually(t, func() string {
			reborn()
			if lacks := ok(); lacks != "" {
				f.mu.Lock()
				defer f.mu.Unlock()
				return fmt.Sprintf("%s at write %d (%s): %s", what, n, f.at, lacks)
			}
			return ""
		})
	}
	k := service.Key{Namespace: ns, Name: "iris"}
	u := kubetest.Apply(t, c, ns, iris)[0]
	until(func() string { return whole(t, c, u, k, 1, "s3://models/iris") })
	raise(t, c, k, 2) // as a gateway, or a person
	until(func() string { return wants(get(t, c, u), 2) })
	kubetest.Apply(t, c, ns, strings.Replace(iris, "s3://models/iris", "s3://models/iris2", 1))
	until(func() string { return whole(t, c, u, k, 2, "s3://models/iris2") })
	if err := c.Delete(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	until(func() string {
		left := made(t, c, ns, "iris")
		if struck && what == after {
			delete(left, "records") // it goes with the manifest it belongs to
		}
		if len(left) > 0 {
			return fmt.Sprint(left, " left")
		}
		return ""
	})
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	return struck
}

func component(u *unstructured.Unstructured) *unstructured.Unstructured {
	parts, _, _ := unstructured.NestedSlice(u.Object, "status", "components")
	if len(parts) == 0 {
		return &unstructured.Unstructured{Object: map[string]any{}}
	}
	m, _ := parts[0].(map[string]any)
	return &unstructured.Unstructured{Object: m}
}

func wants(u *unstructured.Unstructured, n int) string {
	if got := field(component(u), "desired"); got != fmt.Sprint(n) {
		return fmt.Sprintf("the status wants %s, not %d", got, n)
	}
	return ""
}

func raise(t *testing.T, c client.Client, k service.Key, n int) {
	t.Helper()
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = k.Namespace, shape.Name(k, service.RoleEngine)
	err := c.SubResource("scale").Patch(t.Context(), d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)),
		client.FieldOwner("somebody"), client.WithSubResourceBody(&autoscalingv1.Scale{}))
	if err != nil {
		t.Fatal(err)
	}
}

// whole says what a service lacks to be as its manifest wants it.
func whole(t *testing.T, c client.Client, u *unstructured.Unstructured, k service.Key, count int, uri string) string {
	t.Helper()
	got := made(t, c, k.Namespace, k.Name)
	for _, word := range []string{"deployments", "services", "budgets"} {
		if got[word] != 1 {
			return fmt.Sprintf("%d %s", got[word], word)
		}
	}
	// A record that could not be deleted stays until the next decision.
	var list appsv1.ControllerRevisionList
	if err := c.List(t.Context(), &list, client.InNamespace(k.Namespace)); err != nil {
		return err.Error()
	}
	if last := records.Newest(list.Items)[k]; last == nil || len(list.Items) > 2 || !strings.Contains(string(last.Data.Raw), `"uri":"`+uri+`"`) {
		return fmt.Sprintf("of %d records the newest is not of %s", len(list.Items), uri)
	}
	var d appsv1.Deployment
	if err := c.Get(context.Background(), client.ObjectKey{Namespace: k.Namespace, Name: shape.Name(k, service.RoleEngine)}, &d); err != nil {
		return err.Error()
	}
	if n := int(*d.Spec.Replicas); n != count {
		return fmt.Sprintf("%d replicas, not %d", n, count)
	}
	if in := d.Spec.Template.Spec.InitContainers; len(in) == 0 || !slices.Contains(in[0].Args, uri) {
		return "the Deployment is not that of " + uri
	}
	now := get(t, c, u)
	if g, want := field(now, "status", "observedGeneration"), fmt.Sprint(now.GetGeneration()); g != want {
		return "observedGeneration " + g + ", not " + want
	}
	return wants(now, count)
}
