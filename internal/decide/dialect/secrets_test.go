package dialect

import (
	"fmt"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
)

const someSecret = `apiVersion: v1
kind: Secret
metadata:
  name: s3creds
  namespace: team
  labels: {app: x}
  annotations:
    serving.kserve.io/s3-endpoint: minio:9000
    kubectl.kubernetes.io/last-applied-configuration: '{"stringData":{"KEY":"s3cr3t"}}'
type: Opaque
data:
  KEY: czNjcjN0 # s3cr3t
  OVER: b2xk
stringData: {OVER: s3cr3t-2}
`

func TestSecret(t *testing.T) {
	read := Read("a.yaml", []byte(someSecret))
	if len(read.Problems) != 1 || read.Problems[0].Platform != Kubernetes || len(read.Objects) != 1 {
		t.Fatal(read.Problems)
	}
	o := read.Objects[0]
	s := o.Secret
	if s == nil || o.Kind != KindSecret || s.Key != (service.Key{Namespace: "team", Name: "s3creds"}) || s.Data["KEY"].Reveal() != "s3cr3t" || s.Data["OVER"].Reveal() != "s3cr3t-2" {
		t.Fatalf("%+v", s)
	}
	text, err := Render(o, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"s3cr3t", "czNjcjN0", "b2xk"} {
		if strings.Contains(string(text), part) || strings.Contains(fmt.Sprintf("%+v", *s), part) && part == "czNjcjN0" {
			t.Errorf("%q is shown:\n%s", part, text)
		}
	}
	for _, part := range []string{"KEY: (hidden)", "serving.kserve.io/s3-endpoint: minio:9000", "last-applied-configuration: (hidden)", "app: x", "type: Opaque"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("want %q in\n%s", part, text)
		}
	}
	if again := Read("b.yaml", text); len(again.Errors(Process)) == 0 {
		t.Error("what was printed can be applied in place of the values")
	}
}

// TestSecretProblems: a problem says where it is, and has nothing of a value.
func TestSecretProblems(t *testing.T) {
	for text, want := range map[string]string{
		"data: {k: s3cr3t!}":                                         "data[k]: is not base64",
		"data: {k: 73114}":                                           "data: is not written as it must be",
		"data: s3cr3t":                                               "data: is not written as it must be",
		"stringData: [s3cr3t]":                                       "stringData: is not written as it must be",
		"stringData: {k: 73114}":                                     "stringData: is not written as it must be",
		"stringData: {k: {a: s3cr3t}}":                               "stringData: is not written as it must be",
		"stringData: {k: true, k: s3cr3t}":                           "stringData: is not written as it must be",
		"stringData: {\"a b\": s3cr3t}":                              "stringData: has a key that is none",
		"stringData: {k: s3cr3t}\nfoo: 1":                            "foo: ",
		"stringData: {\"..\": s3cr3t}":                               "stringData: has a key that is none",
		"stringData: {k: *s3cr3t}":                                   "a.yaml:1: is not YAML: correct it at this line or after it, and put values in quotes",
		"stringData: {k: &s3cr3t x}":                                 "a.yaml:4: stringData: has an anchor or an alias of YAML",
		"data: {k: &s3cr3t eA==, l: *s3cr3t}":                        "a.yaml:4: data: has an anchor or an alias of YAML",
		"stringData: {k: {a: [&s3cr3t x]}}":                          "stringData: has an anchor or an alias of YAML",
		"stringData: &s3cr3t {k: x}":                                 "stringData: has an anchor or an alias of YAML",
		"stringData: {k: !s3cr3t x}":                                 "stringData: is not written as it must be",
		"stringData: {k: !s3cr3t!x y}":                               "is not YAML: correct it",
		"stringData: {k: @s3cr3t}":                                   "is not YAML: correct it",
		"stringData: {k: \"s3cr3t\\q\"}":                             "is not YAML: correct it",
		"metadata: {annotations: {a: 73114}}":                        "metadata.annotations: is not written as it must be",
		"stringData: {k: " + strings.Repeat("s3cr3t", 200_000) + "}": "values of 1200000 bytes",
	} {
		meta := "metadata: {name: x}\n"
		if strings.HasPrefix(text, "metadata") {
			meta = ""
		}
		read := Read("a.yaml", []byte("apiVersion: v1\nkind: Secret\n"+meta+text+"\n"))
		var all strings.Builder
		for _, p := range read.Errors(Process) {
			all.WriteString(p.String() + "\n")
		}
		if got := all.String(); !strings.Contains(got, want) || strings.Contains(got, "s3cr3t") || strings.Contains(got, "73114") {
			t.Errorf("%.60s: got %q, want %s", text, got, want)
		}
	}
}

func TestServiceAccount(t *testing.T) {
	read := Read("a.yaml", []byte("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: sa, annotations: {serving.kserve.io/s3-region: eu}}\nsecrets: [{name: a}, {name: b}]\n"))
	if len(read.Errors(Process)) > 0 || len(read.Objects) != 1 {
		t.Fatal(read.Problems)
	}
	a := read.Objects[0].Account
	if a == nil || strings.Join(a.Secrets, ",") != "a,b" || a.Annotations["serving.kserve.io/s3-region"] != "eu" || a.Namespace != service.DefaultNamespace {
		t.Errorf("%+v", a)
	}
	if bad := Read("a.yaml", []byte("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: sa}\nsecrets: [{name: \"a/b\"}]\n")).Errors(Process); len(bad) != 1 {
		t.Error(bad)
	}
}
