package platform

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// rendered is an object as it should be written.
type rendered struct {
	id
	role    service.Role
	applied string
	body    *unstructured.Unstructured
}

// renderer makes the objects of revisions in the form that this cluster accepts.
type renderer struct {
	reader       client.Reader
	watches      *watches
	owner        func(service.Key) *metav1.OwnerReference
	publicModels bool
	hubEndpoint  string
	log          *slog.Logger
}

// render makes the objects of a revision. It begins to watch the optional kinds
// among them.
func (r *renderer) render(ctx context.Context, rev workload.Revision, o shape.Options) ([]rendered, error) {
	o.Owner = r.owner(rev.Service)
	if slices.ContainsFunc(rev.Components, func(c workload.Component) bool { return c.Leader != nil || c.Worker != nil }) {
		var err error
		if o.LeaderWorkerSets, err = r.watches.groupsInstalled(ctx); err != nil {
			return nil, err
		}
	}
	objects, err := shape.Render(rev, o)
	if err != nil {
		return nil, err
	}
	if len(objects.Accounts) > 0 {
		if err := r.watches.watchAccess(ctx); err != nil {
			return nil, err
		}
	}
	if len(objects.Lists) > 0 {
		if err := r.watches.watchModels(ctx); err != nil {
			return nil, err
		}
	}
	return rendering(&objects)
}

// rendering lists objects in the order in which they are written: Services and
// service accounts come before the pods.
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
	for i := range o.Lists {
		add(kindModels, &o.Lists[i].ObjectMeta, &o.Lists[i])
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

// fetching returns the options for pods that will be written: which secrets of
// their service accounts they use to fetch their models, and from which addresses
// they may fetch. Accounts are read for these pods alone. Pods that run keep their
// options, even if they would be refused now. Secrets are not read. ok is false if
// the objects need no other options than those they were rendered with.
func (r *renderer) fetching(ctx context.Context, rev workload.Revision, todo []rendered) (o shape.Options, ok bool, err error) {
	o = shape.Options{Accounts: map[string]shape.Account{}, PublicModels: r.publicModels, HubEndpoint: r.hubEndpoint}
	if !slices.ContainsFunc(todo, func(t rendered) bool { return t.kind.counted() }) {
		return o, false, nil
	}
	for i := range rev.Components {
		c := &rev.Components[i]
		name := shape.AccountOf(&rev, c)
		if _, known := o.Accounts[name]; known || name == "" ||
			!slices.ContainsFunc(todo, func(o rendered) bool { return o.kind.counted() && o.role == c.Role }) {
			continue
		}
		a, readable, err := r.account(ctx, client.ObjectKey{Namespace: rev.Service.Namespace, Name: name})
		if err != nil {
			return o, false, err
		}
		if readable {
			o.Accounts[name] = a
		}
	}
	return o, len(o.Accounts) > 0 || o.PublicModels || o.HubEndpoint != "", nil
}

// account reads a service account without a cache. An account that does not exist
// or may not be read counts as one without secrets: the model may be public, and
// the pod itself reports that its account is missing.
func (r *renderer) account(ctx context.Context, at client.ObjectKey) (out shape.Account, readable bool, err error) {
	var a corev1.ServiceAccount
	switch err := r.reader.Get(ctx, at, &a); {
	case apierrors.IsNotFound(err):
		return out, true, nil
	case apierrors.IsForbidden(err):
		r.log.Warn("the service account may not be read: models are fetched without its secrets", "account", at.String(), "error", err)
		return out, false, nil
	case err != nil:
		return out, false, err
	}
	out.Annotations = a.Annotations
	for _, s := range a.Secrets {
		out.Secrets = append(out.Secrets, s.Name)
	}
	return out, true, nil
}

// unstructuredOf returns the form of an object that an apply sends: without fields
// that were not set, because whoever sends a field owns it.
func unstructuredOf(v any) (*unstructured.Unstructured, error) {
	raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v)
	if err != nil {
		return nil, err
	}
	delete(raw, "status")
	prune(raw)
	return &unstructured.Unstructured{Object: raw}, nil
}

// prune removes nulls.
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
