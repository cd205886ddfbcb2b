// Package gatewayapi is the edge of decide/gatewayapi: it watches the Gateway
// API's objects, whose definitions may come and go, and writes their status.
// Every gateway watches, to know which HTTPRoutes are its; the controller that
// leads writes.
package gatewayapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// Config is what a Watch needs. REST, Mapper, Shared, Service and Changed are
// required.
type Config struct {
	REST   *rest.Config
	Mapper meta.RESTMapper
	// Shared is a cache that runs, and holds the metadata of definitions and,
	// without Namespaces, of namespaces: that of an objects.Source.
	Shared cache.Cache
	// Namespaces are the only ones that are watched; none means all.
	Namespaces []string
	// Service is the gateway's, Certificate the Secret that it serves HTTPS
	// with, the zero Key where it serves HTTP.
	Service, Certificate service.Key
	// Secrets has those of type kubernetes.io/tls watched, which listeners may name then.
	Secrets bool
	// Domain ends the hosts of services, "name.namespace.domain".
	Domain string
	// Changed is called after a change that may matter. It must not block.
	Changed func()
	// Write: HTTPRoutes, GRPCRoutes and InferencePools are watched too, for a Writer.
	Write bool
	Log   *slog.Logger
}

// kind is a kind of objects that is watched.
type kind struct {
	group, name, plural string
	versions            []string // the first that is served is watched
	write               bool     // for who writes its status alone
}

func (k *kind) crd() string { return k.plural + "." + k.group }

var (
	classes  = &kind{gatewayapi.Group, "GatewayClass", "gatewayclasses", []string{"v1"}, false}
	gateways = &kind{gatewayapi.Group, "Gateway", "gateways", []string{"v1"}, false}
	grants   = &kind{gatewayapi.Group, "ReferenceGrant", "referencegrants", []string{"v1", "v1beta1"}, false}
	routes   = &kind{gatewayapi.Group, "HTTPRoute", "httproutes", []string{"v1", "v1beta1"}, true}
	calls    = &kind{gatewayapi.Group, "GRPCRoute", "grpcroutes", []string{"v1"}, true}
	pools    = &kind{"inference.networking.k8s.io", "InferencePool", "inferencepools", []string{"v1"}, true}
	kinds    = []*kind{classes, gateways, grants, routes, calls, pools}
)

// bundleVersion on the API's definitions is their release.
const bundleVersion = "gateway.networking.k8s.io/bundle-version"

// Watch keeps the Gateway API's objects in memory.
type Watch struct {
	cfg    Config
	cache  cache.Cache
	dirty  chan struct{} // capacity 1: what is watched is to be looked at
	synced chan struct{} // closed when everything that is there has been seen

	mu      sync.Mutex
	running map[*kind]schema.GroupVersionKind
}

// watchAgain is when a kind that could not be watched is tried again.
const watchAgain = 5 * time.Second

// New makes a watch. It watches nothing before Run.
func New(cfg Config) (*Watch, error) {
	if cfg.REST == nil || cfg.Mapper == nil || cfg.Shared == nil || cfg.Changed == nil || cfg.Service.Name == "" {
		return nil, errors.New("gatewayapi: REST, Mapper, Shared, Service and Changed are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	opts := cache.Options{Scheme: kube.Scheme(), Mapper: cfg.Mapper, DefaultTransform: kube.Trim, NewInformer: kube.NewInformer, ReaderFailOnMissingInformer: true,
		ByObject: map[client.Object]cache.ByObject{&corev1.Service{}: {Namespaces: map[string]cache.Config{cfg.Service.Namespace: {}},
			Field: fields.OneTermEqualSelector("metadata.name", cfg.Service.Name)}}}
	if cfg.Secrets {
		opts.ByObject[&corev1.Secret{}] = cache.ByObject{Field: fields.OneTermEqualSelector("type", string(corev1.SecretTypeTLS))}
	}
	opts.DefaultNamespaces = kube.Within(cfg.Namespaces)
	c, err := cache.New(cfg.REST, opts)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &Watch{cfg: cfg, cache: c, dirty: make(chan struct{}, 1), synced: make(chan struct{}), running: map[*kind]schema.GroupVersionKind{}}, nil
}

// Synced is closed once the first lists are complete.
func (w *Watch) Synced() <-chan struct{} { return w.synced }

func metadataOf(gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(gvk)
	return o
}

var (
	crdKind       = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	namespaceKind = schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}
)

// Run watches until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- w.cache.Start(ctx) }()
	if err := w.base(ctx); err != nil {
		return err
	}
	first, said := w.synced, "" // once, however often it is tried
	for {
		var again <-chan time.Time
		err := w.ensure(ctx, first != nil)
		switch {
		case err == nil:
			said = ""
		case ctx.Err() == nil:
			if text := err.Error(); said != text {
				w.cfg.Log.Warn("not every kind of the Gateway API can be watched yet", "error", err)
				said = text
			}
			again = time.After(watchAgain)
		}
		if first != nil && ctx.Err() == nil {
			close(first)
			first = nil
			w.cfg.Changed()
		}
		select {
		case <-w.dirty:
		case <-again:
		case err := <-ended:
			return err
		}
	}
}

// base watches the definitions, the namespaces and the gateway's Service.
func (w *Watch) base(ctx context.Context) error {
	definitions := toolscache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool {
			key, err := toolscache.DeletionHandlingObjectToName(obj)
			return err == nil && slices.ContainsFunc(kinds, func(k *kind) bool { return k.crd() == key.Name })
		},
		Handler: handler(func() {
			select {
			case w.dirty <- struct{}{}:
			default:
			}
		}),
	}
	type watched struct {
		in      cache.Cache
		object  client.Object
		handler toolscache.ResourceEventHandler
	}
	all := []watched{{w.cfg.Shared, metadataOf(crdKind), definitions}, {w.cache, &corev1.Service{}, handler(w.cfg.Changed)}}
	if w.cfg.Secrets {
		all = append(all, watched{w.cache, &corev1.Secret{}, handler(w.cfg.Changed)})
	}
	if len(w.cfg.Namespaces) == 0 {
		all = append(all, watched{w.cfg.Shared, metadataOf(namespaceKind), handler(w.cfg.Changed)})
	}
	for _, o := range all {
		inf, err := o.in.GetInformer(ctx, o.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", o.object, err)
		}
		reg, err := inf.AddEventHandler(o.handler)
		if err != nil {
			return fmt.Errorf("watch %T: %w", o.object, err)
		}
		context.AfterFunc(ctx, func() { _ = inf.RemoveEventHandler(reg) }) // the shared ones go on without us
		select {
		case <-reg.HasSyncedChecker().Done():
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func handler(changed func()) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { changed() }, UpdateFunc: func(any, any) { changed() }, DeleteFunc: func(any) { changed() }}
}

// ensure watches exactly the kinds whose definitions are installed.
func (w *Watch) ensure(ctx context.Context, wait bool) error {
	var errs []error
	for _, k := range kinds {
		if k.write && !w.cfg.Write {
			continue
		}
		crd := metadataOf(crdKind)
		err := w.cfg.Shared.Get(ctx, client.ObjectKey{Name: k.crd()}, crd)
		there := err == nil && crd.DeletionTimestamp.IsZero()
		switch gvk, runs := w.runs(k); {
		case there && !runs:
			errs = append(errs, w.watch(ctx, k, wait))
		case !there && runs:
			w.mu.Lock()
			delete(w.running, k)
			w.mu.Unlock()
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(gvk)
			errs = append(errs, w.cache.RemoveInformer(ctx, u))
			w.cfg.Changed()
		}
	}
	return errors.Join(errs...)
}

func (w *Watch) runs(k *kind) (schema.GroupVersionKind, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gvk, ok := w.running[k]
	return gvk, ok
}

// watch begins to watch a kind.
func (w *Watch) watch(ctx context.Context, k *kind, wait bool) error {
	m, err := w.cfg.Mapper.RESTMapping(schema.GroupKind{Group: k.group, Kind: k.name}, k.versions...)
	if err != nil {
		return fmt.Errorf("%s is installed and not served in a version that is read (%v): %w", k.crd(), k.versions, err)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(m.GroupVersionKind)
	inf, err := w.cache.GetInformer(ctx, u, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch %s: %w", k.crd(), err)
	}
	reg, err := inf.AddEventHandler(handler(w.cfg.Changed))
	if err != nil {
		return fmt.Errorf("watch %s: %w", k.crd(), err)
	}
	w.mu.Lock()
	w.running[k] = m.GroupVersionKind
	w.mu.Unlock()
	if wait {
		select {
		case <-reg.HasSyncedChecker().Done():
		case <-ctx.Done():
		}
	}
	return nil
}

// list returns every object of a kind; the caller must not change it.
func (w *Watch) list(ctx context.Context, k *kind) ([]unstructured.Unstructured, error) {
	gvk, runs := w.runs(k)
	if !runs {
		return nil, nil
	}
	l := &unstructured.UnstructuredList{}
	l.SetGroupVersionKind(gvk)
	if err := w.cache.List(ctx, l, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list %s: %w", k.crd(), err)
	}
	return l.Items, nil
}

// read reads every object of a kind into T. One that cannot be read, which its
// definition refuses, is left out.
func read[T any](ctx context.Context, w *Watch, k *kind) ([]T, error) {
	items, err := w.list(ctx, k)
	out := make([]T, 0, len(items))
	for i := range items {
		var v T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(items[i].Object, &v); err != nil {
			w.cfg.Log.Warn("cannot be read", "kind", k.crd(), "name", items[i].GetName(), "namespace", items[i].GetNamespace(), "error", err)
			continue
		}
		out = append(out, v)
	}
	return out, err
}

// World returns what statuses are judged by. The caller adds routes and pools.
func (w *Watch) World(ctx context.Context) (*gatewayapi.World, error) {
	at := w.cfg.Service
	out := &gatewayapi.World{Domain: w.cfg.Domain, System: at.Namespace, Labels: func(ns string) (map[string]string, bool) { return w.labels(ctx, ns) }}
	var errs [4]error
	out.Classes, errs[0] = read[gatewayapi.Class](ctx, w, classes)
	out.Gateways, errs[1] = read[gatewayapi.Gateway](ctx, w, gateways)
	out.Grants, errs[2] = read[gatewayapi.Grant](ctx, w, grants)
	out.Front, errs[3] = w.front(ctx)
	out.Certificate = func(k service.Key) string {
		_, err := w.Pair(ctx, k)
		if err != nil {
			return err.Error()
		}
		return ""
	}
	for _, under := range []string{"", "." + at.Namespace, "." + at.Namespace + ".svc", "." + at.Namespace + ".svc.cluster.local"} {
		out.Own = append(out.Own, at.Name+under)
	}
	for _, a := range out.Front.Addresses {
		if a.Type == gatewayapi.AddressHostname {
			out.Own = append(out.Own, strings.ToLower(a.Value))
		}
	}
	crd := metadataOf(crdKind)
	if err := w.cfg.Shared.Get(ctx, client.ObjectKey{Name: classes.crd()}, crd); err == nil {
		out.Bundle = crd.Annotations[bundleVersion]
	}
	return out, errors.Join(errs[:]...)
}

// labels returns a namespace's labels.
func (w *Watch) labels(ctx context.Context, ns string) (map[string]string, bool) {
	if len(w.cfg.Namespaces) > 0 {
		return nil, false
	}
	o := metadataOf(namespaceKind)
	if err := w.cfg.Shared.Get(ctx, client.ObjectKey{Name: ns}, o); err != nil {
		return nil, false
	}
	return o.Labels, true
}

// The names of the ports of the gateway's Service.
const (
	portHTTP  = "http"
	portHTTPS = "https"
)

// front returns the addresses and ports of the gateway's Service.
func (w *Watch) front(ctx context.Context) (*gatewayapi.Front, error) {
	var s corev1.Service
	err := w.cache.Get(ctx, client.ObjectKey{Namespace: w.cfg.Service.Namespace, Name: w.cfg.Service.Name}, &s)
	if err != nil {
		// Without a Service only the certificate is known.
		return &gatewayapi.Front{Certificate: w.cfg.Certificate}, client.IgnoreNotFound(err)
	}
	out := &gatewayapi.Front{Certificate: w.cfg.Certificate}
	for _, p := range s.Spec.Ports {
		if p.Name == portHTTP || len(s.Spec.Ports) == 1 {
			out.Ports = append(out.Ports, p.Port)
		}
		if p.Name == portHTTPS && w.cfg.Secrets {
			out.SecurePorts = append(out.SecurePorts, p.Port)
		}
	}
	ip := func(v string) {
		if v != "" && v != corev1.ClusterIPNone {
			out.Addresses = append(out.Addresses, gatewayapi.Address{Type: gatewayapi.AddressIP, Value: v})
		}
	}
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for _, in := range s.Status.LoadBalancer.Ingress {
			if ip(in.IP); in.Hostname != "" {
				out.Addresses = append(out.Addresses, gatewayapi.Address{Type: gatewayapi.AddressHostname, Value: in.Hostname})
			}
		}
		return out, nil
	}
	for _, v := range s.Spec.ClusterIPs {
		ip(v)
	}
	return out, nil
}
