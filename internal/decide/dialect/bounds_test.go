package dialect

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestBounds gives Read what is made to be large once unfolded, or slow: each
// must end in a problem that says so, and soon.
func TestBounds(t *testing.T) {
	const model = "apiVersion: ome.io/v1beta1\nkind: BaseModel\nmetadata: {name: c}\n" +
		"spec:\n  storage: {storageUri: s3://a/b}\n  modelConfiguration:\n"
	var keys, merges bytes.Buffer
	keys.WriteString("apiVersion: ome.io/v1beta1\nkind: BaseModel\n")
	for i := range 20_000 {
		fmt.Fprintf(&keys, "k%d: %d\n", i, i)
	}
	merges.WriteString(model + "    m0: &m0 {a: b}\n")
	for i := range 400 {
		fmt.Fprintf(&merges, "    m%d: &m%d {<<: [*m%d, *m%d], b%d: c}\n", i+1, i+1, i, i, i)
	}
	for name, c := range map[string]struct{ in, want string }{
		"file":      {strings.Repeat("#", MaxBytes+1), "more than a manifest may have"},
		"documents": {strings.Repeat("---\na: b\n", MaxDocuments+1), "more than 1000 documents"},
		"problems":  {strings.Repeat("---\na: b\n", MaxDocuments+1), "and more problems after these"},
		"nesting":   {model + "    " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "nested more than 100 levels deep"},
		"parser":    {strings.Repeat("{a: ", 100_000), "is not YAML"},
		"values":    {model + "    k:\n" + strings.Repeat("    - a\n", 210_000), "holds more than 200000 values"},
		"merges":    {merges.String(), "holds more than 200000 values"},
		"keys":      {keys.String(), "and more problems after these"},
		"empty":     {"# nothing\n---\n\n", "no manifest in here"},
	} {
		res := Read("big.yaml", []byte(c.in))
		found := false
		for _, p := range res.Problems {
			found = found || strings.Contains(p.Message, c.want)
			if len(p.String()) > 1000 {
				t.Errorf("%s: a message of %d bytes", name, len(p.String()))
			}
		}
		if !found {
			t.Errorf("%s: %d problems, none says %q", name, len(res.Problems), c.want)
		}
		if len(res.Problems) > MaxProblems+1 {
			t.Errorf("%s: %d problems", name, len(res.Problems))
		}
	}
}

// TestWarningsAreBoundedApart: no number of warnings makes a valid file an
// invalid one, or hides the error that comes after them.
func TestWarningsAreBoundedApart(t *testing.T) {
	service := func(name, rest string) string {
		return "---\napiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: " + name + "}\nspec:\n  predictor:\n" +
			"    nodeSelector: {a: b}\n    timeout: 3\n    hostIPC: true\n    model: {modelFormat: {name: sklearn}" + rest + "}\n"
	}
	var file strings.Builder
	for i := range MaxDocuments - 1 {
		file.WriteString(service(fmt.Sprintf("s%d", i), ""))
	}
	res := Read("many.yaml", []byte(file.String()))
	if errs := res.Errors(Process); len(errs) > 0 || len(res.Objects) != MaxDocuments-1 {
		t.Fatalf("%d objects, errors %v", len(res.Objects), errs)
	}
	warnings := res.Warnings(Process)
	if n := len(warnings); n < MaxProblems || n > 2*(MaxProblems+1) {
		t.Errorf("%d warnings", n)
	}
	if !slices.ContainsFunc(warnings, func(p Problem) bool { return strings.Contains(p.Message, "and more of these") }) {
		t.Error("nothing says that there are more warnings")
	}
	file.WriteString(service("last", ", nonsense: 1"))
	if errs := Read("many.yaml", []byte(file.String())).Errors(Process); len(errs) != 1 || !strings.Contains(errs[0].Path, "nonsense") {
		t.Errorf("the error after them: %v", errs)
	}
}

// TestSplit cuts files into documents wherever YAML would, and nowhere else.
func TestSplit(t *testing.T) {
	for in, want := range map[string][]piece{
		"a: b":                          {{[]byte("a: b"), 1}},
		"---\na: b\n---\n\n# c\nd: e\n": {{[]byte("a: b\n"), 2}, {[]byte("# c\nd: e\n"), 5}},
		"--- {a: b}\n--- # c\nd: e":     {{[]byte("--- {a: b}\n"), 1}, {[]byte("--- # c\nd: e"), 2}},
		"%YAML 1.2\n---\r\na: b\r\n...\r\n%TAG ! x\n---\nc: d": {{[]byte("a: b\r\n"), 3}, {[]byte("c: d"), 7}},
		"a: |\n  x\n  ---\n  y\n----: z\n":                     {{[]byte("a: |\n  x\n  ---\n  y\n----: z\n"), 1}},
		"# only\n---\n# comments\n":                            nil,
	} {
		if got := split([]byte(in)); !reflect.DeepEqual(got, want) {
			t.Errorf("split(%q) = %+v, want %+v", in, got, want)
		}
	}
}

// TestPlatforms: what means nothing to a process is no warning on a cluster.
func TestPlatforms(t *testing.T) {
	res := Read("a.yaml", []byte(`apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: a}
spec:
  predictor:
    nodeSelector: {a: b}
    scaleMetricType: Utilization
    model: {modelFormat: {name: sklearn}}
`))
	if n := len(res.Warnings(Process)); n != 2 {
		t.Errorf("%d warnings on one machine, want 2: %v", n, res.Warnings(Process))
	}
	if n := len(res.Warnings(Kubernetes)); n != 1 {
		t.Errorf("%d warnings on a cluster, want 1: %v", n, res.Warnings(Kubernetes))
	}
}
