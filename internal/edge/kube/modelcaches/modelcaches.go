// Package modelcaches has the nodes of a cluster keep models ahead of their use, as KServe's
// LocalModelCaches ask: it makes a DaemonSet for each, whose pods fetch the model into a
// folder of their node, tells in the status which nodes have it, and has the space freed
// once there is no cache of it any more and no pod reads it. It runs in the controller that
// leads. While there is no cache, and none of an earlier one is left, it watches nothing.
package modelcaches

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/precache"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/wakeup"
)

// Fleet knows the caches, and who uses them; a fleet.Fleet is one.
type Fleet interface {
	Objects(kind string) []fleet.Object
	CacheNodes() (kept map[service.Key][]precache.Kept, problems map[service.Key]string)
	CacheUsers(*service.ModelCache) (services, llm []service.Key)
	List() []fleet.ServiceState
}

// Config is what a Keeper needs. REST, Mapper, Client, Reader, Fleet, Manifests, Image and
// System are required.
type Config struct {
	REST   *rest.Config
	Mapper meta.RESTMapper
	Client client.Client
	// Reader reads from the API server itself.
	Reader client.Reader
	Fleet  Fleet
	// Manifests lists the caches as they are in the API.
	Manifests func(context.Context) ([]*unstructured.Unstructured, error)
	// Events records what becomes of models; nil records nothing.
	Events events.EventRecorder
	// Namespaces are the only ones that are watched; none means all.
	Namespaces []string
	// System is the controller's namespace, Image this program's own.
	System, Image string
	// StoreSize bounds the models of a namespace on a node that no group bounds.
	StoreSize string
	// PublicModels and HubEndpoint are as in [shape.Options].
	PublicModels bool
	HubEndpoint  string
	// Now is the present time.
	Now func() time.Time
	Log *slog.Logger
}

// How often what happens is looked at again.
const (
	// settle is the wait after a change for those that come with it.
	settle = 300 * time.Millisecond
	// minRetry and maxRetry are between two attempts after a write has failed.
	minRetry, maxRetry = 2 * time.Second, 5 * time.Minute
	// accountFor is how long what a service account says counts.
	accountFor = 30 * time.Second
	// dropFor is how long nodes that do not answer are waited for before the rest of a
	// removal is given up.
	dropFor = 15 * time.Minute
	// tellAgain is how long API servers keep events, by default.
	tellAgain = time.Hour
)

// Keeper keeps models on nodes.
type Keeper struct {
	cfg     Config
	seen    *seen
	changed wakeup.Bell

	// One goroutine uses what follows.
	accounts map[client.ObjectKey]account
	told     map[client.ObjectKey]string // the last event of each cache
	written  map[types.UID]version       // the last status of each
	refused  map[types.UID]refusal
}

// version is a status that was written, and over which version of its object.
type version struct {
	uid          types.UID
	over, status string
}

// refusal is a status that the API server does not take.
type refusal struct {
	version
	told  time.Time     // when it was told of last
	wait  time.Duration // before it is tried again
	again time.Time
}

// account is what was read of a service account.
type account struct {
	shape.Account
	known, missing bool
	at             time.Time
}

// New makes a keeper. It watches nothing before Run.
func New(cfg Config) (*Keeper, error) {
	if cfg.REST == nil || cfg.Mapper == nil || cfg.Client == nil || cfg.Reader == nil || cfg.Fleet == nil || cfg.Manifests == nil || cfg.Image == "" || cfg.System == "" {
		return nil, errors.New("modelcaches: REST, Mapper, Client, Reader, Fleet, Manifests, Image and System are required")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	k := &Keeper{cfg: cfg, changed: wakeup.New(), accounts: map[client.ObjectKey]account{}, told: map[client.ObjectKey]string{}, written: map[types.UID]version{}, refused: map[types.UID]refusal{}}
	k.seen = newSeen(k.Changed)
	return k, nil
}

// Changed has the keeper look again: caches, node groups or services have changed.
func (k *Keeper) Changed() { k.changed.Ring() }

// Run keeps models until ctx ends. After an error it may be called once more.
func (k *Keeper) Run(ctx context.Context) error {
	k.seen.reset() // new watches do not tell of what was deleted before them
	ctx, cancel := context.WithCancel(ctx)
	ended, watching := make(chan error, 1), false
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel()
	left := k.left(ctx)
	k.Changed()
	var timer <-chan time.Time
	retry, settling := minRetry, false
	for {
		select {
		case <-k.changed.Rung():
			if !settling {
				timer, settling = time.After(settle), true
			}
			continue
		case <-timer:
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		timer, settling = nil, false
		if !watching {
			if watching = left || len(k.cfg.Fleet.Objects(fleet.CacheKind)) > 0; watching {
				watch.Go(func() { ended <- k.watch(ctx) })
			}
			continue
		}
		if !k.seen.ready() {
			continue // it tells when it is
		}
		again, err := k.keep(ctx)
		if retry = min(2*retry, maxRetry); err == nil || ctx.Err() != nil {
			retry = minRetry
		} else {
			k.cfg.Log.Warn("not every model is kept as it should be, retrying", "error", err)
			again = retry
		}
		if again > 0 {
			timer = time.After(again)
		}
	}
}

// left reports whether there is something of caches that are gone by now.
func (k *Keeper) left(ctx context.Context) bool {
	namespaces := k.cfg.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, ns := range namespaces {
		var list appsv1.DaemonSetList
		if err := k.cfg.Reader.List(ctx, &list, client.InNamespace(ns), client.MatchingLabels{shape.LabelKeeper: k.cfg.System}, client.Limit(1)); err != nil {
			k.cfg.Log.Debug("it is not known whether nodes keep models of earlier caches", "error", err)
			return false // this account may not: with a first cache it is told
		}
		if len(list.Items) > 0 {
			return true
		}
	}
	return false
}

// watch watches what belongs to caches, and the pods that use them.
func (k *Keeper) watch(ctx context.Context) error {
	uses, err := labels.NewRequirement(shape.LabelModelCache, selection.Exists, nil)
	if err != nil {
		return err
	}
	of := cache.ByObject{Label: labels.NewSelector().Add(*uses)}
	opts := cache.Options{Mapper: k.cfg.Mapper, DefaultTransform: kube.Trim, DefaultNamespaces: kube.Within(k.cfg.Namespaces), ByObject: map[client.Object]cache.ByObject{&appsv1.DaemonSet{}: of, &corev1.Pod{}: {Label: of.Label, Transform: trimPod}}}
	if err = kube.Watch(ctx, k.cfg.REST, opts, k.seen.object, k.seen.list); err == nil && ctx.Err() == nil {
		err = errors.New("a watch ended")
	}
	if err != nil {
		return fmt.Errorf("watch what keeps models: %w", err)
	}
	return nil
}

// trimPod drops what no decision reads.
func trimPod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	out := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion,
		Labels: p.Labels, DeletionTimestamp: p.DeletionTimestamp}}
	out.Spec.NodeName, out.Spec.Affinity, out.Spec.Volumes = p.Spec.NodeName, p.Spec.Affinity, shape.KeptVolumes(p.Spec.Volumes)
	out.Status = corev1.PodStatus{Phase: p.Status.Phase, Reason: p.Status.Reason, Message: p.Status.Message, Conditions: p.Status.Conditions, ContainerStatuses: p.Status.ContainerStatuses}
	return out, nil
}
