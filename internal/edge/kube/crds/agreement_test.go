package crds_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	api "roundhouse.dev/roundhouse/api/v1alpha1"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/edge/kube/kubetest"
)

const root = "../../../../"

var exhaustive = flag.Bool("exhaustive", false, "compare on every mutation, for two minutes, and not on one of 32")

// exception is where the API server and `roundhouse validate` differ, and why
// that must be. docs/design/crds.md has the same list.
type exception struct {
	server bool   // true: only the server refuses; false: only validate does
	match  string // of the one's message
	reason string
}

var exceptions = []exception{
	{false, `\.(affinity|initContainers|volumes|dnsConfig|tolerations|readinessProbe|livenessProbe|resources|leader|worker)\b.*(unknown field|expected|an empty item|is negative)`,
		"Kubernetes' own fields are not repeated in the schema: the controller reads them, and says in the status what is wrong"},
	{false, `\.(containers|env|ports)\[\d+\].*(unknown field|expected|an empty item|is negative)`, "likewise those of a container, but for the few that rules need"},
	{false, `spec\.picker\.filters\[\d+\]\.(then|else)\b`, "a schema cannot refer to itself: filters within filters are read by the controller"},
	{false, `nothing fetches from`, "what models are fetched from differs by release, and a named runtime may fetch them itself: the controller says in the status what it does not know"},
	{false, `template .*: there is no field`, "a schema does not read template expressions: the controller says in the status which field does not exist"},
	{false, `metadata\.annotations\[`, "a schema does not read annotations: the controller says in the status what is wrong with one"},
	{false, `spec.selector: is missing`, "an empty selector that is stated as null counts as absent for the server"},
	{false, `and spec.kvCache both say where prompts are kept`, "a schema does not read commands: the controller says in the status which argument to remove"},
	{true, `(maxBytes|placeholders\.resources\.\S+) in body must be of type integer,string`, "a quantity that is no integer must be in quotes"},
	{true, `Too long: may not be more than`, "the bounds of strings, which keep the server's estimate of a rule's cost within its budget"},
}

// TestAgreement gives every document that the project has of our own kinds,
// and many that differ from one of them in one place, to `roundhouse validate`
// and to an API server with our CRDs: what one refuses the other refuses,
// exceptions aside.
func TestAgreement(t *testing.T) {
	c := kubetest.Client(t)
	cases := corpus(t)
	used := make([]bool, len(exceptions))
	var mu sync.Mutex
	var both, neither, excepted int
	work := make(chan string)
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for text := range work {
				refused := validate(text)
				var u unstructured.Unstructured
				if err := json.Unmarshal([]byte(text), &u.Object); err != nil {
					t.Errorf("%s: %v", text, err)
					continue
				}
				u.SetNamespace("default")
				if u.GetKind() == api.KindClusterServingRuntime {
					u.SetNamespace("")
				}
				err := dry(t.Context(), c, &u)
				if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
					t.Errorf("%s: %v", text, err)
				}
				mu.Lock()
				switch {
				case err == nil && refused == "":
					neither++
				case err != nil && refused != "":
					both++
				default:
					message, server := refused, err != nil
					if server {
						message = err.Error()
					}
					if i := except(server, message); i >= 0 {
						used[i] = true
						excepted++
					} else {
						t.Errorf("%s\n  validate: %s\n  server:   %v", text, refused, err)
					}
				}
				mu.Unlock()
			}
		}()
	}
	for _, text := range cases {
		work <- text
	}
	close(work)
	wg.Wait()
	t.Logf("%d documents: both take %d, both refuse %d, %d are exceptions", len(cases), neither, both, excepted)
	for i, e := range exceptions {
		if !used[i] && *exhaustive {
			t.Errorf("no document needs the exception %q: remove it", e.match)
		}
	}
}

// except finds the exception that covers a message: each of its lines, where
// validate refuses.
func except(server bool, message string) int {
	found := -1
	for _, line := range strings.Split(message, "\n") {
		at := slices.IndexFunc(exceptions, func(e exception) bool {
			return e.server == server && regexp.MustCompile(e.match).MatchString(line)
		})
		if at < 0 {
			return -1
		}
		found = at
	}
	return found
}

// validate is what `roundhouse validate` says against a document in a cluster.
func validate(text string) string {
	var out []string
	for _, p := range dialect.Read("", []byte(text)).Errors(dialect.Kubernetes) {
		out = append(out, p.String())
	}
	return strings.Join(out, "\n")
}

// corpus is every document as JSON, with its mutations, each once.
func corpus(t *testing.T) []string {
	byKind := map[string][]map[string]any{}
	seen := map[string]bool{}
	var out []string
	add := func(doc map[string]any) {
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if !seen[string(raw)] {
			seen[string(raw)] = true
			out = append(out, string(raw))
		}
	}
	for _, doc := range documents(t) {
		add(doc)
		raw, _ := json.Marshal(doc)
		if validate(string(raw)) == "" {
			kind := doc["kind"].(string)
			byKind[kind] = append(byKind[kind], doc)
		}
	}
	own := len(out)
	add = func(doc map[string]any) {
		raw, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if h := fnv.New32a(); !seen[string(raw)] {
			seen[string(raw)] = true
			h.Write(raw)
			if *exhaustive || h.Sum32()%32 == 0 {
				out = append(out, string(raw))
			}
		}
	}
	for _, docs := range byKind {
		for _, doc := range docs {
			for _, v := range values {
				if name, ok := v.(string); ok {
					add(with(doc, []any{"metadata", "name"}, name))
				}
			}
			for _, p := range paths(doc["spec"], []any{"spec"}) {
				add(without(doc, p))
				for _, v := range values {
					add(with(doc, p, v))
				}
			}
			// A field of another document of the kind, in this one.
			for _, other := range docs {
				for _, p := range paths(other["spec"], []any{"spec"}) {
					if len(p) > 1 && len(p) < 5 {
						add(with(doc, p, at(other, p)))
					}
				}
			}
		}
	}
	if own < 30 || len(byKind) != 6 {
		t.Fatalf("only %d documents of %d kinds", own, len(byKind))
	}
	return out
}

// values take the place of every field in turn.
var values = []any{
	"", "x", "Upper", "a b ", "a.b", "http://a:1", "7B", "0", "5m", "0s", "-1s", "openinference-v2", "host:80", "[::1]:80", strings.Repeat("n", 64), strings.Repeat("n", 300), strings.Repeat("n", 5000), "ä", "1.5Gi",
	-1, 0, 1, 0.5, 70000, 1000001, true, nil, []any{}, []any{"a", "a"}, []any{""}, map[string]any{}, map[string]any{"unknown": "x"}, []any{map[string]any{}},
}

var page = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// documents are those of our kinds in the examples, the pages, the catalog and
// dialect's tests.
func documents(t *testing.T) []map[string]any {
	var texts []string
	for _, pattern := range []string{"examples/*/*.yaml", "catalog/*/*.yaml", "docs/*.md", "README.md", "internal/decide/dialect/testdata/bad.txt"} {
		files, err := filepath.Glob(root + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("nothing in %s: %v", pattern, err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			switch filepath.Ext(f) {
			case ".md":
				for _, m := range page.FindAllStringSubmatch(string(raw), -1) {
					texts = append(texts, m[1])
				}
			case ".txt":
				for _, block := range strings.Split(string(raw), "\n== ") {
					_, block, _ = strings.Cut(block, "\n")
					block, _, _ = strings.Cut(block, "\n-- problems")
					texts = append(texts, block)
				}
			default:
				texts = append(texts, string(raw))
			}
		}
	}
	texts = append(texts, more)
	var out []map[string]any
	for _, text := range texts {
		for _, doc := range strings.Split("\n"+text, "\n---") {
			var v map[string]any
			if yaml.Unmarshal([]byte(doc), &v) != nil || v["apiVersion"] != api.APIVersion || v["spec"] == nil {
				continue
			}
			delete(v, "status")
			if m, ok := v["metadata"].(map[string]any); ok {
				delete(m, "namespace")
			}
			out = append(out, v)
		}
	}
	return out
}

// more fills in what the other documents do not say.
const more = `
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: all}
spec:
  canaryTrafficPercent: 10
  disaggregation: vllm
  model: {uri: s3://a/b, parameters: 350M}
  engine:
    image: a
    command: [b]
    scaling: {minReplicas: 1, maxReplicas: 2, targetConcurrency: 3}
    worker: {size: 2, containers: [{name: a, image: b, ports: [{containerPort: 1}], env: [{name: c}]}]}
    leader: {containers: [{name: a}]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: pod}
spec:
  engine:
    containers: [{name: a, image: b, ports: [{containerPort: 1}]}, {name: c}]
    affinity: {}
    tolerations: []
---
apiVersion: roundhouse.dev/v1alpha1
kind: ServingRuntime
metadata: {name: all}
spec:
  disabled: true
  multiModel: true
  disaggregation: sglang
  supportedModelFormats: [{name: a, version: "1"}, {name: A, modelFormat: {name: a, operator: Equal}, priority: 1}]
  modelSizeRange: {max: 1.5b}
  engine: {leader: {}, worker: {size: 2}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: ClusterServingRuntime
metadata: {name: any}
spec:
  supportedModelFormats: [{modelFormat: {name: a}}]
  engine: {image: b, env: [{name: c, value: d}]}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Pool
metadata: {name: more}
spec:
  addresses: ["a:080"]
  metrics: {path: /metrics}
  picker:
    filters: [{filter: capacity-below, waiting: 5, kv: 0.8, then: [{filter: lora-soft, probability: 0.9}], else: [{filter: drop}]}]
    scorers: [{name: queue, scale: 2}]
    choice: best
    balance: 2
    fresh: 1s
    stale: 30s
---
apiVersion: roundhouse.dev/v1alpha1
kind: Reserve
metadata: {name: room}
spec:
  nodeSelector: {pool: gpu}
  tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  imagePullSecrets: [registry]
  placeholders:
    ladder: [{fromNodes: 0, count: 1}, {fromNodes: 3, count: 2}]
    max: 8
    resources: {nvidia.com/gpu: 1, memory: 1.5Gi}
  images: {from: [services, runtimes], names: [nginx], nodesAtOnce: 3}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Reserve
metadata: {name: share}
spec:
  placeholders: {percent: 10, resources: {cpu: "2"}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Reserve
metadata: {name: fixed}
spec:
  placeholders: {count: 1, resources: {cpu: 500m}}
---
apiVersion: roundhouse.dev/v1alpha1
kind: Route
metadata: {name: more.dots}
spec:
  models: [a b, "ä"]
  priority: 7
  targets: [{service: a, model: b}]
`

// paths are the places below a value, itself included.
func paths(v any, at []any) [][]any {
	out := [][]any{slices.Clone(at)}
	switch v := v.(type) {
	case map[string]any:
		for k, c := range v {
			out = append(out, paths(c, append(slices.Clone(at), k))...)
		}
	case []any:
		for i, c := range v {
			out = append(out, paths(c, append(slices.Clone(at), i))...)
		}
	}
	return out
}

func at(v any, path []any) any {
	for _, p := range path {
		switch x := v.(type) {
		case map[string]any:
			v = x[p.(string)]
		case []any:
			v = x[p.(int)]
		}
	}
	return v
}

// with is a copy with another value at a path whose parents it makes; a list
// that is too short is left as it is.
func with(doc map[string]any, path []any, value any) map[string]any {
	return change(doc, path, value, false).(map[string]any)
}

func without(doc map[string]any, path []any) map[string]any {
	return change(doc, path, nil, true).(map[string]any)
}

func change(v any, path []any, value any, remove bool) any {
	if len(path) == 0 {
		return value
	}
	switch p := path[0].(type) {
	case string:
		out := map[string]any{}
		if m, ok := v.(map[string]any); ok {
			for k, c := range m {
				out[k] = c
			}
		}
		if remove && len(path) == 1 {
			delete(out, p)
		} else {
			out[p] = change(out[p], path[1:], value, remove)
		}
		return out
	case int:
		list, _ := v.([]any)
		out := slices.Clone(list)
		switch {
		case p >= len(out):
		case remove && len(path) == 1:
			out = slices.Delete(out, p, p+1)
		default:
			out[p] = change(out[p], path[1:], value, remove)
		}
		return out
	}
	panic(fmt.Sprint("no path: ", path))
}
