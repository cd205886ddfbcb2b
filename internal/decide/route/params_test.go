package route

import (
	"net/url"
	"testing"
)

// FuzzParam compares with the standard library.
func FuzzParam(f *testing.F) {
	for _, q := range []string{"", "a=1&b=2&a=3", "a", "=x", "&&a=&", "a%3D=b+c%20d", "a=%zz&a=%4", "a;b=1&a=2", "%61=1", "a=1=2", "%", "a=%41%"} {
		f.Add(q, "a")
	}
	f.Add("=1&a=2", "")
	f.Fuzz(func(t *testing.T, query, name string) {
		got, ok := param(query, name)
		values, _ := url.ParseQuery(query)
		want := values[name]
		if ok != (len(want) > 0) || ok && got != want[0] {
			t.Errorf("param(%q, %q) = %q, %v; want %q", query, name, got, ok, want)
		}
	})
}
