package gatewayapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/gatewayapi"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/edge/kube/objects"
)

// Writer judges the objects of a Watch and writes their status. One goroutine
// uses it.
type Writer struct {
	Watch  *Watch
	Client client.Client
	// Adopted reports whether a namespace's routes are served.
	Adopted func(ctx context.Context, namespace string) bool
	Now     func() time.Time

	read map[types.UID]parsed
}

// parsed is the cached result of reading a route.
type parsed struct {
	generation int64
	route      gatewayapi.Route
}

// notAdopted tells how to have a namespace's routes served.
const notAdopted = "namespace %s does not have its routes served: kubectl label namespace %[1]s " + objects.LabelAdopt + "=gateway"

// Facts are what objects are judged by besides each other: see gatewayapi.World.
type Facts struct {
	Pools   []*routing.Pool
	Missing func(routing.Ref) string
	Picker  func(service.Key) gatewayapi.Picker
	Ours    func(service.Key) bool
	// Services finds what is known of the Kubernetes Services that routes lead to.
	Services func(context.Context, []gatewayapi.ServicePort) func(gatewayapi.ServicePort) gatewayapi.Service
}

// Write judges every object by the facts, and writes the statuses that have changed. It
// goes on without what cannot be read, and returns those errors.
func (w *Writer) Write(ctx context.Context, f Facts) (*gatewayapi.Verdict, error) {
	world, err := w.Watch.World(ctx)
	if err != nil {
		return nil, err
	}
	world.Pools, world.Missing, world.Picker, world.Ours = f.Pools, f.Missing, f.Picker, f.Ours
	if world.Routes, err = w.routes(ctx); err != nil {
		return nil, err
	}
	v := gatewayapi.Judge(world)
	if known := f.Services(ctx, v.Services); len(v.Services) > 0 {
		world.Service = known
		v = gatewayapi.Judge(world)
	}
	var errs []error
	put := func(k *kind, status func(*unstructured.Unstructured) map[string]any) {
		items, err := w.Watch.list(ctx, k)
		errs = append(errs, err)
		for i := range items {
			if want := status(&items[i]); want != nil {
				errs = append(errs, w.put(ctx, &items[i], want))
			}
		}
	}
	put(classes, func(u *unstructured.Unstructured) map[string]any {
		if cs := v.Classes[u.GetName()]; cs != nil {
			return map[string]any{"conditions": w.conditions(u, cs, at(u, "conditions"))}
		}
		return nil
	})
	put(gateways, func(u *unstructured.Unstructured) map[string]any {
		if st, ours := v.Gateways[keyOf(u)]; ours {
			return w.gateway(u, st)
		}
		return nil
	})
	for _, k := range []*kind{routes, calls} {
		put(k, func(u *unstructured.Unstructured) map[string]any { return w.parents(u, v.Routes[routeID(u)].Parents) })
	}
	put(pools, func(u *unstructured.Unstructured) map[string]any { return w.parents(u, v.Pools[keyOf(u)]) })
	return v, errors.Join(errs...)
}

func keyOf(u *unstructured.Unstructured) service.Key {
	return service.Key{Namespace: u.GetNamespace(), Name: u.GetName()}
}

// routeID names a route among those of both kinds.
func routeID(u *unstructured.Unstructured) routing.ID {
	return routing.ID{Kind: routing.Kind(u.GetKind()), Key: keyOf(u)}
}

// at returns a list in an object's status.
func at(u *unstructured.Unstructured, name string) []any {
	status, _ := u.Object["status"].(map[string]any)
	out, _ := status[name].([]any)
	return out
}

// routes reads every HTTPRoute and GRPCRoute that names a Gateway.
func (w *Writer) routes(ctx context.Context) ([]gatewayapi.Route, error) {
	items, err := w.Watch.list(ctx, routes)
	more, also := w.Watch.list(ctx, calls)
	items, err = slices.Concat(items, more), errors.Join(err, also)
	before := w.read
	w.read = make(map[types.UID]parsed, len(items))
	var out []gatewayapi.Route
	for i := range items {
		u := &items[i]
		p, known := before[u.GetUID()]
		if !known || p.generation != u.GetGeneration() {
			p = parsed{u.GetGeneration(), parse(u)}
		}
		w.read[u.GetUID()] = p
		if p.route.Problem == "" && !w.Adopted(ctx, u.GetNamespace()) {
			p.route.Object, p.route.Problem = nil, fmt.Sprintf(notAdopted, u.GetNamespace())
		}
		out = append(out, p.route)
	}
	return out, err
}

// parse reads a route; of one that cannot be served, only its parents.
func parse(u *unstructured.Unstructured) gatewayapi.Route {
	out := gatewayapi.Route{ID: routeID(u)}
	r, problem := objects.HTTPRoute(u)
	if r != nil {
		out.Object, out.Parents = r, r.Parents
		return out
	}
	out.Problem = problem
	refs, _, _ := unstructured.NestedSlice(u.Object, "spec", "parentRefs")
	for _, ref := range refs {
		var p routing.Parent
		if text, err := json.Marshal(ref); err == nil && json.Unmarshal(text, &p) == nil {
			out.Parents = append(out.Parents, p)
		}
	}
	return out
}

// gateway returns a Gateway's status.
func (w *Writer) gateway(u *unstructured.Unstructured, st gatewayapi.GatewayStatus) map[string]any {
	addresses, listeners := []any{}, []any{}
	for _, a := range st.Addresses {
		addresses = append(addresses, map[string]any{"type": a.Type, "value": a.Value})
	}
	before := at(u, "listeners")
	for _, l := range st.Listeners {
		var had []any
		for _, b := range before {
			if b, ok := b.(map[string]any); ok && b["name"] == l.Name {
				had, _ = b["conditions"].([]any)
			}
		}
		supported := []any{}
		for _, k := range l.SupportedKinds {
			supported = append(supported, map[string]any{"group": k.Group, "kind": k.Kind})
		}
		listeners = append(listeners, map[string]any{"name": l.Name, "attachedRoutes": int64(l.AttachedRoutes), "supportedKinds": supported,
			"conditions": w.conditions(u, l.Conditions, had)})
	}
	return map[string]any{"addresses": addresses, "listeners": listeners, "conditions": w.conditions(u, st.Conditions, at(u, "conditions"))}
}

// maxParents is how many entries the published CRD allows in a status.
const maxParents = 32

// parents is the status of an object that several gateways write: the entries
// of others as they stand, then ours. nil where there are none of ours, nor
// were.
func (w *Writer) parents(u *unstructured.Unstructured, ours []gatewayapi.ParentStatus) map[string]any {
	all, before := []any{}, []map[string]any{}
	for _, e := range at(u, "parents") {
		if m, ok := e.(map[string]any); ok && m["controllerName"] == gatewayapi.ControllerName {
			before = append(before, m)
		} else {
			all = append(all, e)
		}
	}
	if len(ours)+len(before) == 0 {
		return nil
	}
	for _, p := range ours {
		if len(all) == maxParents {
			break
		}
		ref := parentRef(p.Ref)
		var had []any
		for _, b := range before {
			if reflect.DeepEqual(b["parentRef"], ref) {
				had, _ = b["conditions"].([]any)
			}
		}
		all = append(all, map[string]any{"parentRef": ref, "controllerName": gatewayapi.ControllerName, "conditions": w.conditions(u, p.Conditions, had)})
	}
	return map[string]any{"parents": all}
}

func parentRef(p routing.Parent) map[string]any {
	ref := map[string]any{"name": p.Name}
	for name, v := range map[string]string{"group": p.Group, "kind": p.Kind, "namespace": p.Namespace, "sectionName": p.SectionName} {
		if v != "" {
			ref[name] = v
		}
	}
	if p.Port != 0 {
		ref["port"] = int64(p.Port)
	}
	return ref
}

// conditions returns the wanted conditions; one that has not changed keeps its
// lastTransitionTime.
func (w *Writer) conditions(u *unstructured.Unstructured, want []service.Condition, have []any) []any {
	out := []any{}
	for _, c := range want {
		since := w.Now().UTC().Format(time.RFC3339)
		for _, h := range have {
			if h, ok := h.(map[string]any); ok && h["type"] == c.Type && h["status"] == c.Status {
				if t, ok := h["lastTransitionTime"].(string); ok {
					since = t
				}
			}
		}
		out = append(out, map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
			"observedGeneration": u.GetGeneration(), "lastTransitionTime": since})
	}
	return out
}

// put writes fields of a status unless they are equal already. It writes only over
// the version that was judged: a later version is judged when it is seen.
func (w *Writer) put(ctx context.Context, u *unstructured.Unstructured, want map[string]any) error {
	have, _ := u.Object["status"].(map[string]any)
	same := true
	for name, v := range want {
		list, _ := v.([]any)
		if _, there := have[name]; there || len(list) > 0 {
			same = same && reflect.DeepEqual(have[name], v)
		}
	}
	if same {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": u.GetUID(), "resourceVersion": u.GetResourceVersion()}, "status": want})
	if err == nil {
		to := &unstructured.Unstructured{}
		to.SetGroupVersionKind(u.GroupVersionKind())
		to.SetNamespace(u.GetNamespace())
		to.SetName(u.GetName())
		err = w.Client.Status().Patch(ctx, to, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(shape.FieldManager))
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("status of %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	return nil
}
