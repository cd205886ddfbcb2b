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
)

// published are the programs whose flags testdata/published lists, as their
// sources state them, by the word that a command line has of each.
var published = map[string]string{
	"sglang.launch_server":             "sglang",
	"sglang_router.launch_router":      "sglang_router",
	"tensorflow_model_server":          "tensorflow_model_server",
	"/usr/bin/tensorflow_model_server": "tensorflow_model_server",
	"torchserve":                       "torchserve",
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
		text, err := os.ReadFile(filepath.Join("testdata/published", program+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		known := strings.Fields(string(text[strings.IndexByte(string(text), '\n'):]))
		if len(used[program]) == 0 {
			t.Errorf("the catalog gives %s no flag", program)
		}
		for f, runtime := range used[program] {
			if !slices.Contains(known, f) {
				t.Errorf("%s gives %s the flag %s, which its source does not have: %s", runtime, program, f, strings.TrimPrefix(strings.SplitN(string(text), "\n", 2)[0], "# "))
			}
		}
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
