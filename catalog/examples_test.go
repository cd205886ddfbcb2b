package catalog_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// TestPythonRuntimes: the example has every runtime of the catalog that Python serves
// as it is there, but for Java's, and once it is applied a cluster chooses its.
func TestPythonRuntimes(t *testing.T) {
	const file = "../examples/python-runtimes/runtimes.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	read := dialect.Read(file, text)
	for _, problem := range read.Errors(dialect.AnyPlatform) {
		t.Error(problem)
	}
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]service.Runtime{}
	for _, rt := range all {
		if l := rt.Components.Engine; l != nil && l.Local != nil && strings.HasPrefix(rt.Name, "roundhouse-") && len(l.Pod.Containers) == 0 && rt.Name != "roundhouse-pmml" {
			want[rt.Name] = rt
		}
	}
	for _, o := range read.Objects {
		rt := o.Runtime
		of, ok := want[rt.Name]
		if !ok || !reflect.DeepEqual(rt.Formats, of.Formats) || !reflect.DeepEqual(rt.Protocols, of.Protocols) {
			t.Errorf("%s: %+v %v, in the catalog %+v %v", rt.Name, rt.Formats, rt.Protocols, of.Formats, of.Protocols)
		}
		delete(want, rt.Name)
		applied := *rt
		applied.Scope = service.ScopeCluster
		all = append(all, applied)
	}
	if len(want) > 0 {
		t.Errorf("the example has not %v", want)
	}
	for _, name := range []string{"sklearn", "catboost", "mlflow"} {
		got := selection.Choose(request(format(name, ""), service.ProtocolV2, plain), all, cluster)
		if got.Chosen == nil || got.Chosen.Name != "roundhouse-"+name || got.Chosen.Scope != service.ScopeCluster {
			t.Errorf("%s: %+v: %s", name, got.Chosen, got.Message)
		}
	}
}
