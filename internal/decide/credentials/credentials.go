// Package credentials decides what a model is fetched with: which secrets count, as
// KServe's users name them by service accounts, annotations and `storage`, and what
// their keys mean. On a cluster nobody but the pod that fetches has the secrets; on
// one machine Open puts them together.
package credentials

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// Account is what a service account says of the credentials that a model is
// fetched with, as KServe's users write it: the names of its secrets, and
// annotations.
type Account struct {
	Secrets     []string
	Annotations map[string]string
}

// AuthoritiesAnnotation is KServe's for a ConfigMap with the authorities of an S3
// store's certificate, of a service, an account or a secret, and unverifiedAnnotation
// that for a store whose certificate is not to be checked.
const (
	AuthoritiesAnnotation = "serving.kserve.io/s3-cabundle-configmap"
	unverifiedAnnotation  = "serving.kserve.io/s3-verifyssl"
)

// MaxSecrets bounds the secrets of one account that count.
const MaxSecrets = 16

// Own are the account's secrets that a person gave it: clusters add tokens and
// logins of registries, under names of the account's.
func (a Account) Own(name string) (out []string) {
	for _, s := range a.Secrets {
		if s == "" || strings.HasPrefix(s, name+"-token-") || strings.HasPrefix(s, name+"-dockercfg-") || slices.Contains(out, s) {
			continue
		}
		if out = append(out, s); len(out) == MaxSecrets {
			break
		}
	}
	return out
}

// AccountName is the service account of a pod.
func AccountName(pod *corev1.PodSpec) string {
	switch {
	case pod.ServiceAccountName != "":
		return pod.ServiceAccountName
	case pod.DeprecatedServiceAccount != "":
		return pod.DeprecatedServiceAccount
	}
	return "default" // that of pods that name none
}

// Annotated are KServe's annotations of an S3 store with the variables that
// they stand for.
var Annotated = map[string]string{
	"serving.kserve.io/s3-endpoint":          "S3_ENDPOINT",
	"serving.kserve.io/s3-usehttps":          "S3_USE_HTTPS",
	"serving.kserve.io/s3-region":            "AWS_DEFAULT_REGION",
	"serving.kserve.io/s3-useanoncredential": "awsAnonymousCredential",
	"serving.kserve.io/s3-usevirtualbucket":  "S3_USER_VIRTUAL_BUCKET",
}

// The secret that has a key for each store of KServe's storage, the annotation that
// names another in place of it and of the account's, and the key without one.
const (
	StorageSecret     = "storage-config"
	StorageAnnotation = "serving.kserve.io/storageSecretName"
	storageDefault    = "default"
)

// StorageKey is the secret's key for a storage, which may be missing if the manifest
// does not state it.
func StorageKey(st service.Storage) (key string, optional bool) {
	if st.Key != "" {
		return st.Key, false
	}
	if kind := st.Parameters["type"]; kind != "" {
		return storageDefault + "_" + kind, true
	}
	return storageDefault, true
}

// Of names what a service's files are fetched with on one machine, where account
// finds the service accounts of its namespace.
func Of(s *service.Service, account func(name string) (Account, bool)) service.Credentials {
	bearer := s.Components.Engine
	if bearer == nil {
		bearer = s.Components.Decoder
	}
	if bearer == nil {
		bearer = &service.Component{}
	}
	c := ofAccount(s, bearer, account)
	if m := s.Model; m != nil {
		store(&c, s, bearer, m.Storage)
	}
	return c
}

// store adds what a storage names; nil adds nothing.
func store(c *service.Credentials, s *service.Service, bearer *service.Component, st *service.Storage) {
	if st != nil {
		c.Namespace, c.Storage = s.Namespace, st
		c.StorageSecret = cmp.Or(stated([]map[string]string{bearer.Annotations, s.Annotations}, StorageAnnotation), StorageSecret)
	}
}

// OfComponent names what the files are fetched with that a component has of its own: by
// its storage, its pod's service account, its container and its annotations.
func OfComponent(s *service.Service, bearer *service.Component, account func(name string) (Account, bool)) service.Credentials {
	c := ofAccount(s, bearer, account)
	store(&c, s, bearer, bearer.Storage)
	return c
}

// ofAccount is OfComponent without a storage.
func ofAccount(s *service.Service, bearer *service.Component, account func(name string) (Account, bool)) service.Credentials {
	c := service.Credentials{Namespace: s.Namespace}
	annotations := []map[string]string{bearer.Annotations, s.Annotations}
	pod, main := &bearer.Pod, bearer.Main
	if bearer.Leader != nil {
		pod, main = &bearer.Leader.Pod, bearer.Leader.Main
	}
	name := AccountName(pod)
	a, known := account(name)
	if known {
		annotations = append(annotations, a.Annotations)
		c.Account, c.Secrets = name, a.Own(name)
	}
	if one := stated(annotations[:2], StorageAnnotation); one != "" {
		c.Account, c.Secrets, c.StorageSecret = "", []string{one}, one
	}
	for name, variable := range Annotated {
		if v := stated(annotations, name); v != "" {
			if c.Variables == nil {
				c.Variables = map[string]string{}
			}
			c.Variables[variable] = v
		}
	}
	c.Authorities = stated(annotations, AuthoritiesAnnotation)
	c.Keys = keys(pod, main)
	if c.Zero() {
		return service.Credentials{}
	}
	return c
}

// ClusterNamespace is the namespace of the secrets that models of the whole cluster
// name, as in OME.
const ClusterNamespace = "ome"

// NamespaceOf is where the secret is that a model object names.
func NamespaceOf(m *service.Model) string { return cmp.Or(m.Namespace, ClusterNamespace) }

// ByModel names what the files of a model object, at its URI, are fetched with: by the
// secret that it names, of its own namespace, in place of those of by, the service's. Of
// a hub that is its token; of another store all that the secret says. Files of every
// other URI, such as those of a service's own adapters, are fetched with the service's:
// who names a model may not use its secret for others.
func ByModel(own service.Credentials, m *service.Model, uri string) service.Credentials {
	if m.Secret == nil {
		return own
	}
	by, namespace := own, NamespaceOf(m)
	if by.Namespace != namespace { // whose names mean nothing there
		by = service.Credentials{Namespace: namespace}
	}
	if scheme, _, _ := strings.Cut(uri, "://"); strings.EqualFold(scheme, "hf") {
		by.Keys = maps.Clone(by.Keys)
		if by.Keys == nil {
			by.Keys = map[string]service.SecretKey{}
		}
		by.Keys["HF_TOKEN"] = *m.Secret
	} else {
		by.Account, by.Secrets = "", []string{m.Secret.Secret}
	}
	by.Only, by.Others = uri, &own
	return by
}

// keys are the values of secrets that a pod's main container takes variables from
// which open a store of models.
func keys(pod *corev1.PodSpec, main string) map[string]service.SecretKey {
	var out map[string]service.SecretKey
	for i := range pod.Containers {
		if len(pod.Containers) > 1 && pod.Containers[i].Name != main {
			continue
		}
		for _, e := range pod.Containers[i].Env {
			if e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil || !slices.ContainsFunc(service.FetchedSchemes, func(s string) bool { return opens(s, e.Name) }) {
				continue
			}
			if out == nil {
				out = map[string]service.SecretKey{}
			}
			ref := e.ValueFrom.SecretKeyRef
			out[e.Name] = service.SecretKey{Secret: ref.Name, Key: ref.Key, Optional: ref.Optional != nil && *ref.Optional}
		}
	}
	return out
}

// stated is the first value of an annotation.
func stated(in []map[string]string, name string) string {
	for _, of := range in {
		if v := of[name]; v != "" {
			return v
		}
	}
	return ""
}
