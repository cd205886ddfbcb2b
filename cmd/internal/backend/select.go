package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

// kinds maps what people type to the plural of the admin API.
var kinds = map[string]string{
	"service": "services", "services": "services", "svc": "services", "modelservice": "services", "modelservices": "services",
	"inferenceservice": "services", "inferenceservices": "services", "isvc": "services",
	"llminferenceservice": "services", "llminferenceservices": "services", "llmisvc": "services",
	"trainedmodel": "services", "trainedmodels": "services", "tm": "services",
	"seldondeployment": "services", "seldondeployments": "services", "sdep": "services",
	"base": "bases", "bases": "bases", "llminferenceserviceconfig": "bases", "llminferenceserviceconfigs": "bases",
	"configmap": "configmaps", "configmaps": "configmaps", "cm": "configmaps",
	"runtime": "runtimes", "runtimes": "runtimes", "servingruntime": "runtimes", "servingruntimes": "runtimes",
	"clusterservingruntime": "runtimes", "clusterservingruntimes": "runtimes",
	"model": "models", "models": "models", "basemodel": "models", "basemodels": "models",
	"clusterbasemodel": "models", "clusterbasemodels": "models",
	"weight": "weights", "weights": "weights", "finetunedweight": "weights", "finetunedweights": "weights",
	"acceleratorclass": "acceleratorclasses", "acceleratorclasses": "acceleratorclasses",
	"reserve": "reserves", "reserves": "reserves",
	"benchmarkjob": "benchmarkjobs", "benchmarkjobs": "benchmarkjobs",
	"localmodelcache": "localmodelcaches", "localmodelcaches": "localmodelcaches", "localmodelnamespacecache": "localmodelcaches", "localmodelnamespacecaches": "localmodelcaches",
	"localmodelnodegroup": "localmodelnodegroups", "localmodelnodegroups": "localmodelnodegroups",
	"clusterstoragecontainer": "clusterstoragecontainers", "clusterstoragecontainers": "clusterstoragecontainers",
	"secret": "secrets", "secrets": "secrets", "serviceaccount": "serviceaccounts", "serviceaccounts": "serviceaccounts", "sa": "serviceaccounts",
	"route": "routes", "routes": "routes", "pool": "pools", "pools": "pools",
	"inferencepool": "inferencepools", "inferencepools": "inferencepools", "infpool": "inferencepools",
	"inferencepoolimport": "inferencepoolimports", "inferencepoolimports": "inferencepoolimports", "infpimp": "inferencepoolimports",
	"httproute": "httproutes", "httproutes": "httproutes", "grpcroute": "grpcroutes", "grpcroutes": "grpcroutes",
	"inferencemodel": "inferencemodels", "inferencemodels": "inferencemodels",
	"inferenceobjective": "inferenceobjectives", "inferenceobjectives": "inferenceobjectives",
	"inferencemodelrewrite": "inferencemodelrewrites", "inferencemodelrewrites": "inferencemodelrewrites",
	"inferencegraph": "inferencegraphs", "inferencegraphs": "inferencegraphs", "ig": "inferencegraphs",
}

// routingKinds are the plurals of pools and routes, and the objects of each:
// "routes" is all but the pools.
var routingKinds = map[string]func(admin.RoutingObject) bool{
	"routes":                 func(o admin.RoutingObject) bool { return o.Type != "pool" },
	"pools":                  func(o admin.RoutingObject) bool { return o.Type == "pool" },
	"inferencepools":         func(o admin.RoutingObject) bool { return o.Kind == "InferencePool" },
	"inferencepoolimports":   func(o admin.RoutingObject) bool { return o.Kind == "InferencePoolImport" },
	"httproutes":             func(o admin.RoutingObject) bool { return o.Type == "httproute" },
	"grpcroutes":             func(o admin.RoutingObject) bool { return o.Type == "grpcroute" },
	"inferencemodels":        func(o admin.RoutingObject) bool { return o.Type == "inferencemodel" },
	"inferenceobjectives":    func(o admin.RoutingObject) bool { return o.Type == "inferenceobjective" },
	"inferencegraphs":        func(o admin.RoutingObject) bool { return o.Type == "inferencegraph" },
	"inferencemodelrewrites": func(o admin.RoutingObject) bool { return o.Type == "inferencemodelrewrite" },
}

// shortNames are those of kinds of manifests.
var shortNames = map[string]string{"isvc": "inferenceservices", "llmisvc": "llminferenceservices", "tm": "trainedmodels", "sdep": "seldondeployments"}

// onlyOf is the kind of manifests that a word names, nil where the word is one of ours for
// all kinds of services, runtimes or models.
func onlyOf(word string) *dialect.Resource {
	word = cmp.Or(shortNames[word], word)
	for i := range dialect.Resources {
		r := &dialect.Resources[i]
		if !slices.Contains([]string{"services", "runtimes", "models"}, kinds[r.Plural]) {
			continue
		}
		if word == r.Plural || word == strings.ToLower(r.Kind) {
			return r
		}
	}
	return nil
}

// foreign are kinds that kubectl lists and this program does not, and what shows
// their content instead.
var foreign = map[string]string{
	"pod": podsHint, "pods": podsHint, "po": podsHint, "replica": podsHint, "replicas": podsHint,
	"deployment": podsHint, "deployments": podsHint, "deploy": podsHint,
	"event": eventsHint, "events": eventsHint, "ev": eventsHint,
	"all": "without a kind, `roundhouse get` lists services", "wide": "did you mean -o wide?", "json": "did you mean -o json?", "yaml": "did you mean -o yaml?",
	"key": "`roundhouse keys list` lists API keys", "keys": "`roundhouse keys list` lists API keys",
	"node": "", "nodes": "", "no": "", "namespace": "", "namespaces": "", "ns": "",
	"gateway": "", "gateways": "",
}

const (
	podsHint   = "`roundhouse describe NAME` shows the replicas of a service"
	eventsHint = "`roundhouse events NAME` shows what happened to a service"
)

// unknownKind returns an error that lists the kinds if the first name, for which
// err reports no service, is the name of a kind; else err.
func (s Selection) unknownKind(err error) error {
	name := s.Names[0]
	hint, ok := foreign[strings.ToLower(name)]
	if !ok || s.KindGiven || !notFound(err) {
		return err
	}
	if hint != "" {
		hint = "; " + hint
	}
	return fmt.Errorf("there is no kind %s and no service of that name; kinds are services, runtimes, models, weights, acceleratorclasses, routes, pools, reserves, benchmarkjobs, localmodelcaches, localmodelnodegroups, clusterstoragecontainers, secrets and serviceaccounts%s", name, hint)
}

// notFound reports whether an error is of an object that does not exist.
func notFound(err error) bool {
	api, answered := errors.AsType[*admin.APIError](err)
	_, missing := errors.AsType[*fleet.NotFoundError](err)
	return missing || answered && api.Status == http.StatusNotFound
}

// Selection is what a command line names: a kind and names of it.
type Selection struct {
	Kind      string // plural
	KindGiven bool   // by the arguments
	// only is the kind of manifests that alone is meant, of those that Kind has; nil for all.
	only      *dialect.Resource
	Names     []string
	Namespace string // of names given without one
	// NamespaceGiven reports whether Namespace is not the default.
	NamespaceGiven bool
	AllNamespaces  bool
}

// Select reads "[KIND] [NAME…]" and "KIND/NAME". Without a kind it selects services.
func Select(args []string, namespace string, given bool) Selection {
	s := Selection{Kind: "services", Names: args, Namespace: namespace, NamespaceGiven: given}
	if len(args) == 0 {
		return s
	}
	word, name, one := strings.Cut(args[0], "/")
	word = strings.ToLower(word)
	if kinds[word] == "" {
		return s
	}
	s.Kind, s.KindGiven, s.only, s.Names = kinds[word], true, onlyOf(word), args[1:]
	if one {
		s.Names = append([]string{name}, s.Names...)
	}
	return s
}

// Plural names what is selected, for messages.
func (s Selection) Plural() string {
	if s.only != nil {
		return s.only.Plural
	}
	return s.Kind
}

// has reports whether a service is of the kind of manifests that is meant.
func (s Selection) has(one admin.Service) bool { return s.only == nil || s.only.Kind == one.Kind }

// hasObject reports whether a runtime or model is of the kind of manifests that is meant:
// one of the cluster has no namespace.
func (s Selection) hasObject(o admin.Object) bool {
	return s.only == nil || strings.HasPrefix(s.only.Kind, "Cluster") == (o.Namespace == "")
}

// Key reads NAME or NAMESPACE/NAME. Objects have no variants, so NAME~canary is
// the name of none.
func (s Selection) Key(name string) service.Key {
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		return service.Key{Namespace: namespace, Name: rest}
	}
	return service.Key{Namespace: s.Namespace, Name: name}
}

// IsRouting reports whether the kind is a pool or one of the routes.
func (s Selection) IsRouting() bool { return routingKinds[s.Kind] != nil }

// listed is the namespace to list, "" for all.
func (s Selection) listed() string {
	if s.AllNamespaces {
		return ""
	}
	return s.Namespace
}

// Shown returns the selected services for a table: with their replicas where one request
// brings them all.
func (s Selection) Shown(ctx context.Context, b Backend) ([]admin.Service, error) {
	if len(s.Names) == 0 && b.Platform() == dialect.Process {
		list, err := b.Detailed(ctx, s.listed())
		return s.limited(list), err
	}
	return s.Services(ctx, b)
}

// limited are those of the kind of manifests that is meant.
func (s Selection) limited(list []admin.Service) []admin.Service {
	return slices.DeleteFunc(list, func(one admin.Service) bool { return !s.has(one) })
}

// Services returns the selected services.
func (s Selection) Services(ctx context.Context, b Backend) ([]admin.Service, error) {
	if len(s.Names) == 0 {
		list, err := b.Services(ctx, s.listed(), true)
		return s.limited(list), err
	}
	var out []admin.Service
	for _, name := range s.Names {
		one, err := b.Service(ctx, s.Key(name))
		if err != nil {
			return nil, s.unknownKind(err)
		}
		if !s.has(one) {
			return nil, s.otherKind(one)
		}
		out = append(out, one)
	}
	return out, nil
}

// otherKind is the error for a service of another kind than the one that is meant.
func (s Selection) otherKind(one admin.Service) error {
	return fmt.Errorf("no %s %s: it is of the kind %s", singular(s.Plural()), s.Key(one.Name), one.Kind)
}

// Describe returns a selected service with all that is known of it.
func (s Selection) Describe(ctx context.Context, b Backend, name string) (admin.Service, error) {
	one, err := b.Describe(ctx, s.Key(name))
	if err == nil && !s.has(one) {
		err = s.otherKind(one)
	}
	return one, err
}

// singular is the name of a kind for one of it.
func singular(plural string) string {
	if one, ok := strings.CutSuffix(plural, "sses"); ok {
		return one + "ss"
	}
	return strings.TrimSuffix(plural, "s")
}

// Objects returns the selected runtimes, models, weights, bases, accelerator classes
// or benchmarks.
func (s Selection) Objects(ctx context.Context, b Backend) ([]admin.Object, error) {
	list, err := b.Objects(ctx, s.Kind)
	list = slices.DeleteFunc(list, func(o admin.Object) bool { return !s.hasObject(o) })
	if err != nil || len(s.Names) == 0 {
		return list, err
	}
	list = slices.DeleteFunc(list, func(o admin.Object) bool {
		return !slices.ContainsFunc(s.Names, func(n string) bool { return s.Key(n).Name == o.Name })
	})
	if len(list) == 0 {
		return nil, fmt.Errorf("no %s named %s: `roundhouse get %s` lists them", singular(s.Plural()), strings.Join(s.Names, ", "), s.Plural())
	}
	return list, nil
}

// Routing returns the selected pools or routes. A name without an object is an
// error.
func (s Selection) Routing(ctx context.Context, b Backend) ([]admin.RoutingObject, error) {
	namespace := s.listed()
	if len(s.Names) > 0 {
		namespace = ""
	}
	list, err := b.Routing(ctx, namespace)
	if err != nil {
		return nil, err
	}
	of := routingKinds[s.Kind]
	list = slices.DeleteFunc(list, func(o admin.RoutingObject) bool { return !of(o) })
	if len(s.Names) == 0 {
		return list, nil
	}
	var out []admin.RoutingObject
	for _, name := range s.Names {
		k, found := s.Key(name), false
		for _, o := range list {
			if o.Namespace == k.Namespace && o.Name == k.Name {
				out, found = append(out, o), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no %s %s: `roundhouse get %s -A` lists them", singular(s.Kind), k, s.Kind)
		}
	}
	return out, nil
}

// Reserves returns the selected Reserves.
func (s Selection) Reserves(ctx context.Context, b Backend) ([]*api.Reserve, error) {
	namespaces := []string{s.listed()}
	for i, name := range s.Names {
		if ns := s.Key(name).Namespace; i == 0 {
			namespaces[0] = ns
		} else if !slices.Contains(namespaces, ns) {
			namespaces = append(namespaces, ns)
		}
	}
	var list, out []*api.Reserve
	for _, ns := range namespaces {
		in, err := b.Reserves(ctx, ns)
		if err != nil {
			return nil, err
		}
		list = append(list, in...)
	}
	if len(s.Names) == 0 {
		return list, nil
	}
	for _, name := range s.Names {
		k := s.Key(name)
		i := slices.IndexFunc(list, func(r *api.Reserve) bool { return r.Metadata.Namespace == k.Namespace && r.Metadata.Name == k.Name })
		if i < 0 {
			return nil, fmt.Errorf("no reserve %s: `roundhouse get reserves -A` lists them", k)
		}
		out = append(out, list[i])
	}
	return out, nil
}

// Delete deletes the selected objects and tells deleted of each. The error joins
// those of all objects that are not deleted.
func (s Selection) Delete(ctx context.Context, b Backend, deleted func(admin.Change)) error {
	var errs []error
	for _, name := range s.Names {
		ch, err := s.delete(ctx, b, name)
		if err == nil {
			deleted(ch)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (s Selection) delete(ctx context.Context, b Backend, name string) (admin.Change, error) {
	if s.IsRouting() {
		return s.deleteRouting(ctx, b, name)
	}
	k, err := s.Key(name), error(nil)
	switch {
	case s.Kind == "services" && s.only != nil:
		s.Names = []string{name}
		_, err = s.Services(ctx, b)
	case s.Kind != "services" && s.Kind != "reserves":
		k, err = s.scoped(ctx, b, k)
	}
	if err != nil {
		return admin.Change{}, err
	}
	return b.Delete(ctx, s.Kind, k)
}

// scoped returns the key of a runtime or model, which has no namespace if it is
// cluster-scoped.
func (s Selection) scoped(ctx context.Context, b Backend, k service.Key) (service.Key, error) {
	list, err := b.Objects(ctx, s.Kind)
	if err != nil {
		return k, err
	}
	cluster := service.Key{Name: k.Name}
	list = slices.DeleteFunc(list, func(o admin.Object) bool { return !s.hasObject(o) })
	for _, o := range list {
		at := service.Key{Namespace: o.Namespace, Name: o.Name}
		switch {
		case at == k:
			return k, nil
		case at == cluster && !s.NamespaceGiven && o.Scope != service.ScopeCatalog:
			return cluster, nil
		case at == cluster && o.Scope == service.ScopeCatalog:
			return k, fmt.Errorf("runtime %s belongs to the catalog and cannot be deleted: name another runtime in the service, or apply a runtime of the same name, which replaces it", k.Name)
		}
	}
	if s.only != nil {
		return k, fmt.Errorf("no %s named %s: `roundhouse get %s` lists them", singular(s.Plural()), k.Name, s.Plural())
	}
	return k, nil
}

// deleteRouting deletes a pool or route. A name of several kinds is an error.
func (s Selection) deleteRouting(ctx context.Context, b Backend, name string) (admin.Change, error) {
	s.Names = []string{name}
	found, err := s.Routing(ctx, b)
	if err != nil {
		return admin.Change{}, err
	}
	if len(found) > 1 {
		var kinds []string
		for _, o := range found {
			kinds = append(kinds, strings.ToLower(o.Kind))
		}
		return admin.Change{}, fmt.Errorf("several objects are named %s: write %s/%s", name, strings.Join(kinds, "/"+name+" or "), name)
	}
	ch, err := b.DeleteRouting(ctx, found[0].Type, service.Key{Namespace: found[0].Namespace, Name: found[0].Name})
	if found[0].Kind == kindImport {
		ch.Shown = strings.ToLower(kindImport)
	}
	return ch, err
}

// kindImport is kept among the pools, and shown as what it is.
const kindImport = "InferencePoolImport"

// Shown is the kind that people know an object by.
func Shown(o fleet.Object) string {
	if o.Origin.Kind == kindImport {
		return strings.ToLower(kindImport)
	}
	return o.ID().Kind
}

// DeleteFiles deletes the objects of manifests and tells deleted of each. One that
// does not exist does not keep the others.
func DeleteFiles(ctx context.Context, b Backend, files []admin.File, deleted func(admin.Change)) error {
	objects, _, err := admin.ObjectsOn(b.Platform(), files, "")
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range objects {
		ch, err := b.DeleteObject(ctx, o)
		if ch.Shown = Shown(o); err == nil {
			deleted(ch)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
