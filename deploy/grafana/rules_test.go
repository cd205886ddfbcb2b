package grafana

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// parsed are the metrics of expressions, as Prometheus' own parser finds them.
// A test is skipped without the program that has it.
func parsed(t *testing.T, expressions []string) [][]string {
	t.Helper()
	program, err := filepath.Abs("../../bin/promql")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skip("no bin/promql: make bin/promql")
	}
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(strings.Join(expressions, "\n") + "\n")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(expressions) {
		t.Fatalf("%d answers to %d expressions", len(lines), len(expressions))
	}
	names := make([][]string, len(lines))
	for i, l := range lines {
		if names[i] = strings.Fields(l); len(names[i]) == 0 {
			t.Errorf("%s asks for no metric", expressions[i])
		}
	}
	return names
}

// registered fails the test for metrics that nothing registers.
func registered(t *testing.T, known map[string]bool, where string, names []string) {
	t.Helper()
	for _, name := range names {
		base := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			base = strings.TrimSuffix(base, suffix)
		}
		if !known[name] && !known[base] {
			t.Errorf("%s asks for %s, which nothing registers", where, name)
		}
	}
}

// TestExpressions: Prometheus can read what the dashboard asks.
func TestExpressions(t *testing.T) {
	fill := strings.NewReplacer("$__rate_interval", "5m", "$service", ".*")
	var titles, expressions []string
	for _, p := range read(t).Panels {
		for _, target := range p.Targets {
			titles, expressions = append(titles, p.Title), append(expressions, fill.Replace(target.Expr))
		}
	}
	known := exposed(t)
	for i, names := range parsed(t, expressions) {
		registered(t, known, titles[i], names)
	}
}

// rules is a file of Prometheus' alerts.
type rules struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr         string
			For                 time.Duration
			Labels, Annotations map[string]string
		}
	}
}

// TestRules: every alert can be read, asks for metrics that there are, and says
// what is wrong and what to do.
func TestRules(t *testing.T) {
	text, err := os.ReadFile("../prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var file rules
	if err := dec.Decode(&file); err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	label := regexp.MustCompile(`\{\{[^}]*\$labels\.(\w+)`)
	var names, expressions []string
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.For < time.Minute || r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Labels["severity"] != "warning" && r.Labels["severity"] != "critical" {
				t.Errorf("%s lacks a time, a severity, a summary or a description: %+v", r.Alert, r)
			}
			for _, m := range label.FindAllStringSubmatch(r.Annotations["summary"]+r.Annotations["description"], -1) {
				if !regexp.MustCompile(`by \([^)]*\b` + m[1] + `\b`).MatchString(r.Expr) {
					t.Errorf("%s speaks of %s, which its expression does not keep", r.Alert, m[1])
				}
			}
			if !strings.Contains(string(docs), "`"+r.Alert+"`") {
				t.Errorf("docs/kubernetes.md says nothing of %s", r.Alert)
			}
			names, expressions = append(names, r.Alert), append(expressions, r.Expr)
		}
	}
	if len(names) < 8 {
		t.Fatalf("only %d alerts", len(names))
	}
	known := exposed(t)
	for i, found := range parsed(t, expressions) {
		registered(t, known, names[i], found)
	}
}
