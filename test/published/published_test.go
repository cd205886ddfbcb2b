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
	"strconv"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/admin"
	"roundhouse.dev/roundhouse/internal/edge/artifact"
)

var update = flag.Bool("update", false, "write the tables of the page anew")

const page = "../../docs/published-manifests.md"

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

// tally is what became of the documents of one kind; onCluster counts those of them that
// a cluster takes, of the accepted.
type tally struct{ all, broken, accepted, onCluster int }

// outcome is what becomes of a service of an accepted document.
type outcome string

const (
	runs     outcome = "runs with what comes with Roundhouse"
	installs outcome = "runs after one `pip install`, which it is told"
	lacks    outcome = "is told what to install, or which image it needs"
	none     outcome = "has no runtime, in the catalog or among the project's own"
	volume   outcome = "is told that its model is in a volume of a cluster"
	bases    outcome = "is told which LLMInferenceServiceConfig it needs, that is not published"
	pods     outcome = "is rendered as pods"
	refuses  outcome = "is refused"
)

type count struct {
	kinds    map[string]*tally
	machine  map[outcome]int
	cluster  map[outcome]int
	lines    map[string]int       // install lines, and how many services run after each
	refused  map[refusal][]string // paths
	unserved map[refusal][]string // on a cluster
}

// refusal is why documents of a kind are refused.
type refusal struct{ kind, path, message string }

// accepted is a service of an accepted document.
type accepted struct {
	object dialect.Object
	here   bool // a cluster takes it too
}

func countOf(t *testing.T, project string, catalog []service.Runtime) count {
	c := count{kinds: map[string]*tally{}, machine: map[outcome]int{}, cluster: map[outcome]int{}, lines: map[string]int{},
		refused: map[refusal][]string{}, unserved: map[refusal][]string{}}
	services, w := map[string]accepted{}, world{models: map[string]*service.Model{}, configs: map[string]dialect.Object{}, catalog: catalog}
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
		bad := onCluster(d)
		if bad == nil {
			k.onCluster++
		} else {
			c.unserved[*bad] = append(c.unserved[*bad], d.Path)
		}
		for _, o := range r.Objects {
			switch {
			case o.Service != nil:
				services[at] = accepted{o, bad == nil}
			case o.Runtime != nil:
				renderRuntime(t, at, o.Runtime)
				if !slices.ContainsFunc(w.runtimes, func(r service.Runtime) bool { return r.Key == o.Key }) {
					w.runtimes = append(w.runtimes, *o.Runtime)
				}
			case o.Model != nil:
				w.models[o.Key.Name] = o.Model
			case o.Kind == dialect.KindBase:
				w.configs[o.Key.Name] = o
			}
		}
	}
	w.runtimes = append(w.runtimes, catalog...) // of one name an applied one counts
	for i := range w.runtimes {
		w.runtimes[i] = workload.Adapted(w.runtimes[i], catalog)
		w.here = append(w.here, workload.Localize(w.runtimes[i], catalog, machine{}.host()))
	}
	for at, a := range services {
		c.add(t, at, a, w)
	}
	return c
}

// onCluster is why a cluster refuses a document that one machine takes; nil where it
// does not.
func onCluster(d document) *refusal {
	read, _, err := admin.ObjectsOn(dialect.Kubernetes, []admin.File{{Name: d.Path, Data: string(d.Manifest)}}, "")
	if err != nil {
		problem := dialect.Read(d.Path, d.Manifest).Errors(dialect.Kubernetes)[0]
		return &refusal{d.Kind, problem.Path, problem.Message}
	}
	for _, o := range read {
		if why := dialect.Unkept(o.Origin.APIVersion, o.Origin.Kind); why != "" {
			return &refusal{d.Kind, "kind", why}
		}
		if slices.ContainsFunc(o.ModelURIs(), artifact.Local) {
			return &refusal{d.Kind, "", "its model is a file of one machine"}
		}
	}
	return nil
}

// add counts what becomes of a service, and renders it where it runs.
func (c *count) add(t *testing.T, at string, a accepted, w world) {
	laid := func(p dialect.Platform) (*service.Service, error) {
		return dialect.Over(a.object, func(k service.Key) (dialect.Object, bool) {
			o, ok := w.configs[k.Name]
			return o, ok
		}, p)
	}
	if s, err := laid(dialect.Process); err != nil {
		c.machine[bases]++
	} else {
		f, line := w.bare(t, at, s)
		c.machine[f.outcome]++
		if line != "" {
			c.lines[line]++
		}
		if f.outcome == runs || f.outcome == installs {
			if err := w.process(f); err != nil {
				t.Errorf("%s: it runs on one machine, and is not rendered: %v", at, err)
			}
		}
	}
	s, err := laid(dialect.Kubernetes)
	switch {
	case !a.here:
		c.cluster[refuses]++
	case err != nil:
		c.cluster[bases]++
	default:
		why, err := w.pods(s)
		if err != nil {
			t.Errorf("%s: it is not rendered for a cluster: %v", at, err)
		}
		if why != "" {
			c.cluster[none]++
		} else {
			c.cluster[pods]++
		}
	}
}

// TestPublishedManifests: every document that is not broken is read, or refused with a
// line that the page has too; and what is accepted is rendered, or told what it lacks.
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
		c := countOf(t, project, slices.Clone(runtimes))
		got := c.tables()
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

func (c *count) tables() string {
	var b bytes.Buffer
	services := len(c.machine) > 0 // a picker's configuration has none, and is applied nowhere
	c.documents(&b, services)
	if services {
		b.WriteString("\n| A service of an accepted document | On a machine with Roundhouse and Python alone | On a cluster |\n|---|---|---|\n")
		for _, o := range []outcome{runs, installs, lacks, volume, pods, bases, none, refuses} {
			if c.machine[o]+c.cluster[o] > 0 {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", o, c.number(c.machine, o, runs, installs, lacks), c.number(c.cluster, o, pods, refuses))
			}
		}
	}
	if len(c.lines) > 0 {
		b.WriteString("\n| Services | run after |\n|---|---|\n")
		for _, line := range slices.Sorted(maps.Keys(c.lines)) {
			fmt.Fprintf(&b, "| %d | `%s` |\n", c.lines[line], line)
		}
	}
	reasons(&b, "Refused", c.refused)
	reasons(&b, "Refused on a cluster", c.unserved)
	b.WriteString("\n")
	return b.String()
}

// documents is the table of documents by kind.
func (c *count) documents(b *bytes.Buffer, cluster bool) {
	row := func(kind string, k tally) {
		fmt.Fprintf(b, "| %s | %d | %d | %d | ", kind, k.all, k.broken, k.accepted)
		if cluster {
			fmt.Fprintf(b, "%d | ", k.onCluster)
		}
		fmt.Fprintf(b, "%d |\n", k.all-k.broken-k.accepted)
	}
	if cluster {
		b.WriteString("\n| Kind | Documents | Broken | Accepted | On a cluster | Refused |\n|---|---|---|---|---|---|\n")
	} else {
		b.WriteString("\n| Kind | Documents | Broken | Accepted | Refused |\n|---|---|---|---|---|\n")
	}
	sum := tally{}
	for _, kind := range slices.Sorted(maps.Keys(c.kinds)) {
		k := c.kinds[kind]
		row(kind, *k)
		sum = tally{sum.all + k.all, sum.broken + k.broken, sum.accepted + k.accepted, sum.onCluster + k.onCluster}
	}
	row("all", sum)
}

// number is how many services an outcome has, "" where it is none of a platform's.
func (c *count) number(of map[outcome]int, o outcome, here ...outcome) string {
	if of[o] == 0 && !slices.Contains(here, o) {
		return ""
	}
	return strconv.Itoa(of[o])
}

// reasons is a table of refusals.
func reasons(b *bytes.Buffer, title string, of map[refusal][]string) {
	if len(of) > 0 {
		fmt.Fprintf(b, "\n| %s | Kind | Why | The first of them |\n|---|---|---|---|\n", title)
	}
	for _, why := range slices.SortedFunc(maps.Keys(of), func(a, b refusal) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		fmt.Fprintf(b, "| %d | %s | `%s` %s | `%s` |\n", len(of[why]), why.kind, why.path, why.message, slices.Min(of[why]))
	}
}

// TestPublishedAnnotations: every annotation of KServe's in its own manifests is known,
// but for one that KServe does not have either.
func TestPublishedAnnotations(t *testing.T) {
	unknown := map[string]int{}
	for _, d := range read(t, "kserve") {
		if d.Broken != "" {
			continue
		}
		for _, p := range dialect.Read(d.Path, d.Manifest).Problems {
			if strings.Contains(p.Message, "is none of KServe's annotations") {
				_, name, _ := strings.Cut(p.Path, "[")
				unknown[strings.TrimSuffix(name, "]")]++
			}
		}
	}
	if want := map[string]int{"serving.kserve.io/metric": 2}; !maps.Equal(unknown, want) {
		t.Errorf("unknown are %v, want %v, which is misspelt there", unknown, want)
	}
}
