package platform

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/pods"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Apply makes r's objects those of its service: what differs from how it was
// rendered before is written, what r no longer has is deleted, and nothing
// else is sent. A controller of another version, which may render the same
// revision otherwise, leaves its pods alone.
func (p *Platform) Apply(ctx context.Context, r workload.Revision) error {
	k := r.Service
	if k.Name == "" || k.Namespace == "" || r.Hash == "" {
		return errors.New("platform: apply: the revision has no service, no namespace or no hash")
	}
	if err := p.ready(ctx); err != nil {
		return err
	}
	objects, err := p.render(ctx, r)
	if err != nil {
		return fmt.Errorf("platform: %w", err)
	}
	todo, gone := p.plan(k, objects)
	if todo, err = p.credited(ctx, r, todo); err != nil {
		return fmt.Errorf("platform: %w", err)
	}
	for _, o := range todo {
		p.expect(k, o)
		if err := p.write(ctx, k, o); err != nil {
			return fmt.Errorf("platform: apply %s %s/%s: %w", o.id.kind, k.Namespace, o.id.name, err)
		}
	}
	for _, i := range gone {
		if err := p.remove(ctx, k, i); err != nil {
			return err
		}
	}
	p.queue.Add(k)
	return nil
}

// rendered is an object as it should be.
type rendered struct {
	id
	role    service.Role
	applied string
	body    *unstructured.Unstructured
}

// render makes the objects of a revision and notes what its replicas are like.
func (p *Platform) render(ctx context.Context, r workload.Revision) ([]rendered, error) {
	return p.renderAs(ctx, r, shape.Options{Owner: p.cfg.Owner(r.Service)})
}

func (p *Platform) renderAs(ctx context.Context, r workload.Revision, o shape.Options) ([]rendered, error) {
	if slices.ContainsFunc(r.Components, func(c workload.Component) bool { return c.Leader != nil || c.Worker != nil }) {
		var err error
		if o.LeaderWorkerSets, err = p.groupsInstalled(ctx); err != nil {
			return nil, err
		}
	}
	objects, err := shape.Render(r, o)
	if err != nil {
		return nil, err
	}
	if len(objects.Accounts) > 0 {
		if err := p.watchAccess(ctx); err != nil {
			return nil, err
		}
	}
	out, err := rendering(&objects)
	if err != nil {
		return nil, err
	}
	out = p.unlessScaled(r.Service, out)
	p.note(r, out)
	return out, nil
}

// rendering lists objects as they are written: what others find pods by, and
// what pods run as, come before the pods.
func rendering(o *shape.Objects) (out []rendered, err error) {
	add := func(kd kind, m *metav1.ObjectMeta, v any) {
		u, bad := unstructuredOf(v)
		err = errors.Join(err, bad)
		out = append(out, rendered{id: id{kd, m.Name}, role: service.Role(m.Labels[shape.LabelRole]),
			applied: m.Annotations[shape.AnnotationApplied], body: u})
	}
	for i := range o.Accounts {
		add(kindAccount, &o.Accounts[i].ObjectMeta, &o.Accounts[i])
	}
	for i := range o.Roles {
		add(kindRole, &o.Roles[i].ObjectMeta, &o.Roles[i])
	}
	for i := range o.Bindings {
		add(kindBinding, &o.Bindings[i].ObjectMeta, &o.Bindings[i])
	}
	for i := range o.Services {
		add(kindService, &o.Services[i].ObjectMeta, &o.Services[i])
	}
	for i := range o.Budgets {
		add(kindBudget, &o.Budgets[i].ObjectMeta, &o.Budgets[i])
	}
	for i := range o.Deployments {
		add(kindDeployment, &o.Deployments[i].ObjectMeta, &o.Deployments[i])
	}
	for i := range o.Groups {
		add(kindGroups, &o.Groups[i].ObjectMeta, &o.Groups[i])
	}
	for i := range o.Scalers {
		add(kindScaler, &o.Scalers[i].ObjectMeta, &o.Scalers[i])
	}
	return out, err
}

// note remembers what the watches do not tell.
func (p *Platform) note(r workload.Revision, objects []rendered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.of(r.Service)
	h.removed, h.wanted, h.roles = false, map[id]bool{}, map[service.Role]role{}
	h.rendered = map[id]string{}
	for _, o := range objects {
		h.wanted[o.id], h.rendered[o.id] = true, o.applied
	}
	for _, c := range r.Components {
		http, grpc := shape.Ports(c, r.Protocol)
		main := c.Main
		if c.Leader != nil {
			main = c.Leader.Main
		}
		h.roles[c.Role] = role{Role: pods.Role{HTTP: http, GRPC: grpc, Metrics: c.Exports(), Main: main, Startup: c.Limits.StartupTimeout},
			left:     shape.LeftToOthers(r.Annotations) || shape.LeftToOthers(c.Annotations),
			resource: c.Limits.Metric.Resource(),
			measured: h.wanted[id{kindScaler, shape.Name(r.Service, c.Role)}]}
	}
}

// expect notes how an object is about to be written.
func (p *Platform) expect(k service.Key, o rendered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h := p.of(k); h.rendered != nil {
		h.rendered[o.id] = o.applied
	}
}

// plan compares what should be with what is there.
func (p *Platform) plan(k service.Key, objects []rendered) (todo []rendered, gone []id) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.of(k)
	for _, o := range objects {
		if there, ok := h.objects[o.id]; !ok || there.applied != o.applied || there.deleting {
			todo = append(todo, o)
		}
	}
	for _, i := range slices.SortedFunc(maps.Keys(h.objects), id.compare) {
		if !h.wanted[i] {
			gone = append(gone, i)
		}
	}
	return todo, gone
}

// unstructuredOf makes of an object what an apply sends: no field that was not
// set, since to send a field is to own it.
func unstructuredOf(v any) (*unstructured.Unstructured, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v)
	if err != nil {
		return nil, err
	}
	delete(raw, "status")
	prune(raw)
	return &unstructured.Unstructured{Object: raw}, nil
}

// prune takes nulls out.
func prune(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if e == nil {
				delete(v, k)
				continue
			}
			prune(e)
		}
	case []any:
		for _, e := range v {
			prune(e)
		}
	}
}

// write applies one object. One that the watch does not show is not applied by
// force: should there be one after all, and it be another's, or its count
// somebody's, that is a conflict.
func (p *Platform) write(ctx context.Context, k service.Key, o rendered) error {
	if count, fresh := p.fresh(k, o); fresh {
		body := o.body.DeepCopy()
		if o.kind.counted() {
			if err := setCount(body, count); err != nil {
				return err
			}
		}
		if err := p.send(ctx, k, o.id, body); !apierrors.IsConflict(err) {
			return err
		}
		if _, err := p.ours(ctx, k, o.id); err != nil {
			return err
		}
	}
	for try := 0; ; try++ {
		body := o.body.DeepCopy()
		if err := p.count(ctx, k, o, body); err != nil {
			return err
		}
		err := p.send(ctx, k, o.id, body, client.ForceOwnership)
		if !apierrors.IsConflict(err) || try >= maxConflicts {
			return err
		}
	}
}

// ours reads an object past every cache; nil is one that is not there. That of
// somebody else is an error.
func (p *Platform) ours(ctx context.Context, k service.Key, i id) (*unstructured.Unstructured, error) {
	live := newUnstructured(i.kind.gvk())
	err := p.cfg.Reader.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: i.name}, live)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case live.GetLabels()[shape.LabelManagedBy] != shape.Manager:
		return nil, errors.New("there is one of this name that is not Roundhouse's: delete it, or rename the service")
	case live.GetDeletionTimestamp() != nil:
		return nil, errors.New("somebody is deleting it: it is made anew once it is gone")
	}
	return live, nil
}

// fresh reports whether an object is new, as far as the watch tells, and the count
// it then begins with: 0, or that of the other kind's object which it takes the
// place of.
func (p *Platform) fresh(k service.Key, o rendered) (count int, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.of(k)
	for i, there := range h.objects {
		if i.kind.counted() && i.kind != o.kind && there.role == o.role {
			count = there.count
		}
	}
	_, there := h.objects[o.id]
	return count, !there
}

func setCount(body *unstructured.Unstructured, n int) error {
	return unstructured.SetNestedField(body.Object, int64(n), "spec", "replicas")
}

// count puts the number of replicas into what is to be applied, or leaves it
// out. The API server takes an absent number for 1, and an applied field that
// is left out by the last who owned it falls back to that. So a new object is
// made with 0, which we then own, until somebody sets another by the scale
// subresource: from then on it is theirs and left out. As long as we own it,
// it is sent as it is, on condition that the object is still the one that was
// read, since between the two somebody may have raised it.
func (p *Platform) count(ctx context.Context, k service.Key, o rendered, body *unstructured.Unstructured) error {
	if !o.kind.counted() {
		return nil
	}
	live, err := p.ours(ctx, k, o.id)
	switch {
	case err != nil:
		return err
	case live == nil:
		n, _ := p.fresh(k, o)
		return setCount(body, n)
	case o.kind == kindGroups && surging(live):
		surge(body) // as it is, until the last of them is settled
	case p.surges(k, o, live):
		surge(body)
		body.SetResourceVersion(live.GetResourceVersion())
		return setCount(body, replicasOf(live)+1)
	}
	if ownsCount(live.GetManagedFields()) {
		body.SetResourceVersion(live.GetResourceVersion())
		return setCount(body, replicasOf(live))
	}
	return nil
}

// ownsCount reports whether we are among those who own spec.replicas by apply.
func ownsCount(entries []metav1.ManagedFieldsEntry) bool {
	for _, e := range entries {
		if e.Manager != shape.FieldManager || e.Operation != metav1.ManagedFieldsOperationApply || e.Subresource != "" || e.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if err := json.Unmarshal(e.FieldsV1.GetRawBytes(), &fields); err == nil {
			if _, owned := fields.Spec["f:replicas"]; owned {
				return true
			}
		}
	}
	return false
}

// send writes one object and takes the answer in.
func (p *Platform) send(ctx context.Context, k service.Key, i id, body *unstructured.Unstructured, how ...client.ApplyOption) error {
	body = body.DeepCopy() // becomes the answer
	how = append(how, client.FieldOwner(shape.FieldManager))
	if err := p.cfg.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(body), how...); err != nil {
		return err
	}
	p.saw(k, i, known(body))
	return nil
}

// remove deletes one object and what it made.
func (p *Platform) remove(ctx context.Context, k service.Key, i id) error {
	o := newUnstructured(i.kind.gvk())
	o.SetNamespace(k.Namespace)
	o.SetName(i.name)
	err := p.cfg.Client.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if err = client.IgnoreNotFound(err); err != nil {
		return fmt.Errorf("platform: delete %s %s/%s: %w", i.kind, k.Namespace, i.name, err)
	}
	return nil
}

// Remove deletes the service's objects; its pods go with them.
func (p *Platform) Remove(ctx context.Context, k service.Key) error {
	if err := p.ready(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	h := p.mu.held[k]
	if h == nil {
		p.mu.Unlock()
		return nil
	}
	h.removed, h.wanted, h.rendered, h.roles = true, nil, nil, nil
	all := slices.SortedFunc(maps.Keys(h.objects), id.compare)
	p.tidy(k, h)
	p.mu.Unlock()
	for _, i := range all {
		if err := p.remove(ctx, k, i); err != nil {
			return err
		}
	}
	p.queue.Add(k)
	return nil
}
