//go:build kubernetes && linux

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// startPatience bounds the start of the whole node.
const startPatience = 3 * time.Minute

// Cluster is a running node. It lives as long as the test's process.
type Cluster struct {
	client.WithWatch              // of the administrator
	Config           *rest.Config // the same, for other clients
	daemons          map[string]*daemon
	apiServer        []string // further arguments
}

var shared struct {
	sync.Mutex
	cluster *Cluster
	err     error
}

// Get gives the package's cluster, started by the first who asks; it skips the
// test where there can be none.
func Get(t *testing.T) *Cluster {
	t.Helper()
	return get(t, startCluster)
}

func get(t *testing.T, start func(context.Context) (*Cluster, error)) *Cluster {
	t.Helper()
	if unavailable != nil {
		t.Skipf("no Kubernetes node here: %v", unavailable)
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startPatience)
		defer cancel()
		began := time.Now()
		if shared.cluster, shared.err = start(ctx); shared.err == nil {
			t.Logf("the cluster is ready after %.1f s", time.Since(began).Seconds())
		}
	}
	if shared.err != nil {
		t.Fatalf("the cluster: %v", shared.err)
	}
	return shared.cluster
}

// startCluster starts everything and waits until the node takes pods.
func startCluster(ctx context.Context) (*Cluster, error) {
	c := &Cluster{daemons: map[string]*daemon{}}
	if err := c.connect(ctx); err != nil {
		return nil, err
	}
	if err := c.startWorker(ctx); err != nil {
		return nil, err
	}
	if err := c.awaitNodes(ctx, 1); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, tail("kubelet"))
	}
	return c, Await(ctx, c, "the default service account", &corev1.ServiceAccountList{},
		func(l *corev1.ServiceAccountList) bool { return len(l.Items) > 0 }, client.InNamespace("default"))
}

// connect starts the control plane and makes the administrator's clients.
func (c *Cluster) connect(ctx context.Context) error {
	if err := writeCertificates(); err != nil {
		return err
	}
	if err := c.startPlane(ctx); err != nil {
		return err
	}
	var err error
	if c.Config, err = clientcmd.BuildConfigFromFlags("", Kubeconfig); err != nil {
		return err
	}
	c.Config.QPS = -1 // the tests are few
	c.WithWatch, err = client.NewWithWatch(c.Config, client.Options{Scheme: scheme.Scheme})
	return err
}

// awaitNodes waits until n nodes take pods.
func (c *Cluster) awaitNodes(ctx context.Context, n int) error {
	return Await(ctx, c, "the nodes are ready", &corev1.NodeList{}, func(l *corev1.NodeList) bool {
		ready := 0
		for _, node := range l.Items {
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue && len(node.Spec.Taints) == 0 {
					ready++
				}
			}
		}
		return ready == n
	})
}

// Await waits until the objects of a list are as wanted. It looks whenever one
// of them changes, and goes on through an outage of the API server.
func Await[L client.ObjectList](ctx context.Context, c client.WithWatch, what string, list L, ok func(L) bool, opts ...client.ListOption) error {
	for {
		err := c.List(ctx, list, opts...)
		if err == nil && ok(list) {
			return nil
		}
		if err == nil {
			since := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}}
			err = next(ctx, c, list, append([]client.ListOption{since}, opts...))
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond): // before it is asked again what failed
			}
		}
	}
}

// next waits for a change since the list was read.
func next(ctx context.Context, c client.WithWatch, list client.ObjectList, opts []client.ListOption) error {
	w, err := c.Watch(ctx, list, opts...)
	if err != nil {
		return err
	}
	defer w.Stop()
	select {
	case <-w.ResultChan(): // closed is a change, too
	case <-ctx.Done():
	}
	return nil
}

// AwaitRollout waits until a Deployment's replicas are those of its newest
// template, and ready.
func (c *Cluster) AwaitRollout(ctx context.Context, namespace, name string) error {
	return Await(ctx, c, "the rollout of "+namespace+"/"+name, &appsv1.DeploymentList{}, func(l *appsv1.DeploymentList) bool {
		if len(l.Items) != 1 {
			return false
		}
		d := l.Items[0]
		want := int32(1)
		if d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		s := d.Status
		return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == want && s.ReadyReplicas == want && s.Replicas == want
	}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name})
}

// Kubectl runs kubectl as the administrator, and gives what it printed.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return command(ctx, binary("kubectl"), append([]string{"--kubeconfig", Kubeconfig, "--cache-dir", runDir + "/kubectl"}, args...)...)
}

// ApplyYAML applies a manifest with kubectl.
func (c *Cluster) ApplyYAML(ctx context.Context, manifest string) error {
	return c.with(ctx, manifest, "apply", "--server-side", "--force-conflicts")
}

// DeleteYAML deletes with kubectl what a manifest makes.
func (c *Cluster) DeleteYAML(ctx context.Context, manifest string) error {
	return c.with(ctx, manifest, "delete", "--ignore-not-found")
}

func (c *Cluster) with(ctx context.Context, manifest string, args ...string) error {
	f, err := os.CreateTemp("", "manifest-*.yaml")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // its folder goes with the namespaces
	if _, err := f.WriteString(manifest); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, append(args, "-f", f.Name())...)
	return err
}

// runTests runs the tests, and keeps the logs of those that failed.
func runTests(m *testing.M) int {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		s := <-interrupted
		fmt.Fprintf(os.Stderr, "kubernetes: %v: the node ends\n", s)
		collect()
		os.Exit(1)
	}()
	ctrllog.SetLogger(logr.Discard()) // it asks for one
	code := m.Run()
	if code != 0 {
		collect()
	}
	return code
}

// collect copies the logs of everything, and what the cluster says of itself,
// to a folder that stays.
func collect() {
	target := filepath.Join(filepath.Dir(Binaries()), "kubernetes-logs")
	if err := os.RemoveAll(target); err == nil {
		err = os.CopyFS(target, os.DirFS(logDir))
		if err != nil {
			fmt.Fprintln(os.Stderr, "kubernetes: the logs:", err)
		}
	}
	if c := shared.cluster; c != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for file, args := range map[string][]string{
			"objects.txt":   {"get", "all,pdb,endpointslices,controllerrevisions,pv,pvc", "-A", "-o", "wide"},
			"pods.txt":      {"describe", "pods", "-A"},
			"events.txt":    {"get", "events", "-A", "--sort-by=.lastTimestamp"},
			"revisions.txt": {"get", "controllerrevisions", "-A", "-o", "yaml"},
			"gateways.txt":  {"get", "gatewayclasses,gateways,httproutes,grpcroutes,inferencepools", "-A", "-o", "yaml"},
			"services.txt":  {"get", "modelservices,inferenceservices.serving.kserve.io,inferenceservices.ome.io", "-A", "-o", "yaml"},
		} {
			out, _ := c.Kubectl(ctx, args...) // what it says is kept, be it an error
			_ = os.WriteFile(filepath.Join(target, file), []byte(out), 0o644)
		}
	}
	fmt.Fprintln(os.Stderr, "kubernetes: logs are in", target)
}
