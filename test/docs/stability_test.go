package docs

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestEveryFieldHasALevel: docs/stability.md has each field of our kinds once, and no
// other.
func TestEveryFieldHasALevel(t *testing.T) {
	page, err := os.ReadFile("../../docs/stability.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| ([A-Z][A-Za-z]+)(?:: `([a-z]+)`)? \\|(.*)\\|(.*)\\|$")
	rows := 0
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		text, err := os.ReadFile("../../deploy/schemas/" + strings.ToLower(m[1]) + ".json")
		if err != nil {
			continue // a row of another table
		}
		rows++
		var s struct{ Properties struct{ Spec property } }
		if err := json.Unmarshal(text, &s); err != nil {
			t.Fatal(err)
		}
		want := s.Properties.Spec.Properties
		if m[2] != "" {
			want = want[m[2]].Properties
		}
		var got []string
		for _, f := range code.FindAllString(m[3]+m[4], -1) {
			got = append(got, strings.Trim(f, "`"))
		}
		for name := range want {
			if n := len(slices.DeleteFunc(slices.Clone(got), func(g string) bool { return g != name })); n != 1 {
				t.Errorf("%s %s: %s is there %d times", m[1], m[2], name, n)
			}
		}
		if len(got) != len(want) || len(want) == 0 {
			t.Errorf("%s %s: %d fields, of %d", m[1], m[2], len(got), len(want))
		}
	}
	if rows != 6 {
		t.Errorf("%d rows", rows)
	}
}

type property struct {
	Properties map[string]property `json:"properties"`
}
