package incluster

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/edge/kube"
)

// PortDemand is the name of the port of the controller's Service that takes
// reports.
const PortDemand = "reports"

// controllers watches where the controller's pods are.
type controllers struct {
	cache  cache.Cache
	set    func([]string)
	change chan struct{} // capacity 1
	listed chan struct{} // closed when set was told of all there are
}

// newControllers tells set the addresses behind a Service's port for reports.
func newControllers(api *rest.Config, mapper meta.RESTMapper, name client.ObjectKey, transform toolscache.TransformFunc, set func([]string)) (*controllers, error) {
	c, err := cache.New(api, cache.Options{Scheme: kube.Scheme(), Mapper: mapper, DefaultTransform: kube.Trim, NewInformer: kube.NewInformer,
		ByObject: map[client.Object]cache.ByObject{&discoveryv1.EndpointSlice{}: {Namespaces: map[string]cache.Config{name.Namespace: {}},
			Transform: transform, Label: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name.Name})}}})
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &controllers{cache: c, set: set, change: make(chan struct{}, 1), listed: make(chan struct{})}, nil
}

// Run watches until ctx ends.
func (c *controllers) Run(ctx context.Context) error {
	inf, err := c.cache.GetInformer(ctx, &discoveryv1.EndpointSlice{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	changed := func(any) {
		select {
		case c.change <- struct{}{}:
		default:
		}
	}
	reg, err := inf.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.cache.Start(ctx) }()
	for first := reg.HasSyncedChecker().Done(); ; {
		select {
		case <-first:
			first = nil
			c.tell(ctx)
			close(c.listed)
		case <-c.change:
			c.tell(ctx)
		case err := <-ended:
			return err
		}
	}
}

func (c *controllers) tell(ctx context.Context) {
	var all discoveryv1.EndpointSliceList
	if err := c.cache.List(ctx, &all); err == nil {
		c.set(addresses(all.Items))
	}
}

// addresses are those of all pods that have one, ready or not: who does not
// lead is to know as much.
func addresses(all []discoveryv1.EndpointSlice) (out []string) {
	for _, es := range all {
		port := int32(0)
		for _, p := range es.Ports {
			if p.Name != nil && *p.Name == PortDemand && p.Port != nil {
				port = *p.Port
			}
		}
		for _, e := range es.Endpoints {
			if port > 0 && len(e.Addresses) > 0 && (e.Conditions.Terminating == nil || !*e.Conditions.Terminating) {
				out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(port))))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
