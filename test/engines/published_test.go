package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	words "roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/dialect"
)

// published are the lists of testdata/published that hold a program's flags, as its
// sources state them.
var published = map[string][]string{
	"autogluonserver":                    {"kserve"},
	"huggingfaceserver":                  {"kserve", "huggingfaceserver", "vllm"},
	"lgbserver":                          {"kserve", "lgbserver"},
	"ovms":                               {"ovms"},
	"paddleserver":                       {"kserve"},
	"pmmlserver":                         {"kserve"},
	"predictiveserver":                   {"kserve", "predictiveserver"},
	"ray":                                {"ray"},
	"sglang.launch_server":               {"sglang"},
	"sglang_router.launch_router":        {"sglang_router"},
	"sklearnserver":                      {"kserve"},
	"tensorflow_model_server":            {"tensorflow_model_server"},
	"torchserve":                         {"torchserve"},
	"vllm":                               {"vllm"},
	"vllm.entrypoints.openai.api_server": {"vllm"},
	"xgbserver":                          {"kserve", "xgbserver"},
}

// elsewhere are the programs whose flags are compared with their own help, and ours,
// which all tests run.
var elsewhere = []string{"llama-server", "roundhouse", "roundhouse-server", "sglang", "tritonserver", "["}

// TestPublishedFlags: engines that need a GPU, or come in images only, have every
// flag that the catalog gives them, by their published source. No program that is
// given a flag is left out.
func TestPublishedFlags(t *testing.T) {
	t.Parallel()
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]int{}
	for i := range all {
		for _, one := range invocations(&all[i]) {
			given[one.program] += len(one.flags)
			lists := published[one.program]
			if lists == nil && len(one.flags) > 0 && !slices.Contains(elsewhere, one.program) {
				t.Errorf("%s gives %q the flags %v, and no list has this program's", all[i].Name, one.program, one.flags)
			}
			if lists == nil {
				continue
			}
			var sources, known []string
			for _, list := range lists {
				source, flags := publishedFlags(t, list)
				sources, known = append(sources, source), append(known, flags...)
			}
			for _, f := range one.flags {
				if !slices.Contains(known, f) {
					t.Errorf("%s gives %s the flag %s, which its source does not have: %s", all[i].Name, one.program, f, strings.Join(sources, "; "))
				}
			}
		}
	}
	for program := range published {
		if given[program] == 0 {
			t.Errorf("the catalog gives %s no flag", program)
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
			for _, one := range invocations(&words.Runtime{Components: o.Service.Components}) {
				for _, f := range one.flags {
					if used++; !slices.Contains(known, f) {
						t.Errorf("%s: %s: vLLM has no flag %s: %s", file, o.Key, f, source)
					}
				}
			}
		}
	}
	if used == 0 {
		t.Error("no service gives vLLM a flag")
	}
}
