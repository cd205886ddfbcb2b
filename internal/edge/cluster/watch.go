package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/history"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// WatchConfig is who is told of a cluster's services. All are required.
type WatchConfig struct {
	// Namespace is the one that is watched, "" for all.
	Namespace string
	// Service is called with each service as it is now, Gone with each that is deleted.
	Service func(*Service)
	Gone    func(service.Key)
	// Routes is called with all objects of routing as they are now.
	Routes func([]fleet.RoutingState)
	// Objects is called when runtimes or models have changed.
	Objects func()
	// Event is called with what happened to services and their pods: first what
	// Kubernetes still has of it, the oldest first.
	Event func(history.Event)
	// Failed is called with what the API server refuses or does not answer. It is asked
	// again until the context ends.
	Failed func(error)
}

// watched keeps copies of what services are made of.
type watched struct {
	c   *Client
	cfg WatchConfig
	// services are the kinds' manifests, the others what the controller made of them,
	// by the service's key.
	services, routes map[*dialect.Resource]*followed
	records, pods    *followed
	sets             []*followed
	due              workqueue.TypedDelayingInterface[service.Key]
	adopted          adopted
	running          sync.WaitGroup
}

// adopted remembers for a while what namespaces adopt, which only messages tell.
type adopted struct {
	labels map[string]*string
	since  time.Time
}

const adoptedFor = time.Minute

// What stands in the queue for objects that are told together, togetherEvery apart: those
// of routing, since pools select services, and runtimes and models.
var (
	allRoutes  = service.Key{Name: "/routes"}
	allObjects = service.Key{Name: "/objects"}
)

const togetherEvery = time.Second

func (a *adopted) known() map[string]*string {
	if now := time.Now(); a.labels == nil || now.Sub(a.since) > adoptedFor {
		a.labels, a.since = map[string]*string{}, now
	}
	return a.labels
}

// byService is the index of what belongs to a service, by its key.
const byService = "service"

// Watch tells of a cluster's services and of what happens to them until ctx ends, or
// the cluster cannot be asked at all.
func (c *Client) Watch(ctx context.Context, cfg WatchConfig) error {
	in, err := c.kinds(ctx)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	w := &watched{c: c, cfg: cfg, services: map[*dialect.Resource]*followed{}, routes: map[*dialect.Resource]*followed{},
		due: workqueue.NewTypedDelayingQueue[service.Key]()}
	defer w.running.Wait()
	defer end()
	if err := w.start(ctx, in); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, w.due.ShutDown)
	defer stop()
	w.running.Go(func() { w.events(ctx) })
	for {
		k, over := w.due.Get()
		if over {
			return ctx.Err()
		}
		switch k {
		case allRoutes:
			w.tellRoutes()
		case allObjects:
			w.cfg.Objects()
		default:
			w.tell(ctx, k)
		}
		w.due.Done(k)
	}
}

// start follows all that services are made of.
func (w *watched) start(ctx context.Context, in *installed) (err error) {
	var runs []func()
	add := func(o follow) *followed {
		o.namespace, o.failed = w.cfg.Namespace, w.cfg.Failed
		f, run, wrong := w.c.follow(ctx, o)
		runs, err = append(runs, run), errors.Join(err, wrong)
		return f
	}
	made := func(at resource, more string, convert cache.TransformFunc) *followed {
		return add(follow{at: at, convert: convert, by: cache.Indexers{byService: belongs}, handler: handler(w.changed),
			narrow: func(o *metav1.ListOptions) { o.LabelSelector = managedBy("") + more }})
	}
	w.records = made(recordsAt, ","+shape.LabelRecord+"=true", into[appsv1.ControllerRevision])
	w.pods = made(podsAt, "", into[corev1.Pod])
	for _, at := range in.counted() {
		w.sets = append(w.sets, made(at, "", into[counted]))
	}
	for r, at := range in.at {
		switch {
		case r.ID == "service":
			w.services[r] = add(follow{at: at, handler: handler(func(o any, _ bool) {
				if m, ok := o.(metav1.Object); ok {
					w.due.Add(service.Key{Namespace: m.GetNamespace(), Name: m.GetName()})
					w.due.AddAfter(allRoutes, togetherEvery)
				}
			})})
		case r.Status == dialect.OfRouting:
			w.routes[r] = add(follow{at: at, handler: handler(func(any, bool) { w.due.AddAfter(allRoutes, togetherEvery) })})
		case r.ID != dialect.ReserveID:
			add(follow{at: at, convert: name, handler: handler(func(any, bool) { w.due.AddAfter(allObjects, togetherEvery) })})
		}
	}
	if err != nil {
		return err
	}
	for _, run := range runs {
		w.running.Go(run)
	}
	return nil
}

// name leaves only what objects are told apart by.
func name(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	out := &unstructured.Unstructured{Object: map[string]any{}}
	out.SetGroupVersionKind(u.GroupVersionKind())
	out.SetNamespace(u.GetNamespace())
	out.SetName(u.GetName())
	out.SetResourceVersion(u.GetResourceVersion())
	return out, nil
}

// belongs is the key of the service that an object was made for.
func belongs(o any) ([]string, error) {
	if k, ok := madeFor(o); ok {
		return []string{k.String()}, nil
	}
	return nil, nil
}

func madeFor(o any) (service.Key, bool) {
	m, ok := o.(metav1.Object)
	if !ok || m.GetAnnotations()[shape.AnnotationService] == "" {
		return service.Key{}, false
	}
	return service.WorkloadKey(m.GetNamespace(), m.GetAnnotations()[shape.AnnotationService]).Stable(), true
}

func (w *watched) changed(o any, _ bool) {
	if k, ok := madeFor(o); ok {
		w.due.Add(k)
	}
}

// of returns what the copies have of a service.
func of[T any](k service.Key, all ...*followed) (out []T) {
	for _, f := range all {
		items, _ := f.GetIndexer().ByIndex(byService, k.String()) // the index is there
		for _, o := range items {
			if x, ok := o.(T); ok {
				out = append(out, x)
			}
		}
	}
	return out
}

// tell tells of a service as it is now.
func (w *watched) tell(ctx context.Context, k service.Key) {
	m := w.manifest(k)
	if m == nil {
		w.cfg.Gone(k)
		return
	}
	s := &Service{Manifest: m, ServiceState: stateOf(m)}
	records, err := newest(of[*appsv1.ControllerRevision](k, w.records))
	if err != nil {
		w.cfg.Failed(err)
	}
	sets := map[service.Key][]*counted{}
	for _, d := range of[*counted](k, w.sets...) {
		sets[d.key()] = append(sets[d.key()], d)
	}
	s.fill(records[k], sets)
	s.observe(of[*corev1.Pod](k, w.pods), sets)
	w.c.unseenIn(ctx, w.adopted.known(), s)
	w.cfg.Service(s)
}

// tellRoutes tells of the objects of routing as they are now.
func (w *watched) tellRoutes() {
	all := w.manifests(w.routes)
	var members []route.Member
	if slices.ContainsFunc(all, (*Manifest).IsPool) {
		for _, m := range w.manifests(w.services) {
			members = append(members, route.NewMember(m.Service))
		}
	}
	w.cfg.Routes(RoutingOf(all, members))
}

// manifests are those of kinds that can be read.
func (w *watched) manifests(kinds map[*dialect.Resource]*followed) (out []*Manifest) {
	for r, f := range kinds {
		for _, o := range f.GetStore().List() {
			u, ok := o.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			m, err := manifest(r, u)
			switch {
			case err != nil:
				w.cfg.Failed(err)
			case m.Kind != "":
				out = append(out, m)
			}
		}
	}
	return out
}

// manifest is the oldest of a name, as Find returns it; nil where there is none.
func (w *watched) manifest(k service.Key) (oldest *Manifest) {
	for r, f := range w.services {
		o, exists, err := f.GetStore().GetByKey(k.String())
		u, ok := o.(*unstructured.Unstructured)
		if err != nil || !exists || !ok {
			continue
		}
		m, err := manifest(r, u)
		if err != nil {
			w.cfg.Failed(err)
			continue
		}
		if m.Kind != "" && (oldest == nil || m.Created().Before(oldest.Created())) {
			oldest = m
		}
	}
	return oldest
}

// events tells what happens to services and their pods. It begins when the pods are
// known, which say whose they are.
func (w *watched) events(ctx context.Context) {
	select {
	case <-w.pods.answered:
	case <-ctx.Done():
		return
	}
	err := w.c.followEvents(ctx, w.cfg.Namespace, "", func(e *corev1.Event) error {
		if h, ok := w.historyOf(e); ok {
			w.cfg.Event(h)
		}
		return nil
	}, w.cfg.Failed)
	if ctx.Err() == nil {
		w.cfg.Failed(err) // the rest goes on without
	}
}

// historyOf is an event of Kubernetes as our own; false for one of nothing of ours.
func (w *watched) historyOf(e *corev1.Event) (history.Event, bool) {
	at := e.InvolvedObject
	out := eventOf(e)
	switch {
	case aboutService(e):
		return out, true
	case at.Kind == "Pod":
		o, exists, err := w.pods.GetStore().GetByKey(at.Namespace + "/" + at.Name)
		k, ours := madeFor(o)
		if err != nil || !exists || !ours {
			return out, false
		}
		out.Service, out.Object = k.Name, history.ReplicaPrefix+at.Name
		return out, true
	}
	return out, false
}

// aboutService reports whether an event of Kubernetes is about a service's manifest.
func aboutService(e *corev1.Event) bool {
	group, _, versioned := strings.Cut(e.InvolvedObject.APIVersion, "/")
	return slices.ContainsFunc(dialect.Resources, func(r dialect.Resource) bool {
		return r.ID == "service" && r.Kind == e.InvolvedObject.Kind && (!versioned || r.Group == group)
	})
}

// eventOf is an event of Kubernetes about a manifest as our own.
func eventOf(e *corev1.Event) history.Event {
	return history.Event{Time: happened(e), Namespace: e.InvolvedObject.Namespace, Service: e.InvolvedObject.Name, Reason: e.Reason,
		Message: strings.ToValidUTF8(e.Message, "\uFFFD"), Warning: e.Type == corev1.EventTypeWarning}
}
