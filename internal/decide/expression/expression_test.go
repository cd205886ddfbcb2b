package expression

import (
	"strings"
	"testing"
	"text/template"
)

var data = map[string]any{"Name": "llama", "Namespace": "team",
	"Labels": map[string]string{"team": "a&b", "example.com/tier": "gold", `q"`: "quoted", "empty": ""}, "Annotations": map[string]string{}}

// TestFillAgreesWithTextTemplate compares with the package whose syntax the
// expressions have, as KServe runs it.
func TestFillAgreesWithTextTemplate(t *testing.T) {
	for _, s := range []string{
		"--name={{.Name}}", "{{ .Name }}{{.Name}}", "{{.Labels.team}}", `{{index .Labels "example.com/tier"}}`,
		"{{ index .Labels `team` }}", `{{index .Labels  "q\""}}`, "plain", "{{$.Name}}", "{{/* why */}}x {{.Name}}",
		"{{if .Labels.team}}--team={{.Labels.team}}{{end}}", "a {{- if .Labels.absent}}b{{else}}c{{end -}} d", "{{if .Annotations}}x{{end}}",
		`{{if eq .Labels.team "a&b"}}yes{{else if eq .Name "x"}}no{{end}}`, `{{if eq .Name "x" "llama"}}one of{{end}}`, `{{if eq .Labels.absent ""}}x{{else}}y{{end}}`,
		`{{if eq (index .Labels "absent") ""}}x{{else}}y{{end}}`, `{{if ne .Labels.absent "a"}}x{{end}}`, `{{if and .Labels.team (not .Labels.absent)}}x{{end}}`,
		`{{or .Labels.empty .Name}}`, `{{with .Labels.team}}{{.}} {{$.Name}}{{else}}none{{end}}`, `{{with .Labels.absent}}{{.}}{{else}}none{{end}}`,
		`{{.Name | eq "llama"}}`, `{{"x" | index .Labels | not}}`, "{{true}}{{if 1}}x{{end}}", `{{.Labels.empty}}`,
		// errors
		"{{.Absent}}", "{{if .Absent}}{{end}}", `{{.Name.team}}`, "{{if .Name}}", "{{end}}", "{{else}}", "{{.Name | .Name}}", `{{.Name "x"}}`,
		`{{if eq 1 .Name}}x{{end}}`, "{{if eq .Labels .Labels}}{{end}}", `{{index .Name "x"}}`, "{{not .Name .Name}}", "{{with .Name}}{{.Name}}{{end}}",
	} {
		got, err := Fill(s, data, nil)
		parsed, wantErr := template.New("").Parse(s)
		var want strings.Builder
		if wantErr == nil {
			wantErr = parsed.Execute(&want, data)
		}
		switch {
		case s == "{{.Absent}}" || s == "{{if .Absent}}{{end}}": // no field of the type that KServe runs it on
			if err == nil {
				t.Errorf("%s: no error", s)
			}
		case s == "{{true}}{{if 1}}x{{end}}": // without a field it is not known for Go's
		case (err == nil) != (wantErr == nil):
			t.Errorf("%s: %q, error %v; of text/template %q, %v", s, got, err, want.String(), wantErr)
		case err == nil && got != want.String():
			t.Errorf("%s: %q, want %q", s, got, want.String())
		}
	}
}

// TestFillRefuses: what cannot be written, loops, or grows a text is named.
func TestFillRefuses(t *testing.T) {
	for s, want := range map[string]string{
		"{{.}}":                      "want .Field",
		`{{index .Labels "absent"}}`: `no key "absent"`,
		"{{.Labels.absent}}":         `no key "absent"`,
		"{{.Nmae}}":                  `no field "Nmae"`,
		"{{.Labels}}":                "want .Field",
	} {
		if _, err := Fill(s, data, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", s, err, want)
		}
	}
	for s, want := range map[string]string{
		"{{if .Name}}":                                    "unexpected EOF",
		"{{.Name | printf}}":                              "the function is not known here",
		`{{printf "%1000000d" .Name}}`:                    "the function is not known here",
		"{{range .Labels}}{{.}}{{end}}":                   "is not known here",
		"{{range 9999999999}}{{end}}":                     "is not known here",
		`{{$x := .Name}}{{$x}}`:                           "variables are not known here",
		`{{if $x}}{{end}}`:                                "undefined variable",
		`{{define "x"}}{{.Name}}{{end}}`:                  "define and block are not known here",
		`{{template "x"}}`:                                "is not known here",
		`{{(index .Labels "a").b}}`:                       "is not known here",
		"{{.Nmae}}":                                       `no field "Nmae"`,
		"{{if .Name}}{{$.Nmae}}{{end}}":                   `no field "Nmae"`,
		"{{with .Labels.x}}{{.}}{{else}}{{.Nmae}}{{end}}": `no field "Nmae"`,
		strings.Repeat("x", maxText) + "{{.Name}}":        "over 262144 bytes",
		strings.Repeat("{{if .Name}}", 10000):             "unexpected EOF",
	} {
		if err := Check(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: error %v, want %q", s, err, want)
		}
	}
}

// TestOthersTemplatesPass: what is Jinja's, or a field that only a replica knows,
// stays as it is written, also beside an expression that is filled.
func TestOthersTemplatesPass(t *testing.T) {
	for _, s := range []string{"{{ m.content }}", "{{", "}}", "{{% if x %}}", "{{ bos_token }}{% for m in messages %}{{- m['content'] | trim -}}{% endfor %}",
		"{{ 'a .b' + (x or y) }}", `{{ "say: .x" }}`, "{{ raise_exception('no .role') }}", "{{ x if y else z }}", "{{.Port}} {{- .Port }}", `{{index .Paths "a"}}`, "{{ '", `{{ "\n" }}`} {
		if got, err := Fill(s, data, []string{"Port", "Paths"}); err != nil || got != s {
			t.Errorf("%s: %q, %v: want it left alone", s, got, err)
		}
		if got, err := Fill("{{if .Name}}"+s[:strings.LastIndex(s, "}}")+1]+"{{end}}", data, []string{"Port", "Paths"}); strings.Count(s, "{{") == strings.Count(s, "}}") && err == nil && !strings.HasPrefix(got, s[:strings.LastIndex(s, "}}")+1]) {
			t.Errorf("%s in a condition: %q, %v", s, got, err)
		}
	}
	if got, err := Fill("{{.Name}}: {{ m.content }} {{if .Labels.team}}--port={{.Port}}{{end}}", data, []string{"Port"}); err != nil || got != "llama: {{ m.content }} --port={{.Port}}" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestCheckAccepts: fields of the object and of its replicas are known, and
// nothing is said of those of another value.
func TestCheckAccepts(t *testing.T) {
	for _, s := range []string{"{{.Port}}{{.GRPCPort}}{{.MetricsPort}}{{.ModelPath}}", `{{index .AdapterPaths "x"}}`, "{{.Labels.a}}{{$.Namespace}}",
		"{{with .Labels}}{{.team}}{{end}}", "{{ m.content }}"} {
		if err := Check(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// FuzzFill: no text makes it panic, and Fill refuses what does not parse.
func FuzzFill(f *testing.F) {
	for _, s := range []string{"{{.Name}}", "{{if .Labels.x}}a{{else}}b{{end}}", "{{ m.content }}", "{{with index .Labels `a`}}{{.}}{{end}}", "{{", "{{- /* x */ -}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := Fill(s, data, []string{"Port"}); err == nil && !strings.Contains(s, ".Port") {
			if _, err := common.read(s, nil); err != nil {
				t.Errorf("%q is filled, and refused by Check: %v", s, err)
			}
		}
	})
}
