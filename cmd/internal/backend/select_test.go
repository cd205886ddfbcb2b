package backend

import (
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestKey: a name on the command line never means another object than the one of
// exactly that name; "iris~canary" is not the service iris.
func TestKey(t *testing.T) {
	s := Selection{Namespace: "team"}
	for name, want := range map[string]service.Key{
		"iris":              {Namespace: "team", Name: "iris"},
		"other/iris":        {Namespace: "other", Name: "iris"},
		"iris~canary":       {Namespace: "team", Name: "iris~canary"},
		"other/iris~canary": {Namespace: "other", Name: "iris~canary"},
	} {
		if got := s.Key(name); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
