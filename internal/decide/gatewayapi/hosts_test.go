package gatewayapi

import (
	"strings"
	"testing"
)

// FuzzCommon: a host is one of what two patterns have in common exactly when
// it is one of both.
func FuzzCommon(f *testing.F) {
	for _, c := range [][3]string{{"", "", "a.test"}, {"*.a.test", "*.test", "x.a.test"}, {"a.test", "*.test", "a.test"}, {"*.a.test", "a.test", "a.test"},
		{"*.a.test", "*.b.test", "x.a.test"}, {"a.test", "b.test", "a.test"}, {"*.test", "x.y.test", "x.y.test"}} {
		f.Add(c[0], c[1], c[2])
	}
	// holds is the Gateway API's words: a wildcard stands for one or more labels.
	holds := func(pattern, host string) bool {
		if pattern == "" {
			return true
		}
		want, have := strings.Split(pattern, "."), strings.Split(host, ".")
		if want[0] != "*" {
			return pattern == host
		}
		want = want[1:]
		if len(have) <= len(want) {
			return false
		}
		return strings.Join(have[len(have)-len(want):], ".") == strings.Join(want, ".")
	}
	valid := func(s string) bool {
		rest := strings.TrimPrefix(s, "*.")
		return !strings.Contains(rest, "*") && rest == strings.ToLower(rest) && !strings.Contains("."+rest+".", "..")
	}
	f.Fuzz(func(t *testing.T, a, b, host string) {
		if a != "" && !valid(a) || b != "" && !valid(b) || !valid(host) || strings.HasPrefix(host, "*") {
			return
		}
		both, ok := common(a, b)
		if got, want := ok && holds(both, host), holds(a, host) && holds(b, host); got != want {
			t.Errorf("%q and %q have %q (%v) in common: %q is one of it %v, of both %v", a, b, both, ok, host, got, want)
		}
	})
}
