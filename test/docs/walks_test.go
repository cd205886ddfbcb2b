package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestWalksNameWhatIs: the functions that docs/architecture.md walks through are
// in the files it names.
func TestWalksNameWhatIs(t *testing.T) {
	stop := regexp.MustCompile("^\\| `([A-Za-z.]+)`, `([a-z0-9_/.]+\\.go)` \\|")
	stops := 0
	for _, p := range pages(t) {
		if p.path != "docs/architecture.md" {
			continue
		}
		for _, l := range p.lines {
			m := stop.FindStringSubmatch(l.text)
			if m == nil {
				continue
			}
			stops++
			if !declares(t, m[2], m[1]) {
				t.Errorf("%s:%d: %s has no function %s", p.path, l.number, m[2], m[1])
			}
		}
	}
	if stops < 20 {
		t.Fatalf("only %d stops found: the search is broken", stops)
	}
}

// declares reports whether a file has a function, or a method as "Type.Name".
func declares(t *testing.T, file, name string) bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Errorf("%v", err)
		return false
	}
	receiver, method, ok := strings.Cut(name, ".")
	if !ok {
		receiver, method = "", name
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != method {
			continue
		}
		of := ""
		if fn.Recv != nil {
			x := fn.Recv.List[0].Type
			if p, ok := x.(*ast.StarExpr); ok {
				x = p.X
			}
			if id, ok := x.(*ast.Ident); ok {
				of = id.Name
			}
		}
		if of == receiver {
			return true
		}
	}
	return false
}
