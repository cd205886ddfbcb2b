package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// onDemand is a service of simulated engines that sleeps until it is asked, and
// takes a GPU; more are lines of its spec, and flags those of its engine.
func onDemand(name, more, flags string) string {
	return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: %[1]s}
spec:
  protocol: openAI
  scaling: {minReplicas: 0, maxReplicas: 1, targetConcurrency: 8, scaleToZeroAfter: 10m, startupTimeout: 60s}
%[2]s
  engine:
    containers:
      - name: engine
        resources: {limits: {nvidia.com/gpu: 1}}
    local:
      command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, %[1]s%[3]s]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`, name, more, flags)
}

func (n *node) complete(model string, tokens int) answer {
	n.t.Helper()
	return n.post("/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":%d}`, model, tokens))
}

// onOneGPU starts a node whose machine has one GPU.
func onOneGPU(t *testing.T, services ...string) *node {
	t.Helper()
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_GPUS=1", "ROUNDHOUSE_GPU_MEMORY=24Gi"}
	n.up()
	n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", strings.Join(services, "---\n")))
	return n
}

// TestOneGPUSwaps: the request for a service that does not fit has an idle one
// stopped, and back; one that answers a request is not cut: the other waits.
func TestOneGPUSwaps(t *testing.T) {
	t.Parallel()
	n := onOneGPU(t, onDemand("a", "", ""), onDemand("b", "", ""))
	for _, model := range []string{"a", "b", "a", "b"} {
		began := time.Now()
		if a := n.complete(model, 4); a.status != 200 {
			t.Fatalf("%s: %s", model, a)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s took %s", model, took)
		}
	}
	contains(t, n.get(n.admin+"/metrics").body, `roundhouse_replica_gpus{namespace="default",replica="b-engine-`)
	contains(t, n.logs.String(), "an idle service makes room", "default/b needs 1 GPU; default/a is idle and the least valuable")
	long, err := http.Post(n.gateway+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"b","prompt":"hello","max_tokens":240,"stream":true,"ignore_eos":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = long.Body.Close() }()
	lines := bufio.NewReader(long.Body)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var short answer
	var shortEnded time.Time
	wg.Go(func() { short = n.complete("a", 4); shortEnded = time.Now() })
	eventually(t, "a hears who holds the GPU", func() (bool, string) {
		out := n.run("describe", "a").out
		return strings.Contains(out, "default/b (busy: 1 running, 0 waiting)"), out
	})
	rest, err := io.ReadAll(lines)
	longEnded := time.Now()
	wg.Wait()
	if err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("b's answer was cut (%v): %.300s", err, rest)
	}
	if short.status != 200 || !longEnded.Before(shortEnded) {
		t.Errorf("b's answer ended at %s; a answered %s at %s", longEnded, short, shortEnded)
	}
}

// TestEditThatCannotFit: an idle service that is edited to need more than a pinned
// one leaves of the machine keeps the replica that it had.
func TestEditThatCannotFit(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_GPUS=2"}
	n.up()
	a := onDemand("a", "", "")
	n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", onDemand("pinned", "  residency: {pin: true}", "")+"---\n"+a))
	for _, model := range []string{"pinned", "a"} {
		if a := n.complete(model, 4); a.status != 200 {
			t.Fatalf("%s: %s", model, a)
		}
	}
	first := n.pid("a")
	n.do("apply", "-f", write(t, t.TempDir(), "a.yaml", strings.Replace(a, "nvidia.com/gpu: 1", "nvidia.com/gpu: 2", 1)))
	eventually(t, "the new revision waits", func() (bool, string) {
		out := n.run("describe", "a").out
		return strings.Contains(out, "InsufficientGPUs: needs 2 GPUs, 0 of 2 free"), out
	})
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		serving := false
		for _, r := range n.service("default/a").Replicas {
			serving = serving || r.PID == first && r.Phase == "Ready"
		}
		if !serving {
			t.Fatalf("process %d does not serve a any more: %s", first, n.run("describe", "a").out)
		}
	}
	if a := n.complete("a", 4); a.status != 200 {
		t.Errorf("a after its edit: %s", a)
	}
}

// TestExplainWakeAndSharing: services that state less than a GPU's memory share
// it; a pinned one is never stopped, and who can never fit beside it is refused at
// once, with the sum; explain wake says all of this beforehand.
func TestExplainWakeAndSharing(t *testing.T) {
	t.Parallel()
	share := func(name, memory, more string) string {
		return strings.Replace(onDemand(name, "  residency: {gpuMemory: "+memory+more+"}", ""), "{nvidia.com/gpu: 1}", "{}", 1)
	}
	n := onOneGPU(t, share("a", "8Gi", ", pin: true"), share("b", "12Gi", ""), onDemand("whole", "", ""), share("c", "10Gi", ""))
	contains(t, n.do("explain", "wake", "a"), "needs    1 GPU with 8 GiB free", "stops    nothing", "no start of it has been seen")
	for _, model := range []string{"a", "b"} {
		if a := n.complete(model, 4); a.status != 200 {
			t.Fatalf("%s: %s", model, a)
		}
	}
	for _, name := range []string{"a", "b"} {
		if rs := n.service("default/" + name).Replicas; len(rs) != 1 || rs[0].Phase != "Ready" {
			t.Errorf("%s beside the other: %+v", name, rs)
		}
	}
	contains(t, n.do("explain", "wake", "whole"), "refused  it needs 1 GPU, this machine has 1 GPU (24 GiB)", "of which pinned services (default/a) leave too little")
	if a := n.complete("whole", 4); a.status != 503 || !strings.Contains(a.body, "pinned services (default/a) leave too little") {
		t.Errorf("whole: %s", a)
	}
	contains(t, n.do("explain", "wake", "c"), "stops    default/b: default/c needs 1 GPU with 10 GiB free; default/b is idle and the least valuable")
	if a := n.complete("c", 4); a.status != 200 {
		t.Errorf("c: %s", a)
	}
	contains(t, n.do("explain", "wake", "a"), "starts   nothing: it has a replica")
}

// TestStormOnRoomForThree: twenty services that sleep are asked at once, twice
// each, with room for three. Every request is answered, a service answers both of
// its requests before it goes, and the last answer comes within twice the time of
// the best schedule. What asks for more than the machine has is refused at once,
// and a service whose clients have left is not started.
func TestStormOnRoomForThree(t *testing.T) {
	t.Parallel()
	const models, room = 20, 3
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_GPUS=3"}
	n.up()
	all := []string{onDemand("left", "  residency: {priority: -1}", ""), strings.Replace(onDemand("large", "", ""), "gpu: 1}", "gpu: 4}", 1)}
	for i := range models {
		all = append(all, onDemand(fmt.Sprintf("m%d", i), "", ", --startup-delay, 1s"))
	}
	n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", strings.Join(all, "---\n")))
	alone := time.Now()
	if a := n.complete("m0", 4); a.status != 200 {
		t.Fatalf("m0: %s", a)
	}
	one := time.Since(alone)
	var wg sync.WaitGroup
	answers, took := make([]answer, 2*models), make([]time.Duration, 2*models)
	began := time.Now()
	for i := range answers {
		wg.Go(func() {
			answers[i] = n.complete(fmt.Sprintf("m%d", i%models), 4)
			took[i] = time.Since(began)
		})
	}
	impatient := &http.Client{Timeout: 500 * time.Millisecond}
	if r, err := impatient.Post(n.gateway+"/v1/completions", "application/json", strings.NewReader(`{"model":"left","prompt":"hello"}`)); err == nil {
		_ = r.Body.Close()
		t.Errorf("left answers %d in the storm", r.StatusCode)
	}
	refused := time.Now()
	if a := n.complete("large", 4); a.status != 503 || !strings.Contains(a.body, "4 GPUs") || time.Since(refused) > 20*time.Second {
		t.Errorf("what needs 4 GPUs of 3: %s after %s", a, time.Since(refused))
	}
	wg.Wait()
	for i, a := range answers {
		if a.status != 200 {
			t.Errorf("m%d: %s", i%models, a)
		}
	}
	if last, best := slices.Max(took), one*(models+room-1)/room; last > 2*best+5*time.Second {
		t.Errorf("the last answer came after %s; one start takes %s, so the best schedule %s", last, one, best)
	}
	if stops := strings.Count(n.logs.String(), "an idle service makes room"); stops < models-1-room || stops > models {
		t.Errorf("%d services were stopped for %d with room for %d", stops, models, room)
	}
	eventually(t, "left has no replica, since its client has gone", func() (bool, string) {
		return len(n.service("default/left").Replicas) == 0, n.run("describe", "left").out
	})
}

// locked is a service whose engine notes in a file when it finds the GPU taken by
// another, and takes two seconds to give it back.
func locked(name, lock string) string {
	script := fmt.Sprintf(`mkdir %[2]s || echo %[1]s >> %[2]s.twice; trap 'sleep 2' TERM; "$@" & wait $!; wait; rmdir %[2]s; sleep 0.2`, name, lock)
	command := fmt.Sprintf(`[sh, -c, %q, sh, %q, simulate, engine, --port, "{{.Port}}", --startup-delay, 1s, --model, %s]`, script, binary, name)
	was := fmt.Sprintf(`[roundhouse, simulate, engine, --port, "{{.Port}}", --model, %s]`, name)
	return strings.Replace(onDemand(name, "", ""), was, command, 1)
}

// TestKilledBetweenEvictionAndStart: `up` is killed while the GPU of an idle
// service goes to another. The next `up` gives it to one process at a time, and
// both services answer.
func TestKilledBetweenEvictionAndStart(t *testing.T) {
	t.Parallel()
	for moment, reached := range map[string]func(n *node, a int) bool{
		"the old replica is ending": func(n *node, _ int) bool {
			return strings.Contains(n.logs.String(), "an idle service makes room")
		},
		"the new replica is starting": func(n *node, a int) bool {
			b := n.service("default/b").Replicas
			return !alive(a) && len(b) == 1 && b[0].PID > 0
		},
	} {
		t.Run(moment, func(t *testing.T) {
			t.Parallel()
			n, lock := newNode(t), filepath.Join(t.TempDir(), "gpu")
			n.env = []string{"ROUNDHOUSE_GPUS=1"}
			n.up()
			n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", locked("a", lock)+"---\n"+locked("b", lock)))
			if a := n.complete("a", 4); a.status != 200 {
				t.Fatalf("a: %s", a)
			}
			first := n.pid("a")
			asked := make(chan struct{})
			go func() {
				defer close(asked)
				_, _ = try("POST", n.gateway+"/v1/completions", `{"model":"b","prompt":"hello","max_tokens":4}`)
			}()
			for end := time.Now().Add(patience); !reached(n, first); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%s was not seen:\n%s", moment, n.logs)
				}
			}
			n.signal(syscall.SIGKILL)
			<-asked
			n.up()
			for _, model := range []string{"b", "a"} {
				if a := n.complete(model, 4); a.status != 200 {
					t.Errorf("%s after the kill: %s\n%s", model, a, n.run("describe", model).out)
				}
			}
			eventually(t, "one replica is left", func() (bool, string) {
				a, b := n.service("default/a").Replicas, n.service("default/b").Replicas
				return len(a) == 1 && a[0].Phase == "Ready" && len(b) == 0, n.run("get").out
			})
			if twice, err := os.ReadFile(lock + ".twice"); !os.IsNotExist(err) {
				t.Errorf("the GPU was held by two: %s %v", twice, err)
			}
		})
	}
}

// TestServicesThatDoNotRunTogether: alternatives take each other's place although
// there is room for both, an exclusive service has those stopped that are not of
// its group, and what can never run beside a pinned one is refused at once.
func TestServicesThatDoNotRunTogether(t *testing.T) {
	t.Parallel()
	cpu := func(name, residency string) string {
		return strings.Replace(onDemand(name, residency, ""), "{nvidia.com/gpu: 1}", "{}", 1)
	}
	n := newNode(t)
	n.up()
	n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", strings.Join([]string{
		cpu("x", "  residency: {oneOf: chat}"), strings.Replace(cpu("y", ""), "{name: y}", "{name: y, annotations: {roundhouse.dev/residency-one-of: chat}}", 1),
		cpu("big", "  residency: {group: large, exclusive: true}"), cpu("large", "  residency: {group: large}"), cpu("small", ""),
		cpu("kept", "  residency: {oneOf: voice, pin: true}"), cpu("other", "  residency: {oneOf: voice}"),
	}, "---\n")))
	running := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("%v run", want), func() (bool, string) {
			var got []string
			for _, name := range []string{"x", "y", "big", "large", "small"} {
				if len(n.service("default/"+name).Replicas) > 0 {
					got = append(got, name)
				}
			}
			return fmt.Sprint(got) == fmt.Sprint(want), fmt.Sprint(got)
		})
	}
	answers := func(models ...string) {
		t.Helper()
		for _, model := range models {
			if a := n.complete(model, 4); a.status != 200 {
				t.Fatalf("%s: %s", model, a)
			}
		}
	}
	answers("x", "large", "small")
	running("x", "large", "small")
	contains(t, n.do("explain", "wake", "y"), "stops    default/x: default/y and default/x are alternatives (residency.oneOf: chat)")
	answers("y")
	running("y", "large", "small")
	answers("big")
	running("big", "large")
	answers("x") // beside an exclusive one that runs
	running("x", "big", "large")
	answers("kept")
	if a := n.complete("other", 4); a.status != 503 || !strings.Contains(a.body, "default/kept is pinned") {
		t.Errorf("other: %s", a)
	}
}

// TestPreload: what is to be preloaded and fits runs before anybody asks for it,
// the highest priority first, also after a restart.
func TestPreload(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_GPUS=2"}
	n.up()
	preloads := func(name string, priority int) string {
		return onDemand(name, fmt.Sprintf("  residency: {preload: true, priority: %d}", priority), "")
	}
	n.do("apply", "-f", write(t, t.TempDir(), "services.yaml", preloads("low", 1)+"---\n"+preloads("high", 3)+"---\n"+preloads("middle", 2)))
	loaded := func() {
		t.Helper()
		eventually(t, "high and middle are loaded", func() (bool, string) {
			ready := map[string]int{}
			for _, name := range []string{"low", "middle", "high"} {
				for _, r := range n.service("default/" + name).Replicas {
					if r.Phase == "Ready" {
						ready[name]++
					}
				}
			}
			return ready["high"] == 1 && ready["middle"] == 1 && ready["low"] == 0 &&
				strings.Contains(n.logs.String(), "not preloaded: it starts at its first request\" service=default/low"), fmt.Sprint(ready, n.logs)
		})
	}
	loaded()
	n.signal(syscall.SIGTERM)
	n.up()
	loaded()
	if a := n.complete("low", 4); a.status != 200 {
		t.Errorf("low: %s", a)
	}
}

// TestMemoryOfFiles: a machine without GPUs makes room for a service that states
// nothing, by the size of its model's files, until a replica has been measured.
// What was measured outlives `up`.
func TestMemoryOfFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	model, err := os.Create(filepath.Join(dir, "model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(model.Truncate(1<<30), model.Close()); err != nil {
		t.Fatal(err)
	}
	const runtime = `apiVersion: roundhouse.dev/v1alpha1
kind: ServingRuntime
metadata: {name: simulated}
spec:
  supportedModelFormats: [{name: gguf, autoSelect: true, priority: 100}]
  protocolVersions: [openAI]
  local:
    command: [roundhouse, simulate, engine, --port, "{{.Port}}", --model, "{{.Name}}"]
    readinessProbe: {httpGet: {path: /health, port: 8080}}
---
`
	files := func(name, more string) string {
		return fmt.Sprintf(`apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: %s}
spec:
  model: {uri: "file://%s", format: {name: gguf}}
  runtime: {name: simulated}
  protocol: openAI
  scaling: {minReplicas: 0, maxReplicas: 1, scaleToZeroAfter: 10m, startupTimeout: 60s}
%s
`, name, model.Name(), more)
	}
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_MEMORY=2Gi"}
	n.up()
	n.do("apply", "-f", write(t, dir, "services.yaml", runtime+files("stated", "  engine: {resources: {requests: {memory: 1536Mi}}}")+"---\n"+files("guessed", "")))
	if a := n.complete("stated", 4); a.status != 200 {
		t.Fatalf("stated: %s", a)
	}
	contains(t, n.do("explain", "wake", "guessed"), "needs    1.2 GiB of memory (estimated from its files)",
		"stops    default/stated: default/guessed needs 1.2 GiB of memory (estimated from its files); default/stated is idle")
	if a := n.complete("guessed", 4); a.status != 200 {
		t.Fatalf("guessed: %s", a)
	}
	contains(t, n.logs.String(), "an idle service makes room")
	measured := func(what string) {
		t.Helper()
		eventually(t, what, func() (bool, string) {
			out := n.do("explain", "wake", "guessed")
			return strings.Contains(out, "of memory (measured)"), out
		})
	}
	measured("guessed is measured")
	if a := n.complete("stated", 4); a.status != 200 {
		t.Fatalf("stated: %s", a)
	}
	for _, name := range []string{"stated", "guessed"} {
		if rs := n.service("default/" + name).Replicas; len(rs) != 1 || rs[0].Phase != "Ready" {
			t.Errorf("%s beside the other: %+v", name, rs)
		}
	}
	n.signal(syscall.SIGTERM)
	n.up()
	measured("what was measured is known after a restart")
}
