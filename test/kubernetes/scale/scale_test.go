//go:build kubernetes && linux

// Package scale measures the controller with a thousand services: `make
// scale-kubernetes`. The control plane is real; its nodes and pods are KWOK's.
package scale

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/test/kubernetes/node"
)

func TestMain(m *testing.M) { node.Main(m) }

// The size, and what the controller is to keep to.
const (
	services = 1000
	replicas = 2
	nodes    = 20

	maxWrites    = 4   // of objects, for one changed service
	maxStatus    = 4   // of its status, while its new pods come and the old ones go: one a second
	maxMemoryMiB = 250 // resident
	patience     = 10 * time.Minute
	namespace    = "scale"
	system       = "roundhouse-system"
)

var modelService = schema.GroupVersionKind{Group: "roundhouse.dev", Version: "v1alpha1", Kind: "ModelService"}

// bench is the cluster and the controller beside it.
type bench struct {
	*node.Cluster
	t   *testing.T
	pid int
}

func TestScale(t *testing.T) {
	b := &bench{Cluster: node.GetFake(t, nodes), t: t}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, ns := range []string{system, namespace} {
		b.do(b.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	}
	_, err := b.Kubectl(ctx, "apply", "--server-side", "-f", filepath.Join(filepath.Dir(filepath.Dir(node.Binaries())), "deploy", "crds"))
	b.do(err)
	b.start(ctx)
	b.say("controller's memory without services", "%d MiB", b.memory("VmRSS"))

	began := time.Now()
	b.createAll(ctx)
	created := time.Since(began)
	b.awaitReady(ctx, services)
	ready := time.Since(began)
	b.say(fmt.Sprintf("%d services made", services), "%.1f s", created.Seconds())
	b.say(fmt.Sprintf("all ready, with %d pods", services*replicas), "%.1f s", ready.Seconds())
	b.say("controller's memory then, and at its peak", "%d MiB, %d MiB", b.memory("VmRSS"), b.memory("VmHWM"))
	if m := b.memory("VmRSS"); m > maxMemoryMiB {
		t.Errorf("the controller takes %d MiB, %d at most", m, maxMemoryMiB)
	}
	offset := b.quiet(ctx)
	calls, _, err := b.Calls(0)
	b.do(err)
	b.say("API calls per service, writes among them", "%.2f, %.2f", float64(sum(calls, all))/services, float64(sum(calls, node.Call.Writes))/services)
	b.list(calls)

	b.changeOne(ctx, offset)
	b.restart(ctx)
}

func (b *bench) do(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// say prints a row of the table.
func (b *bench) say(what, format string, args ...any) {
	fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(format, args...))
}

const controller = "roundhouse-controller"

// start starts the controller, as make built it for the image, and waits until
// it knows every manifest.
func (b *bench) start(ctx context.Context) {
	b.t.Helper()
	path := filepath.Join(filepath.Dir(node.Binaries()), "image", "linux_"+runtime.GOARCH, controller)
	pid, err := b.Run(ctx, controller, path, "http://127.0.0.1:8091/readyz", "controller",
		"--kubeconfig", node.KubeconfigOf(node.Controller), "--image", node.Image,
		"--metrics-listen", "127.0.0.1:8090", "--health-listen", "127.0.0.1:8091", "--report-listen", "127.0.0.1:8443")
	b.do(err)
	b.pid = pid
}

// memory is a figure of the controller's process, in MiB.
func (b *bench) memory(field string) int {
	b.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", b.pid))
	b.do(err)
	for line := range strings.Lines(string(text)) {
		if rest, found := strings.CutPrefix(line, field+":"); found {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			b.do(err)
			return kb / 1024
		}
	}
	b.t.Fatalf("no %s", field)
	return 0
}

func name(i int) string { return fmt.Sprintf("model-%04d", i) }

// createAll makes the services, as fast as twenty clients can.
func (b *bench) createAll(ctx context.Context) {
	b.t.Helper()
	numbers := make(chan int)
	var group sync.WaitGroup
	var once sync.Once
	var failed error
	for range 20 {
		group.Go(func() {
			for i := range numbers {
				u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
					"model":   map[string]any{"format": map[string]any{"name": "simulator"}},
					"scaling": map[string]any{"minReplicas": int64(replicas), "maxReplicas": int64(replicas)},
				}}}
				u.SetGroupVersionKind(modelService)
				u.SetNamespace(namespace)
				u.SetName(name(i))
				if err := b.Create(ctx, u); err != nil {
					once.Do(func() { failed = err })
				}
			}
		})
	}
	for i := range services {
		numbers <- i
	}
	close(numbers)
	group.Wait()
	b.do(failed)
}

// awaitReady follows the services until n say that they are ready.
func (b *bench) awaitReady(ctx context.Context, n int) {
	b.t.Helper()
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(modelService.GroupVersion().WithKind(modelService.Kind + "List"))
	ready := map[string]bool{}
	b.do(node.Follow(ctx, b, l, func(o client.Object, _ bool) bool {
		u := o.(*unstructured.Unstructured)
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			if m, ok := c.(map[string]any); ok && m["type"] == "Ready" {
				ready[u.GetName()] = m["status"] == "True"
			}
		}
		count := 0
		for _, r := range ready {
			if r {
				count++
			}
		}
		return count == n
	}, client.InNamespace(namespace)))
}

// stillness is how long the controller asks nothing before it counts as done.
const stillness = 5 * time.Second

// quiet waits until the controller has written nothing for a while, and gives
// the end of the audit log.
func (b *bench) quiet(ctx context.Context) int64 {
	b.t.Helper()
	tick := time.NewTicker(stillness) // nothing tells that nothing more will come
	defer tick.Stop()
	_, from, err := b.Calls(0)
	b.do(err)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			b.t.Fatal("the controller never rests")
		}
		calls, end, err := b.Calls(from)
		b.do(err)
		if sum(calls, node.Call.Writes) == 0 {
			return end
		}
		from = end
	}
}

// changeOne changes one service of the thousand and measures until its
// Deployment has the new template, and what that cost.
func (b *bench) changeOne(ctx context.Context, offset int64) {
	b.t.Helper()
	var times []time.Duration
	const rounds = 20
	for i := range rounds {
		wanted := strconv.Itoa(i)
		seen := make(chan error, 1)
		watching := make(chan struct{})
		var began time.Time
		go func() {
			seen <- node.Follow(ctx, b, &appsv1.DeploymentList{}, func(o client.Object, listed bool) bool {
				if listed {
					close(watching)
				}
				for _, e := range o.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Env {
					if e.Name == "ROUND" && e.Value == wanted {
						return true
					}
				}
				return false
			}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name(7) + "-engine"})
		}()
		<-watching
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(modelService)
		u.SetNamespace(namespace)
		u.SetName(name(7))
		began = time.Now()
		b.do(b.Patch(ctx, u, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"engine":{"env":[{"name":"ROUND","value":%q}]}}}`, wanted))))
		b.do(<-seen)
		times = append(times, time.Since(began))
		b.do(b.AwaitRollout(ctx, namespace, name(7)+"-engine"))
	}
	slices.Sort(times)
	b.say("a changed manifest to its changed Deployment, p50 and worst of 20", "%d ms, %d ms", times[rounds/2].Milliseconds(), times[rounds-1].Milliseconds())
	b.quiet(ctx)
	calls, _, err := b.Calls(offset)
	b.do(err)
	writes := float64(sum(calls, func(c node.Call) bool { return c.Writes() && !status(c) })) / rounds
	told := float64(sum(calls, status)) / rounds
	b.say("API writes for a changed service; of its status until its pods are replaced", "%.1f; %.1f", writes, told)
	b.list(calls)
	if writes > maxWrites || told > maxStatus {
		b.t.Errorf("%.1f writes and %.1f of the status for a changed service, %d and %d at most", writes, told, maxWrites, maxStatus)
	}
}

// restart ends the controller and starts it again: it writes nothing.
func (b *bench) restart(ctx context.Context) {
	b.t.Helper()
	b.do(b.Stop(controller))
	offset := b.quiet(ctx)
	began := time.Now()
	b.start(ctx)
	b.do(b.Says(ctx, controller, "msg=leading", 2))
	b.say("a restarted controller leads, with all manifests", "%.1f s", time.Since(began).Seconds())
	b.quiet(ctx)
	calls, _, err := b.Calls(offset)
	b.do(err)
	b.say("API writes after the restart", "%d", sum(calls, node.Call.Writes))
	b.list(calls)
	if sum(calls, node.Call.Writes) > 0 {
		b.t.Errorf("a restarted controller wrote: %v", calls)
	}
	b.say("its memory, and at its peak", "%d MiB, %d MiB", b.memory("VmRSS"), b.memory("VmHWM"))
}

func status(c node.Call) bool { return strings.HasSuffix(c.Resource, "/status") }

func all(node.Call) bool { return true }

func sum(calls map[node.Call]int, which func(node.Call) bool) (n int) {
	for c, count := range calls {
		if which(c) {
			n += count
		}
	}
	return n
}

// list logs the calls by kind.
func (b *bench) list(calls map[node.Call]int) {
	b.t.Helper()
	kinds := slices.SortedFunc(maps.Keys(calls), func(x, y node.Call) int { return calls[y] - calls[x] })
	for _, k := range kinds {
		b.t.Logf("%6d %s %s", calls[k], k.Verb, k.Resource)
	}
}
