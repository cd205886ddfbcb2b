package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestScaleToZero leaves a model alone: its process goes, and the next request
// has it started again and gets the answer.
func TestScaleToZero(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "-f", write(t, t.TempDir(), "iris.yaml", irisManifest("iris", "{minReplicas: 0, scaleToZeroAfter: 1s}")))
	for range 2 {
		asked := time.Now()
		n.infer("/v2/models/iris/infer", irisTensor)
		t.Logf("from no process to the answer: %s", time.Since(asked).Round(time.Millisecond))
		s := n.service("default/iris")
		// The one before may have ended and not be forgotten yet.
		var pids []int
		for _, r := range s.Replicas {
			if r.Phase != "Draining" {
				pids = append(pids, r.PID)
			}
		}
		if len(pids) != 1 {
			t.Fatalf("want one replica after a request, got %v", s.Replicas)
		}
		gone(t, pids[0])
		if idle := time.Since(asked); idle < time.Second {
			t.Errorf("it stopped after %s, want a second without requests", idle)
		}
	}
	eventually(t, "the table says it sleeps", func() (bool, string) {
		s := n.status("iris")
		return s != "" && len(n.processes()) == 1, s
	})
	wide := n.do("get", "-o", "wide")
	contains(t, wide, "REPLICA-S", "IDLE-S", "STARTUP-S", "Asleep")
	matches(t, wide, `xgboost +v1 +- +[1-9]\d* +\d+ +\d+\.\d\d +http`)
	matches(t, n.do("logs", "iris"), "model loaded") // of the replica that is gone
}

// TestCrashLoopSleeps: a model that never stays up is put to sleep like any
// other that nobody asks for.
func TestCrashLoopSleeps(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.do("apply", "-f", write(t, t.TempDir(), "crash.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: crash}
spec:
  protocol: v2
  scaling: {minReplicas: 0, scaleToZeroAfter: 3s}
  engine:
    local:
      command: [sh, -c, "sleep 0.3; echo no such layer; exit 3"]
      readinessProbe: {tcpSocket: {port: "{{.Port}}"}}
`))
	a := n.post("/v2/models/crash/infer", irisTensor)
	answered := time.Now()
	failures := func() (at []time.Time) {
		for line := range strings.Lines(n.logs.String()) {
			var when time.Time
			if text, ok := strings.CutPrefix(line, "time="); ok && strings.Contains(text, "a replica failed") && when.UnmarshalText([]byte(strings.Fields(text)[0])) == nil {
				at = append(at, when)
			}
		}
		return at
	}
	eventually(t, "the log has two failures", func() (bool, string) { return len(failures()) > 1, n.logs.String() })
	before := slices.DeleteFunc(failures(), answered.Before)
	// Due after two failures; on a slow machine another may come before it.
	if len(before) < 2 || len(before) > 3 {
		t.Errorf("answered after %d failed starts", len(before))
	}
	if a.status != 503 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "no such layer") {
		t.Errorf("answered %s, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	eventually(t, "it sleeps", func() (bool, string) {
		s := n.service("default/crash")
		return len(s.Replicas) == 0, n.run("describe", "crash").out
	})
}

// TestBurstFromZero: the replicas that a burst calls for start together. On a
// busy machine the requests themselves may come far apart; of three bursts one
// comes at once.
func TestBurstFromZero(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	var apart []time.Duration
	for len(apart) < 3 && (len(apart) == 0 || slices.Min(apart) > 700*time.Millisecond) {
		apart = append(apart, n.burst(fmt.Sprintf("chat-%d", len(apart))))
	}
	t.Logf("the third replica was started after the first by %s", apart)
	if slices.Min(apart) > 700*time.Millisecond {
		t.Errorf("the third replica was started %s after the first", apart)
	}
	matches(t, n.do("describe", "chat-0"), `the last start took ([3-9]|\d\d)\.\d+s`)
}

// burst asks a service that sleeps for what three replicas take at once, and
// returns how far apart these were started.
func (n *node) burst(name string) (apart time.Duration) {
	n.t.Helper()
	n.do("apply", "-f", write(n.t, n.t.TempDir(), "chat.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: `+name+`}
spec:
  protocol: openAI
  scaling: {minReplicas: 0, maxReplicas: 5, targetConcurrency: 10}
  engine:
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, `+name+`, --startup-delay, 3s]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`))
	var asked sync.WaitGroup
	for range 25 {
		asked.Go(func() {
			if a, err := try("POST", n.gateway+"/v1/completions", `{"model":"`+name+`","prompt":"hello","max_tokens":1}`); err != nil || a.status != 200 {
				n.t.Errorf("%s %v", a, err)
			}
		})
	}
	asked.Wait()
	var s struct{ Replicas []struct{ Created time.Time } }
	raw := n.get(n.admin+"/api/v1/services/default/"+name, "Authorization", "Bearer "+n.token())
	if err := json.Unmarshal([]byte(raw.body), &s); err != nil || len(s.Replicas) != 3 {
		n.t.Fatalf("%v: want three replicas in %s", err, raw.body)
	}
	return s.Replicas[2].Created.Sub(s.Replicas[0].Created)
}

// TestExplainScale: the decisions of a burst are a table with a line for each
// change, JSON for programs and a metric; a terminal gets a sparkline above it.
func TestExplainScale(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	fails(t, n.run("explain", "scale", "nobody"), 1, "no service default/nobody")
	n.burst("chat")
	var table string
	eventually(t, "all three are ready", func() (bool, string) {
		table = n.do("explain", "scale", "chat")
		return regexp.MustCompile(`(?m)^\S+ \S+ +3 +0 +3 `).MatchString(table), table
	})
	matches(t, table, `(?m)^engine: last decisions\n`+
		`TIME +READY +STARTING +DESIRED +ARRIVALS/S +SERVICE TIME +LOAD +BACKLOG +WHY\n`)
	matches(t, table, `(?m)^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +0 +0 +0 +0.00 +- +0.00 +0.00 +`)
	matches(t, table, `(?m)^\S+ \S+ +0 +\d +3 +\S+ +- +2[1-5].00 +0.00 +2[1-5] in flight, target 10 each$`)
	if strings.Contains(table, "desired replicas") {
		t.Errorf("a pipe got a sparkline:\n%s", table)
	}
	var all []struct {
		Component string
		Decisions []struct {
			Desired, Queued, Running int
			Inputs                   struct{ Load float64 }
		}
	}
	if out := n.do("explain", "scale", "chat", "-o", "json"); json.Unmarshal([]byte(out), &all) != nil || len(all) != 1 || all[0].Component != "engine" {
		t.Fatalf("as JSON: %s", out)
	}
	peak, most, load := 0, 0, 0.0
	for _, d := range all[0].Decisions {
		peak, most, load = max(peak, d.Desired), max(most, d.Queued+d.Running), max(load, d.Inputs.Load)
	}
	if peak != 3 || most < 21 || load < 21 {
		t.Errorf("at most %d replicas were desired, for %d requests and a load of %v", peak, most, load)
	}
	metrics := n.get(n.admin + "/metrics").body
	for _, name := range []string{"desired", "ready"} {
		contains(t, metrics, "# TYPE roundhouse_"+name+"_replicas gauge\n",
			"roundhouse_"+name+`_replicas{component="engine",namespace="default",service="chat"} 3`+"\n")
	}
	cmd := exec.Command(binary, "explain", "scale", "chat")
	cmd.Env = n.environ()
	screen := onTerminal(t, cmd)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, screen)
	}
	eventually(t, "a terminal shows the sparkline", func() (bool, string) {
		return strings.Contains(screen.String(), "█ at most 3"), screen.String()
	})
	n.do("delete", "chat")
	eventually(t, "the metrics of a deleted service go", func() (bool, string) {
		out := n.get(n.admin + "/metrics").body
		return !strings.Contains(out, "_replicas{"), out
	})
}

// TestUsage: what services used is reported, also over a restart and a kill of up,
// and of deleted ones.
func TestUsage(t *testing.T) {
	t.Parallel()
	n := onOneGPU(t, onDemand("sim", "", ""))
	contains(t, n.do("usage"), "No replica has run since 20")
	fails(t, n.run("usage", "nobody"), 1, "no service default/nobody")
	fails(t, n.run("usage", "--since", "yesterday"), 2, "want 1d to 400d, or a date")
	fails(t, n.run("usage", "-o", "yaml"), 2, "want table, csv or json")
	wake := func() {
		t.Helper()
		if a := n.complete("sim", 4); a.status != http.StatusOK {
			t.Fatal(a)
		}
	}
	type row struct{ Service string }
	used := func() (idle, gpus float64) {
		var report struct {
			Days, Components []row
			Total            struct{ Replicas, GPUs struct{ Idle float64 } }
		}
		if out := n.do("usage", "-o", "json"); json.Unmarshal([]byte(out), &report) != nil || len(report.Components) > 1 {
			t.Fatalf("as JSON: %s", out)
		}
		return report.Total.Replicas.Idle, report.Total.GPUs.Idle
	}
	least := func(seconds float64) {
		t.Helper()
		eventually(t, "its replica is counted", func() (bool, string) {
			idle, gpus := used()
			return idle >= seconds && gpus >= idle && gpus < idle+1, fmt.Sprint(idle, " of replicas, ", gpus, " of GPUs")
		})
	}
	wake()
	least(1)
	before, _ := used()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		n.signal(s)
		n.up()
		if now, _ := used(); now < before {
			t.Errorf("%v s after %v, %v before", now, s, before)
		}
		wake()
		least(before + 1)
	}
	n.do("delete", "service", "sim")
	table := n.do("usage", "sim", "--since", "2d")
	matches(t, table, `(?m)^DAY +NAMESPACE +SERVICE +COMPONENT +REPLICAS +STARTING +IDLE +ASLEEP +GPUS +GPUS IDLE$`)
	matches(t, table, `(?m)^20\S+ +default +sim +engine +\S*\ds +\S+ +\S*\ds +- +\S*\ds +\S*\ds$`)
	matches(t, n.do("usage", "-o", "csv"), `(?m)^20\S+,default,sim,engine,\d+\.\d{3},`)
	matches(t, n.get(n.admin+"/metrics").body, `(?m)^roundhouse_gpu_seconds_total\{component="engine",namespace="default",service="sim",state="idle"\} [0-9.]+$`)
}
