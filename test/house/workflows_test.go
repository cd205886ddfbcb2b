package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// byHand are the targets of tests that no public CI runs: they need another machine's
// packages, root, or more disk than there is.
var byHand = []string{"test-image-onnx", "test-image-python", "test-torch"}

// TestWorkflowsCallTargets: what a public CI runs can be run by anybody, because it is
// a target of the Makefile and nothing else. And it runs every target of tests.
func TestWorkflowsCallTargets(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	ran := slices.Clone(byHand)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var workflow struct {
			Jobs map[string]struct {
				Strategy struct {
					Matrix struct{ Target []string }
				}
				Steps []struct{ Run string }
			}
		}
		if err := yaml.Unmarshal(text, &workflow); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		calls := 0
		for name, job := range workflow.Jobs {
			for _, step := range job.Steps {
				if step.Run == "" {
					continue
				}
				called := []string{""}
				if words := strings.Fields(step.Run); len(words) > 1 && words[0] == "make" {
					called[0] = words[1]
				}
				if strings.HasPrefix(step.Run, "make ${{ matrix.target }}") {
					called = job.Strategy.Matrix.Target
				}
				ran = append(ran, called...)
				for _, target := range called {
					calls++
					if !targets[target] {
						t.Errorf("%s: job %s runs %q, which is no target", file, name, step.Run)
					}
				}
			}
		}
		if calls == 0 {
			t.Errorf("%s calls nothing", file)
		}
	}
	for target := range targets {
		if strings.HasPrefix(target, "test-") && !slices.Contains(ran, target) {
			t.Errorf("no workflow runs make %s", target)
		}
	}
}
