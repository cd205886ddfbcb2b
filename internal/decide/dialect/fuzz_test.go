package dialect

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect/manifest"
)

// FuzzRead holds Read to its promises on any input: it returns, within its
// bounds; every object is whole and reads back from its Original as itself;
// every problem has a line of the file.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob(examples + "/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, doc := range bytes.Split(data, []byte("\n---\n")) {
			f.Add(doc)
		}
	}
	for _, block := range strings.Split(badManifests(f), "\n== ") {
		manifest, _, _ := strings.Cut(block, "\n-- problems")
		_, manifest, _ = strings.Cut(manifest, "\n")
		f.Add([]byte(manifest))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		res := Read("f.yaml", data)
		lines := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte("\r")) + 2
		if len(res.Problems) > 6*(MaxProblems+1) { // errors and warnings, of each platform and of both
			t.Errorf("%d problems", len(res.Problems))
		}
		for _, p := range res.Problems {
			if p.Line < 0 || p.Line > lines || p.Message == "" {
				t.Errorf("a problem beyond the file's %d lines: %+v", lines, p)
			}
		}
		for _, o := range res.Objects {
			check(t, o)
		}
	})
}

// check holds one object to what every caller counts on.
func check(t *testing.T, o Object) {
	t.Helper()
	whole := map[Kind]bool{
		KindService:     o.Service != nil && o.Runtime == nil && o.Model == nil && o.Routing == nil,
		KindRuntime:     o.Service == nil && o.Runtime != nil && o.Model == nil,
		KindModel:       o.Service == nil && o.Runtime == nil && o.Model != nil,
		KindBase:        o.Service == nil && o.Runtime == nil && o.Model == nil && o.Base != nil && o.Base.Key == o.Key,
		KindAccelerator: o.Service == nil && o.Runtime == nil && o.Model == nil && o.Accelerator != nil && o.Accelerator.Key == o.Key,

		KindBenchmark: o.Service == nil && o.Runtime == nil && o.Model == nil && o.Benchmark != nil && o.Benchmark.Key == o.Key,

		KindRouting: o.Service == nil && o.Runtime == nil && o.Model == nil && o.Routing != nil && o.Routing.Common().Key == o.Key,
	}
	if !whole[o.Kind] || o.Key.Name == "" {
		t.Fatalf("an object that is not whole: %+v", o)
	}
	if o.Service != nil {
		checkService(t, o.Service)
	}
	again := Read("f.yaml", o.Original)
	if len(again.Objects) != 1 {
		t.Fatalf("the original reads back with %v:\n%s", again.Problems, o.Original)
	}
	if !sameHub(o, again.Objects[0]) {
		t.Errorf("the original reads back as another object:\n%s", o.Original)
	}
}

func checkService(t *testing.T, s *service.Service) {
	t.Helper()
	if s.Namespace == "" || s.Components.Engine == nil {
		t.Errorf("a service without namespace or engine: %+v", s)
	}
	if s.Model == nil && s.Runtime == nil && !s.Custom {
		t.Errorf("a service with nothing to serve: %+v", s)
	}
	for _, role := range service.Roles {
		if c := s.Components.Get(role); c != nil && manifest.Crossed(c.Scaling) {
			t.Errorf("%s: min above max", role)
		}
	}
}

func badManifests(f *testing.F) string {
	data, err := os.ReadFile("testdata/bad.txt")
	if err != nil {
		f.Fatal(err)
	}
	return string(data)
}
