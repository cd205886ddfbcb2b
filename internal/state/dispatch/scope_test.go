package dispatch

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/route"
)

// TestTwoTenantsNeverMeet: within its namespaces a bare name is the tenant's
// own, and neither names, hosts, routes nor errors tell of others'.
func TestTwoTenantsNeverMeet(t *testing.T) {
	d, _ := start(t, nil)
	a, b, secret := service.Key{Namespace: "a", Name: "iris"}, service.Key{Namespace: "b", Name: "iris"}, service.Key{Namespace: "b", Name: "secret"}
	for _, k := range []service.Key{a, b, secret} {
		d.SetPool(PoolConfig{Key: k})
	}
	d.SetObjects([]routing.Object{
		&routing.Route{Meta: service.Meta{Key: service.Key{Namespace: "b", Name: "r"}}, Models: []string{"alias"}, Targets: []routing.Target{{Ref: routing.Service(b), Weight: 1}}},
		&routing.HTTPRoute{Meta: service.Meta{Key: service.Key{Namespace: "b", Name: "h"}}, Rules: []routing.HTTPRule{{
			Matches:  []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/p"}}},
			Backends: []routing.Backend{{Ref: routing.Service(b), Weight: 1}}}}},
	})
	for _, c := range []struct {
		within []string
		r      Request
		want   string // "" for not found
	}{
		{[]string{"a"}, Request{Model: "iris"}, "a/iris"},
		{[]string{"b"}, Request{Model: "iris"}, "b/iris"},
		{[]string{"a"}, Request{Model: "b/iris"}, ""},
		{[]string{"a"}, Request{Model: "secret"}, ""},
		{[]string{"a"}, Request{Model: "secret", Host: "secret.b.localhost"}, ""},
		{[]string{"a"}, Request{Model: "iris", Host: "iris.b.localhost"}, "a/iris"},
		{[]string{"b"}, Request{Model: "x", Host: "iris.b.localhost"}, "b/iris"},
		{[]string{"a"}, Request{Model: "alias"}, ""},
		{[]string{"b"}, Request{Model: "alias"}, "b/iris"},
		{[]string{"a"}, Request{Model: "alias", Path: "/p/x"}, ""},
		{[]string{"b"}, Request{Model: "whatever", Path: "/p/x"}, "b/iris"},
		{[]string{"c"}, Request{Model: "iris"}, ""},
		{nil, Request{Model: "b/iris"}, "b/iris"},
	} {
		c.r.Namespaces = c.within
		k, err := d.Key(c.r)
		var none *route.NotFoundError
		if c.want == "" && errors.As(err, &none) {
			if strings.Contains(strings.ReplaceAll(err.Error(), fmt.Sprintf("%q", c.r.Model), ""), "secret") || strings.Contains(err.Error(), "did you mean b/") {
				t.Errorf("%+v tells of others: %v", c.r, err)
			}
			continue
		}
		if err != nil || k.String() != c.want {
			t.Errorf("within %v, %q at %q%s: %v %v, want %q", c.within, c.r.Model, c.r.Host, c.r.Path, k, err, c.want)
		}
	}
	var ambiguous *route.AmbiguousError
	if _, err := d.Key(Request{Model: "iris", Namespaces: []string{"a", "b"}}); !errors.As(err, &ambiguous) {
		t.Errorf("both: %v", err)
	}
	names := func(within ...string) (out []string) {
		for _, s := range d.ModelsWithin(within) {
			out = append(out, s.Name)
		}
		return out
	}
	if got := fmt.Sprint(names("a"), names("b"), names()); got != "[iris] [alias iris secret] [a/iris alias b/iris secret]" {
		t.Errorf("names %s", got)
	}
	// A change is seen in every scope, and no more tables are kept than may be.
	d.Remove(routing.Service(a))
	if _, err := d.Key(Request{Model: "iris", Namespaces: []string{"a"}}); err == nil {
		t.Error("a deleted service is still there")
	}
	for i := range maxScopes + 10 {
		_, _ = d.Key(Request{Model: "iris", Namespaces: []string{fmt.Sprint("n", i)}})
	}
	if n := len(d.view.Load().scopes.tables); n != maxScopes {
		t.Errorf("%d tables", n)
	}
}
