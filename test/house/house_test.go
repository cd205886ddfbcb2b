// Package house checks the house's rules on the source itself: which layer may
// import which, what the pure layers may not touch, and that every package
// says what it is for.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "roundhouse.dev/roundhouse/"

// pkg is one package's files and imports, tests excepted.
type pkg struct {
	path    string // below the module: "internal/core/service"
	imports map[string]string
	doc     bool
	files   []*ast.File
}

func load(t *testing.T) (map[string]*pkg, *token.FileSet) {
	t.Helper()
	root, set, pkgs := filepath.Join("..", ".."), token.NewFileSet(), map[string]*pkg{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := e.Name()
		if e.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "tools" || name == "node_modules") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		p := pkgs[rel]
		if p == nil {
			p = &pkg{path: filepath.ToSlash(rel), imports: map[string]string{}}
			pkgs[rel] = p
		}
		p.doc = p.doc || f.Doc != nil
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		p.files = append(p.files, f)
		for _, i := range f.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			p.imports[imported] = path
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 10 {
		t.Fatalf("only %d packages found: the walk is broken", len(pkgs))
	}
	return pkgs, set
}

// layers are the floors of the house, lowest first; a package imports its own
// floor and those below.
var layers = []string{"internal/core/", "internal/decide/", "internal/state/", "internal/edge/", "cmd/"}

func layer(path string) int {
	return slices.IndexFunc(layers, func(l string) bool { return strings.HasPrefix(path+"/", l) })
}

func TestLayers(t *testing.T) {
	pkgs, _ := load(t)
	for _, p := range pkgs {
		from := layer(p.path)
		for imported, file := range p.imports {
			target, ours := strings.CutPrefix(imported, module)
			to := layer(target)
			if !ours || from < 0 || to < 0 {
				continue
			}
			if to > from {
				t.Errorf("%s: %s imports %s, which is a floor above it", file, p.path, target)
			}
			if layers[from] == "internal/edge/" && layers[to] == "internal/edge/" && !edgeMay(p.path, target) {
				t.Errorf("%s: edge %s imports edge %s: only artifact, child and an edge's own parts are shared", file, p.path, target)
			}
		}
	}
}

// edgeMay reports whether one edge may import another: what serves several of
// them, and its own family's. Fetched models and the Hub cache have one store of
// files.
func edgeMay(from, to string) bool {
	family := func(p string) string { return strings.Split(strings.TrimPrefix(p, "internal/edge/"), "/")[0] }
	return family(to) == "artifact" || family(to) == "child" || family(from) == family(to) ||
		to == "internal/edge/blobs" && (from == "internal/edge/artifact" || from == "internal/edge/hubcache")
}

// impure are the packages that core and decide may not import.
var impure = []string{"os", "net", "net/http", "context", "log", "log/slog", "sync", "sync/atomic", "io/ioutil", "os/exec", "syscall"}

func TestPureLayersTouchNothing(t *testing.T) {
	pkgs, set := load(t)
	for _, p := range pkgs {
		if l := layer(p.path); l < 0 || l > 1 {
			continue
		}
		for imported, file := range p.imports {
			if slices.Contains(impure, imported) || strings.HasPrefix(imported, "sigs.k8s.io/controller-runtime") {
				t.Errorf("%s imports %s: core and decide take what they need as arguments", file, imported)
			}
		}
		for _, f := range p.files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: a goroutine in a pure layer", set.Position(n.Pos()))
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After"}, n.Sel.Name) {
						t.Errorf("%s: time.%s in a pure layer: time is an argument", set.Position(n.Pos()), n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

func TestEveryPackageHasADocComment(t *testing.T) {
	pkgs, _ := load(t)
	for _, p := range pkgs {
		if !p.doc {
			t.Errorf("%s has no package comment: say what it is for", p.path)
		}
	}
}

func TestNoPackageOfLeftovers(t *testing.T) {
	pkgs, _ := load(t)
	for _, p := range pkgs {
		if slices.Contains([]string{"util", "utils", "common", "helpers", "constants", "misc"}, filepath.Base(p.path)) {
			t.Errorf("%s: name a package for what it is about", p.path)
		}
	}
}

// TestSimulationIsTestsAlone: what runs the house in virtual time knows all floors,
// and no program links it.
func TestSimulationIsTestsAlone(t *testing.T) {
	pkgs, _ := load(t)
	sim := pkgs["internal/sim"]
	if sim == nil {
		t.Fatal("internal/sim is gone: the test is broken")
	}
	if len(sim.files) > 0 {
		t.Errorf("internal/sim has %d files that are no tests: a program could link it", len(sim.files))
	}
}

// kubernetes are the clients of Kubernetes: large, and no replica's business.
var kubernetes = []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"}

func isKubernetes(imported string) bool {
	return slices.ContainsFunc(kubernetes, func(m string) bool { return imported == m || strings.HasPrefix(imported, m+"/") })
}

// inCluster are the rooms that speak to an API server, and what tests them.
var inCluster = []string{"internal/edge/kube/", "internal/edge/cluster/", "cmd/internal/controller/", "cmd/internal/incluster/", "test/"}

func TestKubernetesStaysInItsRoom(t *testing.T) {
	pkgs, _ := load(t)
	for _, p := range pkgs {
		if slices.ContainsFunc(inCluster, func(room string) bool { return strings.HasPrefix(p.path+"/", room) }) {
			continue
		}
		for imported, file := range p.imports {
			if isKubernetes(imported) {
				t.Errorf("%s imports %s: only %s may", file, imported, strings.Join(inCluster, ", "))
			}
		}
	}
}

// TestReplicasCarryNoKubernetes: the program that is every replica links no client
// of Kubernetes, by whatever way it might come, nor what decides or routes.
func TestReplicasCarryNoKubernetes(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/roundhouse-server")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 100 {
		t.Fatalf("only %d packages: the list is broken", len(deps))
	}
	for _, d := range deps {
		if isKubernetes(d) || slices.ContainsFunc([]string{"k8s.io/", "sigs.k8s.io/", module + "internal/state/", module + "internal/edge/kube/", module + "internal/edge/gateway", module + "internal/edge/artifact"},
			func(p string) bool { return strings.HasPrefix(d, p) }) {
			t.Errorf("cmd/roundhouse-server links %s: `go mod why -vendor %s` says how it comes", d, d)
		}
	}
}
