// Package poolpods watches the pods that InferencePools select: anybody's, by
// their labels, each with as many endpoints as the pool has ports. A pool has a
// watch of its own, so that of all pods of a cluster no others are read.
package poolpods

import (
	"context"
	"errors"
	"fmt"
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

// Config is what a Watch needs. All but Transform and Log are required.
type Config struct {
	REST   *rest.Config
	Mapper meta.RESTMapper
	// Changed is told a pool's replicas whenever they change, by one caller at a
	// time for each pool. The slice is its own.
	Changed func(pool service.Key, replicas []replica.Replica)
	// Namespaces are the only ones whose pods may be read; none means all.
	Namespaces []string
	// MaxPools bounds how many pools are watched.
	MaxPools int
	// Transform changes pods on their way in, as tests need; nil changes nothing.
	Transform toolscache.TransformFunc
	Log       *slog.Logger
}

// DefaultConfig watches the pods of up to 500 pools.
func DefaultConfig() Config { return Config{MaxPools: 500} }

// Watch watches the pods of pools. It is safe for concurrent use.
type Watch struct {
	cfg Config
	ctx context.Context
	end context.CancelFunc
	all sync.WaitGroup

	mu    sync.Mutex
	pools map[service.Key]*pool
}

// pool is one that is watched.
type pool struct {
	key      service.Key
	selector map[string]string
	ports    []int32
	stop     context.CancelFunc
	listed   chan struct{} // closed when the first list has been told of, or never will be
	told     func([]replica.Replica)

	mu    sync.Mutex
	known bool // the first list is complete
	pods  map[string][]replica.Replica
}

// New makes a watch of no pools. Close ends it.
func New(cfg Config) (*Watch, error) {
	if cfg.REST == nil || cfg.Mapper == nil || cfg.Changed == nil || cfg.MaxPools <= 0 {
		return nil, errors.New("poolpods: REST, Mapper, Changed and MaxPools are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ctx, end := context.WithCancel(context.Background())
	return &Watch{cfg: cfg, ctx: ctx, end: end, pools: map[service.Key]*pool{}}, nil
}

// Close ends all watches and waits for them.
func (w *Watch) Close() {
	w.end()
	w.all.Wait()
}

// Set returns which pools there are: those that select pods, having ports. A
// watch begins or ends for each that is new, another or gone; it does not wait
// for that.
func (w *Watch) Set(pools []*routing.Pool) {
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
		if w.pools[k] != nil || w.ctx.Err() != nil {
			continue
		}
		if len(w.pools) >= w.cfg.MaxPools {
			w.cfg.Log.Error("too many InferencePools: this one has no endpoints", "pool", k.String(), "limit", w.cfg.MaxPools)
			continue
		}
		w.pools[k] = w.begin(p)
	}
}

// Listed waits until the pods of every pool there is have been told of.
func (w *Watch) Listed(ctx context.Context) error {
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.pools))
	w.mu.Unlock()
	for _, p := range all {
		select {
		case <-p.listed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (w *Watch) begin(in *routing.Pool) *pool {
	ctx, stop := context.WithCancel(w.ctx)
	p := &pool{key: in.Key, selector: in.Selector, ports: in.Ports, stop: stop, listed: make(chan struct{}), pods: map[string][]replica.Replica{}}
	p.told = func(rs []replica.Replica) {
		if ctx.Err() == nil {
			w.cfg.Changed(p.key, rs)
		}
	}
	w.all.Go(func() {
		listed := sync.OnceFunc(func() { close(p.listed) })
		defer listed()
		if err := w.watch(ctx, p, listed); err != nil && ctx.Err() == nil {
			w.cfg.Log.Error("the pods of a pool cannot be watched", "pool", p.key.String(), "error", err)
		}
	})
	return p
}

// watch runs a pool's own cache, which holds no more of a pod than its replicas
// need.
func (w *Watch) watch(ctx context.Context, p *pool, listed func()) error {
	c, err := cache.New(w.cfg.REST, cache.Options{Scheme: kube.Scheme(), Mapper: w.cfg.Mapper, NewInformer: kube.NewInformer, ByObject: map[client.Object]cache.ByObject{
		&corev1.Pod{}: {Namespaces: map[string]cache.Config{p.key.Namespace: {}}, Label: labels.SelectorFromSet(p.selector), Transform: w.trim}}})
	if err != nil {
		return err
	}
	inf, err := c.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	set := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok {
			p.set(pod.Name, Replicas(pod, p.ports))
		}
	}
	reg, err := inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: set, UpdateFunc: func(_, now any) { set(now) }, DeleteFunc: func(obj any) {
		if key, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
			p.set(key.Name, nil)
		}
	}})
	if err != nil {
		return err
	}
	w.all.Go(func() {
		select {
		case <-reg.HasSyncedChecker().Done():
			p.settle()
			listed()
		case <-ctx.Done():
		}
	})
	if err := c.Start(ctx); err != nil {
		return fmt.Errorf("namespace %s: %w", p.key.Namespace, err)
	}
	return nil
}

// trim keeps what a replica is made of.
func (w *Watch) trim(obj any) (any, error) {
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
	out.Status.PodIP, out.Status.Phase = pod.Status.PodIP, pod.Status.Phase
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	return out, nil
}

func (p *pool) set(pod string, rs []replica.Replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pods[pod] = rs; rs == nil {
		delete(p.pods, pod)
	}
	if p.known {
		p.tell()
	}
}

// settle tells of all pods once the first list is complete.
func (p *pool) settle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = true
	p.tell()
}

// tell is called with mu held, which keeps what is told in its order.
func (p *pool) tell() {
	all := []replica.Replica{}
	for _, rs := range p.pods {
		all = append(all, rs...)
	}
	slices.SortFunc(all, func(a, b replica.Replica) int { return strings.Compare(a.ID, b.ID) })
	p.told(all)
}

// Replicas are a pod's, one for each of a pool's ports: "namespace/pod:port".
// None while it has no address, or has ended.
func Replicas(pod *corev1.Pod, ports []int32) []replica.Replica {
	if pod.Status.PodIP == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	one := replica.Replica{Role: service.RoleEngine, Phase: replica.Starting, Created: pod.CreationTimestamp.Time}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			one.Phase, one.ReadyAt = replica.Ready, c.LastTransitionTime.Time
		}
	}
	if pod.DeletionTimestamp != nil {
		one.Phase = replica.Draining
	}
	var out []replica.Replica
	for _, port := range ports {
		r, at := one, strconv.Itoa(int(port))
		r.ID, r.HTTP = pod.Namespace+"/"+pod.Name+":"+at, net.JoinHostPort(pod.Status.PodIP, at)
		out = append(out, r)
	}
	return out
}
