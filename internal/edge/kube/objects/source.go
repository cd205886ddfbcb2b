// Package objects reads the manifests in the API, of every dialect whose kinds
// are installed and adopted, into a fleet. It notices kinds that are installed
// or removed later, without polling.
package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Sink receives manifests; a fleet.Fleet is one.
type Sink interface {
	Apply(context.Context, []fleet.Object, fleet.ApplyOptions) ([]fleet.Change, error)
	Delete(context.Context, fleet.ID) error
	// Demanded has a service reconciled again.
	Demanded(service.Key)
}

// Records are earlier decisions, as far as a manifest that cannot be read now
// depends on them.
type Records interface {
	// Manifest is the document a service's record was made from, nil where
	// there is no record.
	Manifest(service.Key) []byte
	// Services lists those with a record, canaries left out.
	Services() []service.Key
}

// Reporter reports problems to the authors of manifests.
type Reporter interface {
	// Refused reports what is wrong with a manifest; after an error it is
	// called again.
	Refused(context.Context, Refusal) error
	// Accepted reports that nothing is wrong with it any more.
	Accepted(Ref)
	// Warned reports which of its fields have no effect.
	Warned(Ref, []string)
	// Forget reports that a manifest is gone.
	Forget(Ref)
}

// Config is what a Source needs. Cache, Mapper and Records are required.
type Config struct {
	Cache   cache.Cache
	Mapper  meta.RESTMapper
	Records Records
	// Reporter is nil in a process that does not write status.
	Reporter Reporter
	// OtherManager returns who else manages a service, whatever its manifest
	// says, as text for users; "" for nobody. nil: it is not asked.
	OtherManager func(service.Key) string
	// Adopt are the foreign dialects that are read in every namespace. Other
	// dialects are read in namespaces with the label [LabelAdopt].
	Adopt []service.Dialect
	// Namespaces are the only ones that Cache watches; none means all. With
	// some, namespaces are not watched themselves, and Adopt alone counts.
	Namespaces []string
	// Only selects the kinds to watch; nil means every one.
	Only func(*Kind) bool
	// ConfigMaps reads those that manifests name, past the cache; nil leaves them out.
	ConfigMaps client.Reader
	Log        *slog.Logger
}

// Source watches manifests. Run it once; Attach it to a sink once.
type Source struct {
	cfg   Config
	queue workqueue.TypedRateLimitingInterface[item]
	kinds *watcher
	// configs are the ConfigMaps that the manifests name.
	configs *configs
	// claims are read at any time, and changed with serial held.
	claims claims
	// serial is locked while a manifest is read and given to the sink: one at a
	// time, so that a sink gets changes in their order.
	serial sync.Mutex
	sink   Sink // nil until attached; serial guards it
	warned map[types.UID]int64
}

// item is one manifest; the zero value stands for the kinds themselves.
type item struct {
	kind *Kind
	types.NamespacedName
}

// The pauses before another try with a manifest that the sink refused, or a
// kind that is not served yet.
const (
	minRetryWait = 200 * time.Millisecond
	maxRetryWait = 30 * time.Second
)

// New makes a source. It reads nothing before Run.
func New(cfg Config) (*Source, error) {
	if cfg.Cache == nil || cfg.Mapper == nil || cfg.Records == nil {
		return nil, errors.New("objects: Cache, Mapper and Records are required")
	}
	if err := validAdopt(cfg.Adopt); err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{cfg: cfg, claims: newClaims(), warned: map[types.UID]int64{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[item](minRetryWait, maxRetryWait))}
	s.kinds = &watcher{cache: cfg.Cache, mapper: cfg.Mapper, adopt: cfg.Adopt, namespaces: cfg.Namespaces, only: cfg.Only, queue: s.queue, log: cfg.Log,
		listed:    func(k *Kind) { s.look(s.claims.recorded(k)) },
		unwatched: func(k *Kind) { s.look(s.claims.items(k)) }, based: make(chan struct{})}
	s.kinds.mu.running = map[*Kind]*running{}
	s.configs = newConfigs(&cfg, s.queue)
	return s, nil
}

// Start watches until ctx ends. The cache must be running, or about to.
func (s *Source) Start(ctx context.Context) error {
	if err := s.kinds.base(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, s.queue.ShutDown)
	defer stop()
	s.queue.Add(item{})
	logged := map[item]string{} // once, however often it is tried
	for {
		i, down := s.queue.Get()
		if down {
			return nil
		}
		if err := s.process(ctx, i); err != nil && ctx.Err() == nil {
			if text := err.Error(); logged[i] != text {
				s.cfg.Log.Warn("a manifest could not be handled, retrying", "manifest", i.String(), "error", err)
				logged[i] = text
			}
			s.queue.AddRateLimited(i)
		} else {
			delete(logged, i)
			s.queue.Forget(i)
		}
		s.queue.Done(i)
	}
}

// NeedLeaderElection returns false: a process that does not lead keeps
// watching, so that it can take over at once.
func (s *Source) NeedLeaderElection() bool { return false }

// String names the manifest.
func (i item) String() string {
	if i.kind == nil {
		return "the kinds"
	}
	return i.kind.Kind + " " + i.NamespacedName.String()
}

func (s *Source) process(ctx context.Context, i item) error {
	s.serial.Lock()
	defer s.serial.Unlock()
	if i.kind == nil {
		return s.kinds.ensure(ctx)
	}
	if err := s.read(ctx, i); err != nil {
		return err
	}
	return s.settle(ctx, i.id())
}

// id is what the manifest is in a fleet.
func (i item) id() fleet.ID {
	return fleet.ID{Kind: i.kind.ID, Key: service.Key{Namespace: i.Namespace, Name: i.Name}}
}

// Attach waits until every existing manifest has been read, calls restore,
// which gets them from Objects, and gives sink every change from then on.
func (s *Source) Attach(ctx context.Context, sink Sink, restore func(context.Context) error) error {
	if err := s.kinds.synced(ctx); err != nil {
		return err
	}
	s.serial.Lock()
	defer s.serial.Unlock()
	items, err := s.readAll(ctx)
	if err != nil {
		return err
	}
	if err := restore(ctx); err != nil {
		return err
	}
	s.sink = sink
	for _, i := range items {
		s.queue.Add(i)
	}
	if err := s.settleRefused(ctx); err != nil {
		s.cfg.Log.Warn("refused manifests could not be reported, retrying", "error", err)
	}
	return nil
}

// readAll reads every manifest there is, and then the ConfigMaps that they name.
func (s *Source) readAll(ctx context.Context) ([]item, error) {
	items, err := s.kinds.all(ctx)
	if err != nil {
		return nil, err
	}
	read := func(items []item) error {
		for _, i := range items {
			if err := s.read(ctx, i); err != nil {
				return err
			}
			s.quiet(i)
		}
		return nil
	}
	if err := read(items); err != nil {
		return nil, err
	}
	named, ok, err := s.configs.listed(ctx)
	if err != nil {
		return nil, err
	}
	if !ok {
		s.cfg.Log.Warn("the first list of ConfigMaps takes long: check that this account may list and watch them; services run without those they name")
	}
	return append(items, named...), read(named)
}

// settleRefused reports at once what is wrong with the manifests of services
// that keep their earlier state, so that their first report has it.
func (s *Source) settleRefused(ctx context.Context) error {
	var errs []error
	for _, id := range s.claims.served() {
		if _, c := s.claims.winner(id); c != nil && c.object == nil {
			errs = append(errs, s.settle(ctx, id))
		}
	}
	return errors.Join(errs...)
}

// Objects returns what a fleet restores: every manifest that counts, and, in
// place of those that cannot be read now, the documents of their records: a
// mistake in a manifest does not end what runs.
func (s *Source) Objects() []fleet.Object {
	out := s.objects()
	for _, o := range out {
		at := applied{}
		if w, c := s.claims.winner(o.ID()); c != nil {
			at = applied{w, c.ref.UID, nil} // the sink gets it once more
		}
		s.claims.setApplied(o.ID(), at)
	}
	return out
}

func (s *Source) objects() []fleet.Object {
	var out []fleet.Object
	for _, id := range s.claims.ids() {
		if _, c := s.claims.winner(id); c != nil && c.object != nil && !s.withheld(id, c) && s.otherManager(id) == "" {
			out = append(out, *c.object)
		}
	}
	for _, k := range s.cfg.Records.Services() {
		id := fleet.ID{Kind: serviceID, Key: k}
		if i, c := s.claims.winner(id); c != nil && c.object != nil || c == nil && s.absent(id) {
			continue
		} else if o := s.kept(i, c, k); o != nil {
			out = append(out, *o)
		}
	}
	return out
}

// kept reads the manifest that a record was made from.
func (s *Source) kept(i item, c *claim, k service.Key) *fleet.Object {
	o, problems, _ := parse(s.cfg.Records.Manifest(k))
	if o == nil || o.ID() != (fleet.ID{Kind: serviceID, Key: k}) {
		s.cfg.Log.Error("the manifest in a record cannot be read", "service", k.String(), "problems", problems)
		return nil
	}
	if c != nil {
		o.SetCreated(c.created)
		s.cfg.Log.Warn("the manifest is refused; the service runs as before", "manifest", i.String(), "problems", c.problems)
	}
	return o
}

// Ready reports whether every kind that is watched has been listed.
func (s *Source) Ready() bool { return s.kinds.ready() }

// Watched counts the kinds that are watched: those that have been listed, and
// those whose first list is still waited for.
func (s *Source) Watched() (read, unread int) { return s.kinds.count() }

// Adopted reports whether manifests of a dialect are read in a namespace.
func (s *Source) Adopted(ctx context.Context, d service.Dialect, namespace string) bool {
	return s.kinds.adopted(ctx, d, namespace)
}

// look queues manifests to be read again.
func (s *Source) look(items []item) {
	for _, i := range items {
		s.queue.Add(i)
	}
}

// absent reports whether a record's manifest certainly no longer exists: its
// kind is watched and has none, or is not to be watched or not installed.
func (s *Source) absent(id fleet.ID) bool {
	var u unstructured.Unstructured
	if u.UnmarshalJSON(s.cfg.Records.Manifest(id.Key)) != nil {
		return true
	}
	k := KindOf(u.GroupVersionKind().GroupKind())
	if k == nil {
		return false // a newer version's, which may come back
	}
	return s.kinds.informed(k) != nil || !s.kinds.wanted(context.Background(), k)
}

// Owner returns the manifest that objects of a service belong to; false when
// there is none any more.
func (s *Source) Owner(k service.Key) (metav1.OwnerReference, bool) {
	_, c := s.claims.winner(fleet.ID{Kind: serviceID, Key: k.Stable()})
	if c == nil {
		return metav1.OwnerReference{}, false
	}
	controls := true
	return metav1.OwnerReference{APIVersion: c.ref.GroupVersion().String(), Kind: c.ref.Kind, Name: c.ref.Name, UID: c.ref.UID, Controller: &controls}, true
}

// Claimed is the manifest of an object that counts, and which of its fields have no effect;
// false for none.
func (s *Source) Claimed(id fleet.ID) (Ref, []string, bool) {
	_, c := s.claims.winner(id)
	if c == nil {
		return Ref{}, nil, false
	}
	return c.ref, c.warnings, true
}

// Manifest is the document of a service's manifest, nil when there is none
// that can be read.
func (s *Source) Manifest(k service.Key) []byte {
	if _, c := s.claims.winner(fleet.ID{Kind: serviceID, Key: k.Stable()}); c != nil && c.object != nil {
		return c.object.Original
	}
	return nil
}

// Manifests lists the objects in the API whose fleet.ID has a kind, as they are, of the
// namespaces that adopt them.
func (s *Source) Manifests(ctx context.Context, id string) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for _, k := range Kinds {
		r := s.kinds.informed(k)
		if k.ID != id || r == nil {
			continue
		}
		list := r.list.DeepCopy()
		if err := s.cfg.Cache.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list %s: %w", k.CRD(), err)
		}
		for i := range list.Items {
			if u := &list.Items[i]; s.kinds.adopted(ctx, k.Dialect(), u.GetNamespace()) {
				out = append(out, u)
			}
		}
	}
	return out, nil
}
