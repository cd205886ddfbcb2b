package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// dynamicReads are the places that read variables whose names the code puts together,
// and how the page names these.
var dynamicReads = map[string]string{
	"cmd/roundhouse/migrate.go":             "`roundhouse migrate llama-swap --env NAME`",
	"cmd/internal/app/pull.go":              "`STORAGE_CONFIG`", // two constants, in a loop
	"internal/edge/artifact/credentials.go": "`AZ_TENANT_ID`",   // what its methods are given
	"internal/edge/artifact/http.go":        "`HOST-headers`",
	"internal/edge/process/env.go":          "unless the manifest names the variable",
	"cmd/roundhouse-server/serve.go":        "`MLSERVER_…`", // os.Environ
	"cmd/internal/front/access.go":          "`OTEL_…`",
	"cmd/roundhouse-server/integrations.go": "`OTEL_…`",
}

// ours begin the names of variables, wherever the code has them as text.
var ours = regexp.MustCompile(`^(ROUNDHOUSE|MLSERVER|OTEL|AWS|AZURE|AZ|GOOGLE|HF|HUGGING_FACE|S3|STORAGE|XDG|REGISTRY|KUBERNETES|POD|GRPC_GO|NVIDIA|CUDA)_[A-Z0-9_]*[A-Z0-9]$`)

// notVariables look like variables.
var notVariables = []string{"STORAGE_URI"} // of a manifest's container, which the dialect reads

// TestEnvironmentIsTheCodes: the page of environment variables has each one that the
// product reads or sets, and no other.
func TestEnvironmentIsTheCodes(t *testing.T) {
	code := readEnvironment(t)
	text, err := os.ReadFile(filepath.Join(root, "docs/environment.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented, libraries := map[string]bool{}, map[string]bool{}
	of, named := documented, regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "## ") {
			of = documented
			if line == "## Read by libraries\n" {
				of = libraries
			}
		}
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(cells[1], -1) {
			of[m[1]] = true
		}
	}
	covered := func(name string) bool {
		return documented[name] || libraries[name] || slices.ContainsFunc(slices.Collect(maps.Keys(documented)), func(d string) bool {
			family, is := strings.CutSuffix(d, "…")
			return is && strings.HasPrefix(name, family)
		})
	}
	for _, name := range slices.Sorted(maps.Keys(code.read)) {
		if !covered(name) {
			t.Errorf("docs/environment.md does not name %s, which %s reads", name, code.read[name])
		}
	}
	for _, literal := range slices.Sorted(maps.Keys(code.texts)) {
		if name := strings.TrimSuffix(literal, "="); ours.MatchString(name) && !slices.Contains(notVariables, name) && !covered(name) {
			t.Errorf("docs/environment.md does not name %s, which is in %s", name, code.texts[literal])
		}
	}
	for name := range documented {
		family, is := strings.CutSuffix(name, "…")
		if is && !slices.ContainsFunc(slices.Collect(maps.Keys(code.texts)), func(l string) bool { return strings.HasPrefix(l, family) }) ||
			!is && code.texts[name] == "" && code.texts[name+"="] == "" {
			t.Errorf("docs/environment.md names %s, which no program has", name)
		}
	}
	for _, file := range slices.Sorted(maps.Keys(code.dynamic)) {
		if says, known := dynamicReads[file]; !known || !strings.Contains(string(text), says) {
			t.Errorf("%s reads a variable whose name is not a constant: name it in docs/environment.md, and what the page says of it in dynamicReads", file)
		}
	}
	for file := range dynamicReads {
		if !code.dynamic[file] {
			t.Errorf("%s reads no such variable any more: delete it from dynamicReads", file)
		}
	}
	if len(code.read) < 40 || len(documented) < 60 {
		t.Errorf("only %d are read and %d documented", len(code.read), len(documented))
	}
}

// environment is what the product's code has of variables: those it reads, and all of
// its texts, each with a file that has it; and the files that read others.
type environment struct {
	read, texts map[string]string
	dynamic     map[string]bool
}

// readEnvironment reads the product's Go and Python.
func readEnvironment(t *testing.T) environment {
	t.Helper()
	e := environment{map[string]string{}, map[string]string{}, map[string]bool{}}
	files, constants := map[string]*ast.File{}, map[string]string{}
	python := regexp.MustCompile(`environ(?:\.\w+\(|\[)["'](\w+)["']`)
	for _, dir := range []string{"cmd", "internal", "python/roundhouse"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			base := filepath.Base(path)
			switch {
			case err != nil:
				return err
			case d.IsDir() && (base == "testdata" || base == "generate" || strings.HasSuffix(base, "test")):
				return fs.SkipDir
			case d.IsDir() || strings.HasSuffix(base, "_test.go"):
				return nil
			}
			rel, _ := filepath.Rel(root, path)
			switch filepath.Ext(base) {
			case ".go":
				f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
				files[rel] = f
				return err
			case ".py":
				text, err := os.ReadFile(path)
				for _, m := range python.FindAllStringSubmatch(string(text), -1) {
					e.read[m[1]], e.texts[m[1]] = rel, rel
				}
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for rel, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if s, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
					e.texts[s] = rel
				}
			case *ast.ValueSpec:
				for i, v := range n.Values {
					if l, ok := v.(*ast.BasicLit); ok && l.Kind == token.STRING {
						s, _ := strconv.Unquote(l.Value)
						constants[filepath.Dir(rel)+"."+n.Names[i].Name] = s
						constants[f.Name.Name+"."+n.Names[i].Name] = s
					}
				}
			}
			return true
		})
	}
	for rel, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				e.call(rel, call, constants)
			}
			return true
		})
	}
	return e
}

// call notes what one call reads.
func (e *environment) call(rel string, call *ast.CallExpr, constants map[string]string) {
	switch name(call.Fun) {
	case "Getenv", "LookupEnv", "firstEnv":
	case "WithEnvironment", "ReadEnvironment":
		e.dynamic[rel] = true
		return
	default:
		return
	}
	for _, arg := range call.Args {
		switch a := arg.(type) {
		case *ast.BasicLit:
			s, _ := strconv.Unquote(a.Value)
			e.read[s] = rel
		case *ast.BinaryExpr:
			if l, ok := a.X.(*ast.BasicLit); ok { // a family, by how its names begin
				s, _ := strconv.Unquote(l.Value)
				e.read[s] = rel
				continue
			}
			e.dynamic[rel] = true
		default:
			in := filepath.Dir(rel)
			if s, ok := arg.(*ast.SelectorExpr); ok {
				in = name(s.X)
			}
			if s := constants[in+"."+name(arg)]; s != "" {
				e.read[s] = rel
			} else {
				e.dynamic[rel] = true
			}
		}
	}
}

// name is the last word of an identifier; "" for anything else.
func name(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}
