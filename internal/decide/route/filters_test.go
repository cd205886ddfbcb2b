package route

import (
	"errors"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/routing"
)

// TestPathRewrite has the Gateway API's published table, and escapes.
func TestPathRewrite(t *testing.T) {
	for _, c := range []struct{ path, prefix, value, want string }{
		{"/foo/bar", "/foo", "/xyz", "/xyz/bar"},
		{"/foo/bar", "/foo", "/xyz/", "/xyz/bar"},
		{"/foo/bar", "/foo/", "/xyz", "/xyz/bar"},
		{"/foo/bar", "/foo/", "/xyz/", "/xyz/bar"},
		{"/foo", "/foo", "/xyz", "/xyz"},
		{"/foo/", "/foo", "/xyz", "/xyz/"},
		{"/foo/bar", "/foo", "", "/bar"},
		{"/foo/", "/foo", "", "/"},
		{"/foo", "/foo", "", "/"},
		{"/foo/", "/foo", "/", "/"},
		{"/foo", "/foo", "/", "/"},
		{"/foo/bar", "/", "/xyz", "/xyz/foo/bar"},
		{"/anything", "", "/whole", "/whole"},
		{"/food", "/foo", "/xyz", "/food"},
		{"/fo", "/foo", "/xyz", "/fo"},
		{"/f%6F/a%2Fb", "/fo", "/x", "/x/a%2Fb"},
		{"/f%6", "/f%6", "/x", "/x"},
	} {
		change := routing.PathRewrite{Prefix: c.prefix, Value: c.value}
		if got := change.Apply(c.path); got != c.want {
			t.Errorf("%s with %q in place of %q: %s, want %s", c.path, c.value, c.prefix, got, c.want)
		}
	}
}

func TestRedirect(t *testing.T) {
	rule := func(path string, r *routing.Redirect) routing.HTTPRule {
		if r.Status == 0 {
			r.Status = 302
		}
		return routing.HTTPRule{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: path}}}, Handling: routing.Handling{Redirect: r}}
	}
	path := func(prefix, value string) routing.URLRewrite {
		return routing.URLRewrite{Path: &routing.PathRewrite{Prefix: prefix, Value: value}}
	}
	iris := routing.Backend{Ref: routing.Service(key("default/iris")), Weight: 1}
	moved := iris
	moved.Handling = &routing.Handling{Redirect: &routing.Redirect{Status: 307, URLRewrite: routing.URLRewrite{Host: "moved.test"}}}
	tab := NewTable([]Entry{{Key: key("default/iris")}}, "", &routing.HTTPRoute{Meta: meta("default/r", 0), Hostnames: []string{"a.test"},
		Rules: []routing.HTTPRule{
			rule("/", &routing.Redirect{Scheme: "https", Status: 301}),
			rule("/host", &routing.Redirect{URLRewrite: routing.URLRewrite{Host: "b.test"}}),
			rule("/port", &routing.Redirect{Port: 8443, Scheme: "https"}),
			rule("/known", &routing.Redirect{Port: 443, Scheme: "https"}),
			rule("/old", &routing.Redirect{Status: 308, URLRewrite: path("/old", "/new")}),
			{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchExact, Value: "/refused"}}}, Fault: "the filter CORS is not supported"},
			{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchExact, Value: "/iris"}}}, Backends: []routing.Backend{iris}},
			{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchExact, Value: "/moved"}}}, Backends: []routing.Backend{moved}},
		}})
	for _, c := range []struct {
		q    Query
		code int // 0: the error is no redirect
		want string
	}{
		{Query{Host: "a.test", Path: "/x y", RawQuery: "a=1&b"}, 301, "https://a.test/x%20y?a=1&b"},
		{Query{Host: "a.test:8080", Path: "/"}, 301, "https://a.test/"},
		{Query{Host: "a.test:8080", Path: "/host/x"}, 302, "http://b.test:8080/host/x"},
		{Query{Host: "a.test:443", Path: "/host", Secure: true}, 302, "https://b.test/host"},
		{Query{Host: "a.test", Path: "/port"}, 302, "https://a.test:8443/port"},
		{Query{Host: "a.test", Path: "/known"}, 302, "https://a.test/known"},
		{Query{Host: "a.test", Path: "/old/a/b", RawPath: "/old/a%2Fb"}, 308, "http://a.test/new/a%2Fb"},
		{Query{Host: "a.test", Path: "/moved"}, 307, "http://moved.test/moved"},
		{Query{Host: "a.test", Path: "/refused"}, 0, "HTTPRoute default/r: the filter CORS"},
		{Query{Host: "a.test", Path: "/iris", Model: "iris"}, 0, ""},
	} {
		_, err := tab.Resolve(c.q, func(int) int { return 0 })
		var to *RedirectError
		switch {
		case c.want == "":
			if err != nil {
				t.Errorf("%s: %v", c.q.Path, err)
			}
		case c.code == 0:
			if err == nil || errors.As(err, &to) || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", c.q.Path, err, c.want)
			}
		case !errors.As(err, &to) || to.Status != c.code || to.Location != c.want:
			t.Errorf("%s: %v, want %d %s", c.q.Path, err, c.code, c.want)
		}
		if early := tab.Redirected(c.q); c.q.Path != "/moved" && (early == nil) != (c.want == "") { // that of a backend is known when it is drawn
			t.Errorf("%s: before the body is read %v", c.q.Path, early)
		}
	}
	if plain := NewTable([]Entry{{Key: key("default/iris")}}, ""); plain.Edits() || plain.Redirected(Query{Host: "a.test", Path: "/"}) != nil {
		t.Error("a table without filters has answers of its own")
	}
}

// TestRedirectAfterNames: a route without a host redirects early only if no model's name can
// make the request another namespace's.
func TestRedirectAfterNames(t *testing.T) {
	tab := func(afterNames bool, hosts ...string) *Table {
		return NewTable([]Entry{{Key: key("a/mine")}, {Key: key("b/iris")}}, "", &routing.HTTPRoute{Meta: meta("a/r", 0), AfterNames: afterNames, Hostnames: hosts,
			Rules: []routing.HTTPRule{{Matches: []routing.HTTPMatch{{Path: routing.ValueMatch{Type: routing.MatchPrefix, Value: "/v1"}, Method: "POST"}},
				Handling: routing.Handling{Redirect: &routing.Redirect{Status: 307, URLRewrite: routing.URLRewrite{Host: "a.test"}}}}}})
	}
	after := tab(true)
	for name, c := range map[string]struct {
		table           *Table
		model           string
		early, resolved bool // it is redirected before the model is known; once it is
	}{
		"another namespace's model":         {after, "iris", false, false},
		"its full name":                     {after, "b/iris", false, false},
		"the route's namespace's model":     {after, "mine", false, true},
		"nobody's model":                    {after, "nobodys", false, true},
		"a route that comes before names":   {tab(false), "iris", true, true},
		"a route of the host":               {tab(false, "h.test"), "iris", true, true},
		"a route of the host and of others": {tab(true, "h.test"), "iris", true, true},
	} {
		q := Query{Host: "h.test", Method: "POST", Path: "/v1/chat/completions"}
		var to *RedirectError
		if got := errors.As(c.table.Redirected(q), &to); got != c.early {
			t.Errorf("%s: before it is known, a redirect is %v, want %v", name, got, c.early)
		}
		q.Model = c.model
		if _, err := c.table.Resolve(q, first); errors.As(err, &to) != c.resolved || !c.resolved && err != nil {
			t.Errorf("%s: resolved with %v, want a redirect: %v", name, err, c.resolved)
		}
	}
}

// FuzzPathRewrite: whatever a client asks for, what a replica is asked for is a path that
// has the value before what was not replaced.
func FuzzPathRewrite(f *testing.F) {
	for _, seed := range [][3]string{{"/foo/bar", "/foo", "/x"}, {"/%66oo/%", "/foo", ""}, {"/", "/", "/"}, {"/a%2", "/a%2", "/"}} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, path, prefix, value string) {
		if !strings.HasPrefix(path, "/") || !strings.HasPrefix(prefix, "/") || value != "" && !strings.HasPrefix(value, "/") {
			return
		}
		got := (&routing.PathRewrite{Prefix: prefix, Value: value}).Apply(path)
		if got == path {
			return
		}
		rest, ok := strings.CutPrefix(got, strings.TrimSuffix(value, "/"))
		if !strings.HasPrefix(got, "/") || !ok || rest != "/" && !strings.HasSuffix(path, rest) {
			t.Errorf("%q with %q in place of %q is %q", path, value, prefix, got)
		}
	})
}
