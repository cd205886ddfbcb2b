package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/yaml"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/load"
	"roundhouse.dev/roundhouse/internal/decide/route"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// Manifest is one manifest in the API, read into the hub.
type Manifest struct {
	fleet.Object
	// Status is what stands there, in the words of the manifest's dialect.
	Status     any
	Generation int64
	UID        types.UID
	// Problems are why the manifest cannot be read; Object then has its names
	// alone.
	Problems []string
	// Written reports whether our controller has written the status.
	Written bool

	written map[string]any // as Authored
}

// Rendered is the manifest as YAML, with its status.
func (m *Manifest) Rendered() string {
	doc := map[string]any{}
	for k, v := range m.written {
		doc[k] = v
	}
	if m.Status != nil {
		doc["status"] = m.Status
	}
	return inYAML(doc)
}

// Authored is the manifest as YAML, as its author wrote it.
func (m *Manifest) Authored() string { return inYAML(m.written) }

func inYAML(doc map[string]any) string {
	out, err := yaml.Marshal(doc)
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	return string(out)
}

// installed are the kinds of manifests that the cluster has, in the version to
// ask for. It is asked once.
type installed struct {
	once  sync.Once
	err   error
	at    map[*dialect.Resource]resource
	group map[string]bool
}

// counted are the resources that have a count of pods.
func (in *installed) counted() []resource {
	at := []resource{deploymentsAt}
	if in.group[groupsAt.Group] {
		at = append(at, groupsAt)
	}
	return at
}

// kinds finds out which kinds of manifests there are, and which of the other
// groups that are asked.
func (c *Client) kinds(ctx context.Context) (*installed, error) {
	in := &c.installed
	in.once.Do(func() { in.err = c.discover(ctx, in) })
	return in, in.err
}

func (c *Client) discover(ctx context.Context, in *installed) error {
	found, err := call(ctx, c, "list", "API groups", c.served)
	if err != nil {
		return err
	}
	in.at, in.group = map[*dialect.Resource]resource{}, map[string]bool{}
	for _, list := range found {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return err
		}
		in.group[gv.Group] = true
		for _, r := range list.APIResources {
			in.note(gv.Group, gv.Version, r.Name)
		}
	}
	return nil
}

// served lists what the API server serves. The discovery client takes no
// context, so it is left to itself when that ends.
func (c *Client) served(ctx context.Context) ([]*metav1.APIResourceList, error) {
	type answer struct {
		lists []*metav1.APIResourceList
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		_, lists, err := c.discovery.ServerGroupsAndResources()
		if discovery.IsGroupDiscoveryFailedError(err) {
			err = nil // of another API server behind this one
		}
		done <- answer{lists, err}
	}()
	select {
	case a := <-done:
		return a.lists, a.err
	case <-ctx.Done():
		return nil, &url.Error{Op: "Get", URL: c.base.String(), Err: ctx.Err()}
	}
}

// note remembers that a kind is served, in the preferred of the versions read.
func (in *installed) note(group, version, plural string) {
	for i := range dialect.Resources {
		r := &dialect.Resources[i]
		if r.Group != group || r.Plural != plural || !slices.Contains(r.Versions, version) {
			continue
		}
		if before, there := in.at[r]; there && slices.Index(r.Versions, before.Version) < slices.Index(r.Versions, version) {
			continue
		}
		in.at[r] = resourceOf(r, version)
	}
}

func resourceOf(r *dialect.Resource, version string) resource {
	return resource{schema.GroupVersionResource{Group: r.Group, Version: version, Resource: r.Plural}, r.ClusterScoped()}
}

// maxAtOnce is how many calls are under way at once.
const maxAtOnce = 8

// annotationApplied is kubectl's copy of what it applied.
const annotationApplied = "kubectl.kubernetes.io/last-applied-configuration"

// manifest reads an object of the API.
func manifest(r *dialect.Resource, u *unstructured.Unstructured) (*Manifest, error) {
	m := &Manifest{Status: u.Object["status"], Generation: u.GetGeneration(), UID: u.GetUID(), written: dialect.Authored(u.Object, annotationApplied)}
	m.Written = slices.ContainsFunc(u.GetManagedFields(), func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == shape.FieldManager && f.Subresource == "status"
	})
	doc, err := json.Marshal(m.written)
	if err != nil {
		return nil, err
	}
	read := dialect.Read("", doc).Applied()
	for _, p := range read.Errors(dialect.Kubernetes) {
		p.Line = 0 // of a document nobody has seen
		m.Problems = append(m.Problems, p.String())
	}
	if len(m.Problems) > 0 || len(read.Objects) != 1 {
		m.Object.Object = unread(r, u)
		return m, nil
	}
	m.Object.Object = read.Objects[0]
	m.Origin.Line = 0
	m.SetCreated(u.GetCreationTimestamp().Time)
	return m, nil
}

// unread is a manifest of which only the names are known.
func unread(r *dialect.Resource, u *unstructured.Unstructured) dialect.Object {
	k := service.Key{Namespace: u.GetNamespace(), Name: u.GetName()}
	origin := service.Origin{APIVersion: u.GetAPIVersion(), Kind: r.Kind}
	common := service.Meta{Key: k, Origin: origin, Created: u.GetCreationTimestamp().Time}
	o := dialect.Object{Origin: origin, Key: k}
	switch r.ID {
	case "service":
		o.Kind, o.Service = dialect.KindService, &service.Service{Meta: common}
	case "runtime":
		o.Kind, o.Runtime = dialect.KindRuntime, &service.Runtime{Meta: common}
	case "model":
		o.Kind, o.Model = dialect.KindModel, &service.Model{Meta: common}
	case "weight":
		o.Kind, o.Model = dialect.KindModel, &service.Model{Meta: common, FineTuned: &service.FineTuned{}}
	case dialect.BaseID:
		o.Kind, o.Base = dialect.KindBase, &service.Base{Meta: common}
	case dialect.AcceleratorID:
		o.Kind, o.Accelerator = dialect.KindAccelerator, &service.AcceleratorClass{Meta: common}
	case dialect.StorageContainerID:
		o.Kind, o.StorageContainer = dialect.KindStorageContainer, &service.StorageContainer{Meta: common}
	case dialect.CacheID:
		o.Kind, o.ModelCache = dialect.KindModelCache, &service.ModelCache{Meta: common}
	case dialect.NodeGroupID:
		o.Kind, o.NodeGroup = dialect.KindNodeGroup, &service.NodeGroup{Meta: common}
	case dialect.BenchmarkID:
		o.Kind, o.Benchmark = dialect.KindBenchmark, &load.Job{Meta: common}
	case dialect.ReserveID:
		o.Kind = dialect.KindReserve
	}
	return o
}

// Manifests lists those of the kinds of an ID ("service", "runtime", "model", "base",
// "" for routing), of one namespace and the cluster or, with "", of all. What
// may not be listed is left out and said in refused; where nothing may be, that
// is the error.
func (c *Client) Manifests(ctx context.Context, id, namespace string) (out []*Manifest, refused []error, err error) {
	in, err := c.kinds(ctx)
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	var wait errgroup.Group
	wait.SetLimit(maxAtOnce)
	asked := 0
	for r, at := range in.at {
		if routed := r.Status == dialect.OfRouting; routed != (id == "") || id != "" && r.ID != id {
			continue
		}
		asked++
		wait.Go(func() error {
			items, err := c.list(ctx, at, namespace, metav1.ListOptions{})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case Missing(err):
				return nil
			case forbidden(err):
				refused = append(refused, err)
				return nil
			case err != nil:
				return err
			}
			for i := range items {
				m, err := manifest(r, &items[i])
				if err != nil {
					return fmt.Errorf("%s: %w", at.words(namespace), err)
				}
				if m.Kind != "" { // routing objects that cannot be read have no shape to show
					out = append(out, m)
				}
			}
			return nil
		})
	}
	if err := wait.Wait(); err != nil {
		return nil, nil, err
	}
	slices.SortFunc(refused, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(refused) == asked && asked > 0 {
		return nil, nil, refused[0]
	}
	slices.SortFunc(out, func(a, b *Manifest) int {
		return strings.Compare(a.Key.String()+" "+a.Origin.APIVersion+a.Origin.Kind, b.Key.String()+" "+b.Origin.APIVersion+b.Origin.Kind)
	})
	return out, refused, nil
}

// Find gets the manifests of a name: of one kind of an ID there may be several,
// of different projects. None is an error.
func (c *Client) Find(ctx context.Context, id string, k service.Key) ([]*Manifest, error) {
	in, err := c.kinds(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var out []*Manifest
	var refused error
	var wait errgroup.Group
	wait.SetLimit(maxAtOnce)
	asked := 0
	for r, at := range in.at {
		if r.ID != id || r.ClusterScoped() != (k.Namespace == "") {
			continue
		}
		asked++
		wait.Go(func() error {
			u, err := c.get(ctx, at, k.Namespace, k.Name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case Missing(err):
				return nil
			case forbidden(err):
				refused = err
				return nil
			case err != nil:
				return err
			}
			m, err := manifest(r, u)
			if err == nil && m.Kind != "" {
				out = append(out, m)
			}
			return err
		})
	}
	if err := wait.Wait(); err != nil {
		return nil, err
	}
	switch {
	case len(out) > 0:
		slices.SortFunc(out, func(a, b *Manifest) int { return a.Created().Compare(b.Created()) })
		return out, nil
	case refused != nil:
		return nil, refused
	case asked == 0:
		return nil, fmt.Errorf("%s has no kind of a %s: is Roundhouse installed there? `roundhouse manifests | kubectl apply --server-side -f -` installs it", c.Name(), id)
	}
	return nil, &fleet.NotFoundError{ID: fleet.ID{Kind: id, Key: k}}
}

// Delete removes an object; what it made goes with it.
func (c *Client) Delete(ctx context.Context, origin service.Origin, k service.Key) error {
	r := dialect.ResourceOf(origin.APIVersion, origin.Kind)
	if r == nil {
		return fmt.Errorf("delete %s: %s %s is no kind that is read", k, origin.APIVersion, origin.Kind)
	}
	_, version, _ := strings.Cut(origin.APIVersion, "/")
	at, background := resourceOf(r, version), metav1.DeletePropagationBackground
	_, err := call(ctx, c, "delete", at.words(k.Namespace), func(ctx context.Context) (any, error) {
		return nil, c.on(at, k.Namespace).Delete(ctx, k.Name, metav1.DeleteOptions{PropagationPolicy: &background})
	})
	if Missing(err) {
		return &fleet.NotFoundError{ID: fleet.ID{Kind: r.ID, Key: k}}
	}
	return err
}

// Edit changes an object by a JSON merge patch.
func (c *Client) Edit(ctx context.Context, o dialect.Object, patch map[string]any) error {
	r := dialect.ResourceOf(o.Origin.APIVersion, o.Origin.Kind)
	if r == nil {
		return fmt.Errorf("change %s: %s %s is no kind that is read", o.Key, o.Origin.APIVersion, o.Origin.Kind)
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	_, version, _ := strings.Cut(o.Origin.APIVersion, "/")
	at := resourceOf(r, version)
	_, err = call(ctx, c, "patch", at.words(o.Key.Namespace), func(ctx context.Context) (any, error) {
		return c.on(at, o.Key.Namespace).Patch(ctx, o.Key.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: FieldManager})
	})
	if Missing(err) {
		return &fleet.NotFoundError{ID: fleet.ID{Kind: r.ID, Key: o.Key}}
	}
	return err
}

// Reserves lists the Reserves of a namespace or, with "", of all.
func (c *Client) Reserves(ctx context.Context, namespace string) ([]*api.Reserve, error) {
	return listed[api.Reserve](ctx, c, reservesAt, namespace, metav1.ListOptions{})
}

// RoutingOf are objects of routing with their status, and with the services that pools
// select among members.
func RoutingOf(all []*Manifest, members []route.Member) (out []fleet.RoutingState) {
	for _, m := range all {
		st := fleet.RoutingState{Object: m.Object, Status: dialect.ReadRoutingStatus(m.Routing, m.Status)}
		if p, ok := m.Routing.(*routing.Pool); ok {
			st.Status.Members = route.Members(p, members)
		}
		out = append(out, st)
	}
	return out
}

// IsPool reports whether the manifest is a pool's.
func (m *Manifest) IsPool() bool {
	return m.Routing != nil && m.Routing.RoutingKind() == routing.KindPool
}
