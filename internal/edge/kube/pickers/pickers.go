// Package pickers watches the endpoint pickers that InferencePools name: each a
// Service of the pool's namespace, and where its pods are.
//
// Whoever writes a pool decides which of its namespace's Services is asked, and
// never sends a gateway elsewhere: addresses come from EndpointSlices alone, in
// which the API server takes neither loopback nor link-local ones.
package pickers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// Config is what a Watch needs. REST, Mapper and Changed are required.
type Config struct {
	REST   *rest.Config
	Mapper meta.RESTMapper
	// Changed is told of a pool's picker whenever it changes, and first when it is
	// known; by one caller at a time for each Service.
	Changed func(pool service.Key, s State)
	// Namespaces are the only ones whose Services may be read; none means all.
	Namespaces []string
	// Addresses: EndpointSlices are watched too, for who asks.
	Addresses bool
	// MaxServices bounds how many Services are watched. Where there are more, each
	// namespace has as many of them as another, if it names as many.
	MaxServices int
	// Transform changes EndpointSlices on their way in, as tests need.
	Transform toolscache.TransformFunc
	Log       *slog.Logger
}

// DefaultConfig watches up to 500 Services.
func DefaultConfig() Config { return Config{MaxServices: 500} }

// Watch watches the pickers of pools. It is safe for concurrent use.
type Watch struct {
	cfg Config
	ctx context.Context
	end context.CancelFunc
	all sync.WaitGroup

	mu       sync.Mutex
	services map[service.Key]*watched
	left     map[service.Key]routing.Extension // of pools whose Service is one too many
}

// watched is a Service that pools name.
type watched struct {
	key    service.Key
	stop   context.CancelFunc
	ctx    context.Context
	listed chan struct{} // closed when it is known, or never will be

	mu     sync.Mutex
	known  bool
	pools  map[service.Key]routing.Extension
	object *corev1.Service // nil: there is none
	slices map[string]*discoveryv1.EndpointSlice
}

// New makes a watch of no pools. Close ends it.
func New(cfg Config) (*Watch, error) {
	if cfg.REST == nil || cfg.Mapper == nil || cfg.Changed == nil || cfg.MaxServices <= 0 {
		return nil, errors.New("pickers: REST, Mapper, Changed and MaxServices are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ctx, end := context.WithCancel(context.Background())
	return &Watch{cfg: cfg, ctx: ctx, end: end, services: map[service.Key]*watched{}}, nil
}

// Close ends all watches and waits for them.
func (w *Watch) Close() {
	w.end()
	w.all.Wait()
}

// Named reports whether a pool names a picker that can be watched: a Service.
func Named(p *routing.Pool) bool {
	e := p.Extension
	return e.Name != "" && e.Group == "" && (e.Kind == "" || e.Kind == "Service")
}

// Set returns which pools there are. A watch begins or ends for each Service that
// is named anew, or no more; it does not wait for that. A pool whose picker is
// known already is told of within the call.
func (w *Watch) Set(pools []*routing.Pool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[service.Key]map[service.Key]routing.Extension{}
	for _, p := range pools {
		if !Named(p) || len(w.cfg.Namespaces) > 0 && !slices.Contains(w.cfg.Namespaces, p.Namespace) {
			continue
		}
		k := service.Key{Namespace: p.Namespace, Name: p.Extension.Name}
		if want[k] == nil {
			want[k] = map[service.Key]routing.Extension{}
		}
		want[k][p.Key] = p.Extension
	}
	over := w.over(want)
	for k, have := range w.services {
		if want[k] == nil || over[k] {
			have.end()
			delete(w.services, k)
		}
	}
	w.refuse(want, over)
	for k, by := range want {
		have := w.services[k]
		if over[k] {
			continue
		}
		if have == nil {
			if w.ctx.Err() != nil {
				continue
			}
			have = w.begin(k)
			w.services[k] = have
		}
		have.name(w.cfg.Changed, by)
	}
}

// Listed waits until the picker of every pool there is has been told of.
func (w *Watch) Listed(ctx context.Context) error {
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.services))
	w.mu.Unlock()
	for _, s := range all {
		select {
		case <-s.listed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (w *Watch) begin(k service.Key) *watched {
	s := &watched{key: k, listed: make(chan struct{}), slices: map[string]*discoveryv1.EndpointSlice{}}
	s.ctx, s.stop = context.WithCancel(w.ctx)
	w.all.Go(func() {
		listed := sync.OnceFunc(func() { close(s.listed) })
		defer listed()
		if err := w.watch(s, listed); err != nil && s.ctx.Err() == nil {
			w.cfg.Log.Error("an endpoint picker's Service cannot be watched", "service", k.String(), "error", err)
		}
	})
	return s
}

// watch runs a Service's own cache.
func (w *Watch) watch(s *watched, listed func()) error {
	by := map[client.Object]cache.ByObject{&corev1.Service{}: {Field: fields.OneTermEqualSelector("metadata.name", s.key.Name)}}
	if w.cfg.Addresses {
		by[&discoveryv1.EndpointSlice{}] = cache.ByObject{Label: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.key.Name}), Transform: w.cfg.Transform}
	}
	c, err := cache.New(w.cfg.REST, cache.Options{Scheme: kube.Scheme(), Mapper: w.cfg.Mapper, NewInformer: kube.NewInformer, DefaultTransform: kube.Trim,
		DefaultNamespaces: map[string]cache.Config{s.key.Namespace: {}}, ByObject: by})
	if err != nil {
		return err
	}
	var synced []toolscache.ResourceEventHandlerRegistration
	for o := range by {
		inf, err := c.GetInformer(s.ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		set := func(obj any) { s.set(w.cfg.Changed, obj) }
		reg, err := inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: set, UpdateFunc: func(_, now any) { set(now) }, DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			s.remove(w.cfg.Changed, obj)
		}})
		if err != nil {
			return err
		}
		synced = append(synced, reg)
	}
	w.all.Go(func() {
		for _, reg := range synced {
			select {
			case <-reg.HasSyncedChecker().Done():
			case <-s.ctx.Done():
				return
			}
		}
		s.settle(w.cfg.Changed)
		listed()
	})
	if err := c.Start(s.ctx); err != nil {
		return fmt.Errorf("namespace %s: %w", s.key.Namespace, err)
	}
	return nil
}

func (s *watched) set(changed func(service.Key, State), obj any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.Service:
		s.object = o
	case *discoveryv1.EndpointSlice:
		s.slices[o.Name] = o
	}
	s.tell(changed)
}

func (s *watched) remove(changed func(service.Key, State), obj any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.Service:
		s.object = nil
	case *discoveryv1.EndpointSlice:
		delete(s.slices, o.Name)
	}
	s.tell(changed)
}

// settle tells of it once all has been listed.
func (s *watched) settle(changed func(service.Key, State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = true
	s.tell(changed)
}

// name returns which pools name it.
func (s *watched) name(changed func(service.Key, State), by map[service.Key]routing.Extension) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(s.pools, by) {
		return
	}
	s.pools = by
	s.tell(changed)
}

// tell is called with mu held, which keeps what is told in its order.
func (s *watched) tell(changed func(service.Key, State)) {
	if !s.known || s.ctx.Err() != nil {
		return
	}
	for pool, e := range s.pools {
		changed(pool, s.state(e))
	}
}

// over are the Services that are too many. Every namespace has its first one
// watched before any has its second, so that nobody keeps those of others from
// being asked; of one namespace those go before that are watched already. w.mu
// is held.
func (w *Watch) over(want map[service.Key]map[service.Key]routing.Extension) map[service.Key]bool {
	if len(want) <= w.cfg.MaxServices {
		return nil
	}
	of := map[string][]service.Key{}
	for k := range want {
		of[k.Namespace] = append(of[k.Namespace], k)
	}
	type place struct {
		nth int
		key service.Key
	}
	places := make([]place, 0, len(want))
	for _, keys := range of {
		slices.SortFunc(keys, func(a, b service.Key) int {
			return cmp.Or(cmp.Compare(w.unwatched(a), w.unwatched(b)), cmp.Compare(a.Name, b.Name))
		})
		for i, k := range keys {
			places = append(places, place{i, k})
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.nth, b.nth), cmp.Compare(w.unwatched(a.key), w.unwatched(b.key)), cmp.Compare(a.key.Namespace, b.key.Namespace))
	})
	out := map[service.Key]bool{}
	for _, p := range places[w.cfg.MaxServices:] {
		out[p.key] = true
	}
	return out
}

func (w *Watch) unwatched(k service.Key) int {
	if w.services[k] != nil {
		return 0
	}
	return 1
}

// refuse tells of the pools whose Service is one too many, once. w.mu is held.
func (w *Watch) refuse(want map[service.Key]map[service.Key]routing.Extension, over map[service.Key]bool) {
	before := w.left
	w.left = map[service.Key]routing.Extension{}
	for k := range over {
		for pool, e := range want[k] {
			w.left[pool] = e
			if was, told := before[pool]; told && was == e {
				continue
			}
			w.cfg.Log.Error("too many endpoint pickers: this one is not asked", "service", k.String(), "limit", w.cfg.MaxServices)
			s := (&watched{key: k}).state(e)
			s.Problem = fmt.Sprintf("Service %s is not asked: the cluster's pools name more than %d Services, and those of namespace %s have their share", k.Name, w.cfg.MaxServices, k.Namespace)
			w.cfg.Changed(pool, s)
		}
	}
}

// end ends a watch; nothing is told of it after.
func (s *watched) end() {
	s.stop()
	s.mu.Lock() // whoever tells holds it
	defer s.mu.Unlock()
	s.pools = nil
}

// defaultPort is a picker's where a pool does not say.
const defaultPort = 9002

// plainText is the appProtocol of a port that speaks HTTP/2 without TLS.
const plainText = "kubernetes.io/h2c"

// State is what is known of the picker that a pool names.
type State struct {
	// Name is the Service's, "namespace/name:port", Authority the host it is
	// asked by, "name.namespace.svc:port".
	Name, Authority string
	// Own: the Service stands for Roundhouse's own picking, so that nobody is to
	// be asked.
	Own bool
	// Problem is what is wrong with the reference: there is no such Service or
	// port; "" when nothing is.
	Problem string
	// Addresses are the "ip:port" of the pods that are ready, sorted.
	Addresses []string
	// Plain: it speaks HTTP/2 in plain text, and not over TLS.
	Plain bool
}

// state is what is known for a pool; mu is held.
func (s *watched) state(e routing.Extension) State {
	port := cmp.Or(e.Port, defaultPort)
	at := strconv.Itoa(int(port))
	out := State{Name: s.key.String() + ":" + at, Authority: s.key.Name + "." + s.key.Namespace + ".svc:" + at}
	if s.object == nil {
		out.Problem = fmt.Sprintf("there is no Service %s in namespace %s", s.key.Name, s.key.Namespace)
		return out
	}
	if s.object.Labels[shape.LabelPicker] == "true" {
		out.Own = true
		return out
	}
	i := slices.IndexFunc(s.object.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Port == port && cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
	})
	switch {
	case s.object.Spec.Type == corev1.ServiceTypeExternalName:
		out.Problem = fmt.Sprintf("Service %s is an ExternalName: an endpoint picker has pods", s.key.Name)
	case i < 0:
		out.Problem = fmt.Sprintf("Service %s has no port %d", s.key.Name, port)
	default:
		p := s.object.Spec.Ports[i]
		out.Plain = p.AppProtocol != nil && *p.AppProtocol == plainText
		out.Addresses = s.addresses(p.Name)
	}
	return out
}

// addresses are those of the pods that are ready, at a port of a name.
func (s *watched) addresses(port string) (out []string) {
	for _, es := range s.slices {
		i := slices.IndexFunc(es.Ports, func(p discoveryv1.EndpointPort) bool {
			name := ""
			if p.Name != nil {
				name = *p.Name
			}
			return name == port && p.Port != nil
		})
		if i < 0 {
			continue
		}
		for _, e := range es.Endpoints {
			if len(e.Addresses) > 0 && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*es.Ports[i].Port))))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
