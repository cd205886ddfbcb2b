// Package platform is the platform of a cluster: replicas are pods, which
// Deployments and LeaderWorkerSets make. What is there it knows from watches
// alone; it writes objects by server-side apply and counts through the scale
// subresource, and nothing that is as it should be.
//
// docs/design/kubernetes-platform.md says why it is as it is.
package platform

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/workqueue"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

var _ fleet.Platform = (*Platform)(nil)

// Platform runs replicas as pods. Make one with New, then Start it.
type Platform struct {
	cfg     Config
	pods    corev1client.PodsGetter
	queue   workqueue.TypedInterface[service.Key]
	changed chan service.Key
	news    workqueue.TypedInterface[service.Key] // of whom untold has something
	surged  workqueue.TypedRateLimitingInterface[service.Key]
	groups  groups
	access  access

	started chan struct{} // closed by Start
	synced  []<-chan struct{}

	mu struct {
		sync.Mutex
		held  map[service.Key]*held
		order int // of the pod last seen
		// scalers counts the HorizontalPodAutoscalers of what they scale.
		scalers map[target]int
		untold  map[service.Key]event // an empty one is being told
	}
}

// New makes a platform. It sends nothing.
func New(cfg Config) (*Platform, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	pods, err := corev1client.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("platform: %w", err)
	}
	tries := workqueue.NewTypedItemExponentialFailureRateLimiter[service.Key](surgeRetry, maxSurgeRetry)
	p := &Platform{surged: workqueue.NewTypedRateLimitingQueue(tries), cfg: cfg.withDefaults(), pods: pods, queue: workqueue.NewTyped[service.Key](), news: workqueue.NewTyped[service.Key](),
		changed: make(chan service.Key), started: make(chan struct{})}
	p.mu.held = map[service.Key]*held{}
	p.mu.scalers = map[target]int{}
	p.mu.untold = map[service.Key]event{}
	return p, nil
}

// run hands out the keys of changed services until ctx ends. The queue holds
// each at most once.
func (p *Platform) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, p.queue.ShutDown)
	defer stop()
	for {
		k, down := p.queue.Get()
		if down {
			return
		}
		p.queue.Done(k) // a change from now on is another one
		select {
		case p.changed <- k:
		case <-ctx.Done():
			return
		}
	}
}

// Changed carries the keys of changed services. It is never closed.
func (p *Platform) Changed() <-chan service.Key { return p.changed }

// Host reports that replicas are pods: whether an image runs is the cluster's to
// say, when it places the pod.
func (p *Platform) Host(context.Context, ...selection.Check) (selection.Host, error) {
	return selection.Host{Cluster: true}, nil
}

// ready waits until what was there at the start is known.
func (p *Platform) ready(ctx context.Context) error {
	select {
	case <-p.started:
	case <-ctx.Done():
		return fmt.Errorf("platform: not started: %w", ctx.Err())
	}
	for _, done := range p.synced {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("platform: the cluster's objects are not read yet: %w", ctx.Err())
		}
	}
	return nil
}

// Services lists what the cluster holds, by name.
func (p *Platform) Services(ctx context.Context) ([]service.Key, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]service.Key, 0, len(p.mu.held))
	for k, h := range p.mu.held {
		if !h.removed && len(h.objects) > 0 {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b service.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.WorkloadName(), b.WorkloadName()))
	})
	return out, nil
}

// Observe returns the service's replicas, oldest first. Who decides counts looks
// here before: what somebody raised until now, and was told of, he knows.
func (p *Platform) Observe(ctx context.Context, k service.Key) ([]replica.Replica, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.mu.held[k]
	if h == nil {
		return nil, nil
	}
	if _, untold := p.mu.untold[k]; !untold {
		for i, o := range h.objects {
			o.raised = false
			h.objects[i] = o
		}
	}
	return h.observe(k), nil
}
