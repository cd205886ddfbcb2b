package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/internal/decide/dialect/gateway"
	"roundhouse.dev/roundhouse/internal/decide/dialect/kserve"
	"roundhouse.dev/roundhouse/internal/decide/dialect/llmisvc"
	"roundhouse.dev/roundhouse/internal/decide/dialect/ome"
	"roundhouse.dev/roundhouse/internal/decide/dialect/own"
	"roundhouse.dev/roundhouse/internal/decide/dialect/pickerconfig"
	"roundhouse.dev/roundhouse/internal/decide/dialect/secrets"
	"roundhouse.dev/roundhouse/internal/decide/dialect/seldon"
)

// TestKindsAreTheCodes compares the first table of docs/manifests.md with the kinds that
// are read.
func TestKindsAreTheCodes(t *testing.T) {
	row := regexp.MustCompile("^\\| (`.*`) \\| (.*) \\|$")
	word := regexp.MustCompile(`\b[A-Z]\w+\b`)
	documented := map[string]bool{}
	for _, p := range pages(t) {
		if p.path != "docs/manifests.md" {
			continue
		}
		for _, l := range p.lines {
			if strings.HasPrefix(l.text, "Fields that ") {
				break
			}
			m := row.FindStringSubmatch(l.text)
			if m == nil {
				continue
			}
			group := ""
			for _, version := range code.FindAllString(m[1], -1) {
				version = strings.Trim(version, "`")
				if before, _, ok := strings.Cut(version, "/"); ok {
					group = before + "/"
				} else if group != "" {
					version = group + version
				}
				for _, kind := range word.FindAllString(m[2], -1) {
					documented[version+" "+kind] = true
				}
			}
		}
	}
	for _, s := range slices.Concat(own.Schemas, kserve.Schemas, llmisvc.Schemas, ome.Schemas, seldon.Schemas, gateway.Schemas, pickerconfig.Schemas, secrets.Schemas) {
		if name := s.APIVersion + " " + s.Kind; !documented[name] {
			t.Errorf("the first table of docs/manifests.md leaves out %s", name)
		} else {
			delete(documented, name)
		}
	}
	for name := range documented {
		t.Errorf("the first table of docs/manifests.md has %s, which is not read", name)
	}
}
