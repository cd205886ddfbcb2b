package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sleeper is onDemand with an engine that may sleep.
func sleeper(name, standby, after string) string {
	s := strings.Replace(onDemand(name, "", ", --startup-delay, 3s"), "scaleToZeroAfter: 10m", "scaleToZeroAfter: "+after+", standby: "+standby, 1)
	return s
}

// asleepAt waits until the replica of a service sleeps at a level, and returns its
// process.
func (n *node) asleepAt(name string, level int) (pid int) {
	n.t.Helper()
	eventually(n.t, name+" sleeps", func() (bool, string) {
		s := n.status(name)
		return strings.Contains(s, fmt.Sprintf("Asleep (level %d", level)), s + n.logs.String()
	})
	rs := n.service("default/" + name).Replicas
	if len(rs) != 1 || rs[0].Phase != "Asleep" || rs[0].PID == 0 || len(rs[0].GPUs) > 0 {
		n.t.Fatalf("%s: asleep, its replicas are %+v", name, rs)
	}
	return rs[0].PID
}

// TestStandby: idle services sleep; a request wakes the process that sleeps, and
// not another; on one GPU two services take turns without a start.
func TestStandby(t *testing.T) {
	t.Parallel()
	n := onOneGPU(t, sleeper("a", "auto", "1s"), sleeper("b", "level2", "10m"))
	wakes := func(name string) {
		t.Helper()
		began := time.Now()
		if a := n.complete(name, 4); a.status != 200 || a.header.Get("X-Roundhouse-Waited-Ms") == "" {
			t.Fatalf("%s: %s", name, a)
		}
		t.Logf("%s answered after %s", name, time.Since(began))
	}
	wakes("a")
	first := n.asleepAt("a", 1)
	if out := n.do("explain", "wake", "a"); !strings.Contains(out, "sleeps   at level 1") {
		t.Errorf("explain wake:\n%s", out)
	}
	wakes("a")
	if again := n.asleepAt("a", 1); again != first {
		t.Errorf("the process was %d, and is %d: it was not woken", first, again)
	}
	contains(t, n.status("a"), "last woken in")
	wakes("b")
	wakes("a") // which has b put to sleep
	second := n.asleepAt("b", 2)
	wakes("b") // from level 2, with its weights read again
	if rs := n.service("default/b").Replicas; len(rs) != 1 || rs[0].PID != second || rs[0].Woke.Level != 2 {
		t.Errorf("b was started anew: %+v", rs)
	}
	contains(t, n.do("explain", "wake", "a"), "wakes    in about", "from level 1")
	n.post("/v2/repository/models/a/unload", "{}")
	eventually(t, "an unloaded model does not sleep", func() (bool, string) {
		rs := n.service("default/a").Replicas
		return len(rs) == 0, fmt.Sprintf("%+v", rs)
	})
}

// TestStandbySurvivesItsOwner kills `up` while a replica sleeps, and then the
// replica's process.
func TestStandbySurvivesItsOwner(t *testing.T) {
	t.Parallel()
	n := onOneGPU(t, sleeper("a", "level1", "1s"))
	if a := n.complete("a", 4); a.status != 200 {
		t.Fatal(a)
	}
	before := n.asleepAt("a", 1)
	n.signal(syscall.SIGKILL)
	n.up()
	if after := n.asleepAt("a", 1); after != before {
		t.Fatalf("the process was %d, and is %d", before, after)
	}
	if a := n.complete("a", 4); a.status != 200 { // it would hang if the replica were taken for awake
		t.Fatal(a)
	}
	pid := n.asleepAt("a", 1)
	if pid != before {
		t.Fatalf("the process was %d, and is %d", before, pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if a := n.complete("a", 4); a.status != 200 {
		t.Fatalf("after the end of a process that slept: %s", a)
	}
}

// TestOwnerDiesDuringWake: a process that was waking when `up` was killed may be
// awake or not. It is ended, and another answers.
func TestOwnerDiesDuringWake(t *testing.T) {
	t.Parallel()
	n := onOneGPU(t, strings.Replace(sleeper("a", "level1", "1s"), "--startup-delay", "--wake-time, 20s, --startup-delay", 1))
	if a := n.complete("a", 4); a.status != 200 {
		t.Fatal(a)
	}
	before := n.asleepAt("a", 1)
	cut := make(chan struct{})
	go func() {
		defer close(cut)
		_, _ = try(http.MethodPost, n.gateway+"/v1/completions", `{"model":"a","prompt":"hello"}`) // the kill cuts it
	}()
	// The status says so a moment before it is on record, and the process is told after
	// that.
	eventually(t, "it is on record that the replica is being woken", func() (bool, string) {
		rs := n.service("default/a").Replicas
		if len(rs) != 1 {
			return false, fmt.Sprint(rs)
		}
		record, err := os.ReadFile(filepath.Join(n.dir, "processes", "replicas", rs[0].ID+".json"))
		return strings.Contains(string(record), `"turning":true`), fmt.Sprint(string(record), err)
	})
	n.signal(syscall.SIGKILL)
	<-cut
	n.up()
	if a := n.complete("a", 4); a.status != 200 {
		t.Fatal(a)
	}
	if after := n.asleepAt("a", 1); after == before {
		t.Errorf("the process %d was taken over", before)
	}
}

// TestStandbyOfSGLang: an engine with SGLang's API sleeps and wakes by the calls of the
// catalog's entry, with the flags that they need; it would end if it were asked
// meanwhile.
func TestStandbyOfSGLang(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
echo "$@" > %s/args
while [ $# -gt 0 ]; do
  case "$1" in
  --port) port=$2 ;;
  --served-model-name) name=$2 ;;
  esac
  shift
done
exec %s simulate engine --api sglang --enable-memory-saver --enable-weights-cpu-backup --port "$port" --model "$name"
`, dir, binary)
	if err := os.WriteFile(filepath.Join(dir, "sglang"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	n := newNode(t)
	n.env = []string{"ROUNDHOUSE_GPUS=1", "PATH=" + dir + ":" + os.Getenv("PATH")}
	n.up()
	n.do("apply", "-f", write(t, t.TempDir(), "s.yaml", `apiVersion: roundhouse.dev/v1alpha1
kind: ModelService
metadata: {name: s}
spec:
  protocol: openAI
  scaling: {minReplicas: 0, maxReplicas: 1, scaleToZeroAfter: 1s, standby: level1, startupTimeout: 60s}
  engine:
    containers:
      - name: engine
        resources: {limits: {nvidia.com/gpu: 1}}
    local:
      command: [sglang, serve, --served-model-name, s, --port, "{{.Port}}"]
      readinessProbe: {httpGet: {path: /health, port: 8080}}
`))
	if a := n.complete("s", 4); a.status != 200 {
		t.Fatal(a)
	}
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	if err != nil || !strings.Contains(string(args), "--enable-memory-saver --enable-weights-cpu-backup") {
		t.Errorf("the engine was started with %s %v", args, err)
	}
	first := n.asleepAt("s", 1)
	if a := n.complete("s", 4); a.status != 200 {
		t.Fatal(a)
	}
	if again := n.asleepAt("s", 1); again != first {
		t.Errorf("the process was %d, and is %d: it was not woken", first, again)
	}
}

// TestSuspend: a replica without GPUs is stopped with its memory in swap, survives the
// end of its owner so, and is woken. Where there is no swap it stops, and says why.
func TestSuspend(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.up()
	s := strings.Replace(sleeper("a", "suspend", "1s"), "{nvidia.com/gpu: 1}", "{}", 1)
	n.do("apply", "-f", write(t, t.TempDir(), "s.yaml", s))
	if a := n.complete("a", 4); a.status != 200 {
		t.Fatal(a)
	}
	if swaps, err := os.ReadFile("/proc/swaps"); err != nil || strings.Count(string(swaps), "\n") < 2 || os.Getuid() != 0 {
		eventually(t, "it stops, and says why", func() (bool, string) {
			out := n.do("explain", "scale", "a")
			return strings.Contains(out, "not suspended: "), out
		})
		t.Log("this machine has no swap, or the test is not root's: suspension itself is not tested")
		return
	}
	suspended := func() int {
		t.Helper()
		eventually(t, "a is suspended", func() (bool, string) {
			out := n.status("a")
			return strings.Contains(out, "Asleep (suspended"), out + n.logs.String()
		})
		return n.service("default/a").Replicas[0].PID
	}
	stopped := func(pid int) {
		t.Helper()
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || !strings.Contains(string(status), "T (stopped)") {
			t.Fatalf("process %d is not stopped: %s %v", pid, status, err)
		}
	}
	first := suspended()
	stopped(first)
	n.signal(syscall.SIGKILL)
	stopped(first)
	n.up()
	if pid := suspended(); pid != first {
		t.Fatalf("the process was %d, and is %d", first, pid)
	}
	if a := n.complete("a", 4); a.status != 200 {
		t.Fatal(a)
	}
	if pid := suspended(); pid != first {
		t.Fatalf("the process was %d, and is %d: it was not woken", first, pid)
	}
	contains(t, n.do("explain", "wake", "a"), "sleeps   suspended", "from suspension")
	n.do("logs", "a")
	n.do("delete", "a")
	eventually(t, "its process ends", func() (bool, string) { return !alive(first), "" })
}
