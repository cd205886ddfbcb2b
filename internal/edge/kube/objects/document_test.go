package objects

import (
	"slices"
	"testing"
)

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
		o, problems, _ := parse(doc)
		if o != nil && len(problems) > 0 {
			t.Errorf("an object, and %v", problems)
		}
	})
}
