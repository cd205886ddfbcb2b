// Package grafana tests the dashboard: it asks for metrics that there are.
package grafana

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// exposed are the metrics that the code registers: in our packages the names
// that metrics.go files state, in the library what its registry describes.
func exposed(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, pattern := range []string{"../../internal/edge/*/*.go", "../../internal/edge/*/*/*.go", "../../cmd/internal/controller/*.go", "../../cmd/internal/front/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("nothing in %s: %v", pattern, err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f, "_test.go") {
				stated(t, f, out)
			}
		}
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		for _, c := range []prometheus.Collector{metrics.Registry.(prometheus.Collector), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
			c.Describe(descs)
		}
		close(descs)
	}()
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descs {
		out[name.FindStringSubmatch(d.String())[1]] = true
	}
	return out
}

// stated adds the names of a file: prefix + "name", where prefix is a constant
// of the file, and whole names.
func stated(t *testing.T, file string, out map[string]bool) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var prefixes, rest []string
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			if len(n.Names) == 1 && n.Names[0].Name == "prefix" && len(n.Values) == 1 {
				prefixes = append(prefixes, literal(n.Values[0]))
			}
		case *ast.BinaryExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "prefix" {
				rest = append(rest, literal(n.Y))
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "desc" && len(n.Args) > 0 {
				out["roundhouse_gateway_"+literal(n.Args[0])] = true // of newPoolDescs, which is given the prefix
			}
		case *ast.BasicLit:
			if text := literal(n); strings.HasPrefix(text, "gen_ai_") || strings.HasPrefix(text, "roundhouse_") && text != "roundhouse_" {
				out[text] = true
			}
		}
		return true
	})
	for _, p := range prefixes {
		for _, r := range rest {
			out[p+r] = true
		}
	}
}

func literal(n ast.Expr) string {
	if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
		if s, err := strconv.Unquote(l.Value); err == nil {
			return s
		}
	}
	return ""
}

type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ Expr string }
	}
}

func read(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("roundhouse.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

var (
	metric   = regexp.MustCompile(`\b[a-z][a-z0-9]*(_[a-z0-9]+)+\b`)
	selector = regexp.MustCompile(`\{[^}]*\}`)
	grouping = regexp.MustCompile(`\b(by|without)\s*\([^)]*\)`)
)

// TestMetrics: every metric that a panel or a variable asks for is registered.
func TestMetrics(t *testing.T) {
	known := exposed(t)
	if !known["roundhouse_gateway_requests_total"] || !known["roundhouse_gateway_in_flight"] || !known["go_goroutines"] || !known["roundhouse_controller_services"] || len(known) < 60 {
		t.Fatalf("only %d metrics were found", len(known))
	}
	d := read(t)
	expressions := map[string]string{}
	for _, p := range d.Panels {
		for i, target := range p.Targets {
			expressions[fmt.Sprintf("%s %d", p.Title, i)] = target.Expr
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			expressions["variable "+v.Name] = regexp.MustCompile(`label_values\((.*), \w+\)`).ReplaceAllString(v.Definition, "$1")
		}
	}
	asked := 0
	for where, e := range expressions {
		e = grouping.ReplaceAllString(selector.ReplaceAllString(e, ""), "")
		for _, name := range metric.FindAllString(e, -1) {
			if name == "histogram_quantile" || name == "__rate_interval" || name == "rate_interval" {
				continue
			}
			asked++
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !known[name] && !known[base] {
				t.Errorf("%s asks for %s, which nothing registers", where, name)
			}
		}
	}
	if asked < 30 {
		t.Errorf("only %d metrics are asked for", asked)
	}
}

// TestLayout: panels have their own names and ids, and none covers another.
func TestLayout(t *testing.T) {
	d := read(t)
	taken, ids := map[[2]int]string{}, map[int]string{}
	for _, p := range d.Panels {
		if other, twice := ids[p.ID]; twice {
			t.Errorf("%s and %s have one id", p.Title, other)
		}
		ids[p.ID] = p.Title
		if g := p.GridPos; g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("%s is not on the grid: %+v", p.Title, g)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other := taken[at]; other != "" {
					t.Fatalf("%s covers %s", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
	}
	if d.UID == "" || d.Title == "" || len(d.Panels) < 20 {
		t.Errorf("%s %s: %d panels", d.UID, d.Title, len(d.Panels))
	}
}
