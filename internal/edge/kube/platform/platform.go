// Package platform is the platform of a cluster: replicas are pods, which
// Deployments and LeaderWorkerSets make. It learns the cluster's state from watches
// alone. It writes objects by server-side apply and counts through the scale
// subresource, and only what differs from what is wanted.
//
// docs/design/kubernetes-platform.md has the reasons.
package platform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Config configures a Platform. REST and Client are required.
type Config struct {
	// REST reaches the API server: for logs, and for watching kinds that may be
	// installed later.
	REST *rest.Config
	// Client writes, and knows which kinds are installed.
	Client client.Client
	// Reader reads without a cache; nil is Client, which then must not have one.
	Reader client.Reader
	// Namespaces are the only ones that are managed; none means all.
	Namespaces []string
	// Owner returns the object that a service was read from. The service's own
	// objects are deleted with it; nil leaves them without an owner.
	Owner func(service.Key) *metav1.OwnerReference
	// PublicModels makes pods refuse models at internal addresses. Pods that run
	// already are not changed.
	PublicModels bool
	// HubEndpoint is the cache of the Hugging Face Hub that new pods ask; "" for
	// none. Pods that run keep theirs.
	HubEndpoint string
	// Raised is called when another client raised a count to n: a gateway, for
	// example, that has a request for a service at zero. nil is not called.
	Raised func(k service.Key, n int)
	// Drifted is called when another client deleted an object of a service or
	// lowered a count. Another Apply and Scale restores the service. nil is not
	// called.
	Drifted func(service.Key)
	Now     func() time.Time
	Log     *slog.Logger
}

// Validate names what is missing.
func (c Config) Validate() error {
	if c.REST == nil || c.Client == nil {
		return errors.New("platform: REST and Client are required")
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.Reader == nil {
		c.Reader = c.Client
	}
	if c.Owner == nil {
		c.Owner = func(service.Key) *metav1.OwnerReference { return nil }
	}
	if c.Raised == nil {
		c.Raised = func(service.Key, int) {}
	}
	if c.Drifted == nil {
		c.Drifted = func(service.Key) {}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

var _ fleet.Platform = (*Platform)(nil)

// Platform runs replicas as pods. Make one with New, then Start it.
type Platform struct {
	cfg      Config
	pods     corev1client.PodsGetter
	notices  *notices
	services *services
	surged   workqueue.TypedRateLimitingInterface[service.Key]
	watches  *watches
	renderer *renderer
	writer   *writer

	started chan struct{} // closed by Start
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
	cfg = cfg.withDefaults()
	tries := workqueue.NewTypedItemExponentialFailureRateLimiter[service.Key](surgeRetry, maxSurgeRetry)
	p := &Platform{cfg: cfg, pods: pods, notices: newNotices(), surged: workqueue.NewTypedRateLimitingQueue(tries), started: make(chan struct{})}
	p.services = newServices(cfg.Now, p.notices, p.surged.Add)
	p.watches = &watches{rest: cfg.REST, mapper: cfg.Client.RESTMapper(), reader: cfg.Reader, namespaces: cfg.Namespaces, services: p.services, log: cfg.Log}
	p.renderer = &renderer{reader: cfg.Reader, watches: p.watches, owner: cfg.Owner, publicModels: cfg.PublicModels, hubEndpoint: cfg.HubEndpoint, log: cfg.Log}
	p.writer = &writer{client: cfg.Client, reader: cfg.Reader, services: p.services}
	return p, nil
}

// Start watches the platform's objects until ctx ends, through caches of its own
// and through in, which the caller starts and whose options were given to
// [Trimmed]. It must be called once.
func (p *Platform) Start(ctx context.Context, in cache.Informers) error {
	if err := p.watches.start(ctx, in); err != nil {
		return err
	}
	go p.notices.run(ctx)
	go p.notices.callBack(ctx, p.cfg.Raised, p.cfg.Drifted)
	go endSurges(ctx, p.surged, p.writer, p.cfg.Log)
	close(p.started)
	return nil
}

// Changed carries the keys of changed services. It is never closed.
func (p *Platform) Changed() <-chan service.Key { return p.notices.changed }

// Host reports that replicas are pods: whether an image runs is the cluster's to
// say, when it places the pod.
func (p *Platform) Host(context.Context, ...selection.Check) (selection.Host, error) {
	return selection.Host{Cluster: true}, nil
}

// ready waits until everything that existed at the start is known.
func (p *Platform) ready(ctx context.Context) error {
	select {
	case <-p.started:
	case <-ctx.Done():
		return fmt.Errorf("platform: not started: %w", ctx.Err())
	}
	return p.watches.sync(ctx)
}

// Services lists the services that have objects in the cluster, by name.
func (p *Platform) Services(ctx context.Context) ([]service.Key, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	return p.services.list(), nil
}

// Observe returns the service's replicas, oldest first. Call it before a decision
// on counts: counts that others raised, and that Raised was called with, are then
// taken as known to the caller.
func (p *Platform) Observe(ctx context.Context, k service.Key) ([]replica.Replica, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	return p.services.observe(k), nil
}

// Apply makes the objects of r those of its service: it writes the objects that
// differ from the last rendering, deletes those that r no longer has, and sends
// nothing else. A controller of another version may render the same revision in
// another way; it does not replace the pods for that.
func (p *Platform) Apply(ctx context.Context, r workload.Revision) error {
	k := r.Service
	if k.Name == "" || k.Namespace == "" || r.Hash == "" {
		return errors.New("platform: apply: the revision has no service, no namespace or no hash")
	}
	if err := p.ready(ctx); err != nil {
		return err
	}
	todo, gone, err := p.plan(ctx, r)
	if err != nil {
		return fmt.Errorf("platform: %w", err)
	}
	for _, o := range todo {
		p.services.expect(k, o)
		if err := p.writer.apply(ctx, k, o); err != nil {
			return fmt.Errorf("platform: apply %s %s/%s: %w", o.id.kind, k.Namespace, o.id.name, err)
		}
		if o.kind == kindModels {
			p.writer.hasten(ctx, p.services.podsOf(workload.Ref{Service: k, Role: o.role}), o.applied, p.cfg.Log)
		}
	}
	for _, i := range gone {
		if err := p.writer.remove(ctx, k, i); err != nil {
			return err
		}
	}
	p.notices.add(k, event{})
	return nil
}

// plan returns the objects of a revision to write, and those to delete.
func (p *Platform) plan(ctx context.Context, r workload.Revision) (todo []rendered, gone []id, err error) {
	all, err := p.want(ctx, r, shape.Options{})
	if err != nil {
		return nil, nil, err
	}
	todo, gone = p.services.plan(r.Service, all)
	o, ok, err := p.renderer.fetching(ctx, r, todo)
	if err != nil || !ok {
		return todo, gone, err
	}
	if all, err = p.want(ctx, r, o); err != nil {
		return nil, nil, err
	}
	return slices.DeleteFunc(all, func(a rendered) bool {
		return !slices.ContainsFunc(todo, func(t rendered) bool { return t.id == a.id })
	}), gone, nil
}

// want renders a revision and records it as the wanted one.
func (p *Platform) want(ctx context.Context, r workload.Revision, o shape.Options) ([]rendered, error) {
	all, err := p.renderer.render(ctx, r, o)
	if err != nil {
		return nil, err
	}
	all = unlessScaled(all, p.services.autoscaled(r.Service))
	p.services.want(r, all)
	return all, nil
}

// Remove deletes the service's objects; its pods go with them.
func (p *Platform) Remove(ctx context.Context, k service.Key) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	all, known := p.services.remove(k)
	if !known {
		return nil
	}
	for _, i := range all {
		if err := p.writer.remove(ctx, k, i); err != nil {
			return err
		}
	}
	p.notices.add(k, event{})
	return nil
}

// maxLogTail bounds LogOptions.Tail, in lines.
const maxLogTail = 1 << 20

// Logs opens the output of a replica: of its main container, or, while it fetches
// its model, of the container that does so. An id is a pod's name, or
// "namespace/name" if several namespaces have a pod of that name. The error is
// fs.ErrNotExist for an unknown id and for a pod that is gone, because a cluster
// keeps no output of those.
func (p *Platform) Logs(ctx context.Context, id string, o fleet.LogOptions) (io.ReadCloser, error) {
	if err := p.ready(ctx); err != nil {
		return nil, err
	}
	pod, main, err := p.services.find(id)
	if err != nil {
		return nil, err
	}
	opts := &corev1.PodLogOptions{Container: pods.LogContainer(pod, main), Follow: o.Follow, Previous: o.Previous}
	if o.Tail > 0 {
		tail := int64(min(o.Tail, maxLogTail))
		opts.TailLines = &tail
	}
	out, err := p.pods.Pods(pod.Namespace).GetLogs(pod.Name, opts).Stream(ctx)
	switch {
	case err == nil:
		return out, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("platform: pod %s/%s is gone, and its output with it: %w", pod.Namespace, pod.Name, fs.ErrNotExist)
	case o.Previous && apierrors.IsBadRequest(err):
		return nil, fmt.Errorf("platform: container %s of pod %s/%s has not been restarted, or the output from before is gone: %w", opts.Container, pod.Namespace, pod.Name, fs.ErrNotExist)
	default:
		return nil, fmt.Errorf("platform: output of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
}
