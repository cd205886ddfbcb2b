// Package kubetest starts a real API server, over a real etcd, for the tests of
// a package: one for all of them, without nodes, controllers or a network
// beyond loopback.
package kubetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	logf "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/crds"
	"roundhouse.dev/roundhouse/test/loopback"
)

// server is the one of this test binary; nil where its programs are missing.
var server *rest.Config

// lacking is the program that is missing.
var lacking string

// Main is a TestMain: it starts the server, with our CRDs, runs the tests and
// stops it.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run is Main for who has something to tidy after it.
//
// The names of the world are not looked up: tests that name models in buckets
// ask nobody for them.
func Run(m *testing.M) (code int) {
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("tests ask no name server")
	}}
	logf.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	dir := programs()
	for _, p := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, p)); err != nil {
			lacking = p
			return m.Run()
		}
	}
	env, stop, err := Start(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the API server does not start:", err)
		return 1
	}
	defer func() {
		if err := stop(); err != nil {
			fmt.Fprintln(os.Stderr, "the API server does not stop:", err)
			code = 1
		}
	}()
	server = env.Config
	server.QPS, server.Burst = -1, 0
	return m.Run()
}

// Start runs the API server and the etcd of a folder, on ports that nobody else
// is given, until stop. They may be slow: the machine may be busy.
func Start(dir string) (env *envtest.Environment, stop func() error, err error) {
	env = &envtest.Environment{BinaryAssetsDirectory: dir, ControlPlaneStartTimeout: 2 * time.Minute, ControlPlaneStopTimeout: 2 * time.Minute}
	var held [3]string // of etcd's clients and peers, and of the API server
	for i := range held {
		address, release, err := loopback.Hold()
		if err != nil {
			return nil, nil, err
		}
		defer release() // not before the program has taken it
		held[i] = address
	}
	etcd, api := &envtest.Etcd{URL: &url.URL{Scheme: "http", Host: held[0]}}, &envtest.APIServer{}
	etcd.Configure().Set("unsafe-no-fsync", "true").Set("listen-peer-urls", "http://"+held[1])
	if api.SecureServing.Address, api.SecureServing.Port, err = net.SplitHostPort(held[2]); err != nil {
		return nil, nil, err
	}
	env.ControlPlane.Etcd, env.ControlPlane.APIServer = etcd, api
	if _, err := env.Start(); err != nil {
		return nil, nil, errors.Join(err, env.Stop())
	}
	return env, env.Stop, nil
}

// programs is bin/k8s of the module that the test is of.
func programs() string {
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return filepath.Join(dir, "bin", "k8s")
}

// Server is how to reach the API server. A test is skipped where there is none.
func Server(t testing.TB) *rest.Config {
	t.Helper()
	if server == nil {
		t.Skipf("no bin/k8s/%[1]s: make bin/k8s/%[1]s", lacking)
	}
	return rest.CopyConfig(server)
}

// Client reads and writes past every cache, as a person would. Our CRDs are
// installed, and the stand-ins of the projects named.
func Client(t testing.TB, projects ...string) client.Client {
	t.Helper()
	c, err := client.New(Server(t), client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	if err := install(t.Context(), c, projects); err != nil {
		t.Fatal(err)
	}
	return c
}

// installed reports that our CRDs are there. To apply them takes the API server
// seconds, and no test takes them away, as it may those of others.
var installed struct {
	sync.Mutex
	ours bool
}

func install(ctx context.Context, c client.Client, projects []string) error {
	installed.Lock()
	defer installed.Unlock()
	if present(ctx, c, projects) && installed.ours {
		return nil
	}
	_, err := crds.Install(ctx, c, crds.Options{Foreign: projects, FieldManager: "test", Established: time.Minute})
	installed.ours = err == nil
	return err
}

// present reports whether the stand-ins of all projects are there. It waits for
// those that an earlier test deleted, which the API server ends in its own time.
func present(ctx context.Context, c client.Client, projects []string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	there := true
	for _, p := range projects {
		all, err := crds.Foreign(p)
		if err != nil {
			return false
		}
		for _, u := range all {
			err := c.Get(ctx, client.ObjectKeyFromObject(u), u)
			for err == nil && u.GetDeletionTimestamp() != nil {
				time.Sleep(20 * time.Millisecond) // until ctx ends, which fails Get
				err = c.Get(ctx, client.ObjectKeyFromObject(u), u)
			}
			there = there && err == nil
		}
	}
	return there
}

// Namespace makes a namespace of the test's own.
func Namespace(t testing.TB, c client.Client, labels map[string]string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-", Labels: labels}}
	if err := c.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// Parse reads manifests of one file.
func Parse(t testing.TB, text string) []*unstructured.Unstructured {
	t.Helper()
	var out []*unstructured.Unstructured
	for _, doc := range strings.Split("\n"+text, "\n---") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if len(u.Object) > 0 {
			out = append(out, u)
		}
	}
	return out
}

// Apply applies manifests as kubectl does on the server's side. Those without
// a namespace get the one given, unless their kind has none.
func Apply(t testing.TB, c client.Client, namespace, text string) []*unstructured.Unstructured {
	t.Helper()
	out := Parse(t, text)
	for _, u := range out {
		if u.GetNamespace() == "" && !strings.HasPrefix(u.GetKind(), "Cluster") && u.GetKind() != "FineTunedWeight" && u.GetKind() != "AcceleratorClass" {
			u.SetNamespace(namespace)
		}
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
			t.Fatalf("apply %s %s: %v", u.GetKind(), u.GetName(), err)
		}
	}
	return out
}

// Eventually calls ok at short intervals until it returns "", not what is
// lacking.
func Eventually(t testing.TB, ok func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		lacks := ok()
		if lacks == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("still lacking: %s", lacks)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Writes counts the requests that change something, leases and events apart.
type Writes struct {
	mu    sync.Mutex
	calls []string
}

// Count has the writes of cfg's clients counted.
func Count(cfg *rest.Config) *Writes {
	w := &Writes{}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/leases") && !strings.HasPrefix(r.URL.Path, "/apis/authorization") {
				w.mu.Lock()
				w.calls = append(w.calls, r.Method+" "+r.URL.Path)
				w.mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	return w
}

// Take returns the writes so far and forgets them.
func (w *Writes) Take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.calls
	w.calls = nil
	return out
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// GatewayClasses are one of ours, NS, and one of somebody else's, NS-other.
const GatewayClasses = `
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: NS}
spec: {controllerName: roundhouse.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: NS-other}
spec: {controllerName: example.com/gateway}
---`

// Place is Apply for manifests in which NS is the namespace's name, so that
// what belongs to none may have a name of the test's own. A GatewayClass goes
// with the test.
func Place(t testing.TB, c client.Client, namespace, text string) {
	t.Helper()
	for _, u := range Parse(t, strings.ReplaceAll(text, "NS", namespace)) {
		class := u.GetKind() == "GatewayClass"
		if u.GetNamespace() == "" && !class {
			u.SetNamespace(namespace)
		}
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
			t.Fatalf("apply %s %s: %v", u.GetKind(), u.GetName(), err)
		}
		if class {
			t.Cleanup(func() { _ = c.Delete(context.Background(), u) }) // also of tests that failed
		}
	}
}

// The modules whose definitions tests install; make published-crds downloads
// them.
const (
	GatewayAPI         = "sigs.k8s.io/gateway-api@v1.5.1/config/crd/standard/gateway.networking.k8s.io_*s.yaml"
	InferenceExtension = "sigs.k8s.io/gateway-api-inference-extension@v1.1.0/config/crd/bases/*.yaml"
	KServeGraphs       = "github.com/kserve/kserve@v0.15.2/config/crd/full/serving.kserve.io_inferencegraphs.yaml"
)

// Published installs definitions that other projects have published, from the
// module cache, over what is there. A test is skipped where they are not.
func Published(t testing.TB, c client.Client, modules ...string) {
	t.Helper()
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Skipf("go env GOMODCACHE: %v", err)
	}
	for _, m := range modules {
		files, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(cache)), m))
		if len(files) == 0 {
			t.Skipf("%s is not in the module cache: make published-crds", m)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var u unstructured.Unstructured
			if err := yaml.Unmarshal(text, &u.Object); err != nil {
				t.Fatal(err)
			}
			if u.GetKind() != "CustomResourceDefinition" {
				continue
			}
			delete(u.Object, "status")
			if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(&u), client.FieldOwner("published"), client.ForceOwnership); err != nil {
				t.Fatal(err)
			}
			Eventually(t, func() string {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(&u), &u); err != nil {
					return err.Error()
				}
				all, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
				for _, e := range all {
					if e, ok := e.(map[string]any); ok && e["type"] == "Established" && e["status"] == "True" {
						return ""
					}
				}
				return u.GetName() + " is not established"
			})
		}
	}
}
