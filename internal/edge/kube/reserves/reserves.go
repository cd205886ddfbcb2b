// Package reserves keeps nodes ready as Reserve objects ask for it: it watches
// them, the nodes and what belongs to them, has decide/reserve decide, and writes
// Deployments of placeholders, Jobs that pull images, and status. It runs in the
// controller that leads. While there is no Reserve it watches nothing else.
package reserves

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/decide/reserve"
	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// Config is what a Keeper needs. REST, Mapper, Shared, Client, Reader and Image
// are required.
type Config struct {
	REST   *rest.Config
	Mapper meta.RESTMapper
	// Shared is a cache that runs, and holds the metadata of definitions.
	Shared cache.Cache
	Client client.Client
	// Reader reads from the API server itself.
	Reader client.Reader
	// Namespaces are the only ones that are watched; none means all.
	Namespaces []string
	// System is the controller's namespace: its Reserves take the images of all
	// others.
	System string
	// Image is this program's own.
	Image string
	// PriorityClass is that of placeholders. "" has no Reserve served, and its status
	// say so.
	PriorityClass string
	// Used are the images in use, for Reserves that ask for them; nil for none.
	Used func() []reserve.Image
	// Now is the present time.
	Now func() time.Time
	Log *slog.Logger
}

// How often what happens is looked at again.
const (
	// settle is the wait after a change for those that come with it.
	settle = 200 * time.Millisecond
	// usedEvery is how often it is looked which images are in use.
	usedEvery = 30 * time.Second
	// minRetry and maxRetry are between two attempts after a write has failed.
	minRetry, maxRetry = 2 * time.Second, 5 * time.Minute
	// firstLists is how long the first lists may take before a warning.
	firstLists = 30 * time.Second
)

// Keeper keeps nodes ready.
type Keeper struct {
	cfg     Config
	seen    *seen
	tallies *tallies
	dirty   chan struct{} // capacity 1

	// One goroutine uses what follows.
	history reserve.History
	noted   map[string]bool // UIDs of the Jobs in history
	last    map[client.ObjectKey]*api.ImageFailure
}

// New makes a keeper. It watches nothing before Run.
func New(cfg Config) (*Keeper, error) {
	if cfg.REST == nil || cfg.Mapper == nil || cfg.Shared == nil || cfg.Client == nil || cfg.Reader == nil || cfg.Image == "" {
		return nil, errors.New("reserves: REST, Mapper, Shared, Client, Reader and Image are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{cfg: cfg, tallies: newTallies(), dirty: make(chan struct{}, 1), noted: map[string]bool{}, last: map[client.ObjectKey]*api.ImageFailure{}}
	k.seen = newSeen(func() {
		select {
		case k.dirty <- struct{}{}:
		default: // it will be looked at
		}
	}, k.tallies.placeholder)
	return k, nil
}

var (
	kind    = schema.FromAPIVersionAndKind(api.APIVersion, api.KindReserve)
	crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
)

const crdName = "reserves.roundhouse.dev"

// Run keeps nodes ready until ctx ends. After an error it may be called once more.
func (k *Keeper) Run(ctx context.Context) error {
	k.seen.reset() // new watches do not tell of what was deleted before them
	if err := k.awaitDefinition(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 2)
	defer cancel()
	watches := 1
	go func() { ended <- k.watchReserves(ctx) }()
	var timer, late <-chan time.Time
	retry, settling := minRetry, false
	for {
		select {
		case <-k.dirty:
			if !settling {
				timer, settling = time.After(settle), true
			}
			continue
		case <-timer:
		case <-late:
			if !k.seen.ready(true) {
				k.cfg.Log.Warn("no Reserve is kept yet: check that this account may list and watch nodes, and Deployments, pods and Jobs")
			}
			continue
		case err := <-ended:
			cancel()
			for range watches - 1 {
				err = errors.Join(err, <-ended)
			}
			return err
		}
		settling = false
		if !k.seen.ready(watches > 1) {
			timer = nil
			continue
		}
		if watches == 1 && k.cfg.PriorityClass != "" && k.seen.any() {
			watches++
			go func() { ended <- k.watchNodes(ctx) }()
			timer, late = nil, time.After(firstLists)
			continue
		}
		again, err := k.keep(ctx)
		if retry = min(2*retry, maxRetry); err == nil || ctx.Err() != nil {
			retry = minRetry
		} else {
			k.cfg.Log.Warn("not every Reserve could be kept, retrying", "error", err)
			again = retry
		}
		if timer = nil; again > 0 {
			timer = time.After(again)
		}
	}
}

// awaitDefinition waits until the kind is installed.
func (k *Keeper) awaitDefinition(ctx context.Context) error {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(crdKind)
	inf, err := k.cfg.Shared.GetInformer(ctx, crd, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch definitions: %w", err)
	}
	there := make(chan struct{}, 1)
	reg, err := inf.AddEventHandler(toolscache.FilteringResourceEventHandler{
		FilterFunc: func(o any) bool {
			m, err := meta.Accessor(o)
			return err == nil && m.GetName() == crdName
		},
		Handler: kube.Handler(func(any, bool) {
			select {
			case there <- struct{}{}:
			default:
			}
		})})
	if err != nil {
		return fmt.Errorf("watch definitions: %w", err)
	}
	defer func() { _ = inf.RemoveEventHandler(reg) }()
	for {
		select {
		case <-there:
		case <-ctx.Done():
			return nil
		}
		if _, err := k.cfg.Mapper.RESTMapping(kind.GroupKind(), kind.Version); err == nil {
			return nil
		}
	}
}

// limited are the options of a cache of this package.
func (k *Keeper) limited(of map[client.Object]cache.ByObject) cache.Options {
	return cache.Options{Mapper: k.cfg.Mapper, DefaultTransform: kube.Trim, DefaultNamespaces: kube.Within(k.cfg.Namespaces), ByObject: of}
}

func (k *Keeper) watchReserves(ctx context.Context) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	return k.watch(ctx, k.limited(map[client.Object]cache.ByObject{u: {}}), k.seen.reserve, k.seen.listedReserves)
}

// watchNodes watches the nodes, and what belongs to Reserves.
func (k *Keeper) watchNodes(ctx context.Context) error {
	ours, err := labels.NewRequirement(reserve.LabelReserve, selection.Exists, nil)
	if err != nil {
		return err
	}
	of := cache.ByObject{Label: labels.NewSelector().Add(*ours)}
	return k.watch(ctx, k.limited(map[client.Object]cache.ByObject{
		&corev1.Node{}: {Transform: trimNode}, &appsv1.Deployment{}: of, &corev1.Pod{}: of, &batchv1.Job{}: of}), k.seen.object, k.seen.listedObjects)
}

func (k *Keeper) watch(ctx context.Context, opts cache.Options, seen func(any, bool), listed func()) error {
	err := kube.Watch(ctx, k.cfg.REST, opts, seen, listed)
	if err == nil && ctx.Err() == nil {
		err = errors.New("a watch ended")
	}
	return err
}

// trimNode drops what no decision reads.
func trimNode(o any) (any, error) {
	n, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels,
		CreationTimestamp: n.CreationTimestamp, DeletionTimestamp: n.DeletionTimestamp}}
	out.Spec = corev1.NodeSpec{Taints: n.Spec.Taints, Unschedulable: n.Spec.Unschedulable}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	for _, i := range n.Status.Images {
		out.Status.Images = append(out.Status.Images, corev1.ContainerImage{Names: i.Names})
	}
	return out, nil
}

// nodeOf returns what decisions need to know of a node.
func nodeOf(n *corev1.Node) reserve.Node {
	out := reserve.Node{Name: n.Name, UID: string(n.UID), Created: n.CreationTimestamp.Time, Labels: n.Labels, Taints: n.Spec.Taints,
		Cordoned: n.Spec.Unschedulable || n.DeletionTimestamp != nil, Images: map[string]bool{}}
	for _, c := range n.Status.Conditions {
		out.Ready, out.Since = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
	}
	for _, i := range n.Status.Images {
		for _, name := range i.Names {
			out.Images[reserve.Canonical(name)] = true
		}
	}
	return out
}

// parse reads a Reserve of the API.
func parse(u *unstructured.Unstructured) (*api.Reserve, error) {
	out := &api.Reserve{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, err
	}
	return out, nil
}
