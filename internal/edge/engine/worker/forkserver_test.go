package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/tensor"
)

// TestForkFaults has fork servers that fail in every way: the workers are
// started one by one.
func TestForkFaults(t *testing.T) {
	for how, says := range map[string]string{"good": "threads run on", "fork-dies": "EOF", "fork-lies": "process 1: the process is gone", "fork-babbles": "broke the protocol: an answer to request"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			if !forks() {
				t.Skip("workers are forked on Linux alone")
			}
			r := newRig(t, how, func(c *Config) { c.ForkWorkers, c.ParallelWorkers = true, 2 })
			m := r.load(t, "m", "")
			pid(t, m)
			r.log.await(t, "they cannot be forked")
			r.log.await(t, says)
			if n := strings.Count(r.log.String(), "cannot be forked"); n != 1 || m.Workers() != 2 {
				t.Errorf("said %d times, %d workers", n, m.Workers())
			}
		})
	}
}

// TestForkModels: a fork server is told of the models of its pool, there and to
// come, each once.
func TestForkModels(t *testing.T) {
	folder := t.TempDir()
	r := newRig(t, "good", func(c *Config) {
		c.Expected = []Settings{
			{Name: "a", Document: json.RawMessage(`{"implementation":"mlserver_sklearn.SKLearnModel"}`)},
			{Name: "b", Document: json.RawMessage(`{"implementation":"mlserver_sklearn.SKLearnModel"}`)},
			{Name: "c", Document: json.RawMessage(`{"implementation":"models.Model"}`), Folder: folder},
			{Name: "d", Document: json.RawMessage(`{"implementation":"models.Elsewhere"}`), EnvironmentPath: folder},
			{Name: "e", Document: json.RawMessage(`{"implementation":"models.Apart"}`), InferencePoolGID: "g"},
			{Name: "f", Document: json.RawMessage(`{`)},
		}
	})
	r.load(t, "m", "models.Loaded")
	got := r.mu.pools[poolKey{}].forkModels()
	want := []forkModel{{Implementation: "models.Loaded"}, {Implementation: "mlserver_sklearn.SKLearnModel"}, {Implementation: "models.Model", Folder: folder}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}

// newForkRig is an engine of two workers that are forked.
func newForkRig(t *testing.T) *rig {
	t.Helper()
	if !forks() {
		t.Skip("workers are forked on Linux alone")
	}
	return newRealRig(t, func(c *Config) { c.ParallelWorkers = 2 })
}

// forkServerPID is the process that forks the default pool's workers.
func (r *rig) forkServerPID(t *testing.T) int {
	t.Helper()
	r.mu.Lock()
	p := r.mu.pools[poolKey{}]
	r.mu.Unlock()
	p.forks.mu.Lock()
	defer p.forks.mu.Unlock()
	if p.forks.live == nil {
		t.Fatal("no fork server")
	}
	return p.forks.live.process.PID()
}

// parent is a process's parent, 0 if it has ended.
func parent(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	n, _ := strconv.Atoi(f[1])
	return n
}

// proportional is a process's memory in bytes, shared pages in parts.
func proportional(t *testing.T, pid int) (total int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, _ := strconv.Atoi(strings.Fields(rest)[0])
			return n << 10
		}
	}
	t.Fatal("no Pss")
	return 0
}

// TestForkMemory compares two forked workers, and what forked them, with two
// that were started one by one.
func TestForkMemory(t *testing.T) {
	var total [2]int
	for i, fork := range []bool{true, false} {
		r := newForkRig(t)
		r.config.ForkWorkers = fork
		m := r.loadCode(t, "echo", echoModel+"\ntry:\n    import sklearn.linear_model\nexcept ImportError:\n    pass\n")
		for range 8 {
			if _, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, w := range r.Status() {
			if parent(w.PID) != os.Getpid() {
				t.Errorf("worker %d is a child of %d", w.PID, parent(w.PID))
			}
			total[i] += proportional(t, w.PID)
		}
		if fork {
			total[i] += proportional(t, r.forkServerPID(t))
		}
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("forked %d MB, started one by one %d MB", total[0]/1e6, total[1]/1e6)
	if total[0] >= total[1] {
		t.Errorf("forked: %d bytes, started one by one: %d", total[0], total[1])
	}
}

// TestForkKilled kills a forked worker, then the fork server, then a worker
// again: only what was in flight with one of them is lost.
func TestForkKilled(t *testing.T) {
	r := newForkRig(t)
	m := r.loadCode(t, "echo", echoModel)
	server := r.forkServerPID(t)
	die := func() {
		t.Helper()
		bad := floats(1)
		bad.Name = "die"
		_, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{bad}})
		wantError(t, err, kindDied, 500, "ended by signal 9 (killed)")
	}
	replaced := func(restarts int) {
		t.Helper()
		for end := time.Now().Add(testWait); ; time.Sleep(5 * time.Millisecond) {
			n, up := 0, true
			for _, w := range r.Status() {
				n += w.Restarts
				up = up && w.PID != 0 && parent(w.PID) == os.Getpid()
			}
			if n == restarts && up {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v", r.Status())
			}
		}
	}
	die()
	replaced(1)
	if now := r.forkServerPID(t); now != server {
		t.Errorf("the fork server is %d, not %d", now, server)
	}
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if _, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}}); err != nil {
			t.Error(err)
		}
	}
	for parent(server) != 0 { // it is collected
		time.Sleep(time.Millisecond)
	}
	die()
	replaced(2)
	r.log.await(t, "fork server ended; it is restarted")
	if now := r.forkServerPID(t); now == server {
		t.Error("the dead fork server is still there")
	}
	if r.log.has("cannot be forked") {
		t.Error("forking was given up")
	}
}

// ends waits until processes are gone.
func ends(t *testing.T, pids []int) {
	t.Helper()
	for end := time.Now().Add(testWait); len(pids) > 0; time.Sleep(5 * time.Millisecond) {
		if errors.Is(syscall.Kill(pids[0], 0), syscall.ESRCH) || state(pids[0]) == "Z" {
			pids = pids[1:]
		} else if time.Now().After(end) {
			t.Fatalf("processes %v are left", pids)
		}
	}
}

func state(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))[0]
}

// serverVariable makes the test binary a server with forked workers.
const serverVariable = "ROUNDHOUSE_TEST_FORKING_SERVER"

// TestForkServerKilled kills a server: its workers and what forked them end.
func TestForkServerKilled(t *testing.T) {
	if !forks() {
		t.Skip("workers are forked on Linux alone")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := code(t, "echo", echoModel)
	job, err := json.Marshal(map[string]any{"python": realPython(t), "settings": s})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), serverVariable+"="+string(job), "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	if err := json.Unmarshal([]byte(line), &pids); err != nil || len(pids) != 3 {
		t.Fatalf("%s: %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ends(t, pids)
}

// forkingServer loads a model in two workers, says who they are and what
// forked them, and waits to be killed.
func forkingServer(job string) {
	var j struct {
		Python   string
		Settings Settings
	}
	if err := json.Unmarshal([]byte(job), &j); err != nil {
		panic(err)
	}
	c := DefaultConfig()
	c.ParallelWorkers = 2
	p := pythonProgram(j.Python)
	e, err := New(c, func(context.Context, Environment) (*Program, error) { return &p, nil }, nil, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		panic(err)
	}
	if _, err := e.Load(context.Background(), j.Settings); err != nil {
		panic(err)
	}
	pids := []int{e.mu.pools[poolKey{}].forks.live.process.PID()}
	for _, w := range e.Status() {
		pids = append(pids, w.PID)
	}
	text, _ := json.Marshal(pids)
	fmt.Println(string(text))
	select {}
}

// TestForkOrphans has a forked worker leave a process behind, in a session of
// its own, that ends: it does not stay a zombie.
func TestForkOrphans(t *testing.T) {
	r := newForkRig(t)
	r.orphans = 10 * time.Millisecond
	m := r.loadCode(t, "daemon", `
import os
from mlserver import MLModel, types
class Model(MLModel):
    async def predict(self, payload):
        reader, writer = os.pipe()
        middle = os.fork()
        if middle == 0:
            if os.fork() == 0:
                os.setsid()
                os.write(writer, str(os.getpid()).encode())
            os._exit(0)
        os.waitpid(middle, 0)
        return types.InferenceResponse(model_name=self.name, parameters=types.Parameters(orphan=int(os.read(reader, 32))), outputs=[])
`)
	got, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}})
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(fmt.Sprint(got.Parameters["orphan"]))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testWait); state(orphan) != ""; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d is %s, a child of %d", orphan, state(orphan), parent(orphan))
		}
	}
}

// TestForkRandom has forked workers draw numbers.
func TestForkRandom(t *testing.T) {
	r := newForkRig(t)
	m := r.loadCode(t, "random", `
import os, random, tempfile, uuid
import numpy as np
from mlserver import MLModel, types
class Model(MLModel):
    async def load(self):
        self.drawn = [str(v) for v in (random.random(), np.random.rand(), np.random.default_rng().random(), uuid.uuid4(), tempfile.mktemp())]
        return True
    async def predict(self, payload):
        return types.InferenceResponse(model_name=self.name, parameters=types.Parameters(pid=os.getpid(), drawn=self.drawn), outputs=[])
`)
	drawn := map[string]map[string]bool{}
	for len(drawn) < 2 {
		got, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}})
		if err != nil {
			t.Fatal(err)
		}
		values := map[string]bool{}
		for _, v := range got.Parameters["drawn"].([]any) {
			values[fmt.Sprint(v)] = true
		}
		drawn[fmt.Sprint(got.Parameters["pid"])] = values
	}
	all := map[string]bool{}
	for _, values := range drawn {
		for v := range values {
			if all[v] {
				t.Errorf("both drew %s", v)
			}
			all[v] = true
		}
	}
}

// TestForkLibraries trains and asks models with threads of their own in forked
// workers, of each library that is imported before a fork.
func TestForkLibraries(t *testing.T) {
	python := realPython(t)
	makers := map[string]string{
		"histogram": "from sklearn.ensemble import HistGradientBoostingClassifier as A\nmakers['histogram'] = lambda: A(max_iter=10)",
		"forest":    "from sklearn.ensemble import RandomForestClassifier as B\nmakers['forest'] = lambda: B(n_jobs=2, n_estimators=10)",
		"linear":    "from sklearn.linear_model import LogisticRegression as C\nmakers['linear'] = C",
		"xgboost":   "from xgboost import XGBClassifier as D\nmakers['xgboost'] = lambda: D(n_jobs=2, n_estimators=10)",
		"lightgbm":  "from lightgbm import LGBMClassifier as E\nmakers['lightgbm'] = lambda: E(n_jobs=2, n_estimators=10, verbose=-1)",
	}
	text, can := "makers = {}\n", 0
	for library, maker := range makers {
		first, _, _ := strings.Cut(maker, "\n")
		if out, err := exec.Command(python, "-c", first).CombinedOutput(); err != nil {
			t.Logf("%s is not tried: %s lacks it: %s", library, python, out)
			continue
		}
		text += maker + "\n"
		can++
	}
	if can == 0 {
		t.Skip("nothing to try")
	}
	r := newForkRig(t)
	m := r.loadCode(t, "libraries", text+`
import os
import numpy as np
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec
class Model(MLModel):
    async def load(self):
        x = np.arange(2000, dtype=np.float64).reshape(500, 4) % 97
        self.models = {name: make().fit(x, x[:, 0] > 48) for name, make in makers.items()}
        return True
    async def predict(self, payload):
        x = np.array([[1, 2, 3, 4], [90, 91, 92, 93]] * 500)
        return types.InferenceResponse(model_name=self.name, parameters=types.Parameters(pid=os.getpid()),
            outputs=[NumpyCodec.encode_output(name, m.predict(x).astype(np.int64)) for name, m in self.models.items()])
`)
	seen := map[string]bool{}
	for len(seen) < 2 {
		got, err := m.Infer(t.Context(), &tensor.Request{Inputs: []tensor.Tensor{floats(1)}})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Outputs) != can {
			t.Fatalf("%d outputs of %d", len(got.Outputs), can)
		}
		for _, o := range got.Outputs {
			if y := o.Data.Int64; len(y) != 1000 || y[0] != 0 || y[1] != 1 {
				t.Errorf("%s answers %v", o.Name, y)
			}
		}
		seen[fmt.Sprint(got.Parameters["pid"])] = true
	}
	if r.log.has("cannot be forked") {
		t.Error("the workers were not forked")
	}
}
