package cluster

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/history"
)

// followed is a resource that is followed.
type followed struct {
	cache.SharedIndexInformer
	// answered is closed once the first list is read, or could not be.
	answered chan struct{}
	once     sync.Once
}

func (f *followed) answer() { f.once.Do(func() { close(f.answered) }) }

// follow selects what is followed.
type follow struct {
	at        resource
	namespace string                    // "" for all
	narrow    func(*metav1.ListOptions) // nil for all of them
	convert   cache.TransformFunc       // nil leaves objects unstructured
	by        cache.Indexers
	handler   cache.ResourceEventHandler
	// failed is called whenever the API server does not list or watch; it is tried
	// again until the context ends.
	failed func(error)
}

// follow keeps a copy of a resource until ctx ends: it lists, watches from there, goes
// on after a lost connection where that was, and lists again where the API server no
// longer knows what changed since. run, which blocks, does it.
func (c *Client) follow(ctx context.Context, o follow) (f *followed, run func(), err error) {
	narrow := func(lo metav1.ListOptions) metav1.ListOptions {
		if o.narrow != nil {
			o.narrow(&lo)
		}
		return lo
	}
	lists, watches := o.at.in(c.dynamic, o.namespace), o.at.in(c.watches, o.namespace)
	f = &followed{answered: make(chan struct{})}
	f.SharedIndexInformer = cache.NewSharedIndexInformer(pagedLists{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, lo metav1.ListOptions) (runtime.Object, error) {
			page, err := lists.List(ctx, narrow(lo))
			if err != nil {
				return nil, err
			}
			n := len(page.Items)
			if rest := page.GetRemainingItemCount(); rest != nil {
				n += int(*rest)
			}
			if n > maxListed {
				return nil, errTooMany
			}
			return page, nil
		},
		WatchFuncWithContext: func(ctx context.Context, lo metav1.ListOptions) (watch.Interface, error) {
			return watches.Watch(ctx, narrow(lo))
		}}}, &unstructured.Unstructured{}, 0, o.by)
	err = f.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if ended(err) || ctx.Err() != nil {
			return
		}
		o.failed(c.explained(ctx, "watch", o.at.words(o.namespace), err))
		f.answer()
	})
	if o.convert != nil {
		err = errors.Join(err, f.SetTransform(o.convert))
	}
	listed, wrong := f.AddEventHandler(o.handler)
	if err = errors.Join(err, wrong); err != nil {
		return nil, nil, err
	}
	return f, func() {
		var waiting sync.WaitGroup
		waiting.Go(func() {
			select {
			case <-listed.HasSyncedChecker().Done():
			case <-ctx.Done():
			}
			f.answer()
		})
		// The reflector's own log would repeat what failed is told.
		f.RunWithContext(klog.NewContext(ctx, logr.Discard()))
		waiting.Wait()
	}, nil
}

// pagedLists are lists that are asked for as lists, which have bounds, and not as the
// beginning of a watch.
type pagedLists struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is how the reflector asks.
func (pagedLists) IsWatchListSemanticsUnSupported() bool { return true }

// ended reports whether a watch ended as watches do: the API server ends each after
// some minutes, and forgets old versions.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// into converts what is followed to a type of the API, without what nobody reads here.
func into[T any, P interface {
	*T
	SetManagedFields([]metav1.ManagedFieldsEntry)
}](o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	out, err := typed[T](u)
	if err != nil {
		return nil, err
	}
	P(out).SetManagedFields(nil)
	return out, nil
}

// handler calls changed with every object as it is now, and with exists false with each
// that was deleted. One that a repeated list has unchanged is no change.
func handler(changed func(object any, exists bool)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { changed(o, true) },
		UpdateFunc: func(was, is any) {
			a, aok := was.(metav1.Object)
			b, bok := is.(metav1.Object)
			if !aok || !bok || a.GetResourceVersion() != b.GetResourceVersion() {
				changed(is, true)
			}
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			changed(o, false)
		}}
}

// FollowEvents calls each with the events of Kubernetes about services: of one or, with
// nil, of all. First come those there are, the oldest first, and then those that happen,
// also again. It returns when ctx ends, when each fails, or when the API server refuses
// the first list; what fails later is told to failed, and tried again.
func (c *Client) FollowEvents(ctx context.Context, k *service.Key, each func(history.Event) error, failed func(error)) error {
	namespace, selector := "", ""
	if k != nil {
		found, err := c.Find(ctx, "service", *k) // a name that there is not is a mistake
		if err != nil {
			return err
		}
		namespace, selector = k.Namespace, "involvedObject.kind="+found[0].Origin.Kind+",involvedObject.name="+k.Name
	}
	return c.followEvents(ctx, namespace, selector, func(e *corev1.Event) error {
		if !aboutService(e) {
			return nil
		}
		return each(eventOf(e))
	}, failed)
}

// followEvents is FollowEvents of a namespace or, with "", of all, for what a field
// selector selects.
func (c *Client) followEvents(ctx context.Context, namespace, selector string, each func(*corev1.Event) error, failed func(error)) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var mu sync.Mutex
	var first []*corev1.Event
	listed := false
	tell := func(e *corev1.Event) {
		if ctx.Err() != nil {
			return
		}
		if err := each(e); err != nil {
			end(err)
		}
	}
	f, run, err := c.follow(ctx, follow{at: eventsAt, namespace: namespace, convert: into[corev1.Event],
		narrow: func(o *metav1.ListOptions) { o.FieldSelector = selector },
		handler: handler(func(o any, exists bool) {
			e, ok := o.(*corev1.Event)
			if !ok || !exists {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if !listed {
				first = append(first, e)
				return
			}
			tell(e)
		}),
		failed: func(err error) {
			mu.Lock()
			known := listed
			mu.Unlock()
			if !known {
				end(err)
				return
			}
			failed(err)
		}})
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	running.Go(run)
	<-f.answered
	mu.Lock()
	listed = true
	slices.SortStableFunc(first, func(a, b *corev1.Event) int { return happened(a).Compare(happened(b)) })
	for _, e := range first {
		tell(e)
	}
	first = nil
	mu.Unlock()
	<-ctx.Done()
	running.Wait()
	return context.Cause(ctx)
}

// FollowServices calls changed whenever the manifest, the status or a count of a
// service changes: of a namespace or, with "", of all, and of one name or, with "", of
// all. It returns when ctx ends or the API server refuses something.
func (c *Client) FollowServices(ctx context.Context, namespace, name string, changed func()) error {
	in, err := c.kinds(ctx)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer end(nil)
	start := func(at resource, narrow func(*metav1.ListOptions)) {
		_, run, err := c.follow(ctx, follow{at: at, namespace: namespace, narrow: narrow, handler: handler(func(any, bool) { changed() }),
			convert: onlyVersion, failed: func(err error) { end(err) }})
		if err != nil {
			end(err)
			return
		}
		running.Go(run)
	}
	for r, at := range in.at {
		if r.ID == "service" {
			start(at, func(o *metav1.ListOptions) {
				if name != "" {
					o.FieldSelector = "metadata.name=" + name
				}
			})
		}
	}
	for _, at := range in.counted() {
		start(at, func(o *metav1.ListOptions) { o.LabelSelector = managedBy(name) })
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// onlyVersion keeps of an object what tells one version from another.
func onlyVersion(o any) (any, error) {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: u.GetNamespace(), Name: u.GetName(), ResourceVersion: u.GetResourceVersion()}}, nil
}
