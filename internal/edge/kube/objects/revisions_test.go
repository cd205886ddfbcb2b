package objects_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// TestRevisionsAreThoseOfFiles applies every service among the examples, which
// are the guides' own, and compares the hash with the file's: what the API
// server adds must restart nothing.
func TestRevisionsAreThoseOfFiles(t *testing.T) {
	c := kubetest.Client(t, "kserve", "ome", "seldon")
	files, err := filepath.Glob("../../../../examples/manifests/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ns := kubetest.Namespace(t, c, nil)
		// What is a schema's default may be stated, and counts as not.
		text = bytes.ReplaceAll(text, []byte("        protocol: TCP\n"), nil)
		for _, want := range dialect.Read(file, text).Objects {
			if want.Service == nil {
				continue
			}
			u := kubetest.Parse(t, string(want.Original))[0]
			if u.GetKind() == "TrainedModel" { // is served on one machine alone
				continue
			}
			u.SetNamespace(ns)
			want.Service.Namespace = ns
			a := u.GetAnnotations()
			if a == nil {
				a = map[string]string{}
			}
			a["kubectl.kubernetes.io/last-applied-configuration"] = string(want.Original)
			u.SetAnnotations(a)
			if err := c.Create(t.Context(), u); err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			got := dialect.Read("", document(t, u))
			if len(got.Objects) != 1 {
				t.Errorf("%s as the API has it: %v", file, got.Problems)
				continue
			}
			compared++
			if a, b := want.Service, got.Objects[0].Service; hash(a) != hash(b) {
				t.Errorf("%s: %s from the file, %s from the API", file, hash(a), hash(b))
			} else if selection.InputsHash(request(a)) != selection.InputsHash(request(b)) {
				t.Errorf("%s: the choice's inputs differ", file)
			}
		}
	}
	if compared < 8 {
		t.Errorf("only %d services compared", compared)
	}
}

func request(s *service.Service) selection.Request {
	r := selection.Request{Service: s}
	if s.Model != nil {
		r.Attributes = s.Model.Attributes
	}
	return r
}

func hash(s *service.Service) string {
	in := workload.Input{Service: s}
	if s.Model != nil {
		in.URI = s.Model.URI
	}
	return in.Hash()
}
