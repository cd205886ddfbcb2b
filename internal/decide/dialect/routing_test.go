package dialect

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/routing"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// TestCopiedFromAPage reads a manifest as web pages hand it out: a no-break
// space after the colon, or the question mark that some make of it. Values
// that hold either stay as they are.
func TestCopiedFromAPage(t *testing.T) {
	const plain = `apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata:
  name: m
  annotations: {note: "a` + "\u00a0" + `b: c?"}
spec:
  modelName: llama2
  poolRef:
    name: p
`
	want := Read("f.yaml", []byte(plain)).Objects
	if len(want) != 1 {
		t.Fatal("the plain manifest is not read")
	}
	for name, text := range map[string]string{
		"question mark":   strings.Replace(plain, "apiVersion: ", "apiVersion:?", 1),
		"no-break spaces": strings.NewReplacer("apiVersion: ", "apiVersion:\u00a0", "kind: ", "kind:\u00a0", "  modelName: ", "  modelName:\u00a0", "    name: p", "    name:\u00a0p").Replace(plain),
		"after a marker":  "---\n" + strings.Replace(plain, "apiVersion: ", "apiVersion:?", 1),
		"carriage return": strings.ReplaceAll(strings.Replace(plain, "apiVersion: ", "apiVersion:?", 1), "\n", "\r\n"),
	} {
		got := Read("f.yaml", []byte(text))
		if len(got.Problems) > 0 || len(got.Objects) != 1 || !sameHub(got.Objects[0], want[0]) {
			t.Errorf("%s: %v", name, got.Problems)
		}
	}
	note := want[0].Routing.Common().Annotations["note"]
	if note != "a\u00a0b: c?" {
		t.Errorf("a value was changed: %q", note)
	}
	if got := Read("f.yaml", []byte("apiVersion:?what is this\nkind: X\n")); len(got.Objects) > 0 || len(got.Problems) == 0 {
		t.Errorf("a question is no version: %+v", got)
	}
}

// TestRoutingStatus compares every routing kind's status, in its own words,
// with a golden file.
func TestRoutingStatus(t *testing.T) {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	st := routing.Status{
		Conditions: []service.Condition{
			{Type: routing.ConditionReady, Status: "False", Reason: routing.ReasonBackendNotFound, Message: "there is no pool p", Since: at},
			{Type: routing.ConditionAccepted, Status: "True", Reason: routing.ReasonAccepted, Since: at},
			{Type: routing.ConditionResolvedRefs, Status: "False", Reason: routing.ReasonBackendNotFound, Message: "there is no pool p", Since: at},
		},
		Parents: []routing.Parent{{Group: "gateway.networking.k8s.io", Kind: "Gateway", Namespace: "infra", Name: "gw", SectionName: "http", Port: 80}},
		Members: []service.Key{{Namespace: "default", Name: "chat"}},
		URL:     "http://household.default.example.com",
	}
	got := map[string]any{}
	for _, name := range []string{"inference-gateway.yaml", "inference-gateway-v1.yaml", "routes.yaml", "kserve-graph.yaml"} {
		data, err := os.ReadFile(examples + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range Read(name, data).Objects {
			if o.Routing == nil {
				continue
			}
			key := o.Origin.APIVersion + " " + o.Origin.Kind
			got[key] = RoutingStatus(o.Routing, st)
			got[key+", empty"] = RoutingStatus(o.Routing, routing.Status{})
			text, err := RenderRouting(o, st)
			if err != nil {
				t.Fatal(err)
			}
			again := Read("rendered.yaml", text)
			if len(again.Objects) != 1 || !sameHub(o, again.Objects[0]) || strings.Count(string(text), "\nstatus:") != 1 {
				t.Errorf("rendered\n%s\nreads back with %v", text, again.Problems)
			}
		}
	}
	golden(t, "testdata/status.routing.golden.json", got)
}

// TestImport: a pool of other clusters has the addresses of its annotation; without one
// a warning says what it lacks. Its status is that of its controllers.
func TestImport(t *testing.T) {
	const head = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: InferencePoolImport\nmetadata:\n  name: p\n"
	read := Read("f.yaml", []byte(head+"  annotations: {roundhouse.dev/addresses: \"east.example:80, 10.0.0.7:8000,east.example:80\"}\nstatus: {controllers: [{name: x.example/y, exportingClusters: [{name: east}]}]}\n"))
	if len(read.Objects) != 1 || len(read.Problems) > 0 {
		t.Fatal(read.Problems)
	}
	p := read.Objects[0].Routing.(*routing.Pool)
	if !p.Import || !slices.Equal(p.Addresses, []string{"east.example:80", "10.0.0.7:8000"}) || !p.Health.Disabled {
		t.Errorf("%+v", p)
	}
	for annotation, want := range map[string]string{
		"": "f.yaml:3: warning: metadata.annotations: requests to it are refused: " + routing.ImportLacks,
		"  annotations: {roundhouse.dev/addresses: \"http://east.example\"}\n": "f.yaml:5: metadata.annotations[roundhouse.dev/addresses]: \"http://east.example\" is a URL: write host:port",
	} {
		if read := Read("f.yaml", []byte(head+annotation)); !slices.ContainsFunc(read.Problems, func(p Problem) bool { return p.String() == want }) {
			t.Errorf("%v, want %q", read.Problems, want)
		}
	}
	st := routing.Status{Conditions: []service.Condition{
		{Type: routing.ConditionReady, Status: "False", Reason: routing.ReasonNoEndpoints, Message: routing.ImportLacks},
		{Type: routing.ConditionAccepted, Status: "False", Reason: routing.ReasonNoEndpoints, Message: routing.ImportLacks}}}
	text, err := RenderRouting(read.Objects[0], st)
	if err != nil || !strings.Contains(string(text), "controllers:") || !strings.Contains(string(text), "name: roundhouse.dev/gateway") || !strings.Contains(string(text), "has no address to connect to") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestPriorities: criticality is a priority, in both dialects that have it.
func TestPriorities(t *testing.T) {
	for criticality, want := range map[string]int32{"Critical": 1, "Standard": 0, "Sheddable": -1, `""`: 0} {
		res := Read("f.yaml", []byte("apiVersion: inference.networking.x-k8s.io/v1alpha2\nkind: InferenceModel\nmetadata: {name: m}\nspec: {modelName: m, poolRef: {name: p}, criticality: "+criticality+"}\n---\n"+
			"apiVersion: roundhouse.dev/v1alpha1\nkind: Route\nmetadata: {name: m}\nspec: {targets: [{pool: p}], criticality: "+criticality+"}\n"))
		if len(res.Objects) != 2 {
			t.Fatal(res.Problems)
		}
		if got := res.Objects[0].Routing.(*routing.Model).Priority; got != want {
			t.Errorf("%s is priority %d of a model, want %d", criticality, got, want)
		}
		if got := res.Objects[1].Routing.(*routing.Route).Priority; got != want {
			t.Errorf("%s is priority %d of a route, want %d", criticality, got, want)
		}
	}
}

// TestRanksOfEngines: ranks are warned of where no request can name them.
func TestRanksOfEngines(t *testing.T) {
	for _, c := range []struct{ spec, want string }{
		{"dataParallelSize: 4", ""},
		{"dataParallelSize: 4, metrics: {engine: vllm}", ""},
		{"dataParallelSize: 4, metrics: {engine: sglang}", ""},
		{"dataParallelSize: 1, metrics: {engine: llamacpp}", ""},
		{"dataParallelSize: 4, metrics: {engine: llamacpp}", "llamacpp has no ranks that a request can name, as vllm and sglang have: each server would count as 4: remove it"},
		{"dataParallelSize: 2, protocol: grpc-v2", "servers of the protocol grpc-v2 have no ranks that a request can name: each would count as 2: remove it"},
		{"dataParallelSize: 0, metrics: {engine: llamacpp}", "0 is out of range: write 1 to 256"},
	} {
		got := Read("a.yaml", []byte("apiVersion: roundhouse.dev/v1alpha1\nkind: Pool\nmetadata: {name: a}\nspec: {addresses: [\"127.0.0.1:8000\"], "+c.spec+"}\n"))
		said := ""
		for _, p := range got.Problems {
			if p.Path == "spec.dataParallelSize" {
				said = p.Message
			}
		}
		if said != c.want {
			t.Errorf("%s: %q, want %q", c.spec, said, c.want)
		}
	}
}
