package pools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
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

// ServicesConfig configures Services. REST, Mapper and Changed are required.
type ServicesConfig struct {
	REST   *rest.Config
	Mapper meta.RESTMapper
	// Changed receives the state of a pool's Service when it is first known and
	// whenever it changes, from one goroutine at a time for each Service.
	Changed func(pool service.Key, s ServiceState)
	// Namespaces are the only ones whose Services may be read; none means all.
	Namespaces []string
	// Addresses has the EndpointSlices watched too, for who sends requests there.
	Addresses bool
	// MaxServices bounds how many Services are watched. If pools name more, the
	// namespaces share the limit evenly.
	MaxServices int
	// Transform changes EndpointSlices on their way in, as tests need.
	Transform toolscache.TransformFunc
	Log       *slog.Logger
}

// DefaultServicesConfig watches up to 500 Services.
func DefaultServicesConfig() ServicesConfig { return ServicesConfig{MaxServices: 500} }

// Services watches the Services that pools name, and the pods behind them: the
// endpoint pickers of InferencePools, and what HTTPRoutes lead to (routing.ServicePool).
// Each is of its pool's namespace. It is safe for concurrent use.
//
// Whoever writes a pool decides which of its namespace's Services is called, and
// cannot make a gateway call anything else: addresses come from EndpointSlices
// alone, in which the API server accepts neither loopback nor link-local ones, and
// names in them are passed over.
type Services struct {
	cfg ServicesConfig
	run *watches

	mu       sync.Mutex
	services map[service.Key]*named
	excess   map[service.Key]routing.Extension // of pools whose Service exceeds MaxServices
}

// named is a Service that pools name.
type named struct {
	watch
	key     service.Key
	changed func(service.Key, ServiceState)

	mu       sync.Mutex
	complete bool // the first lists were read
	pools    map[service.Key]routing.Extension
	object   *corev1.Service // nil: there is none
	slices   map[string]*discoveryv1.EndpointSlice
}

// NewServices returns a watch of no pools. Close ends it.
func NewServices(cfg ServicesConfig) (*Services, error) {
	if cfg.REST == nil || cfg.Mapper == nil || cfg.Changed == nil || cfg.MaxServices <= 0 {
		return nil, errors.New("pools: REST, Mapper, Changed and MaxServices are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Services{cfg: cfg, run: newWatches(), services: map[service.Key]*named{}}, nil
}

// Close ends all watches and waits for them.
func (w *Services) Close() { w.run.close() }

// NamesService reports whether a pool names something that can be watched: a Service.
func NamesService(p *routing.Pool) bool {
	e := p.Extension
	return e.Name != "" && e.Group == "" && (e.Kind == "" || e.Kind == "Service")
}

// Set replaces the pools. A watch begins or ends for each Service that is named
// first, or no longer; Set does not wait for that. Pools whose Service is known
// already are reported before Set returns.
func (w *Services) Set(pools []*routing.Pool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[service.Key]map[service.Key]routing.Extension{}
	for _, p := range pools {
		if !NamesService(p) || len(w.cfg.Namespaces) > 0 && !slices.Contains(w.cfg.Namespaces, p.Namespace) {
			continue
		}
		k := service.Key{Namespace: p.Namespace, Name: p.Extension.Name}
		if want[k] == nil {
			want[k] = map[service.Key]routing.Extension{}
		}
		want[k][p.Key] = p.Extension
	}
	over := w.beyond(want)
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
			if w.run.ctx.Err() != nil {
				continue
			}
			have = w.begin(k)
			w.services[k] = have
		}
		have.setPools(by)
	}
}

// Listed waits until the Service of every pool has been reported.
func (w *Services) Listed(ctx context.Context) error {
	w.mu.Lock()
	all := slices.Collect(maps.Values(w.services))
	w.mu.Unlock()
	for _, s := range all {
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *Services) begin(k service.Key) *named {
	s := &named{watch: w.run.watch(), key: k, changed: w.cfg.Changed, slices: map[string]*discoveryv1.EndpointSlice{}}
	by := map[client.Object]cache.ByObject{&corev1.Service{}: {Field: fields.OneTermEqualSelector("metadata.name", k.Name)}}
	if w.cfg.Addresses {
		by[&discoveryv1.EndpointSlice{}] = cache.ByObject{Label: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: k.Name}), Transform: w.cfg.Transform}
	}
	opts := cache.Options{Mapper: w.cfg.Mapper, DefaultTransform: kube.Trim, DefaultNamespaces: map[string]cache.Config{k.Namespace: {}}, ByObject: by}
	w.run.begin(s.watch, func(listed func()) {
		err := kube.Watch(s.ctx, w.cfg.REST, opts, s.set, func() {
			s.listed()
			listed()
		})
		if err != nil && s.ctx.Err() == nil {
			w.cfg.Log.Error("a Service that a pool or a route names cannot be watched", "service", k.String(), "error", err)
		}
	})
	return s
}

// set notes the Service or one of its EndpointSlices.
func (s *named) set(object any, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := object.(type) {
	case *corev1.Service:
		if s.object = o; !exists {
			s.object = nil
		}
	case *discoveryv1.EndpointSlice:
		if s.slices[o.Name] = o; !exists {
			delete(s.slices, o.Name)
		}
	}
	s.report()
}

// listed reports the Service once the first lists are complete.
func (s *named) listed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.complete = true
	s.report()
}

// setPools replaces the pools that name the Service.
func (s *named) setPools(by map[service.Key]routing.Extension) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if maps.Equal(s.pools, by) {
		return
	}
	s.pools = by
	s.report()
}

// report calls changed with mu held, so that reports arrive in their order.
func (s *named) report() {
	if !s.complete || s.ctx.Err() != nil {
		return
	}
	for pool, e := range s.pools {
		s.changed(pool, s.state(e))
	}
}

// beyond returns the Services that exceed MaxServices. Every namespace has its
// first Service watched before any has its second, so that no namespace uses up
// the limit of others; within a namespace, those that are watched already come
// first. w.mu is held.
func (w *Services) beyond(want map[service.Key]map[service.Key]routing.Extension) map[service.Key]bool {
	if len(want) <= w.cfg.MaxServices {
		return nil
	}
	of := map[string][]service.Key{}
	for k := range want {
		of[k.Namespace] = append(of[k.Namespace], k)
	}
	type ranked struct {
		nth int
		key service.Key
	}
	all := make([]ranked, 0, len(want))
	for _, keys := range of {
		slices.SortFunc(keys, func(a, b service.Key) int {
			return cmp.Or(cmp.Compare(w.unwatched(a), w.unwatched(b)), cmp.Compare(a.Name, b.Name))
		})
		for i, k := range keys {
			all = append(all, ranked{i, k})
		}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.nth, b.nth), cmp.Compare(w.unwatched(a.key), w.unwatched(b.key)), cmp.Compare(a.key.Namespace, b.key.Namespace))
	})
	out := map[service.Key]bool{}
	for _, p := range all[w.cfg.MaxServices:] {
		out[p.key] = true
	}
	return out
}

func (w *Services) unwatched(k service.Key) int {
	if w.services[k] != nil {
		return 0
	}
	return 1
}

// refuse reports, once, the pools whose Service exceeds MaxServices. w.mu is held.
func (w *Services) refuse(want map[service.Key]map[service.Key]routing.Extension, over map[service.Key]bool) {
	before := w.excess
	w.excess = map[service.Key]routing.Extension{}
	for k := range over {
		for pool, e := range want[k] {
			w.excess[pool] = e
			if was, reported := before[pool]; reported && was == e {
				continue
			}
			w.cfg.Log.Error("too many Services are named by pools or routes: this one is not watched, and never called", "service", k.String(), "limit", w.cfg.MaxServices)
			s := (&named{key: k}).state(e)
			s.Problem = fmt.Sprintf("Service %s is not called: more than %d Services are named, and namespace %s has its share of them", k.Name, w.cfg.MaxServices, k.Namespace)
			w.cfg.Changed(pool, s)
		}
	}
}

// end ends a watch. Nothing is reported afterwards.
func (s *named) end() {
	s.stop()
	s.mu.Lock() // waits for a report under way
	defer s.mu.Unlock()
	s.pools = nil
}

// defaultPort is the port where a pool names none, a picker's.
const defaultPort = 9002

// plainText is the appProtocol of a port that speaks HTTP/2 without TLS.
const plainText = "kubernetes.io/h2c"

// ServiceState is what is known of the Service that a pool names.
type ServiceState struct {
	// Name is the Service's, "namespace/name:port", Authority the host that calls
	// name, "name.namespace.svc:port".
	Name, Authority string
	// Own: the Service stands for Roundhouse's own picker, so that no external
	// one is called.
	Own bool
	// Problem is why the reference cannot be used: there is no such Service or
	// port. "" means that it can.
	Problem string
	// Addresses are the "ip:port" of the pods that are ready, sorted.
	Addresses []string
	// Plain: it speaks HTTP/2 in plain text, without TLS.
	Plain bool
	// AppProtocol is the port's own; "" for none.
	AppProtocol string
}

// state returns what is known for a pool. mu is held.
func (s *named) state(e routing.Extension) ServiceState {
	port := cmp.Or(e.Port, defaultPort)
	at := strconv.Itoa(int(port))
	out := ServiceState{Name: s.key.String() + ":" + at, Authority: s.key.Name + "." + s.key.Namespace + ".svc:" + at}
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
		out.Problem = fmt.Sprintf("Service %s is an ExternalName: requests go to a Service that has pods", s.key.Name)
	case i < 0:
		out.Problem = fmt.Sprintf("Service %s has no port %d", s.key.Name, port)
	default:
		p := s.object.Spec.Ports[i]
		if p.AppProtocol != nil {
			out.AppProtocol = *p.AppProtocol
		}
		out.Plain = out.AppProtocol == plainText
		out.Addresses = s.addresses(p.Name)
	}
	return out
}

// addresses returns those of the pods that are ready, at the port of a name.
func (s *named) addresses(port string) (out []string) {
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
			if len(e.Addresses) > 0 && isIP(e.Addresses[0]) && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*es.Ports[i].Port))))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isIP reports whether an address is one: a name, of a slice of the type FQDN, may be led
// anywhere by whoever writes the slice, also to the gateway's own machine.
func isIP(address string) bool {
	_, err := netip.ParseAddr(address)
	return err == nil
}
