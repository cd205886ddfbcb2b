package workload

import (
	"strings"
	"testing"
	"text/template"
)

// TestExpandAgreesWithTextTemplate compares with the package whose syntax the
// expressions have.
func TestExpandAgreesWithTextTemplate(t *testing.T) {
	data := map[string]any{"Name": "llama", "Labels": map[string]string{"team": "a&b", "example.com/tier": "gold", `q"`: "quoted"}}
	for _, s := range []string{
		"--name={{.Name}}", "{{ .Name }}{{.Name}}", "{{.Labels.team}}", `{{index .Labels "example.com/tier"}}`,
		"{{ index .Labels `team` }}", `{{index .Labels  "q\""}}`, "plain", "{{.Absent}}", "{{.Labels.absent}}",
		`{{.Name.team}}`, "{{.Labels.example.com}}", "{{.}}", "{{.Name",
	} {
		got, err := expand(s, data, nil)
		parsed, wantErr := template.New("").Option("missingkey=error").Parse(s)
		var want strings.Builder
		if wantErr == nil {
			wantErr = parsed.Execute(&want, data)
		}
		switch {
		case s == "{{.}}" || s == "{{.Name": // refused, and left alone, by choice
		case (err == nil) != (wantErr == nil):
			t.Errorf("%s: error %v, of text/template %v", s, err, wantErr)
		case err == nil && got != want.String():
			t.Errorf("%s: %q, want %q", s, got, want.String())
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	data := map[string]any{"Name": "llama", "Labels": map[string]string{"team": "a"}}
	for s, want := range map[string]string{
		"{{.Name | printf}}":         "want .Field",
		"{{.}}":                      "want .Field",
		`{{index .Labels "absent"}}`: `no key "absent"`,
		"{{.Nmae}}":                  `no field "Nmae"`,
		"{{.Labels}}":                "no key",
	} {
		if _, err := expand(s, data, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", s, err, want)
		}
	}
	for _, s := range []string{"{{ m.content }}", "{{", "}}", "{{% if x %}}"} {
		if got, err := expand(s, data, nil); err != nil || got != s {
			t.Errorf("%s: %q, %v: want it left alone", s, got, err)
		}
	}
}
