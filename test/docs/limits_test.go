package docs

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestLimitsAreTheCodes compares docs/limits.md with the constants and the
// defaults it names.
func TestLimitsAreTheCodes(t *testing.T) {
	bounds, fields := readBounds(t)
	rows := readLimits(t)
	if len(rows) < 50 {
		t.Fatalf("only %d limits found: the search is broken", len(rows))
	}
	for name, stated := range rows {
		value, ok := bounds[name]
		switch {
		case !ok && stated == 0 && fields[name]:
			// No bound by default: the zero value.
		case !ok:
			t.Errorf("docs/limits.md names %s, which is not in the code", name)
		case value != stated:
			t.Errorf("docs/limits.md says %v of %s, the code says %v (durations in ns)", stated, name, value)
		}
	}
}

var setting = regexp.MustCompile("^`([a-zA-Z0-9]+\\.[a-zA-Z._]+)`$")

// pythonConstant is a constant of a Python module.
var pythonConstant = regexp.MustCompile(`(?m)^([A-Z_]+) = ([0-9]+)$`)

// readPython adds the constants of our Python runtimes ("module.NAME").
func readPython(t *testing.T, out map[string]float64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "python/roundhouse/runtimes/*.py"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Python runtimes: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pythonConstant.FindAllStringSubmatch(string(text), -1) {
			out[strings.TrimSuffix(filepath.Base(file), ".py")+"."+m[1]], _ = strconv.ParseFloat(m[2], 64) // digits
		}
	}
}

// readLimits reads the rows of docs/limits.md: what is set by, and the bound.
func readLimits(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, p := range pages(t) {
		if p.path != "docs/limits.md" {
			continue
		}
		for _, l := range p.lines {
			cells := strings.Split(l.text, "|")
			if len(cells) < 5 {
				continue
			}
			m := setting.FindStringSubmatch(strings.TrimSpace(cells[3]))
			if m == nil {
				continue
			}
			v, err := amount(strings.TrimSpace(cells[2]))
			if err != nil {
				t.Errorf("docs/limits.md:%d: %v", l.number, err)
			}
			if _, twice := out[m[1]]; twice {
				t.Errorf("docs/limits.md:%d: %s has a row already", l.number, m[1])
			}
			out[m[1]] = v
		}
	}
	return out
}

// units are what a bound may be counted in; durations are in nanoseconds.
var units = map[string]float64{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9}

// amount reads "64 MiB", "1,000", "100 levels"; "none" is 0.
func amount(s string) (float64, error) {
	if s == "none" {
		return 0, nil
	}
	number, rest, _ := strings.Cut(s, " ")
	v, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a bound", s)
	}
	unit, _, _ := strings.Cut(rest, " ")
	if f, ok := units[unit]; ok {
		v *= f
	}
	return v, nil
}

// readBounds reads every numeric constant ("package.name") and every default
// of a configuration ("package.Type.Field") of the program, and which fields
// there are.
func readBounds(t *testing.T) (out map[string]float64, fields map[string]bool) {
	t.Helper()
	out, fields = map[string]float64{}, map[string]bool{}
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err == nil {
				readFile(f, out, fields)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	readPython(t, out)
	return out, fields
}

func readFile(f *ast.File, out map[string]float64, fields map[string]bool) {
	put := func(name string, e ast.Expr) {
		if v := value(e); v.Kind() == constant.Int || v.Kind() == constant.Float {
			out[f.Name.Name+"."+name], _ = constant.Float64Val(v)
		}
	}
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok {
			for _, s := range g.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for i := range min(len(s.Names), len(s.Values)) {
						put(s.Names[i].Name, s.Values[i])
					}
				case *ast.TypeSpec:
					readFields(f.Name.Name+"."+s.Name.Name, s.Type, fields)
				}
			}
		}
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			readDefaults(fn, put)
		}
	}
}

// readFields notes the fields of a struct.
func readFields(name string, t ast.Expr, fields map[string]bool) {
	st, ok := t.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range st.Fields.List {
		for _, n := range f.Names {
			fields[name+"."+n.Name] = true
		}
	}
}

// readDefaults reads the defaults of a configuration: the literal that a
// Default… function returns, or the calls of WithDefaults, such as
// def(&c.Field, 3).
func readDefaults(fn *ast.FuncDecl, put func(string, ast.Expr)) {
	makes := strings.HasPrefix(fn.Name.Name, "Default")
	fills := strings.EqualFold(fn.Name.Name, "withDefaults")
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			kind, named := n.Type.(*ast.Ident)
			if !makes || !named {
				return true
			}
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					put(kind.Name+"."+kv.Key.(*ast.Ident).Name, kv.Value)
				}
			}
		case *ast.CallExpr:
			if !fills || len(n.Args) != 2 {
				return true
			}
			if field := fieldPath(n.Args[0]); field != "" {
				put("Config."+field, n.Args[1])
			}
		}
		return true
	})
}

// fieldPath is "Restart.Min" of &c.Restart.Min.
func fieldPath(e ast.Expr) string {
	if u, ok := e.(*ast.UnaryExpr); ok {
		e = u.X
	}
	path := ""
	for {
		s, ok := e.(*ast.SelectorExpr)
		if !ok {
			return strings.TrimPrefix(path, ".")
		}
		path, e = "."+s.Sel.Name+path, s.X
	}
}

// words are the named numbers that bounds are written with.
var words = map[string]constant.Value{
	"Nanosecond": constant.MakeInt64(1), "Microsecond": constant.MakeInt64(1e3), "Millisecond": constant.MakeInt64(1e6),
	"Second": constant.MakeInt64(1e9), "Minute": constant.MakeInt64(60e9), "Hour": constant.MakeInt64(3600e9),
	"MaxInt32": constant.MakeInt64(1<<31 - 1),
}

// value evaluates a constant expression, unknown where it cannot.
func value(e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.INT || e.Kind == token.FLOAT {
			return constant.MakeFromLiteral(e.Value, e.Kind, 0)
		}
	case *ast.ParenExpr:
		return value(e.X)
	case *ast.SelectorExpr:
		if v, ok := words[e.Sel.Name]; ok {
			return v
		}
	case *ast.BinaryExpr:
		x, y := value(e.X), value(e.Y)
		if x.Kind() != constant.Int || y.Kind() != constant.Int {
			break
		}
		switch e.Op {
		case token.SHL, token.SHR:
			if n, ok := constant.Uint64Val(y); ok && n < 64 {
				return constant.Shift(x, e.Op, uint(n))
			}
		case token.ADD, token.SUB, token.MUL:
			return constant.BinaryOp(x, e.Op, y)
		case token.QUO:
			return constant.BinaryOp(x, token.QUO_ASSIGN, y) // integer division
		}
	}
	return constant.MakeUnknown()
}
