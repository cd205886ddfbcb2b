package migrate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// TestManifestsSayTheSame: what is made of the examples is read without an error, and
// the services that change their kind are those that ours can say the same of.
func TestManifestsSayTheSame(t *testing.T) {
	found, err := filepath.Glob("../../../examples/manifests/*.yaml")
	if err != nil || len(found) < 10 {
		t.Fatalf("%v: %v", found, err)
	}
	ours, kept := 0, 0
	for _, of := range []service.Dialect{service.DialectKServe, service.DialectOME} {
		for _, file := range found {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			out := Manifests(of, []Manifest{{Name: file, Data: data}}, dialect.Process)
			for _, d := range out.Documents {
				text, err := d.YAML()
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range dialect.Read(d.Name, []byte(text)).Errors(dialect.Process) {
					t.Errorf("%s: %s\n%s", d.From, p, text)
				}
				switch {
				case d.Original == nil:
					ours++
				case strings.Contains(d.From, "InferenceService"):
					t.Logf("%s: %v", d.From, d.Notes)
					kept++
				}
			}
		}
	}
	t.Logf("%d became services of ours, %d stay", ours, kept)
	if ours < 5 || kept == 0 {
		t.Errorf("%d became services of ours, %d stay", ours, kept)
	}
}
