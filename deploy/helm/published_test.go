package helm

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

// What other projects have published: make published-crds downloads it.
const (
	prometheusOperator = "github.com/prometheus-operator/prometheus-operator@v0.84.0/example/prometheus-operator-crd/monitoring.coreos.com_"
	argoApplication    = "github.com/argoproj/argo-cd/v3@v3.0.0/manifests/crds/application-crd.yaml"
	fluxHelm           = "github.com/fluxcd/helm-controller/api@v1.3.0/v2"
	fluxSource         = "github.com/fluxcd/source-controller/api@v1.6.0/v1"
)

func example(t *testing.T, name string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "gitops", name))
	if err != nil {
		t.Fatal(err)
	}
	return kubetest.Parse(t, string(text))
}

// TestPublished gives what is of other projects' kinds to an API server with their
// own definitions, by the strict reading that kubectl has.
func TestPublished(t *testing.T) {
	c := kubetest.Client(t)
	kubetest.Published(t, c, kubetest.GatewayAPI, prometheusOperator+"podmonitors.yaml", prometheusOperator+"servicemonitors.yaml", prometheusOperator+"prometheusrules.yaml", argoApplication)
	place(t, c, namespace, "argocd")
	objects := example(t, "argocd.yaml")
	for _, set := range []string{"everything", "platform"} {
		objects = append(objects, kubetest.Parse(t, render(t, values[set]))...)
	}
	kinds := map[string]bool{}
	for _, u := range objects {
		if !slices.Contains([]string{"gateway.networking.k8s.io", "monitoring.coreos.com", "argoproj.io"}, u.GroupVersionKind().Group) {
			continue
		}
		kinds[u.GetKind()] = true
		kubetest.Eventually(t, func() string { // a kind is served some time after it is established
			if err := c.Create(t.Context(), u.DeepCopy(), client.DryRunAll, client.FieldValidation("Strict")); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	if len(kinds) != 6 {
		t.Errorf("only %v", kinds)
	}
}

// TestFlux compares the fields of the example with those of Flux' own types.
func TestFlux(t *testing.T) {
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Skipf("go env GOMODCACHE: %v", err)
	}
	for _, u := range example(t, "flux.yaml") {
		dir := filepath.Join(strings.TrimSpace(string(cache)), map[string]string{"HelmRelease": fluxHelm, "OCIRepository": fluxSource}[u.GetKind()])
		if _, err := os.Stat(dir); err != nil {
			t.Skipf("%v: make published-crds", err)
		}
		types := structs(t, dir)
		if types[u.GetKind()] == nil {
			t.Fatalf("%s has no %s", dir, u.GetKind())
		}
		checked := 0
		var walk func(path, name string, v any)
		walk = func(path, name string, v any) {
			fields, inner := types[name], map[string]any{}
			if m, ok := v.(map[string]any); ok {
				inner = m
			}
			if fields == nil { // of another package, or plain
				return
			}
			for key, value := range inner {
				of, ok := fields[key]
				if !ok {
					t.Errorf("%s has no field %s.%s", name, path, key)
				}
				checked++
				walk(path+"."+key, of, value)
			}
		}
		walk(u.GetKind(), u.GetKind()+"Spec", u.Object["spec"])
		if checked < 5 {
			t.Errorf("%s: only %d fields were compared", u.GetKind(), checked)
		}
	}
}

// structs are the types of a package, each with the names of its fields in JSON and
// the types of these.
func structs(t *testing.T, dir string) map[string]map[string]string {
	t.Helper()
	out := map[string]map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*_types.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v in %s: %v", files, dir, err)
	}
	for _, f := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			fields := map[string]string{}
			for _, f := range s.Fields.List {
				if f.Tag == nil {
					continue
				}
				name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
				of := f.Type
				if p, ok := of.(*ast.StarExpr); ok {
					of = p.X
				}
				if id, ok := of.(*ast.Ident); ok {
					fields[name] = id.Name
				} else {
					fields[name] = ""
				}
			}
			out[spec.Name.Name] = fields
			return true
		})
	}
	return out
}

// TestExampleValues: the chart takes the values of the examples.
func TestExampleValues(t *testing.T) {
	for _, u := range append(example(t, "argocd.yaml"), example(t, "flux.yaml")...) {
		set := nested(u, "spec", "values")
		if set == nil {
			set = nested(u, "spec", "source", "helm", "valuesObject")
		}
		if set == nil {
			continue
		}
		text, err := yaml.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		if out := render(t, string(text)); !strings.Contains(out, "image: registry.example/team/roundhouse:") || !strings.Contains(out, "kind: NetworkPolicy") {
			t.Errorf("%s: %s", u.GetKind(), text)
		}
	}
}

// TestDocumentedCommands: every helm command of the documents that installs, upgrades
// or renders the chart has values that the chart takes.
func TestDocumentedCommands(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^helm (?:install|upgrade|template) roundhouse (?:\\\n|.)*$`)
	found := 0
	for _, page := range append(pages, "../../README.md", "roundhouse/README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range command.FindAll(text, -1) {
			found++
			words := strings.Fields(string(bytes.ReplaceAll(bytes.ReplaceAll(line, []byte("\\\n"), nil), []byte("'"), nil)))
			if end := slices.IndexFunc(words, func(w string) bool { return w == "|" || strings.HasPrefix(w, "#") }); end > 0 {
				words = words[:end]
			}
			args := []string{"template", "roundhouse", "roundhouse", "--kube-version", "1.36.3"}
			for i, w := range words[:len(words)-1] {
				if w == "--set" || w == "--show-only" {
					args = append(args, w, words[i+1])
				}
			}
			if _, err := helm(t, args...); err != nil {
				t.Errorf("%s: %s: %v", page, line, err)
			}
		}
	}
	if found < 6 {
		t.Errorf("only %d commands", found)
	}
}
