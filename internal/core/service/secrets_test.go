package service

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestHidden: nothing prints a value, however it is asked to.
func TestHidden(t *testing.T) {
	s := Secret{Data: map[string]Hidden{"k": Hide("s3cr3t")}}
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", s)
		fmt.Fprintf(&out, verb+"\n", s.Data["k"])
	}
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(raw)
	out.Write(text)
	if got := out.String(); strings.Contains(got, "s3cr3t") || strings.Contains(got, fmt.Sprintf("%x", "s3cr3t")) || strings.Count(got, HiddenText) < 8 {
		t.Error(got)
	}
	if s.Data["k"].Reveal() != "s3cr3t" {
		t.Error("it is lost")
	}
}

// TestFilesKey: files of one URI that are fetched with other credentials are others.
func TestFilesKey(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range []Files{{URI: "s3://a"}, {"s3://a", Credentials{Namespace: "x", Secrets: []string{"s"}}}, {"s3://a", Credentials{Namespace: "y", Secrets: []string{"s"}}},
		{"s3://a", Credentials{Namespace: "x", Storage: &Storage{Key: "k"}}}, {URI: "s3://b"}} {
		if seen[f.Key()] {
			t.Errorf("%+v is taken for another", f)
		}
		seen[f.Key()] = true
	}
	if (Files{"s3://a", Credentials{Namespace: "x"}}).Key() != "s3://a" {
		t.Error("a namespace alone is no credential")
	}
}
