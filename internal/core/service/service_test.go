package service

import "testing"

func TestKeyText(t *testing.T) {
	iris := Key{Namespace: "ml", Name: "iris"}
	for text, k := range map[string]Key{"ml/iris": iris, "ml/iris~canary": iris.Canary()} {
		if got := k.String(); got != text {
			t.Errorf("%#v is written %q, want %q", k, got, text)
		}
		if got := ParseKey(text); got != k {
			t.Errorf("%q is read %#v, want %#v", text, got, k)
		}
		// Older records have the variant in the name.
		old := Key{Namespace: k.Namespace, Name: k.WorkloadName()}
		if got := ParseKey(old.String()); got != k {
			t.Errorf("%#v is read %#v, want %#v", old, got, k)
		}
		if k.Stable() != iris {
			t.Errorf("%s is of %s", k, k.Stable())
		}
	}
}
