package pools

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// PodsConfig configures Pods. All but Namespaces, Transform and Log are required.
type PodsConfig struct {
	REST   *rest.Config
	Mapper meta.RESTMapper
	// Changed receives the replicas of a pool whenever they change, from one
	// goroutine at a time for each pool. It may keep the slice.
	Changed func(pool service.Key, replicas []replica.Replica)
	// Namespaces are the only ones whose pods may be read; none means all.
	Namespaces []string
	// MaxPools bounds how many pools are watched.
	MaxPools int
	// Transform changes pods on their way in, as tests need; nil changes nothing.
	Transform toolscache.TransformFunc
	Log       *slog.Logger
}

// DefaultPodsConfig watches the pods of up to 500 pools.
func DefaultPodsConfig() PodsConfig { return PodsConfig{MaxPools: 500} }

// Pods watches the pods that InferencePools select, whoever made them: each is
// as many endpoints as the pool has ports. Every pool has a watch of its own, so
// that no other pods of the cluster are read. It is safe for concurrent use.
type Pods struct {
	cfg PodsConfig
	run *watches

	mu    sync.Mutex
	pools map[service.Key]*pool
}

// pool is a pool whose pods are watched.
type pool struct {
	watch
	key      service.Key
	selector map[string]string
	ports    []int32
	changed  func(service.Key, []replica.Replica)

	mu       sync.Mutex
	complete bool // the first list was read
	pods     map[string][]replica.Replica
}

// NewPods returns a watch of no pools. Close ends it.
func NewPods(cfg PodsConfig) (*Pods, error) {
	if cfg.REST == nil || cfg.Mapper == nil || cfg.Changed == nil || cfg.MaxPools <= 0 {
		return nil, errors.New("pools: REST, Mapper, Changed and MaxPools are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Pods{cfg: cfg, run: newWatches(), pools: map[service.Key]*pool{}}, nil
}

// Close ends all watches and waits for them.
func (w *Pods) Close() { w.run.close() }

// Set replaces the pools. Pools without a selector or ports are not watched. A
// watch begins or ends for each pool that is new, changed or gone; Set does not
// wait for that.
func (w *Pods) Set(pools []*routing.Pool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[service.Key]*routing.Pool{}
	for _, p := range pools {
		if len(p.Ports) > 0 && len(p.Selector) > 0 && (len(w.cfg.Namespaces) == 0 || slices.Contains(w.cfg.Namespaces, p.Namespace)) {
			want[p.Key] = p
		}
	}
	for k, have := range w.pools {
		if p := want[k]; p == nil || !maps.Equal(p.Selector, have.selector) || !slices.Equal(p.Ports, have.ports) {
			have.stop()
			delete(w.pools, k)
		}
	}
	for k, p := range want {
		if w.pools[k] != nil || w.run.ctx.Err() != nil {
			continue
		}
		if len(w.pools) >= w.cfg.MaxPools {
			w.cfg.Log.Error("too many InferencePools: the pods of this one are not watched", "pool", k.String(), "limit", w.cfg.MaxPools)
			continue
		}
		w.pools[k] = w.begin(p)
	}
}

// Listed waits until the pods of every pool have been reported.
func (w *Pods) Listed(ctx context.Context) error {
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.pools))
	w.mu.Unlock()
	for _, p := range all {
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *Pods) begin(in *routing.Pool) *pool {
	p := &pool{watch: w.run.watch(), key: in.Key, selector: in.Selector, ports: in.Ports, changed: w.cfg.Changed, pods: map[string][]replica.Replica{}}
	w.run.begin(p.watch, func(listed func()) {
		opts := cache.Options{Mapper: w.cfg.Mapper, ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {
			Namespaces: map[string]cache.Config{p.key.Namespace: {}}, Label: labels.SelectorFromSet(p.selector), Transform: w.trim}}}
		err := kube.Watch(p.ctx, w.cfg.REST, opts, p.set, func() {
			p.listed()
			listed()
		})
		if err != nil && p.ctx.Err() == nil {
			w.cfg.Log.Error("the pods of an InferencePool cannot be watched", "pool", p.key.String(), "error", err)
		}
	})
	return p
}

// trim keeps the fields that a replica is made from.
func (w *Pods) trim(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil // a tombstone, perhaps
	}
	if w.cfg.Transform != nil {
		if _, err := w.cfg.Transform(pod); err != nil {
			return nil, err
		}
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp}}
	if role, ok := pod.Labels[roleLabel]; ok {
		out.Labels = map[string]string{roleLabel: role}
	}
	if c := parallel(pod); c != nil {
		out.Spec.Containers = []corev1.Container{{Command: c.Command, Args: c.Args}}
	}
	out.Status.PodIP, out.Status.Phase = pod.Status.PodIP, pod.Status.Phase
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return out, nil
}

// set notes a pod's replicas.
func (p *pool) set(object any, exists bool) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, pod.Name)
	if rs := Replicas(pod, p.ports); exists && rs != nil {
		p.pods[pod.Name] = rs
	}
	p.report()
}

// listed reports all pods once the first list is complete.
func (p *pool) listed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.complete = true
	p.report()
}

// report calls changed with mu held, so that reports arrive in their order.
func (p *pool) report() {
	if !p.complete || p.ctx.Err() != nil {
		return
	}
	all := []replica.Replica{}
	for _, rs := range p.pods {
		all = append(all, rs...)
	}
	slices.SortFunc(all, func(a, b replica.Replica) int { return strings.Compare(a.ID, b.ID) })
	p.changed(p.key, all)
}

// roleLabel is llm-d's label of what a pod's server does for its pool.
const roleLabel = "llm-d.ai/role"

// roleOf is the role of a pod's server, and whether it encodes pictures for others
// besides. One that computes prompts and answers too is like any other.
func roleOf(pod *corev1.Pod) (role service.Role, encodes bool) {
	switch pod.Labels[roleLabel] {
	case "prefill":
		return service.RolePrefill, false
	case "encode-prefill":
		return service.RolePrefill, true
	case "encode":
		return service.RoleEncode, false
	case "encode-prefill-decode":
		return service.RoleEngine, true
	}
	return service.RoleEngine, false
}

// parallel is the container whose engine's data-parallel ranks answer at one port; nil
// for none. If a sidecar states ranks too, it has a port for each.
func parallel(pod *corev1.Pod) (found *corev1.Container) {
	stated := 0
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			command := strings.Join(slices.Concat(list[i].Command, list[i].Args), " ")
			if strings.Contains(command, "--data-parallel-") {
				stated++
			}
			if ranks := service.DataParallelOf([]string{command}); ranks.Size > 0 && !ranks.Ports {
				found = &list[i]
			}
		}
	}
	if stated > 1 {
		return nil
	}
	return found
}

// Replicas returns a pod's replicas, one for each of a pool's ports, with the ID
// "namespace/pod:port". A pod without an address and one that has ended have none.
func Replicas(pod *corev1.Pod, ports []int32) []replica.Replica {
	if pod.Status.PodIP == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	one := replica.Replica{Phase: replica.Starting, Created: pod.CreationTimestamp.Time}
	one.Role, one.Encodes = roleOf(pod)
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			one.Phase, one.ReadyAt = replica.Ready, c.LastTransitionTime.Time
		}
	}
	if pod.DeletionTimestamp != nil {
		one.Phase = replica.Draining
	}
	if c := parallel(pod); c != nil && len(ports) == 1 { // of several ports each is a rank's
		one.DataParallel = service.DataParallelOf(slices.Concat(c.Command, c.Args))
	}
	var out []replica.Replica
	for _, port := range ports {
		r, at := one, strconv.Itoa(int(port))
		r.ID, r.HTTP = pod.Namespace+"/"+pod.Name+":"+at, net.JoinHostPort(pod.Status.PodIP, at)
		out = append(out, r)
	}
	return out
}
