package sim

import (
	"cmp"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var mutate = flag.Bool("mutants", false, "have TestMutantsAreSeen break the product in known ways")

// mutant is a fault put into the product for a run, by an overlay of its source,
// which stays as it is. It is looked for from seed 1 on, unless a rare one says
// from where.
type mutant struct {
	name, breaks   string // breaks is the invariant
	file, old, new string
	from           string
	also           [2]string // a second text to replace in the file, and by what
}

// of is the source with the fault.
func (m *mutant) of(source string) string {
	source = strings.Replace(source, m.old, m.new, 1)
	if m.also[0] != "" {
		source = strings.Replace(source, m.also[0], m.also[1], 1)
	}
	return source
}

// mutants break each invariant at least once. Those that were faults of the
// product come first.
var mutants = []mutant{
	{"a backlog is counted four times", "supply keeps to demand", step, "num.Wanted = num.Base", "num.Wanted = 4 * num.Base", "", [2]string{}},
	{"endpoints that fail are not ejected", "failures attract nobody", "internal/decide/breaker/breaker.go", "Failures: 3,", "Failures: 1 << 30,", "", [2]string{}},
	{"a request for one replica blocks those behind it", "no waiter starves", "internal/state/dispatch/queue.go", "func(w *admission.Waiter) bool { return q.entry.canReach(w.Owner.(*Grant)) },\n\t\t\tfunc(w *admission.Waiter) admission.Trial {\n\t\t\t\tg := w.Owner.(*Grant)\n\t\t\t\tvar dropped bool\n\t\t\t\tswitch x, dropped = q.entry.pick(g, nil, now); {\n\t\t\t\tcase x != nil:\n\t\t\t\t\treturn admission.Done\n\t\t\t\tcase dropped:\n\t\t\t\t\tshed = g\n\t\t\t\tcase g.subset != nil:\n\t\t\t\t\treturn admission.Blocked", "func(w *admission.Waiter) bool { return true },\n\t\t\tfunc(w *admission.Waiter) admission.Trial {\n\t\t\t\tg := w.Owner.(*Grant)\n\t\t\t\tvar dropped bool\n\t\t\t\tswitch x, dropped = q.entry.pick(g, nil, now); {\n\t\t\t\tcase x != nil:\n\t\t\t\t\treturn admission.Done\n\t\t\t\tcase dropped:\n\t\t\t\t\tshed = g\n\t\t\t\tcase g.subset != nil:\n\t\t\t\t\treturn admission.Full", "", [2]string{}},
	{"crashes reset the idle clock", "idle services reach zero", step, "if r.Failed { // else", "if false { // else", "7", [2]string{}},
	{"nobody looks again after a burst", "idle services reach zero", step, "busy(in) || want > in.Limits.Min ||", "busy(in) ||", "", [2]string{}},
	{"counts fall at once", "counts do not flap", step, "settle = 30 * time.Second", "settle = 3 * time.Second", "", [2]string{}},
	{"counts fall below minReplicas", "counts keep to limits", step, "min(max(n, l.Min, in.Wake), l.Max)", "min(max(n, in.Wake), l.Max)", "", [2]string{}},
	{"minReplicas are forgotten", "minReplicas are there", step, "min(max(n, l.Min, in.Wake), l.Max)", "min(max(n, in.Wake), l.Max)", "", [2]string{}},
	{"a busy service is looked at without a pause", "nothing spins", step, "\ttick = time.Second\n", "\ttick = time.Millisecond\n", "", [2]string{}},
	{"a returning owner begins at zero", "a returning owner changes nothing", step, "next.Count = len(in.Replicas) // a returning", "next.Count = 0 // a returning", "", [2]string{}},
	{"reservations are not given back", "reservations add up", "internal/state/dispatch/endpoints.go", "x.endpoint.release()\n", "\n", "", [2]string{}},
	{"demand is not told", "supply follows demand", "internal/state/fleet/fleet.go", "func (f *Fleet) Demanded(k service.Key) { f.services.queue.add(k) }", "func (f *Fleet) Demanded(k service.Key) {}", "", [2]string{}},
	{"a freed replica takes nobody who waits", "no waiter starves", "internal/state/dispatch/reservation.go", "if !freed.shared() {\n\t\tp.serveQueue(now)\n\t}", "", "", [2]string{}},
	{"who leaves goes on waiting", "a request ends once", "internal/state/dispatch/waiting.go", "case <-ctx.Done():\n\t\t\treturn false, nil", "case <-make(chan int):\n\t\t\treturn false, nil", "", [2]string{}},
	{"an answer that has begun is asked for again", "a request ends once", "internal/state/dispatch/reservation.go", "\tg.answered = true\n", "", "11", [2]string{}},
	{"lower priorities go first", "priority goes first", queueOf, "case b.priority > p:\n\t\t\treturn -1\n\t\tcase b.priority < p:\n\t\t\treturn 1", "case b.priority > p:\n\t\t\treturn 1\n\t\tcase b.priority < p:\n\t\t\treturn -1", "", [2]string{}},
	{"a caller keeps its turn", "no caller starves", queueOf, "if f.first != nil {\n\t\tb.flows = append(b.flows, f)", "if f.first != nil {\n\t\tb.flows = slices.Insert(b.flows, 0, f)", "", [2]string{}},
	{"the startup timeout bounds no wait", "waits are bounded", "internal/state/dispatch/pool.go", "longest = min(longest, m.Limits.StartupTimeout)", "_ = longest", "", [2]string{}},
	{"a canary gets requests before it is ready", "a canary takes its share", "internal/decide/rollout/rollout.go", "\tdefault:\n\t\td.Why = ", "\tdefault:\n\t\td.Percent = *in.Percent\n\t\td.Why = ", "11", [2]string{}},
	{"services without replicas are woken", "idle services stay at zero", "internal/state/dispatch/pool.go", "p.queue.Len() > 0 && p.entry.alive == 0", "p.entry.alive == 0", "", [2]string{}},
	{"a status is made once for each manifest", "status tells the truth", "internal/state/fleet/services.go", "\te.status = transitioned(e.status, status, s.now())\n", "\tif e.status.Generation != status.Generation {\n\t\te.status = transitioned(e.status, status, s.now())\n\t}\n", "", [2]string{}},
	{"GPUs are given twice", "a device has one holder", "internal/decide/residency/space.go", "} else if g.holders > 0 {", "} else if g.holders > 1 {", "", [2]string{}},
	{"idle services keep their GPUs", "idle services make room", "internal/state/fleet/residency.go", "e.evicted, e.preload = why, preloadNone", "e.preload = preloadNone", "7", [2]string{}},
	{"a service is stopped while it is edited", "an edit takes nothing", "internal/decide/residency/residency.go", "case s.Rolling:\n\t\treturn \"rolling out\"\n", "", "7", [2]string{}},
	{"files stay under their temporary names", "records survive", datadirOf, "err = disk.Rename(f.Name(), path)", "err = nil", "", [2]string{}},
	{"maxReplicas are forgotten", "counts keep to limits", step, "min(max(n, l.Min, in.Wake), l.Max)", "max(n, l.Min, in.Wake)", "", [2]string{"min(fall(s, &next, want, now), in.Limits.Max)", "fall(s, &next, want, now)"}},
	{"a canary gets half of its share", "a canary takes its share", "internal/state/dispatch/dispatcher.go", "d.random(100) < share", "d.random(200) < share", "9", [2]string{}},
	{"names of files are not forced to the disk", "records survive", datadirOf, "err = disk.SyncDir(filepath.Dir(path)) // else", "err = nil // else", "8", [2]string{}},
	{"a removed file may come back", "records survive", "internal/edge/datadir/store.go", "err = d.disk.SyncDir(filepath.Dir(path))", "err = nil", "10", [2]string{}},
	{"what is written is not forced to the disk", "records survive", datadirOf, "err = f.Sync()\n\t}\n\tif e", "err = nil\n\t}\n\tif e", "8", [2]string{}},
	{"idle time goes by the wall clock", "idle services keep their time", step, "left := stops - now.Sub(next.IdleSince)", "left := stops - now.Round(0).Sub(next.IdleSince)", "10", [2]string{}},
	{"a replica that goes is ended at once", "a replica that goes finishes", "internal/state/dispatch/dispatcher.go", "	case <-idle:\n\t\treturn nil", "	case <-idle:\n\t\treturn nil\n\tdefault:\n\t\treturn nil", "", [2]string{}},
	{"services make room whose requests wait", "a start serves", "internal/state/fleet/residency.go", `return w.evicted != "" && demand.Queued+demand.Running == 0`, `return w.evicted != ""`, "22", [2]string{"wanted := s.Waiting+s.Running > 0 || s.Minimum || s.Rolling", "wanted := false"}},
	{"a key's requests are refilled by the wall clock", "a key keeps to its limits", "internal/decide/quota/quota.go", "passed := now.Sub(b.at)", "passed := now.Round(0).Sub(b.at.Round(0))", "10", [2]string{}},
	{"a key's requests at one time are not given back", "a key keeps to its limits", "internal/state/keys/pass.go", "\th.running--\n", "", "10", [2]string{}},
}

const (
	step    = "internal/decide/autoscale/step.go"
	queueOf = "internal/decide/admission/machine.go"

	datadirOf = "internal/edge/datadir/datadir.go"
)

// TestEveryInvariantHasAMutant: an invariant that nothing is known to break may
// not look at anything.
func TestEveryInvariantHasAMutant(t *testing.T) {
	for _, i := range Invariants {
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.breaks == i.Name }) {
			t.Errorf("no mutant breaks the invariant %q", i.Name)
		}
	}
}

// TestMutantsApply: the text that each of them replaces is in its file once.
func TestMutantsApply(t *testing.T) {
	for _, m := range mutants {
		source, err := os.ReadFile(filepath.Join("..", "..", m.file))
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		} else if n := strings.Count(string(source), m.old); n != 1 {
			t.Errorf("%s: %s has %q %d times: write the mutant anew", m.name, m.file, m.old, n)
		} else if n := strings.Count(string(source), m.also[0]); m.also[0] != "" && n != 1 {
			t.Errorf("%s: %s has %q %d times: write the mutant anew", m.name, m.file, m.also[0], n)
		}
	}
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
			changed, overlay := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json")
			replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
			if err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{changed: m.of(string(source)), overlay: string(replace)} {
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
			run := exec.Command(program, "-test.run", "TestSeeds$", "-test.timeout", "3m", "-for", "60s", "-once", "-invariant", m.breaks, "-from", cmp.Or(m.from, "1"))
			run.Dir, run.Env = filepath.Join(root, "internal", "sim"), append(os.Environ(), "GOGC=400")
			out, _ := run.CombinedOutput() // it fails, where it sees the mutant
			found := failed.FindStringSubmatch(string(out))
			if found == nil {
				t.Fatalf("no invariant broke within a minute:\n%s", out)
			}
			t.Logf("| %s | %s | seed %s, after %s | %v |", m.name, found[2], found[1], found[3], time.Since(began).Round(time.Second))
		})
	}
}
