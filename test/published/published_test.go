// Package published counts what becomes of the manifests that other projects publish.
// testdata holds facts about them: where each is, its kind, and a manifest with the
// same fields. Nothing is fetched.
package published

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

var update = flag.Bool("update", false, "write the tables of the page anew")

const page = "../../docs/published-manifests.md"

// bare is a machine with this program alone.
var bare = selection.Host{Programs: map[string]bool{"roundhouse": true, "sh": true}, MemoryBytes: 64 << 30, Accelerators: 0}

type document struct {
	Path     string          `json:"path"`
	Number   int             `json:"n"`
	Kind     string          `json:"kind"`
	Broken   string          `json:"broken"`
	Manifest json.RawMessage `json:"manifest"`
}

// brokenUpstream are documents that their own project would refuse, or that are
// templates of documents, by path, and why.
var brokenUpstream = map[string]string{
	"docs/MANIFESTS_GUIDE.md":                                  "is a template of a chart",
	"docs/samples/storage/azure/README.md":                     "has spec.template, which the kind has not",
	"docs/samples/v1beta1/torchserve/v1/bloom/bloom-560m.yaml": "has nodeName outside of the predictor",
	"python/huggingfaceserver/README.md":                       "has a name with a dot, which KServe refuses",
	"docs/samples/gcp-iap/sklearn-iap-no-authz.yaml":           "has a placeholder for its namespace",
	"docs/samples/gcp-iap/sklearn-iap-with-authz.yaml":         "has a placeholder for its namespace",

	// Fields that OME's definitions do not have, or that they require.
	"config/samples/isvc/LGAI-EXAONE/exaone-3-5-7-8b-instruct-isvc.yaml": "has spec.deployment and model.modelName, which the kind has not, and no model.name",
	"config/samples/isvc/zai-org/glm-4-5v.yaml":                          "has spec.modelRef and counts beside it, which the kind has not, and so no model",
	"site/content/en/docs/concepts/base_model.md":                        "has no storage, which the kind requires",
	"site/content/en/docs/concepts/inference_service.md":                 "has no name",
	"site/content/en/docs/concepts/ingress.md":                           "has engine.model, which the kind has not, and so no model",
	"site/content/en/docs/tasks/run-workloads/run-benchmarks.md":         "has spec.endpoints, which the kind has not, and no endpoint",
}

// template reports whether a document is a template of KServe's own tests.
func template(path string) bool { return strings.HasPrefix(path, "test/e2e/") }

func read(t *testing.T, project string) []document {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", project+".jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []document
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var d document
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	if err := lines.Err(); err != nil || len(out) < 50 {
		t.Fatalf("%d documents of %s: %v", len(out), project, err)
	}
	return out
}

// tally is what became of the documents of one kind.
type tally struct{ all, broken, accepted int }

// outcome is what a service of an accepted document does on a bare machine.
type outcome string

const (
	runs     outcome = "runs with what comes with Roundhouse"
	lacksOne outcome = "is told what to install, or which image it needs"
	none     outcome = "has no runtime, in the catalog or among the project's own"
)

type count struct {
	kinds    map[string]*tally
	outcomes map[outcome]int
	refused  map[refusal][]string // paths
}

// refusal is why documents of a kind are refused.
type refusal struct{ kind, path, message string }

func countOf(t *testing.T, project string, runtimes []service.Runtime) count {
	c := count{kinds: map[string]*tally{}, outcomes: map[outcome]int{}, refused: map[refusal][]string{}}
	models, services := map[string]service.Attributes{}, map[string]*service.Service{}
	for _, d := range read(t, project) {
		k := c.kinds[d.Kind]
		if k == nil {
			k = &tally{}
			c.kinds[d.Kind] = k
		}
		k.all++
		at := fmt.Sprintf("%s (%d)", d.Path, d.Number)
		if d.Broken != "" {
			k.broken++
			continue
		}
		r := dialect.Read(d.Path, d.Manifest)
		if errs := r.Errors(dialect.Process); len(errs) > 0 {
			if why := brokenUpstream[d.Path]; why != "" || template(d.Path) {
				k.broken++
				continue
			}
			why := refusal{d.Kind, errs[0].Path, errs[0].Message}
			c.refused[why] = append(c.refused[why], d.Path)
			continue
		}
		k.accepted++
		for _, o := range r.Objects {
			switch {
			case o.Service != nil:
				services[at] = o.Service
			case o.Runtime != nil && !slices.ContainsFunc(runtimes, func(r service.Runtime) bool { return r.Key == o.Key }):
				runtimes = append(runtimes, *o.Runtime)
			case o.Model != nil:
				models[o.Key.Name] = o.Model.Attributes
			}
		}
	}
	here := make([]service.Runtime, len(runtimes))
	for i := range runtimes {
		here[i] = workload.Localize(runtimes[i], runtimes, bare)
	}
	for at, s := range services {
		if m := s.Model; m != nil && m.Ref != nil {
			m.Attributes = m.Attributes.Fill(models[m.Ref.Name], "")
		}
		c.outcomes[become(t, at, s, here)]++
	}
	return c
}

// become is what a service does on a bare machine. It either runs or is told why not.
func become(t *testing.T, at string, s *service.Service, runtimes []service.Runtime) outcome {
	local := workload.LocalizeBeside(*s, runtimes, bare)
	if s.Custom {
		local = workload.LocalizeService(*s, runtimes, bare)
		rule := selection.HostRule(local.Components, bare)
		if !rule.Pass && rule.Why == "" {
			t.Errorf("%s: it does not run, and nothing says why", at)
		}
		if rule.Pass {
			return runs
		}
		return lacksOne
	}
	var attributes service.Attributes
	if s.Model != nil {
		attributes = s.Model.Attributes
	}
	r := selection.Choose(selection.Request{Service: &local, Attributes: attributes}, runtimes, bare)
	switch {
	case r.Chosen != nil:
		return runs
	case r.Message == "":
		t.Errorf("%s: no runtime is chosen, and nothing says why", at)
	}
	for _, c := range r.Candidates {
		if failed := slices.DeleteFunc(slices.Clone(c.Rules), func(r selection.Rule) bool { return r.Pass }); len(failed) == 1 && failed[0].Name == selection.RuleHost {
			return lacksOne
		}
	}
	return none
}

// TestPublishedManifests: every document that is not broken is read, or refused with a
// line that the page has too.
func TestPublishedManifests(t *testing.T) {
	runtimes, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, project := range []string{"kserve", "ome", "llm-d"} {
		got := countOf(t, project, slices.Clone(runtimes)).table()
		begin, end := "<!-- "+project+" -->\n", "<!-- end of "+project+" -->"
		before, rest, found := strings.Cut(string(text), begin)
		now, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no table of %s", page, project)
		}
		if now == got {
			continue
		}
		if !*update {
			t.Errorf("%s is not what is counted of %s now; run with -update, and read the difference:\n%s", page, project, got)
		}
		text = []byte(before + begin + got + end + after)
	}
	if *update {
		if err := os.WriteFile(page, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func (c count) table() string {
	var b bytes.Buffer
	b.WriteString("\n| Kind | Documents | Broken | Accepted | Refused |\n|---|---|---|---|---|\n")
	sum := tally{}
	for _, kind := range slices.Sorted(maps.Keys(c.kinds)) {
		k := c.kinds[kind]
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", kind, k.all, k.broken, k.accepted, k.all-k.broken-k.accepted)
		sum.all, sum.broken, sum.accepted = sum.all+k.all, sum.broken+k.broken, sum.accepted+k.accepted
	}
	fmt.Fprintf(&b, "| all | %d | %d | %d | %d |\n", sum.all, sum.broken, sum.accepted, sum.all-sum.broken-sum.accepted)
	if len(c.outcomes) > 0 {
		b.WriteString("\n| A service of an accepted document, on a machine with Roundhouse alone | |\n|---|---|\n")
		for _, o := range []outcome{runs, lacksOne, none} {
			fmt.Fprintf(&b, "| %s | %d |\n", o, c.outcomes[o])
		}
	}
	if len(c.refused) > 0 {
		b.WriteString("\n| Refused | Kind | Why | The first of them |\n|---|---|---|---|\n")
	}
	for _, why := range slices.SortedFunc(maps.Keys(c.refused), func(a, b refusal) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		paths := c.refused[why]
		fmt.Fprintf(&b, "| %d | %s | `%s` %s | `%s` |\n", len(paths), why.kind, why.path, why.message, slices.Min(paths))
	}
	b.WriteString("\n")
	return b.String()
}
