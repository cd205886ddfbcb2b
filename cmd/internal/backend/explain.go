package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"roundhouse.dev/roundhouse/cmd/internal/app"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// pinned is a service to explain, and what it runs on.
type pinned struct {
	fleet.Object
	runtime service.RuntimeChoice
}

// Explain implements Backend.
func (c *Cluster) Explain(ctx context.Context, k service.Key) ([]admin.Explanation, error) {
	s, err := c.Client.Service(ctx, k)
	if err != nil {
		return nil, err
	}
	if p := s.Manifest.Problems; len(p) > 0 {
		return nil, fmt.Errorf("service %s cannot be read: %s", k, strings.Join(p, "; "))
	}
	one := pinned{Object: s.Object}
	if s.Revision != nil {
		one.runtime = s.Revision.Runtime
	}
	return c.explain(ctx, nil, []pinned{one})
}

// ExplainFiles implements Backend.
func (c *Cluster) ExplainFiles(ctx context.Context, req admin.ApplyRequest) ([]admin.Explanation, error) {
	objects, _, err := admin.ObjectsOn(dialect.Kubernetes, req.Files, "")
	if err != nil {
		return nil, err
	}
	var services []pinned
	for i, o := range objects {
		if !stated(o) {
			objects[i] = c.here(o)
		}
		if o.Service != nil {
			services = append(services, pinned{Object: objects[i]})
		}
	}
	return c.explain(ctx, objects, services)
}

// here puts an object without a namespace into the client's.
func (c *Cluster) here(o fleet.Object) fleet.Object {
	o.Key.Namespace = c.Namespace()
	switch {
	case o.Service != nil:
		o.Service.Namespace = o.Key.Namespace
	case o.Runtime != nil:
		o.Runtime.Namespace = o.Key.Namespace
	case o.Model != nil:
		o.Model.Namespace = o.Key.Namespace
	case o.Base != nil:
		o.Base.Namespace = o.Key.Namespace
	case o.Routing != nil:
		o.Routing.Common().Namespace = o.Key.Namespace
	}
	return o
}

// explain makes the choice that the controller makes, by the runtimes and
// models of the cluster and those given.
func (c *Cluster) explain(ctx context.Context, given []fleet.Object, services []pinned) ([]admin.Explanation, error) {
	f, tidy, err := c.fleet(ctx)
	if err != nil {
		return nil, err
	}
	defer tidy()
	draft, err := f.Draft(ctx, given)
	if err != nil {
		return nil, err
	}
	var out []admin.Explanation
	for _, s := range services {
		why, err := draft.Explain(artifact.Briefly(ctx), s.Object)
		if err != nil {
			return nil, err
		}
		why.Pinned = s.runtime
		one, err := admin.ExplanationOf(s.Object, why)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// fleet knows the runtimes and models of the cluster.
func (c *Cluster) fleet(ctx context.Context) (f *fleet.Fleet, tidy func(), err error) {
	runtimes, err := app.Catalog()
	if err != nil {
		return nil, nil, err
	}
	tmp, err := os.MkdirTemp("", "roundhouse-explain-")
	if err != nil {
		return nil, nil, err
	}
	tidy = func() { _ = os.RemoveAll(tmp) }
	store, err := artifact.New(artifact.Config{Dir: tmp}, nil, nil)
	if err == nil {
		f, err = fleet.New(fleet.Config{Platform: anywhere{}, Store: app.NoStore{Store: discarding{}}, Models: reachable{app.Inspector{Store: store}}, Traffic: app.NoTraffic{}, Catalog: runtimes, Cluster: true})
	}
	for _, id := range []string{"runtime", "model", "weight", dialect.BaseID, dialect.AcceleratorID, dialect.StorageContainerID} {
		if err != nil {
			break
		}
		err = c.known(ctx, f, id)
	}
	if err != nil {
		tidy()
		return nil, nil, err
	}
	return f, tidy, nil
}

// known adds the cluster's objects of an ID to a fleet. It leaves out those that the
// controller refuses too.
func (c *Cluster) known(ctx context.Context, f *fleet.Fleet, id string) error {
	list, refused, err := c.Manifests(ctx, id, "")
	if err != nil {
		return err
	}
	c.warn(refused...)
	for _, m := range list {
		if len(m.Problems) > 0 {
			c.warn(fmt.Errorf("%s is ignored, since it cannot be read: %s", m.ID(), strings.Join(m.Problems, "; ")))
			continue
		}
		if _, err := f.Apply(ctx, []fleet.Object{m.Object}, fleet.ApplyOptions{}); err != nil {
			c.warn(fmt.Errorf("%s is ignored: %w", m.ID(), err))
		}
	}
	return nil
}

// anywhere stands in for the cluster: any image runs there.
type anywhere struct{ fleet.Platform }

func (anywhere) Host(context.Context, ...selection.Check) (selection.Host, error) {
	return selection.Host{Cluster: true}, nil
}

// discarding stores nothing.
type discarding struct{ fleet.Store }

func (discarding) PutObject(fleet.Object) error { return nil }

// reachable reads models that pods could read, as far as this machine can.
type reachable struct{ app.Inspector }

func (r reachable) Inspect(ctx context.Context, f service.Files) (service.Attributes, error) {
	uri := f.URI
	switch scheme, _, _ := strings.Cut(uri, "://"); scheme {
	case "file", "upload", uri:
		return service.Attributes{}, app.Missing{Err: errors.New(onOneMachine(uri))}
	}
	return r.Inspector.Inspect(ctx, f)
}
