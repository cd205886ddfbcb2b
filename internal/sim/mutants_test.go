package sim

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
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
	also           also // a second text to replace
}

// also is a text that a mutant replaces besides; in the same file where file is "".
type also struct{ file, old, new string }

// sources are the files with the fault, by their names.
func (m *mutant) sources(root string) (map[string]string, error) {
	out := map[string]string{}
	for _, x := range []also{{m.file, m.old, m.new}, {cmp.Or(m.also.file, m.file), m.also.old, m.also.new}} {
		if x.old == "" {
			continue
		}
		if _, read := out[x.file]; !read {
			source, err := os.ReadFile(filepath.Join(root, x.file))
			if err != nil {
				return nil, err
			}
			out[x.file] = string(source)
		}
		if n := strings.Count(out[x.file], x.old); n != 1 {
			return nil, fmt.Errorf("%s has %q %d times: write the mutant anew", x.file, x.old, n)
		}
		out[x.file] = strings.Replace(out[x.file], x.old, x.new, 1)
	}
	return out, nil
}

// mutants break each invariant at least once. Those that were faults of the
// product come first.
var mutants = []mutant{
	{"a backlog is counted four times", "supply keeps to demand", step, "num.Wanted = num.Base", "num.Wanted = 4 * num.Base", "", also{}},
	{"a load is divided by a gap of milliseconds", "supply keeps to demand", step, "f.seconds >= tick.Seconds() {", "f.seconds > 0 {", "", also{"", "num.Service = known.seconds(lasting); num.Service <= 0 {", "num.Service = 0; num.Service <= 0 {"}}, // before a service time was learned
	{"a few long requests are taken for a rate", "supply keeps to demand", step, "num.Base = min(p.base(), max(p.baseOf(min(num.Load, usual)), ceil(2*(total+short.done)/l.Target)))", "num.Base = p.base()\n\t_ = usual", "1000", also{}},
	{"who leaves while it waits teaches a service time", "supply follows demand", loadOf, "done: max(0, grown(s.done, now.done)-grown(s.left, now.left))", "done: grown(s.done, now.done)", "40052", also{}},
	{"endpoints that fail are not ejected", "failures attract nobody", "internal/decide/breaker/breaker.go", "Failures: 3,", "Failures: 1 << 30,", "", also{}},
	{"a request for one replica blocks those behind it", "no waiter starves", "internal/state/dispatch/queue.go", "return q.entry.canReach(g) && (", "return (", "", also{"", "case g.subset != nil:\n\t\t\t\t\treturn admission.Blocked", "case g.subset != nil:\n\t\t\t\t\treturn admission.Full"}},
	{"crashes reset the idle clock", "idle services reach zero", step, "if r.Failed { // else", "if false { // else", "7", also{}},
	{"nobody looks again after a burst", "idle services reach zero", step, "busy(in) || want > in.Limits.Min ||", "busy(in) ||", "", also{}},
	{"counts fall at once", "counts do not flap", "internal/decide/autoscale/surplus.go", "settle = 30 * time.Second", "settle = 3 * time.Second", "", also{}},
	{"counts fall below minReplicas", "counts keep to limits", step, "min(max(n, l.Min, in.Wake), l.Max)", "min(max(n, in.Wake), l.Max)", "", also{}},
	{"minReplicas are forgotten", "minReplicas are there", step, "min(max(n, l.Min, in.Wake), l.Max)", "min(max(n, in.Wake), l.Max)", "", also{}},
	{"a busy service is looked at without a pause", "nothing spins", step, "\ttick = time.Second\n", "\ttick = time.Millisecond\n", "", also{}},
	{"a returning owner begins at zero", "a returning owner changes nothing", step, "next.Count = len(in.Replicas) // a returning", "next.Count = 0 // a returning", "", also{}},
	{"reservations are not given back", "reservations add up", "internal/state/dispatch/endpoints.go", "x.endpoint.release()\n", "\n", "", also{}},
	{"demand is not told", "supply follows demand", "internal/state/fleet/fleet.go", "func (f *Fleet) Demanded(k service.Key) { f.services.queue.add(k) }", "func (f *Fleet) Demanded(k service.Key) {}", "", also{}},
	{"a freed replica takes nobody who waits", "no waiter starves", "internal/state/dispatch/reservation.go", "if !freed.shared() {\n\t\tp.serveQueue(now)\n\t}", "", "", also{}},
	{"who leaves goes on waiting", "a request ends once", "internal/state/dispatch/waiting.go", "case <-ctx.Done():\n\t\t\treturn false, nil", "case <-make(chan int):\n\t\t\treturn false, nil", "", also{}},
	{"an answer that has begun is asked for again", "a request ends once", "internal/state/dispatch/reservation.go", "\tg.answered = true\n", "", "11", also{}},
	{"lower priorities go first", "priority goes first", flowsOf, "case b.priority > p:\n\t\t\treturn -1\n\t\tcase b.priority < p:\n\t\t\treturn 1", "case b.priority > p:\n\t\t\treturn 1\n\t\tcase b.priority < p:\n\t\t\treturn -1", "", also{}},
	{"a caller keeps its turn", "no caller starves", flowsOf, "if f.first != nil {\n\t\tb.queueUp(f)", "if f.first != nil {\n\t\tb.flows = slices.Insert(b.flows, 0, f)", "", also{}},
	{"tokens are taken for requests", "callers share tokens", "internal/state/dispatch/queue.go", "c.ByTokens = b.Fairness == service.FairTokens", "c.ByTokens = b.Fairness == service.FairTokens && q.entry == nil", "27", also{}},
	{"what a request has cost is forgotten", "callers share tokens", "internal/decide/admission/tokens.go", "m.ledger.add(a, min(max(0, tokens), maxTokens)-w.charged)", "m.ledger.add(a, 0*tokens)", "27", also{}},
	{"the startup timeout bounds no wait", "waits are bounded", "internal/state/dispatch/pool.go", "longest = min(longest, m.Limits.StartupTimeout)", "_ = longest", "", also{}},
	{"a canary gets requests before it is ready", "a canary takes its share", "internal/decide/rollout/rollout.go", "\tdefault:\n\t\td.Why = ", "\tdefault:\n\t\td.Percent = *in.Percent\n\t\td.Why = ", "11", also{}},
	{"services without replicas are woken", "idle services stay at zero", "internal/state/dispatch/pool.go", "p.queue.Len() > 0 && p.entry.alive == 0", "p.entry.alive == 0", "", also{}},
	{"a status is made once for each manifest", "status tells the truth", "internal/state/fleet/services.go", "\te.status = transitioned(e.status, status, s.now())\n", "\tif e.status.Generation != status.Generation {\n\t\te.status = transitioned(e.status, status, s.now())\n\t}\n", "", also{}},
	{"GPUs are given twice", "a device has one holder", "internal/decide/residency/space.go", "} else if g.holders > 0 {", "} else if g.holders > 1 {", "", also{}},
	{"a sleeper is taken for ready", "a sleeper gets no request", "internal/state/dispatch/slot.go", "return x.phase == replica.Ready && x.address != \"\" && !x.endpoint.draining.Load()", "return (x.phase == replica.Ready || x.phase == replica.Asleep) && x.address != \"\"", "32", also{}},
	{"GPUs are not given back", "a sleeper frees its GPUs", "internal/decide/residency/space.go", "g.holders += sign", "g.holders += max(sign, 0)", "32", also{}},
	{"idle services keep their GPUs", "idle services make room", "internal/state/fleet/residency.go", "e.evicted, e.preload = why, preloadNone", "e.preload = preloadNone", "23", also{}},
	{"a service is stopped while it is edited", "an edit takes nothing", "internal/decide/residency/value.go", "case s.Rolling:\n\t\treturn \"rolling out\"\n", "", "23", also{}},
	{"an edit begins at zero", "an edit takes nothing", "internal/state/fleet/reconcile.go", "\tw.applied = true\n\treturn nil\n", "\tw.applied = true\n\tfor _, c := range w.record.Revision.Components {\n\t\t_ = r.cfg.Platform.Scale(ctx, workload.Ref{Service: w.key, Role: c.Role}, 0, nil)\n\t}\n\treturn nil\n", "", also{}},
	{"a full queue takes more", "tables keep to their bounds", queueOf, "case m.queued-below >= c.MaxQueue:", "case m.queued-below >= 50*c.MaxQueue:", "9", also{queueOf, "m.queued >= m.config.MaxQueue", "m.queued >= 50*m.config.MaxQueue"}},
	{"an index forgets nothing", "tables keep to their bounds", "internal/decide/picker/index.go", "return min(n, ix.config.MaxBlocks)", "return max(n, ix.config.MaxBlocks)", "", also{}},
	{"decisions are never forgotten", "tables keep to their bounds", "internal/state/fleet/decisions.go", "if len(past) >= keptDecisions {", "if len(past) >= 50*keptDecisions {", "4", also{}},
	{"files stay under their temporary names", "records survive", datadirOf, "err = disk.Rename(f.Name(), path)", "err = nil", "", also{}},
	{"maxReplicas are forgotten", "counts keep to limits", step, "need = min(max(n, l.Min, in.Wake), l.Max)\n\tswitch n, bounded := max(n, in.AtLeast), min(max(need, in.AtLeast), l.Max); {", "need = max(n, l.Min, in.Wake)\n\tswitch n, bounded := max(n, in.AtLeast), max(need, in.AtLeast); {", "", also{"", "min(fall(next, need, want, in, now), in.Limits.Max)", "fall(next, need, want, in, now)"}},
	{"a canary gets half of its share", "a canary takes its share", "internal/state/dispatch/dispatcher.go", "d.random(100) < share", "d.random(200) < share", "9", also{}},
	{"names of files are not forced to the disk", "records survive", datadirOf, "err = disk.SyncDir(filepath.Dir(path)) // else", "err = nil // else", "8", also{}},
	{"a removed file may come back", "records survive", "internal/edge/datadir/store.go", "err = d.disk.SyncDir(filepath.Dir(path))", "err = nil", "10", also{}},
	{"what is written is not forced to the disk", "records survive", datadirOf, "err = f.Sync()\n\t}\n\tif e", "err = nil\n\t}\n\tif e", "8", also{}},
	{"idle time goes by the wall clock", "idle services keep their time", step, "left := stops - now.Sub(next.IdleSince)", "left := stops - now.Round(0).Sub(next.IdleSince)", "10", also{}},
	{"a replica that goes is ended at once", "a replica that goes finishes", "internal/state/dispatch/dispatcher.go", "\t\tcase <-one:\n", "\t\tcase <-one:\n\t\tdefault:\n", "", also{}},
	{"a key's requests are refilled by the wall clock", "a key keeps to its limits", "internal/decide/quota/quota.go", "passed := now.Sub(b.at)", "passed := now.Round(0).Sub(b.at.Round(0))", "10", also{}},
	{"services that are waited for may be stopped", "a start serves", "internal/decide/residency/value.go", "case s.Running+s.Waiting > 0:", "case s.Running > 0:", "22", also{"internal/state/fleet/residency.go", "demand.Queued+demand.Running == 0", "demand.Running == 0"}},
	{"weights are forgotten", "a route splits by weight", "internal/decide/route/why.go", "n = random(total)", "n = s.ends[random(len(s.ends))] - 1", "18", also{}},
	{"a look-up that fails empties the pool", "names keep their servers", lookupOf, "\t\tn.err = text\n", "\t\tn.err, n.found = text, nil\n", "18", also{}},
	{"a name is asked less and less", "names keep their servers", lookupOf, "for ; failures > 1 && wait < l.cfg.Every; failures-- {\n\t\twait *= 2\n\t}\n\treturn min(wait, l.cfg.Every)", "for ; failures > 0; failures-- {\n\t\twait *= 4\n\t}\n\treturn wait", "18", also{}},
	{"a shared pool forgets maxConcurrency", "a replica keeps to its limit", "internal/state/dispatch/endpoints.go", "limit := part.Limits.MaxConcurrency\n", "limit := part.Limits.MaxConcurrency\n\t\tif c.Shared {\n\t\t\tlimit = 0\n\t\t}\n", "50", also{}},
	{"a key's requests at one time are not given back", "a key keeps to its limits", "internal/state/keys/pass.go", "\th.running--\n", "", "10", also{}},
}

const (
	step    = "internal/decide/autoscale/step.go"
	queueOf = "internal/decide/admission/machine.go"
	flowsOf = "internal/decide/admission/flows.go"

	loadOf   = "internal/decide/autoscale/load.go"
	lookupOf = "internal/edge/endpoints/lookup.go"

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
		if _, err := m.sources(filepath.Join("..", "..")); err != nil {
			t.Errorf("%s: %v", m.name, err)
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
		if *only != "" && m.breaks != *only { // -invariant names the one that is looked at
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			sources, err := m.sources(root)
			if err != nil {
				t.Fatal(err)
			}
			dir, replaced := t.TempDir(), map[string]string{}
			for file, text := range sources {
				changed := filepath.Join(dir, fmt.Sprintf("mutant-%d.go", len(replaced)))
				replaced[filepath.Join(root, file)] = changed
				if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			overlay := filepath.Join(dir, "overlay.json")
			replace, err := json.Marshal(map[string]any{"Replace": replaced})
			if err == nil {
				err = os.WriteFile(overlay, replace, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(dir, "sim.test")
			build := exec.Command("go", "test", "-c", "-overlay", overlay, "-o", program, "./internal/sim")
			build.Dir = root
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			began := time.Now()
			run := exec.Command(program, "-test.run", "TestSeeds$", "-test.timeout", "3m", "-for", "60s", "-once", "-invariant", m.breaks, "-from", cmp.Or(m.from, "1"))
			run.Dir, run.Env = filepath.Join(root, "internal", "sim"), os.Environ()
			out, _ := run.CombinedOutput() // it fails, where it sees the mutant
			found := failed.FindStringSubmatch(string(out))
			if found == nil {
				t.Fatalf("no invariant broke within a minute:\n%s", out)
			}
			t.Logf("| %s | %s | seed %s, after %s | %v |", m.name, found[2], found[1], found[3], time.Since(began).Round(time.Second))
		})
	}
}
