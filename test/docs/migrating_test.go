package docs

import (
	"regexp"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/migrate"
)

// TestKeysOfLlamaSwap compares the table of llama-swap's keys in docs/migrating.md with
// that of the code.
func TestKeysOfLlamaSwap(t *testing.T) {
	row := regexp.MustCompile("^\\| `([^`]+)` \\| (.*) \\|$")
	documented := map[string]string{}
	for _, p := range pages(t) {
		if p.path != "docs/migrating.md" {
			continue
		}
		for _, l := range p.lines {
			if m := row.FindStringSubmatch(l.text); m != nil {
				documented[m[1]] = m[2]
			}
		}
	}
	for _, k := range migrate.LlamaSwapKeys {
		want := k.Becomes
		switch {
		case want == "":
			want = "none: " + k.Lacks
		case k.Lacks != "":
			want += "; " + k.Lacks
		}
		if text := documented[k.Path]; text != want {
			t.Errorf("%s: docs/migrating.md has %q, the code %q", k.Path, text, want)
		}
		delete(documented, k.Path)
	}
	if len(documented) > 0 {
		t.Errorf("the code does not know %v", documented)
	}
}
