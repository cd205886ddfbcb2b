package fleet

import (
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/credentials"
)

// Kinds in the IDs of secrets and of service accounts.
const (
	SecretKind  = "secret"
	AccountKind = "serviceaccount"
)

// grantedBy reports whether an object is of those that e's model may be fetched with. A
// service whose credentials change is resolved anew, and replicas that run go on.
func (e *entry) grantedBy(id ID) bool {
	m := e.object.Service.Model
	if m == nil && len(e.object.ModelURIs()) == 0 || id.Kind != SecretKind && id.Kind != AccountKind && id.Kind != configMapKind {
		return false
	}
	return e.object.Key.Namespace == id.Namespace || m != nil && m.Ref != nil && id.Namespace == credentials.ClusterNamespace
}

// credentials name what a service's files are fetched with, by itself and by the model
// object that it names, nil for none. It is an error for a
// secret that the service names to be missing.
func (r *resolver) credentials(s *service.Service, model *service.Model, uri string) (service.Credentials, error) {
	if r.cfg.Cluster {
		return service.Credentials{}, nil
	}
	c := credentials.Of(s, r.accounts(s.Namespace))
	switch cache := r.cacheOf(s, uri); {
	case model != nil && model.Secret != nil:
		c = credentials.ByModel(c, model, uri)
	case cache != nil:
		c = credentials.ByCache(c, r.cacheCredentials(cache), uri)
	}
	_, err := r.open(c.Of(uri))
	return c, err
}

// secretInPods is the secret that a model object names, where pods of a namespace may
// have it; nil else.
func secretInPods(model *service.Model, namespace string) *service.SecretKey {
	if model == nil || credentials.NamespaceOf(model) != namespace {
		return nil
	}
	return model.Secret
}

// ownCredentials name what the files are fetched with that a component of a service has
// of its own. It is an error for a secret that they name to be missing.
func (r *resolver) ownCredentials(s *service.Service, c *service.Component, parts service.Parts) (by service.Credentials, err error) {
	if r.cfg.Cluster {
		return service.Credentials{}, nil
	}
	by = credentials.OfComponent(s, c, r.accounts(s.Namespace))
	for _, p := range parts {
		if _, err := r.open(by.Of(p.URI)); err != nil {
			return by, err
		}
	}
	return by, nil
}

// accounts finds the service accounts of a namespace.
func (r *resolver) accounts(namespace string) func(name string) (credentials.Account, bool) {
	return func(name string) (credentials.Account, bool) {
		o, ok := r.object(ID{Kind: AccountKind, Key: service.Key{Namespace: namespace, Name: name}})
		if !ok {
			return credentials.Account{}, false
		}
		return credentials.Account{Secrets: o.Account.Secrets, Annotations: o.Account.Annotations}, true
	}
}

// open puts together what files are fetched with.
func (r *resolver) open(f service.Files) (credentials.Opened, error) {
	return credentials.Open(f, func(name string) (*service.Secret, bool) {
		o, ok := r.object(ID{Kind: SecretKind, Key: service.Key{Namespace: f.Namespace, Name: name}})
		return o.Secret, ok
	}, func(name string) (string, bool) {
		o, ok := r.object(ID{Kind: configMapKind, Key: service.Key{Namespace: f.Namespace, Name: name}})
		if !ok {
			return "", false
		}
		return o.ConfigMap.Authorities, o.ConfigMap.Authorities != ""
	})
}

// Open puts together what files are fetched with, as the secrets are now.
func (f *Fleet) Open(files service.Files) (credentials.Opened, error) { return f.resolver.open(files) }

// ConfigMap finds a ConfigMap.
func (f *Fleet) ConfigMap(k service.Key) (*service.ConfigMap, bool) {
	o, ok := f.resolver.object(ID{Kind: configMapKind, Key: k})
	return o.ConfigMap, ok
}

// Secret finds a secret.
func (f *Fleet) Secret(k service.Key) (*service.Secret, bool) {
	o, ok := f.resolver.object(ID{Kind: SecretKind, Key: k})
	return o.Secret, ok
}
