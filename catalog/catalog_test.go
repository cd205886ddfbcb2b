package catalog_test

import (
	"io/fs"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// runtimes is the catalog by name.
func runtimes(t testing.TB) map[string]service.Runtime {
	t.Helper()
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]service.Runtime{}
	for _, rt := range all {
		if _, twice := out[rt.Name]; twice {
			t.Errorf("%s is there twice", rt.Name)
		}
		out[rt.Name] = rt
	}
	return out
}

// folders are the names that each folder must hold: those of the guides'
// tables, and our own.
var folders = map[string][]string{
	"builtin": {"kserve-llm", "kserve-llm-multinode", "kserve-llm-prefill-decode", "kserve-llm-prefill-decode-multinode", "llama-cpp", "roundhouse-catboost", "roundhouse-huggingface", "roundhouse-lightgbm", "roundhouse-mlflow", "roundhouse-onnx", "roundhouse-paddle", "roundhouse-pmml", "roundhouse-pytorch",
		"roundhouse-simulator", "roundhouse-sklearn", "roundhouse-tensorflow", "roundhouse-xgboost", "sglang", "sglang-streamer", "vllm", "vllm-streamer", "vllm-tensorizer"},
	"kserve": {"kserve-autogluonserver", "kserve-huggingfaceserver", "kserve-huggingfaceserver-multinode", "kserve-lgbserver", "kserve-mlserver", "kserve-openvino",
		"kserve-paddleserver", "kserve-pmmlserver", "kserve-predictiveserver", "kserve-sklearnserver",
		"kserve-tensorflow-serving", "kserve-torchserve", "kserve-tritonserver", "kserve-vllmserver", "kserve-xgbserver"},
	"ome": append(rows("srt-", `
deepseek-rdma-pd-rt
deepseek-rdma-rt
e5-mistral-7b-instruct-rt
llama-3-1-70b-instruct-pd-rt
llama-3-1-70b-instruct-rt
llama-3-2-11b-vision-instruct-rt
llama-3-2-1b-instruct-pd-rt
llama-3-2-1b-instruct-rt
llama-3-2-3b-instruct-pd-rt
llama-3-2-3b-instruct-rt
llama-3-2-90b-vision-instruct-rt
llama-3-3-70b-instruct-pd-rt
llama-3-3-70b-instruct-rt
llama-4-maverick-17b-128e-instruct-fp8-pd-rt
llama-4-maverick-17b-128e-instruct-fp8-rt
llama-4-scout-17b-16e-instruct-pd-rt
llama-4-scout-17b-16e-instruct-rt
mistral-7b-instruct-pd-rt
mistral-7b-instruct-rt
mixtral-8x7b-instruct-pd-rt
mixtral-8x7b-instruct-rt`), rows("vllm-", `
e5-mistral-7b-instruct-rt
llama-3-1-405b-instruct-fp8-rt
llama-3-1-nemotron-nano-8b-v1-rt
llama-3-1-nemotron-ultra-253b-v1-rt
llama-3-2-11b-vision-instruct-rt
llama-3-2-1b-instruct-rt
llama-3-2-3b-instruct-rt
llama-3-3-70b-instruct-rt
llama-3-3-nemotron-super-49b-v1-rt
llama-4-maverick-17b-128e-instruct-fp8-rt
llama-4-scout-17b-16e-instruct-rt
mistral-7b-instruct-rt
mixtral-8x7b-instruct-rt`)...),
}

// rows makes names of the rows of OME's tables, as its guide does.
func rows(prefix, table string) []string {
	var out []string
	for _, row := range strings.Fields(table) {
		out = append(out, prefix+strings.TrimSuffix(row, "-rt"))
	}
	return out
}

func TestNames(t *testing.T) {
	got := map[string][]string{}
	for name, rt := range runtimes(t) {
		folder := path.Base(path.Dir(rt.Origin.File))
		got[folder] = append(got[folder], name)
		if rt.Scope != service.ScopeCatalog || !rt.Created.IsZero() || rt.Namespace != "" {
			t.Errorf("%s: scope %s, created %s, namespace %q", name, rt.Scope, rt.Created, rt.Namespace)
		}
	}
	for folder, want := range folders {
		names := slices.Sorted(slices.Values(got[folder]))
		if want = slices.Sorted(slices.Values(want)); !slices.Equal(names, want) {
			t.Errorf("%s: got %q, want %q", folder, names, want)
		}
	}
	if want := slices.Sorted(maps.Keys(folders)); !slices.Equal(slices.Sorted(maps.Keys(got)), want) {
		t.Errorf("folders %v, want %v", slices.Sorted(maps.Keys(got)), want)
	}
}

// TestManifests reads every file as a user's would be. What a pod alone has a
// use for may be warned of on one machine; nothing else may.
func TestManifests(t *testing.T) {
	files, err := fs.Glob(catalog.Files, "*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	kinds := map[string]string{"builtin": "roundhouse.dev/v1alpha1", "kserve": "serving.kserve.io/v1alpha1", "ome": "ome.io/v1beta1"}
	for _, name := range files {
		data, err := fs.ReadFile(catalog.Files, name)
		if err != nil {
			t.Fatal(err)
		}
		res := dialect.Read(name, data)
		for _, p := range res.Problems {
			if !p.Warning || p.Platform != dialect.Process {
				t.Error(p)
			}
		}
		want := kinds[path.Dir(name)]
		if path.Base(name) == "local.yaml" {
			want = kinds["builtin"]
		}
		for _, o := range res.Objects {
			if o.Origin.APIVersion != want || o.Origin.Kind != "ClusterServingRuntime" {
				t.Errorf("%s: %s is a %s %s", name, o.Key.Name, o.Origin.APIVersion, o.Origin.Kind)
			}
		}
	}
}

// TestImages: an image without a version would change under those who run it.
// llama.cpp's is the exception: its images are named for builds, several a day.
// The words "roundhouse" and "roundhouse-onnx" stand for images of this program.
func TestImages(t *testing.T) {
	for name, rt := range runtimes(t) {
		for _, role := range service.Roles {
			c := rt.Components.Get(role)
			if c == nil {
				continue
			}
			for _, m := range c.Pod.Containers {
				image := path.Base(m.Image)
				if _, tag, ok := strings.Cut(image, ":"); (!ok || tag == "latest") && name != "llama-cpp" && m.Image != "roundhouse" && m.Image != "roundhouse-onnx" {
					t.Errorf("%s: image %q has no version", name, m.Image)
				}
			}
		}
	}
}

func TestConflicts(t *testing.T) {
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range selection.Conflicts(all) {
		t.Errorf("%s: %s: %s", c.Runtime.Name, c.Field, c.Message)
	}
}

// TestLocal renders every runtime that has a command for this machine and
// resolves it as a replica would.
func TestLocal(t *testing.T) {
	place := workload.Location{Port: 40001, GRPCPort: 40002, ModelPath: "/var/models/abc"}
	ran := 0
	for name, rt := range runtimes(t) {
		e := rt.Components.Engine
		if e == nil || e.Local == nil {
			continue
		}
		ran++
		svc := service.Service{
			// KServe puts the labels on a service that has none of its own.
			Meta:       service.Meta{Key: service.Key{Namespace: "default", Name: "iris"}, Labels: map[string]string{"modelClass": "mlserver_sklearn.SKLearnModel", "serviceEnvelope": "kserve"}, Annotations: map[string]string{"modelFormat": "sklearn"}},
			Components: service.Components{Engine: &service.Component{}},
		}
		rev, err := workload.Render(workload.Input{Service: &svc, Runtime: &rt, Choice: service.RuntimeChoice{Name: name}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p, err := rev.Component(service.RoleEngine).Process.Resolve(place)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		said := strings.Join(p.Command, " ")
		for _, env := range p.Env {
			said += " " + env.Name + "=" + env.Value
		}
		wants := []string{"40001", "iris", place.ModelPath}
		switch name {
		case "roundhouse-simulator": // has no model
			wants = wants[:2]
		case "kserve-tritonserver": // names models by their folders
			wants[1] = "40002"
		}
		for _, want := range wants {
			if !strings.Contains(said, want) {
				t.Errorf("%s: no %s in %s", name, want, said)
			}
		}
		if strings.Contains(said, "{{") || strings.Contains(said, "/mnt/models") || strings.Contains(said, "$(") {
			t.Errorf("%s: not resolved: %s", name, said)
		}
		if p.Readiness == nil {
			t.Errorf("%s: no readiness probe", name)
		}
		if p.Install == "" && p.Command[0] != "roundhouse" {
			t.Errorf("%s: no word on how to install %s", name, p.Command[0])
		}
	}
	if ran == 0 {
		t.Error("no runtime runs on one machine")
	}
}

// TestOwnCopy: the slice is the caller's.
func TestOwnCopy(t *testing.T) {
	a, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	a[0] = service.Runtime{}
	b, _ := catalog.Runtimes()
	if reflect.DeepEqual(a[0], b[0]) {
		t.Error("a caller's change reached another")
	}
}

// TestCatalogTellsWhatItSpeaks: of every runtime but KServe's own, whose lists
// leave OpenAI's protocol out, the request path knows what it does not answer.
func TestCatalogTellsWhatItSpeaks(t *testing.T) {
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	for _, rt := range all {
		if kserve := rt.Origin.Dialect() == service.DialectKServe; kserve != (rt.Speaks() == nil) {
			t.Errorf("%s, of %s, lists %v and is known to speak %v", rt.Name, rt.Origin.APIVersion, rt.Protocols, rt.Speaks())
		}
	}
}
