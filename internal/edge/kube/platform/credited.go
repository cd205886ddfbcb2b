package platform

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"roundhouse.dev/roundhouse/internal/decide/shape"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// credited has the pods that are to be written fetch their models with the
// secrets of their service accounts, and from where they may be fetched. The
// accounts are read for those alone, and what runs stays as it was made, also
// where it would be refused now. Secrets are not read.
func (p *Platform) credited(ctx context.Context, r workload.Revision, todo []rendered) ([]rendered, error) {
	o := shape.Options{Owner: p.cfg.Owner(r.Service), Accounts: map[string]shape.Account{}, PublicModels: p.cfg.PublicModels}
	if !slices.ContainsFunc(todo, func(t rendered) bool { return t.kind.counted() }) {
		return todo, nil
	}
	for i := range r.Components {
		c := &r.Components[i]
		name := shape.AccountOf(&r, c)
		if _, known := o.Accounts[name]; known || name == "" ||
			!slices.ContainsFunc(todo, func(o rendered) bool { return o.kind.counted() && o.role == c.Role }) {
			continue
		}
		a, readable, err := p.account(ctx, client.ObjectKey{Namespace: r.Service.Namespace, Name: name})
		if err != nil {
			return nil, err
		}
		if readable {
			o.Accounts[name] = a
		}
	}
	if len(o.Accounts) == 0 && !o.PublicModels {
		return todo, nil
	}
	again, err := p.renderAs(ctx, r, o)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(again, func(a rendered) bool {
		return !slices.ContainsFunc(todo, func(t rendered) bool { return t.id == a.id })
	}), nil
}

// account reads a service account, past every cache. One that is not there, or
// may not be read, has no secrets: a model may be public, and a pod says
// itself that its account is missing.
func (p *Platform) account(ctx context.Context, at client.ObjectKey) (out shape.Account, readable bool, err error) {
	var a corev1.ServiceAccount
	switch err := p.cfg.Reader.Get(ctx, at, &a); {
	case apierrors.IsNotFound(err):
		return out, true, nil
	case apierrors.IsForbidden(err):
		p.cfg.Log.Warn("models are fetched without the secrets of a service account: it may not be read", "account", at.String(), "error", err)
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
