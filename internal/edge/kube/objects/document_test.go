package objects

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestRoutesStayInTheirNamespace: requests may not cross into another tenant's.
func TestRoutesStayInTheirNamespace(t *testing.T) {
	const route = `{"apiVersion":"gateway.networking.k8s.io/v1","kind":"HTTPRoute","metadata":{"name":"r","namespace":"mine"},
"spec":{"parentRefs":[{"name":"gw","namespace":"shared"}],"rules":[{"backendRefs":[{"name":"a","port":80}]},{"backendRefs":[{"name":"b","port":80%s}]}]}}`
	for _, c := range []struct{ namespace, want string }{
		{"", ""},
		{`,"namespace":"mine"`, ""},
		{`,"namespace":"theirs"`, "spec.rules[1].backendRefs[0].namespace: theirs is another namespace"},
	} {
		o, problems, _ := read(fmt.Appendf(nil, route, c.namespace))
		if ok := c.want == ""; ok != (o != nil) || !strings.HasPrefix(listed(problems), c.want) || ok && len(problems) > 0 {
			t.Errorf("%s: %v, %v", c.namespace, o, problems)
		}
	}
}

// TestListed bounds a message.
func TestListed(t *testing.T) {
	problems := slices.Repeat([]string{"bad"}, 7)
	if got := listed(problems); got != "bad; bad; bad; bad; bad; and 2 more" {
		t.Error(got)
	}
	if len(problems) != 7 || problems[5] != "bad" {
		t.Error("the problems were changed")
	}
}

// FuzzRead: whatever is in the API, reading it ends, with an object or problems.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"roundhouse.dev/v1alpha1","kind":"ModelService","metadata":{"name":"iris"},"spec":{"model":{"uri":"s3://m"}}}`))
	f.Add([]byte(`{"apiVersion":"ome.io/v1beta1","kind":"BaseModel"}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		o, problems, _ := read(doc)
		if o != nil && len(problems) > 0 {
			t.Errorf("an object, and %v", problems)
		}
	})
}
