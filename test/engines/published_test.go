package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/catalog"
	words "roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// published are the programs whose flags testdata/published lists, as their
// sources state them, by the word that a command line has of each.
var published = map[string]string{
	"sglang.launch_server":             "sglang",
	"sglang_router.launch_router":      "sglang_router",
	"tensorflow_model_server":          "tensorflow_model_server",
	"/usr/bin/tensorflow_model_server": "tensorflow_model_server",
	"torchserve":                       "torchserve",
	"vllm":                             "vllm",
}

// TestPublishedFlags: engines that need a GPU, or come in images only, have every
// flag that the catalog gives them, by their published source.
func TestPublishedFlags(t *testing.T) {
	t.Parallel()
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]map[string]string{}
	for i := range all {
		for _, line := range commandLines(&all[i]) {
			program := ""
			for _, w := range line {
				if p := published[w]; p != "" {
					program = p
				}
				if f := flag.FindString(w); strings.HasPrefix(f, "--") && program != "" {
					if used[program] == nil {
						used[program] = map[string]string{}
					}
					used[program][f] = all[i].Name
				}
			}
		}
	}
	for _, program := range published {
		source, known := publishedFlags(t, program)
		if len(used[program]) == 0 {
			t.Errorf("the catalog gives %s no flag", program)
		}
		for f, runtime := range used[program] {
			if !slices.Contains(known, f) {
				t.Errorf("%s gives %s the flag %s, which its source does not have: %s", runtime, program, f, source)
			}
		}
	}
}

// publishedFlags are a program's flags, and where they were read.
func publishedFlags(t *testing.T, program string) (source string, flags []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/published", program+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	return strings.TrimPrefix(first, "# "), strings.Fields(rest)
}

// TestPublishedLLMFlags: vLLM has every flag that comes of the fields of an
// LLMInferenceService, or that KServe's samples add.
func TestPublishedLLMFlags(t *testing.T) {
	t.Parallel()
	source, known := publishedFlags(t, "vllm")
	used := 0
	for _, file := range []string{"../../internal/decide/dialect/llmisvc/testdata/published.yaml", "../../examples/manifests/kserve-llm.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range dialect.Read(file, text).Objects {
			if o.Service == nil || o.Service.Custom {
				continue
			}
			for _, line := range commandLines(&words.Runtime{Components: o.Service.Components}) {
				for _, w := range line {
					if f := flag.FindString(w); strings.HasPrefix(f, "--") {
						if used++; !slices.Contains(known, f) {
							t.Errorf("%s: %s: vLLM has no flag %s: %s", file, o.Key, f, source)
						}
					}
				}
			}
		}
	}
	if used == 0 {
		t.Error("no service gives vLLM a flag")
	}
}

// commandLines are those of a runtime's containers and processes.
func commandLines(rt *words.Runtime) (lines [][]string) {
	c := &rt.Components
	for _, component := range []*words.Component{c.Engine, c.Decoder, c.Router} {
		if component == nil {
			continue
		}
		pods := []corev1.PodSpec{component.Pod}
		for _, n := range []*words.Node{component.Leader, component.Worker} {
			if n != nil {
				pods = append(pods, n.Pod)
			}
		}
		for _, p := range pods {
			for _, container := range p.Containers {
				lines = append(lines, slices.Concat(container.Command, container.Args))
			}
		}
		if component.Local != nil {
			lines = append(lines, component.Local.Command)
		}
	}
	return lines
}
