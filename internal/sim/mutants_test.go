package sim

import (
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var mutate = flag.Bool("mutants", false, "have TestMutantsAreSeen break the product in known ways")

// mutants are faults put into the product for a run, by an overlay of its source:
// what broke before, and what breaks an invariant. The files stay as they are.
// They are looked for from seed 1 on, unless a rare one says from where.
var mutants = []struct{ name, file, old, new, from string }{
	{"an average over milliseconds", "internal/decide/autoscale/step.go", "!in.Demand.Unknown && dt >= tick:", "!in.Demand.Unknown && dt > 0:", ""},
	{"an average that is exact", "internal/decide/autoscale/step.go", "measured = 0.99", "measured = 1.0", ""},
	{"nobody looks again after a burst", "internal/decide/autoscale/step.go", "busy(in) || want > in.Limits.Min ||", "busy(in) ||", "350"},
	{"crashes reset the idle clock", "internal/decide/autoscale/step.go", "if r.Failed { // else", "if false { // else", ""},
	{"counts fall at once", "internal/decide/autoscale/step.go", "settle = 30 * time.Second", "settle = 3 * time.Second", ""},
	{"maxReplicas does not hold", "internal/decide/autoscale/step.go", "min(max(n, l.Min, in.Wake), l.Max)", "max(n, l.Min, in.Wake)", ""},
	{"a returning owner begins at zero", "internal/decide/autoscale/step.go", "next.Count = len(in.Replicas) // a returning", "next.Count = 0 // a returning", ""},
	{"endpoints that fail are not ejected", "internal/decide/breaker/breaker.go", "Failures: 3,", "Failures: 1 << 30,", ""},
	{"places are not given back", "internal/state/dispatch/endpoints.go", "x.endpoint.release()\n", "\n", ""},
	{"demand is not told", "internal/state/fleet/fleet.go", "func (f *Fleet) Demanded(k service.Key) { f.services.queue.add(k) }", "func (f *Fleet) Demanded(k service.Key) {}", ""},
}

// TestMutantsAreSeen: each of them breaks an invariant within a minute.
func TestMutantsAreSeen(t *testing.T) {
	if !*mutate {
		t.Skip("make sim-mutants runs it: it builds the product for each of them")
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	failed := regexp.MustCompile(`seed (\d+): ([^:]+): .* after (\S+)`)
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			path, dir := filepath.Join(root, m.file), t.TempDir()
			source, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%s has %q %d times: write the mutant anew", m.file, m.old, n)
			}
			changed, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
			replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{changed: strings.Replace(string(source), m.old, m.new, 1), overlay: string(replace)} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			program := filepath.Join(dir, "sim.test")
			build := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", program, "./internal/sim")
			build.Dir = root
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			began := time.Now()
			run := exec.Command(program, "-test.run", "TestSeeds$", "-test.timeout", "3m", "-for", "60s", "-once", "-from", cmp.Or(m.from, "1"))
			run.Dir = filepath.Join(root, "internal", "sim")
			out, _ := run.CombinedOutput() // it fails, where it sees the mutant
			found := failed.FindStringSubmatch(string(out))
			if found == nil {
				t.Fatalf("no invariant broke within a minute:\n%s", out)
			}
			t.Logf("| %s | %s | seed %s, after %s | %v |", m.name, found[2], found[1], found[3], time.Since(began).Round(time.Second))
		})
	}
}
