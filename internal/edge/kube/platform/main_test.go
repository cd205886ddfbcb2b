package platform_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

const binaries = "../../../../bin/k8s"

// server is one cluster for all tests: an API server, the controllers that
// make pods of Deployments, and a kubelet that says what pods are like and runs
// nothing. nil where its programs are missing.
var server *rest.Config

func TestMain(m *testing.M) {
	platformtest.Main()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	logf.SetLogger(logr.Discard())
	if missing() != "" {
		return m.Run()
	}
	dir, _ := filepath.Abs(binaries)
	env, stop, err := kubetest.Start(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the API server does not start:", err)
		return 1
	}
	defer func() { _ = stop() }()
	cfg := env.Config
	cfg.QPS = -1
	server = cfg
	end, err := startControllers(dir, env.KubeConfig)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer end()
	k, err := startKubelet(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	node = k
	defer k.stop()
	return m.Run()
}

// startControllers runs the controllers of Deployments, ReplicaSets and what
// comes with them.
func startControllers(dir string, kubeconfig []byte) (end func(), err error) {
	tmp, err := os.MkdirTemp("", "controllers-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(tmp, "kubeconfig")
	if err := os.WriteFile(file, kubeconfig, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(dir, "kube-controller-manager"), "--kubeconfig="+file, "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=300", "--kube-api-burst=600", "--concurrent-gc-syncs=4", "--horizontal-pod-autoscaler-sync-period=1s",
		"--controllers=deployment-controller,replicaset-controller,garbage-collector-controller,resourcequota-controller,endpointslice-controller,horizontal-pod-autoscaler-controller")
	log, err := os.Create(filepath.Join(tmp, "log"))
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		_ = log.Close()
		_ = os.RemoveAll(tmp)
	}, nil
}

// missing names a program that is not built; "" for none.
func missing() string {
	for _, p := range []string{"etcd", "kube-apiserver", "kube-controller-manager"} {
		if _, err := os.Stat(filepath.Join(binaries, p)); err != nil {
			return p
		}
	}
	return ""
}

// cluster is how to reach the cluster; without one the test is skipped.
func cluster(t *testing.T) *rest.Config {
	t.Helper()
	if server == nil {
		t.Skipf("no bin/k8s/%[1]s: make bin/k8s/%[1]s", missing())
	}
	return rest.CopyConfig(server)
}

// counter counts the requests that pass, by "VERB resource[/subresource]", and
// can be told to come before one, or to fail them.
type counter struct {
	mu     sync.Mutex
	seen   []string
	before func(call string)
	down   bool
}

func (c *counter) attach(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			call := callOf(r)
			c.mu.Lock()
			if !strings.HasPrefix(call, "WATCH") {
				c.seen = append(c.seen, call)
			}
			before, down := c.before, c.down
			c.mu.Unlock()
			if down {
				return nil, errors.New("connection refused")
			}
			if before != nil {
				before(call)
			}
			return next.RoundTrip(r)
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// callOf is "PATCH deployments/scale" for /apis/apps/v1/namespaces/n/deployments/x/scale.
func callOf(r *http.Request) string {
	verb := r.Method
	if r.URL.Query().Has("watch") {
		verb = "WATCH"
	}
	_, path, found := strings.Cut(r.URL.Path, "/namespaces/")
	if !found {
		return verb + " " + r.URL.Path
	}
	parts := strings.Split(path, "/")
	if len(parts) < 2 {
		return verb + " namespaces"
	}
	return verb + " " + strings.Join(append([]string{parts[1]}, parts[min(3, len(parts)):]...), "/")
}

// writes are the calls since the last look that change something.
func (c *counter) writes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := slices.DeleteFunc(c.seen, func(s string) bool { return strings.HasPrefix(s, "GET") })
	c.seen = nil
	return out
}

func (c *counter) set(before func(string), down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before, c.down = before, down
}

// direct is a client that reads from the API server itself.
func direct(t *testing.T) client.Client {
	t.Helper()
	c, err := client.New(cluster(t), client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// within is a context that bounds a wait of the test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(stop)
	return ctx
}
