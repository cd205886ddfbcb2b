package controller

import (
	"context"
	"fmt"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// gateways watches which gateway pods take requests: those that are ready in
// the EndpointSlices of their Service.
type gateways struct {
	cache   cache.Cache
	live    func(pods []string)
	mu      sync.Mutex
	slices  map[string][]string // pods by the slice's name
	settled bool
}

func newGateways(cfg *rest.Config, namespace, name string, live func([]string)) (*gateways, error) {
	opts := cache.Options{Scheme: kube.Scheme(), DefaultTransform: kube.Trim, NewInformer: kube.NewInformer, DefaultNamespaces: map[string]cache.Config{namespace: {}},
		ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: {Label: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name})}}}
	c, err := cache.New(cfg, opts)
	if err != nil {
		return nil, fmt.Errorf("watch the gateways: %w", err)
	}
	return &gateways{cache: c, live: live, slices: map[string][]string{}}, nil
}

// NeedLeaderElection is false: every controller hears the gateways.
func (g *gateways) NeedLeaderElection() bool { return false }

// Start watches until ctx ends.
func (g *gateways) Start(ctx context.Context) error {
	inf, err := g.cache.GetInformer(ctx, &discoveryv1.EndpointSlice{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch the gateways: %w", err)
	}
	set := func(obj any) {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			g.set(s.Name, ready(s))
		}
	}
	reg, err := inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: set, UpdateFunc: func(_, now any) { set(now) },
		DeleteFunc: func(obj any) {
			if key, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				g.set(key.Name, nil)
			}
		}})
	if err != nil {
		return fmt.Errorf("watch the gateways: %w", err)
	}
	go func() {
		select {
		case <-reg.HasSyncedChecker().Done():
			g.settle()
		case <-ctx.Done():
		}
	}()
	return g.cache.Start(ctx)
}

func ready(s *discoveryv1.EndpointSlice) (pods []string) {
	for _, e := range s.Endpoints {
		if e.TargetRef != nil && e.TargetRef.Kind == "Pod" && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
			pods = append(pods, e.TargetRef.Name)
		}
	}
	return pods
}

func (g *gateways) set(slice string, pods []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.slices[slice] = pods; pods == nil {
		delete(g.slices, slice)
	}
	if g.settled {
		g.tell()
	}
}

// settle tells of all there are, once they are known: to begin with part of
// them would have the clocks of idleness run too early.
func (g *gateways) settle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settled = true
	g.tell()
}

func (g *gateways) tell() {
	pods := []string{}
	for _, of := range g.slices {
		pods = append(pods, of...)
	}
	slices.Sort(pods)
	g.live(slices.Compact(pods))
}
