package dialect

import (
	"os"
	"strings"
	"testing"
)

// TestBad reads the manifests of testdata/bad.txt, each with the problems it
// must give, to the letter. The file is a list of
//
//	== name
//	the manifest
//	-- problems
//	what Read reports
func TestBad(t *testing.T) {
	const file = "testdata/bad.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var anew strings.Builder
	for i, block := range strings.Split("\n"+string(text), "\n== ") {
		if i == 0 {
			if strings.TrimSpace(block) != "" {
				t.Fatalf("%s: text before the first ==", file)
			}
			continue
		}
		name, rest, _ := strings.Cut(block, "\n")
		manifest, want, ok := strings.Cut(rest+"\n", "\n-- problems\n")
		if !ok && !*update {
			t.Fatalf("%s: %s has no problems", file, name)
		}
		manifest = strings.TrimRight(manifest, "\n")
		var got strings.Builder
		res := Read("bad.yaml", []byte(manifest))
		for _, p := range res.Problems {
			got.WriteString(p.String() + "\n")
		}
		anew.WriteString("== " + name + "\n" + manifest + "\n-- problems\n" + got.String() + "\n")
		if *update {
			continue
		}
		if got, want := strings.TrimSpace(got.String()), strings.TrimSpace(want); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
		if len(res.Errors(AnyPlatform)) == 0 {
			t.Errorf("%s: no error", name)
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.TrimRight(anew.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
