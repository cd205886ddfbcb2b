package credentials

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestCacheOfAnotherStore: a cache's secret fetches for no service that has credentials,
// or a store, of its own, in which the same URI is another model.
func TestCacheOfAnotherStore(t *testing.T) {
	const uri = "s3://models/private"
	cache := &service.ModelCache{URI: uri}
	svc := func(m *service.ModelSource, namespace string) *service.Service {
		return &service.Service{Meta: service.Meta{Key: service.Key{Namespace: namespace}}, Model: m}
	}
	for _, c := range []struct {
		what string
		s    *service.Service
		uri  string
		want bool
	}{
		{"the same URI", svc(&service.ModelSource{URI: uri}, "a"), uri, true},
		{"another URI", svc(&service.ModelSource{URI: uri + "/b"}, "a"), uri + "/b", false},
		{"a store of its own", svc(&service.ModelSource{URI: uri, Storage: &service.Storage{Key: "mine"}}, "a"), uri, false},
	} {
		if got := Serves(cache, c.s, c.uri); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	orgs := service.Credentials{Namespace: "jobs", Secrets: []string{"org"}}
	own := service.Credentials{Namespace: "a", Secrets: []string{"mine"}}
	if got := ByCache(own, orgs, uri); !got.Equal(own) {
		t.Errorf("a service with a secret of its own is fetched with %+v", got)
	}
	if got := ByCache(service.Credentials{Namespace: "a"}, orgs, uri); got.Zero() || got.Only != uri {
		t.Errorf("a service without any is fetched with %+v", got)
	}
}
