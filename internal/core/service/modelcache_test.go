package service

import "testing"

func TestBelow(t *testing.T) {
	for _, c := range []struct {
		cache, uri, sub string
		ok              bool
	}{
		{"s3://b/m", "s3://b/m", "", true},
		{"s3://b/m/", "s3://b/m", "", true},
		{"s3://b/m", "s3://b/m/", "", true},
		{"s3://b/m", "s3://b/m/v1/model.bst", "v1/model.bst", true},
		{"s3://b/m", "s3://b/m2", "", false},
		{"hf://org/m", "hf://org/m:main", "", false},
		{"s3://b/m", "s3://b", "", false},
		{"s3://b/m", "s3://b/m/../other", "", false},
		{"s3://b/m", "s3://b/m/..", "", false},
		{"s3://b/m", "s3://b/m#sha256=0", "", false},
	} {
		m := ModelCache{URI: c.cache}
		if sub, ok := m.Below(c.uri); ok != c.ok || ok && sub != c.sub {
			t.Errorf("%s in %s: %q, %v", c.uri, c.cache, sub, ok)
		}
	}
}
