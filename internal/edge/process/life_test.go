package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// runs reports whether a process exists and has not ended.
func runs(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || !regexp.MustCompile(`\) [ZX] `).Match(b)
}

// one starts one replica of s and returns it ready.
func one(t *testing.T, p *Platform, name string, s platformtest.Server) (platformtest.Subject, service.Key, replica.Replica) {
	t.Helper()
	sub, k := platformtest.On(t, p), platformtest.Key(name)
	sub.MustApply(revision(k, s))
	sub.MustScale(k, 1)
	return sub, k, sub.AwaitReady(k, 1)[0]
}

func phase(ph replica.Phase, reason string) func([]replica.Replica) bool {
	return func(rs []replica.Replica) bool { return len(rs) == 1 && rs[0].Phase == ph && rs[0].Reason == reason }
}

func TestKilledReplicaIsRestarted(t *testing.T) {
	sub, k, r := one(t, open(t, Config{}), "killed", platformtest.Server{})
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f := sub.Await(k, "killed", phase(replica.Failed, "Killed"))[0]
	if f.PID != 0 || f.HTTP != "" || !strings.HasSuffix(f.Message, "ended by signal 9 (killed), by a person or for want of memory on this machine") {
		t.Errorf("a failed replica: %+v", f)
	}
	again := sub.AwaitReady(k, 1)[0]
	if again.ID != r.ID || again.PID == r.PID || again.Restarts != 1 {
		t.Errorf("after the restart: %+v, before: %+v", again, r)
	}
}

func grandchild(t *testing.T, sub platformtest.Subject, id string) int {
	t.Helper()
	m := regexp.MustCompile(`grandchild (\d+)`).FindStringSubmatch(sub.ReadLogs(id, fleet.LogOptions{}))
	if m == nil {
		t.Fatal("no grandchild in the log")
	}
	pid, err := strconv.Atoi(m[1])
	if err != nil || !runs(pid) {
		t.Fatalf("grandchild %s does not run: %v", m[1], err)
	}
	return pid
}

func TestGrandchildrenEnd(t *testing.T) {
	p := open(t, Config{})
	t.Run("scaled down", func(t *testing.T) {
		sub, k, r := one(t, p, "family", platformtest.Server{Spawn: true})
		pid := grandchild(t, sub, r.ID)
		sub.MustScale(k, 0)
		sub.AwaitNone(k)
		if runs(r.PID) || runs(pid) {
			t.Errorf("still there: child %v, grandchild %v", runs(r.PID), runs(pid))
		}
	})
	t.Run("in a session of its own", func(t *testing.T) {
		sub, k, r := one(t, p, "daemon", platformtest.Server{Spawn: true, Escape: true})
		pid := grandchild(t, sub, r.ID)
		sub.MustScale(k, 0)
		sub.AwaitNone(k)
		if runs(pid) {
			t.Error("it escaped")
		}
	})
	t.Run("crashed", func(t *testing.T) {
		sub, k, r := one(t, p, "orphans", platformtest.Server{Spawn: true})
		pid := grandchild(t, sub, r.ID)
		if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		sub.Await(k, "killed", phase(replica.Failed, "Killed"))
		if runs(pid) {
			t.Error("the grandchild outlived its parent")
		}
	})
}

func TestIgnoredSIGTERM(t *testing.T) {
	sub, k, r := one(t, open(t, Config{}), "stubborn", platformtest.Server{IgnoreTerm: true, Grace: 200 * time.Millisecond})
	start := time.Now()
	sub.MustScale(k, 0)
	sub.AwaitNone(k)
	if took := time.Since(start); took < 200*time.Millisecond || runs(r.PID) {
		t.Errorf("ended after %s, runs: %v", took, runs(r.PID))
	}
}

func TestStartupTimeout(t *testing.T) {
	p := open(t, Config{Restart: Restart{Min: time.Hour, Max: time.Hour}})
	sub, k := platformtest.On(t, p), platformtest.Key("never")
	sub.MustApply(revision(k, platformtest.Server{NeverReady: true, Print: "loading shard 1 of 9", Startup: 2 * time.Second}))
	sub.MustScale(k, 1)
	r := sub.Await(k, "timed out", phase(replica.Failed, "StartupTimeout"))[0]
	for _, want := range []string{"within 2s", "loading shard 1 of 9", "503"} {
		if !strings.Contains(r.Message, want) {
			t.Errorf("message %q lacks %q", r.Message, want)
		}
	}
}

func TestLiveness(t *testing.T) {
	live := httpProbe("/livez")
	live.PeriodSeconds, live.FailureThreshold = 1, 1
	sub, k, r := one(t, open(t, Config{}), "unwell", platformtest.Server{UnliveAfter: 400 * time.Millisecond, Liveness: live})
	f := sub.Await(k, "unhealthy", func(rs []replica.Replica) bool { return rs[0].Phase == replica.Failed && !rs[0].Restart.IsZero() })[0]
	if f.Reason != "Unhealthy" || !strings.Contains(f.Message, "503") {
		t.Errorf("unhealthy as %+v", f)
	}
	if now := sub.AwaitReady(k, 1)[0]; now.PID == r.PID {
		t.Error("the same process is back")
	}
}

func TestReadinessLost(t *testing.T) {
	ready := httpProbe("/healthz")
	ready.PeriodSeconds, ready.FailureThreshold = 1, 1
	sub, k, r := one(t, open(t, Config{}), "fickle", platformtest.Server{UnreadyAfter: 2 * time.Second, Readiness: ready})
	now := sub.Await(k, "not ready", phase(replica.Starting, "NotReady"))[0]
	if now.PID != r.PID || now.Restarts != 0 {
		t.Errorf("losing readiness restarted it: %+v", now)
	}
}

// A server that is killed is often seen to answer no more before it is seen to have
// ended. That is no failed start, and no reason to make its next one wait longer.
func TestKilledAfterUnready(t *testing.T) {
	ready := httpProbe("/healthz")
	ready.PeriodSeconds, ready.FailureThreshold = 1, 1
	restart := Restart{Min: time.Second, Max: time.Hour, Settled: time.Nanosecond}
	sub, k, r := one(t, open(t, Config{Restart: restart}), "dying", platformtest.Server{UnreadyAfter: 100 * time.Millisecond, Readiness: ready})
	for range 2 {
		r = sub.Await(k, "not ready", phase(replica.Starting, "NotReady"))[0]
		if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		f := sub.Await(k, "killed", phase(replica.Failed, "Killed"))[0]
		if wait := time.Until(f.Restart); f.FailedStarts != 0 || wait > restart.Min {
			t.Errorf("%d failed starts, the next in %s; it was ready before it was killed", f.FailedStarts, wait)
		}
	}
}

func TestProbes(t *testing.T) {
	p := open(t, Config{})
	for name, s := range map[string]platformtest.Server{
		"tcp":  {Readiness: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}}}},
		"none": {Readiness: &corev1.Probe{}},
		"grpc": {GRPC: true, Readiness: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9000}}}},
		"exec": {Readiness: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{
			Command: []string{"/bin/sh", "-c", "test {{.Port}} = $PORT"}}}}},
		"successes": {Readiness: &corev1.Probe{SuccessThreshold: 3, ProbeHandler: httpProbe("healthz").ProbeHandler}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := platformtest.Key(name)
			if err := p.Apply(t.Context(), revision(k, s)); err != nil {
				t.Fatal(err)
			}
			await(t, p, k, s)
		})
	}
}

// await waits for one ready replica without the platform's Changed channel,
// which parallel tests cannot share.
func await(t *testing.T, p *Platform, k service.Key, s platformtest.Server) {
	t.Helper()
	if err := p.Scale(t.Context(), workload.Ref{Service: k, Role: service.RoleEngine}, 1, nil); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; {
		rs, err := p.Observe(t.Context(), k)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%v %s", err, platformtest.Describe(rs))
		}
		if platformtest.AllReady(1)(rs) {
			if (rs[0].GRPC != "") != s.GRPC {
				t.Errorf("gRPC address %q", rs[0].GRPC)
			}
			return
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestFailingProbeSaysWhy(t *testing.T) {
	p := open(t, Config{Restart: Restart{Min: time.Hour, Max: time.Hour}})
	sub, k := platformtest.On(t, p), platformtest.Key("exec")
	sub.MustApply(revision(k, platformtest.Server{Startup: 2 * time.Second, Readiness: &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "exit 4"}}}}}))
	sub.MustScale(k, 1)
	r := sub.Await(k, "timed out", phase(replica.Failed, "StartupTimeout"))[0]
	if !strings.Contains(r.Message, "exit status 4") {
		t.Errorf("message: %q", r.Message)
	}
}

func TestMissingProgram(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	p := open(t, Config{})
	sub, k := platformtest.On(t, p), platformtest.Key("missing")
	sub.MustApply(revision(k, platformtest.Server{Program: "acme-serve"}))
	sub.MustScale(k, 1)
	r := sub.Await(k, "pending", phase(replica.Pending, "ProgramMissing"))[0]
	if r.Message != "acme-serve is not on PATH: pip install it" {
		t.Errorf("message: %q", r.Message)
	}
	if host, _ := p.Host(t.Context()); host.Programs["acme-serve"] {
		t.Error("Host lists a program that is not there")
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, filepath.Join(bin, "acme-serve")); err != nil {
		t.Fatal(err)
	}
	if r = sub.AwaitReady(k, 1)[0]; r.Restarts != 0 {
		t.Errorf("a program that came late counts as a restart: %+v", r)
	}
	p.programs.looked = time.Time{}
	if host, _ := p.Host(t.Context()); !host.Programs["acme-serve"] {
		t.Error("Host does not list a program that came")
	}
}

// TestServeIsTheModelServer: for "roundhouse serve" the model server is started,
// told which version is wanted; while it is missing, the replica says where.
func TestServeIsTheModelServer(t *testing.T) {
	server := filepath.Join(t.TempDir(), serverName)
	p := open(t, Config{Server: server, ServerEnv: []string{"WANTED=v1"}})
	sub, k := platformtest.On(t, p), platformtest.Key("server")
	rev := revision(k, platformtest.Server{})
	rev.Components[0].Process.Command = []string{ownName, "serve", "a model", "--http-port", "{{.Port}}"}
	sub.MustApply(rev)
	sub.MustScale(k, 1)
	r := sub.Await(k, "pending", phase(replica.Pending, "ProgramMissing"))[0]
	if want := server + " is not there: it comes with roundhouse and belongs beside it"; r.Message != want {
		t.Errorf("message: %q, want %q", r.Message, want)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(exe, server); err != nil {
		t.Fatal(err)
	}
	r = sub.AwaitReady(k, 1)[0]
	_, port, _ := strings.Cut(r.HTTP, ":")
	args, err := exec.Command("ps", "-o", "args=", "-p", strconv.Itoa(r.PID)).Output()
	if want := "roundhouse-server a model --http-port " + port; err != nil || strings.TrimSpace(string(args)) != want {
		t.Errorf("it runs %q (%v), want %q", args, err, want)
	}
	answer, err := http.Get("http://" + r.HTTP + "/env?n=WANTED")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if text, err := io.ReadAll(answer.Body); string(text) != "v1" {
		t.Errorf("it was told %q (%v)", text, err)
	}
}

func TestPortTaken(t *testing.T) {
	s := platformtest.Server{ClashOnce: filepath.Join(t.TempDir(), "clash")}
	p := open(t, Config{Restart: Restart{Min: time.Hour, Max: time.Hour}})
	if _, _, r := one(t, p, "clash", s); r.Restarts != 0 {
		t.Errorf("a port that was taken counts as a restart: %+v", r)
	}
}

func TestBackoffGrows(t *testing.T) {
	p := open(t, Config{Restart: Restart{Min: 20 * time.Millisecond, Max: 100 * time.Millisecond}})
	sub, k := platformtest.On(t, p), platformtest.Key("loop")
	sub.MustApply(revision(k, platformtest.Server{CrashAfter: -1, CrashCode: 9}))
	before := time.Now()
	sub.MustScale(k, 1)
	r := sub.Await(k, "5 restarts", func(rs []replica.Replica) bool {
		return len(rs) == 1 && rs[0].Restarts >= 5 && rs[0].Phase == replica.Failed
	})[0]
	if took := time.Since(before); took < 240*time.Millisecond {
		t.Errorf("20 + 40 + 80 + 100 ms passed in %s", took)
	}
	if r.ExitCode != 9 || !strings.Contains(r.Message, "exited with code 9: fatal: told to crash") {
		t.Errorf("message: %+v", r)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("ROUNDHOUSE_TOKEN", "secret")
	t.Setenv("HF_HOME", "/models/hf")
	p := open(t, Config{})
	_, _, r := one(t, p, "env", platformtest.Server{})
	port := r.HTTP[strings.LastIndex(r.HTTP, ":")+1:]
	for name, want := range map[string]string{"ROUNDHOUSE_TOKEN": "", "HF_HOME": "/models/hf", "PORT": port,
		replicaVariable: r.ID, "GRPC_PORT": ""} {
		if got := platformtest.Get(t, r, "/env?n="+name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

func TestWorkingDir(t *testing.T) {
	p := open(t, Config{Restart: Restart{Min: time.Hour, Max: time.Hour}})
	sub, k := platformtest.On(t, p), platformtest.Key("dir")
	r := revision(k, platformtest.Server{})
	r.Components[0].Process.WorkingDir = "/no/such/folder"
	sub.MustApply(r)
	sub.MustScale(k, 1)
	if got := sub.Await(k, "failed", phase(replica.Failed, "InvalidCommand"))[0]; !strings.Contains(got.Message, "/no/such/folder") {
		t.Errorf("message: %q", got.Message)
	}
}

func TestEnvFromClusterOnly(t *testing.T) {
	p := open(t, Config{Restart: Restart{Min: time.Hour, Max: time.Hour}})
	sub, k := platformtest.On(t, p), platformtest.Key("secret")
	r := revision(k, platformtest.Server{})
	r.Components[0].Process.Env = append(r.Components[0].Process.Env, corev1.EnvVar{Name: "TOKEN",
		ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}})
	sub.MustApply(r)
	sub.MustScale(k, 1)
	if got := sub.Await(k, "failed", phase(replica.Failed, "InvalidEnv"))[0]; !strings.Contains(got.Message, "TOKEN") {
		t.Errorf("message: %q", got.Message)
	}
}

func TestDrainWaitsForRequests(t *testing.T) {
	busy := make(chan struct{})
	asked := make(chan struct{})
	p := open(t, Config{Drain: func(ctx context.Context, _ string) error {
		close(asked)
		<-busy
		return nil
	}})
	sub, k, r := one(t, p, "busy", platformtest.Server{})
	sub.MustScale(k, 0)
	if rs := sub.See(k); len(rs) != 1 || rs[0].Phase != replica.Draining {
		t.Fatalf("draining is not seen at once: %s", platformtest.Describe(rs))
	}
	<-asked
	if !runs(r.PID) {
		t.Fatal("ended with a request in flight")
	}
	close(busy)
	sub.AwaitNone(k)
}

// endless is a replica that never falls idle.
func endless(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestRemovingAgainIsNoChange: a service that is removed while its replica answers
// its last requests is not said to have changed each time that it is removed
// again, which would have its owner remove it again, without a pause.
func TestRemovingAgainIsNoChange(t *testing.T) {
	draining := make(chan struct{})
	p := open(t, Config{Drain: func(ctx context.Context, id string) error {
		close(draining)
		return endless(ctx, id)
	}})
	_, k, _ := one(t, p, "removed", platformtest.Server{})
	last := platformtest.Key("last")
	changed := func() (keys []service.Key) {
		p.changes.Add(last)
		for c := range p.Changed() {
			if c == last {
				break
			}
			keys = append(keys, c)
		}
		return keys
	}
	if err := p.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	<-draining // nothing happens to it from now on
	if keys := changed(); len(keys) == 0 {
		t.Error("removed, it is not said to have changed")
	}
	if err := p.Remove(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	if keys := changed(); len(keys) > 0 {
		t.Errorf("removed again, these are said to have changed: %v", keys)
	}
}

func TestDrainDeadline(t *testing.T) {
	p := open(t, Config{Drain: endless})
	sub, k, _ := one(t, p, "endless", platformtest.Server{Grace: 200 * time.Millisecond})
	start := time.Now()
	sub.MustScale(k, 0)
	sub.AwaitNone(k)
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("gave up on requests after %s", took)
	}
}

// TestDrainOfItsOwn: requests may go on for longer than a process may take to end,
// and for no longer than the process answers for itself.
func TestDrainOfItsOwn(t *testing.T) {
	drained := make(chan time.Duration, 1)
	p := open(t, Config{Drain: func(ctx context.Context, id string) error {
		deadline, _ := ctx.Deadline()
		drained <- time.Until(deadline)
		return endless(ctx, id)
	}})
	sub, k, _ := one(t, p, "long", platformtest.Server{Grace: time.Second, Drain: time.Hour, Readiness: httpProbe("/healthz"),
		Liveness: &corev1.Probe{ProbeHandler: httpProbe("/no-such-path").ProbeHandler, PeriodSeconds: 1, FailureThreshold: 3}})
	sub.MustScale(k, 0)
	if d := <-drained; d < 59*time.Minute {
		t.Errorf("requests have %s, want an hour", d)
	}
	sub.AwaitNone(k) // the liveness probe fails, else this takes the hour
}

func TestLogsAreBounded(t *testing.T) {
	p := open(t, Config{LogLimit: 64 << 10, DeadLogs: 2})
	sub, k, r := one(t, p, "chatty", platformtest.Server{Spew: 1 << 20})
	p.trimLogs()
	if n := len(sub.ReadLogs(r.ID, fleet.LogOptions{})); n == 0 || n > 3*(64<<10) {
		t.Errorf("%d bytes are kept of 1 MiB, want at most 128 KiB and a little", n)
	}
	for range 5 {
		sub.MustScale(k, 0)
		sub.AwaitNone(k)
		sub.MustScale(k, 1)
		sub.AwaitReady(k, 1)
	}
	logs, err := filepath.Glob(filepath.Join(p.serviceLogs(k), "*"+logSuffix))
	if err != nil || len(logs) > 4 {
		t.Errorf("%d logs are kept, want 1 of the living and about 2 of the dead: %v", len(logs), err)
	}
}

// TestRecreate: a revision whose strategy says so has no replica while one of another
// is there, also where those end slowly and there is room for both.
func TestRecreate(t *testing.T) {
	sub, k := platformtest.On(t, open(t, Config{})), platformtest.Key("recreated")
	old := revision(k, platformtest.Server{Salt: "1", IgnoreTerm: true})
	next := revision(k, platformtest.Server{Salt: "2"})
	old.Components[0].Process.TerminationGrace = new(300 * time.Millisecond)
	next.Components[0].Strategy = &service.Strategy{Recreate: true}
	next.Before = &old
	sub.MustApply(old)
	sub.MustScale(k, 2)
	before := sub.AwaitReady(k, 2)
	sub.MustApply(next)
	sub.Await(k, "2 ready of the new revision", func(rs []replica.Replica) bool {
		of := map[string]int{}
		for _, r := range rs {
			of[r.Revision]++
		}
		if len(of) > 1 {
			t.Errorf("both revisions are there: %s", platformtest.Describe(rs))
		}
		return of[next.Hash] == 2 && platformtest.AllReady(2)(rs)
	})
	for _, r := range before {
		if runs(r.PID) {
			t.Errorf("process %d of the revision before runs yet", r.PID)
		}
	}
}

// TestRecreateAfterRestart: a replica of another revision that slept across a restart of
// its owner has ended before one of the new revision starts.
func TestRecreateAfterRestart(t *testing.T) {
	dir, k := t.TempDir(), platformtest.Key("recreated")
	old := revision(k, platformtest.Server{Salt: "1", Sleeps: true, IgnoreTerm: true, Grace: 300 * time.Millisecond})
	next := revision(k, platformtest.Server{Salt: "2"})
	next.Components[0].Strategy = &service.Strategy{Recreate: true}
	next.Before = &old
	before := open(t, Config{Dir: dir})
	sub := platformtest.On(t, before)
	sub.MustApply(old)
	sub.MustScale(k, 1)
	slept := sub.AwaitReady(k, 1)[0]
	sub.MustSleep(k, 1)
	if err := before.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	sub = platformtest.On(t, open(t, Config{Dir: dir}))
	sub.MustApply(next)
	sub.MustScale(k, 1)
	sub.Await(k, "1 ready of the new revision", func(rs []replica.Replica) bool {
		for _, r := range rs {
			if r.Revision == next.Hash && runs(slept.PID) {
				t.Errorf("both revisions are there: %s", platformtest.Describe(rs))
			}
		}
		return len(rs) == 1 && rs[0].Revision == next.Hash && rs[0].Phase == replica.Ready
	})
}

// TestNoGrace: a time of 0 from SIGTERM on is none, and not the default.
func TestNoGrace(t *testing.T) {
	sub, k := platformtest.On(t, open(t, Config{})), platformtest.Key("hasty")
	r := revision(k, platformtest.Server{IgnoreTerm: true})
	r.Components[0].Process.TerminationGrace = new(time.Duration(0))
	sub.MustApply(r)
	sub.MustScale(k, 1)
	ready, start := sub.AwaitReady(k, 1)[0], time.Now()
	sub.MustScale(k, 0)
	sub.AwaitNone(k)
	if took := time.Since(start); took > defaultGrace/2 || runs(ready.PID) {
		t.Errorf("ended after %s, runs: %v", took, runs(ready.PID))
	}
}

// TestTooMuchEnvironment: what is too long to start a program with is named.
func TestTooMuchEnvironment(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the bound of one variable is Linux's")
	}
	sub, k := platformtest.On(t, open(t, Config{Restart: Restart{Min: time.Hour, Max: time.Hour}})), platformtest.Key("wordy")
	r := revision(k, platformtest.Server{})
	r.Components[0].Process.Env = append(r.Components[0].Process.Env, corev1.EnvVar{Name: "LONG", Value: strings.Repeat("x", service.MaxVariable)})
	sub.MustApply(r)
	sub.MustScale(k, 1)
	got := sub.Await(k, "cannot be executed", phase(replica.Failed, replica.ReasonCannotExecute))[0]
	if !strings.Contains(got.Message, "the longest is the variable LONG, with 131076") {
		t.Errorf("says %q", got.Message)
	}
}

// TestStartupProbe: until it passes nobody asks whether the process is ready, and its own
// bound holds in place of the startup timeout.
func TestStartupProbe(t *testing.T) {
	p := open(t, Config{Restart: Restart{Min: time.Hour, Max: time.Hour}})
	sub := platformtest.On(t, p)
	probe := func(seconds int32) *corev1.Probe {
		out := httpProbe("/healthz")
		out.PeriodSeconds, out.FailureThreshold = 1, seconds
		return out
	}
	listens := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}}

	k := platformtest.Key("slow")
	slow := revision(k, platformtest.Server{ReadyAfter: 500 * time.Millisecond, Startup: 100 * time.Millisecond, Readiness: listens})
	slow.Components[0].Process.Startup = probe(60)
	sub.MustApply(slow)
	sub.MustScale(k, 1)
	if r := sub.AwaitReady(k, 1)[0]; r.ReadyAt.Sub(r.Started) < 500*time.Millisecond {
		t.Errorf("ready %s after its start, before its startup probe passed", r.ReadyAt.Sub(r.Started))
	}

	k = platformtest.Key("never")
	never := revision(k, platformtest.Server{NeverReady: true, Startup: time.Hour, Readiness: listens})
	never.Components[0].Process.Startup = probe(1)
	sub.MustApply(never)
	sub.MustScale(k, 1)
	if r := sub.Await(k, "ended", phase(replica.Failed, "StartupTimeout"))[0]; !strings.Contains(r.Message, "its startup probe did not pass within 1s (GET /healthz: 503") {
		t.Errorf("message: %q", r.Message)
	}

	k = platformtest.Key("unready")
	unready := revision(k, platformtest.Server{NeverReady: true, Startup: 200 * time.Millisecond})
	unready.Components[0].Process.Startup = listens
	sub.MustApply(unready)
	sub.MustScale(k, 1)
	if r := sub.Await(k, "ended", phase(replica.Failed, "StartupTimeout"))[0]; !strings.Contains(r.Message, "not ready within 200ms") {
		t.Errorf("message: %q", r.Message)
	}
}

// TestEnvFrom: what a replica is given by ConfigMaps and secrets, and that it starts once
// a missing one is there.
func TestEnvFrom(t *testing.T) {
	var there atomic.Bool
	p := open(t, Config{
		Secret: func(k service.Key) (*service.Secret, bool) {
			return &service.Secret{Data: map[string]service.Hidden{"TOKEN": service.Hide("t0ken"), "BOTH": service.Hide("secret")}}, k.Name == "hub" && k.Namespace == "suite"
		},
		ConfigMap: func(k service.Key) (*service.ConfigMap, bool) {
			return &service.ConfigMap{Data: map[string]string{"BOTH": "map", "STATED": "map", "ONE": "1"}}, k.Name == "settings" && k.Namespace == "suite" && there.Load()
		}})
	sub, k := platformtest.On(t, p), platformtest.Key("given")
	r := revision(k, platformtest.Server{})
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	settings := corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("settings")}}
	prefixed := settings
	prefixed.Prefix = "P_"
	r.Components[0].Process.EnvFrom = []corev1.EnvFromSource{settings, prefixed, {SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("hub")}},
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("none"), Optional: new(true)}}, {ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("none"), Optional: new(true)}}}
	r.Components[0].Process.Env = append(r.Components[0].Process.Env, corev1.EnvVar{Name: "STATED", Value: "here"},
		corev1.EnvVar{Name: "KEY", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("settings"), Key: "ONE"}}})
	sub.MustApply(r)
	sub.MustScale(k, 1)
	failed := sub.Await(k, "failed", phase(replica.Failed, "InvalidEnv"))[0]
	if want := `envFrom[0]: there is no ConfigMap "settings" in namespace "suite": apply it`; !strings.Contains(failed.Message, want) {
		t.Errorf("message: %q, want %q", failed.Message, want)
	}
	there.Store(true)
	got := sub.AwaitReady(k, 1)[0]
	for name, want := range map[string]string{"TOKEN": "t0ken", "BOTH": "secret", "STATED": "here", "P_STATED": "map", "P_ONE": "1", "KEY": "1"} {
		if v := platformtest.Get(t, got, "/env?n="+name); v != want {
			t.Errorf("%s is %q, want %q", name, v, want)
		}
	}
}
