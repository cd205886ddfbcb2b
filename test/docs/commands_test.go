package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// known is the command tree and the flags, as the programs declare them.
type known struct {
	uses     map[string]string   // constructor → the command's name
	children map[string][]string // constructor → constructors it calls
	flags    map[string]bool     // of any command, as typed
	takes    map[string]bool     // constructors of commands that take arguments
}

const rootConstructor = "newRootCommand"

// readCommands reads them from the source: a constructor is a function that
// returns a *cobra.Command and whose literal says Use.
func readCommands(t *testing.T) known {
	t.Helper()
	var files []string
	for _, dir := range []string{"roundhouse", "roundhouse-server", "internal/app", "internal/controller", "internal/front", "internal/picking", "internal/configfile"} {
		found, err := filepath.Glob(filepath.Join(root, "cmd", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	k := known{map[string]string{}, map[string][]string{}, map[string]bool{"--help": true, "-h": true, "--version": true}, map[string]bool{}}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				k.read(fn)
			}
		}
	}
	if k.uses[rootConstructor] != "roundhouse" || len(k.children[rootConstructor]) < 5 || len(k.flags) < 20 {
		t.Fatalf("the command tree was not found: %+v", k)
	}
	return k
}

func (k known) read(fn *ast.FuncDecl) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Use" {
				name, arguments, _ := strings.Cut(text(n.Value), " ")
				k.uses[fn.Name.Name], k.takes[fn.Name.Name] = name, arguments != ""
			}
		case *ast.CallExpr:
			switch callee := n.Fun.(type) {
			case *ast.Ident:
				k.children[fn.Name.Name] = append(k.children[fn.Name.Name], callee.Name)
			case *ast.SelectorExpr:
				k.children[fn.Name.Name] = append(k.children[fn.Name.Name], callee.Sel.Name)
				k.flag(callee.Sel.Name, n.Args)
			}
		}
		return true
	})
}

// flag notes the flag of a call such as StringVarP(&v, "name", "n", …).
func (k known) flag(method string, args []ast.Expr) {
	short := strings.HasSuffix(method, "VarP")
	if len(args) < 3 || !short && !strings.HasSuffix(method, "Var") {
		return
	}
	if name := text(args[1]); name != "" {
		k.flags["--"+name] = true
	}
	if name := text(args[2]); short && name != "" {
		k.flags["-"+name] = true
	}
}

// text is the value of a string literal, "" of anything else.
func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	s, _ := strconv.Unquote(lit.Value) // the parser has read it
	return s
}

// child is the constructor of a command's subcommand, "" for none.
func (k known) child(of, name string) string {
	for _, c := range k.children[of] {
		if k.uses[c] == name {
			return c
		}
	}
	return ""
}

var flagWord = regexp.MustCompile(`^--?[a-zA-Z][a-zA-Z-]*`)

// check returns what is wrong with the words after "roundhouse", "" for nothing.
// The program alone, and placeholders, say nothing to check.
func (k known) check(words []string) string {
	at := rootConstructor
	for i, w := range words {
		if f := flagWord.FindString(w); f != "" {
			if !k.flags[f] {
				return "no command has the flag " + f
			}
			continue
		}
		// A command that has subcommands is followed by one of them, unless it
		// takes arguments too.
		if i == 0 || at != rootConstructor && k.parent(at) && i == 1 {
			next := k.child(at, w)
			if next == "" && k.takes[at] {
				continue
			}
			if next == "" {
				return "there is no command " + w
			}
			at = next
		}
	}
	return ""
}

// parent reports whether a command has subcommands.
func (k known) parent(c string) bool {
	for _, sub := range k.children[c] {
		if k.uses[sub] != "" {
			return true
		}
	}
	return false
}
