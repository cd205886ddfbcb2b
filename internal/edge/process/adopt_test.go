package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/child"
	"roundhouse.dev/roundhouse/internal/state/fleet"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

// ownerVariable makes this test binary a platform's owner on the folder it
// names: it brings the services of owned up, prints its replicas and waits to
// be killed.
const ownerVariable = "PROCESS_TEST_OWNER"

// owned is what the owner runs.
func owned() []workload.Revision {
	return []workload.Revision{
		revision(platformtest.Key("kept"), platformtest.Server{GPUs: 1, Print: "before"}),
		revision(platformtest.Key("changed"), platformtest.Server{Salt: "old", Spawn: true}),
		revision(platformtest.Key("dropped"), platformtest.Server{}),
	}
}

func runOwner(dir string) int {
	p, err := New(Config{Dir: dir, Devices: []string{"0", "1", "2"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx := context.Background()
	waiting := map[service.Key]bool{}
	for _, r := range owned() {
		if err := p.Apply(ctx, r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if err := p.Scale(ctx, workload.Ref{Service: r.Service, Role: service.RoleEngine}, 2, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		waiting[r.Service] = true
	}
	var all []replica.Replica
	for len(waiting) > 0 {
		k := <-p.Changed()
		if rs, _ := p.Observe(ctx, k); waiting[k] && platformtest.AllReady(2)(rs) {
			delete(waiting, k)
			all = append(all, rs...)
		}
	}
	b, _ := json.Marshal(all)
	fmt.Println(string(b))
	select {}
}

// killedOwner runs an owner on dir until its replicas are ready, kills it as
// kill -9 does, and returns the replicas it leaves.
func killedOwner(t *testing.T, dir string) map[string][]replica.Replica {
	t.Helper()
	if err := child.BecomeReaper(); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), ownerVariable+"="+dir)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // it was killed
	var all []replica.Replica
	if err := json.Unmarshal(line, &all); err != nil {
		t.Fatal(err)
	}
	byName := map[string][]replica.Replica{}
	for _, r := range all {
		byName[r.Service.Name] = append(byName[r.Service.Name], r)
		t.Cleanup(func() { _ = syscall.Kill(-r.PID, syscall.SIGKILL) })
	}
	for _, r := range all {
		if !runs(r.PID) {
			t.Fatalf("%s died with its owner", r.ID)
		}
	}
	return byName
}

func pids(rs []replica.Replica) []int {
	var out []int
	for _, r := range rs {
		out = append(out, r.PID)
	}
	slices.Sort(out)
	return out
}

func TestAdoptionAfterKill(t *testing.T) {
	dir := t.TempDir()
	before := killedOwner(t, dir)
	p := open(t, Config{Dir: dir, Devices: []string{"0", "1", "2"}})
	sub := platformtest.On(t, p)
	keys, err := sub.Services(t.Context())
	if err != nil || len(keys) != 3 {
		t.Fatalf("Services = %v, %v; want all three", keys, err)
	}
	kept, changed, dropped := platformtest.Key("kept"), platformtest.Key("changed"), platformtest.Key("dropped")
	if rs := sub.See(kept); len(rs) != 2 || platformtest.Count(rs, replica.Ready) != 0 {
		t.Errorf("before its revision is applied: %s", platformtest.Describe(rs))
	}
	stray := grandchild(t, sub, before["changed"][0].ID)

	sub.MustApply(owned()[0])
	after := sub.AwaitReady(kept, 2)
	if !slices.Equal(pids(after), pids(before["kept"])) || after[0].HTTP == "" || !after[0].Created.Equal(before["kept"][0].Created) {
		t.Errorf("adopted %+v, were %+v", after, before["kept"])
	}
	if got := sub.ReadLogs(after[0].ID, fleet.LogOptions{}); !strings.HasPrefix(got, "before\nlistening") {
		t.Errorf("log of an adopted replica: %q", got)
	}
	// The accelerators of adopted ones are not given again: one of three is free.
	sub.MustScale(kept, 4)
	rs := sub.Await(kept, "one more and one that waits", func(rs []replica.Replica) bool {
		return platformtest.Count(rs, replica.Ready) == 3 && platformtest.Count(rs, replica.Pending) == 1
	})
	if rs[3].Message != "needs 1 GPU, 0 of 3 free" && rs[2].Message != "needs 1 GPU, 0 of 3 free" {
		t.Errorf("waits as %s", platformtest.Describe(rs))
	}
	sub.MustScale(kept, 2)

	next := revision(changed, platformtest.Server{Salt: "new"})
	sub.MustApply(next)
	sub.AwaitNone(changed)
	if runs(before["changed"][0].PID) || runs(stray) {
		t.Error("a replica of another revision, or its child, still runs")
	}
	sub.MustScale(changed, 1)
	sub.AwaitReady(changed, 1)

	p.Sweep()
	sub.AwaitNone(dropped)
	if rs := sub.AwaitReady(kept, 2); !slices.Equal(pids(rs), pids(before["kept"])) {
		t.Errorf("Sweep touched what was applied: %s", platformtest.Describe(rs))
	}
	// An adopted replica is watched over like any other.
	if err := syscall.Kill(after[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	sub.Await(kept, "restarted", func(rs []replica.Replica) bool {
		return platformtest.AllReady(2)(rs) && rs[0].Restarts+rs[1].Restarts == 1
	})
	sub.MustScale(kept, 0)
	sub.AwaitNone(kept)
	if runs(after[1].PID) {
		t.Error("an adopted replica cannot be ended")
	}
}

func TestLostLeaderLeavesNoStrays(t *testing.T) {
	dir := t.TempDir()
	before := killedOwner(t, dir)
	p1 := records(filepath.Join(dir, "replicas"))
	// While nobody looks, the main process dies and leaves its child; and
	// another was only just being started when its owner was killed.
	lost, unborn := before["changed"][0], before["dropped"][0]
	l, err := os.ReadFile(filepath.Join(dir, "logs", "suite", "changed", lost.ID+".log"))
	if err != nil {
		t.Fatal(err)
	}
	var stray int
	if _, err := fmt.Sscanf(string(l), "grandchild %d", &stray); err != nil || !runs(stray) {
		t.Fatalf("no grandchild: %q %v", l, err)
	}
	if err := syscall.Kill(lost.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rec, err := p1.readOne(unborn.ID)
	if err != nil {
		t.Fatal(err)
	}
	rec.Process = child.Identity{}
	if err := p1.write(rec); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, lost.PID)
	p := open(t, Config{Dir: dir})
	// One that is held may end before anybody wants it.
	held := before["kept"][0]
	if err := syscall.Kill(held.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	platformtest.On(t, p).Await(platformtest.Key("kept"), "one left", func(rs []replica.Replica) bool { return len(rs) == 1 })
	for _, pid := range []int{stray, unborn.PID} {
		awaitEnd(t, pid)
	}
	if _, err := os.Stat(p1.path(unborn.ID)); err == nil {
		t.Error("the record stays")
	}
}

func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); runs(pid); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs", pid)
		}
	}
}

func TestRecycledPIDIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	p := open(t, Config{Dir: dir})
	_, _, r := one(t, p, "gone", platformtest.Server{})
	rec, err := p.records.readOne(r.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	stranger := exec.Command("sleep", "60")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stranger.Wait() }()
	rec.Process.PID = stranger.Process.Pid
	if err := p.records.write(rec); err != nil {
		t.Fatal(err)
	}
	again := open(t, Config{Dir: dir})
	if keys, _ := again.Services(t.Context()); len(keys) != 0 {
		t.Errorf("a stranger is held as %v", keys)
	}
	again.Sweep()
	if err := again.Close(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		t.Errorf("the stranger ended: %v", err)
	default:
	}
	_ = stranger.Process.Kill()
	<-ended
}

func TestCloseKeeps(t *testing.T) {
	dir := t.TempDir()
	p := open(t, Config{Dir: dir})
	s := platformtest.Server{}
	_, k, r := one(t, p, "handed", s)
	if err := p.Close(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if !runs(r.PID) {
		t.Fatal("ended, although it was to be kept")
	}
	if err := p.Apply(t.Context(), revision(k, s)); err == nil {
		t.Error("a closed platform applies")
	}
	q := open(t, Config{Dir: dir})
	sub := platformtest.On(t, q)
	sub.MustApply(revision(k, s))
	if now := sub.AwaitReady(k, 1)[0]; now.PID != r.PID || now.ID != r.ID {
		t.Errorf("handed over as %+v, was %+v", now, r)
	}
	sub.MustScale(k, 1)
	if err := q.Close(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if runs(r.PID) {
		t.Error("still runs after Close")
	}
}

func TestCloseEndsAll(t *testing.T) {
	p := open(t, Config{Drain: endless})
	sub, k, r := one(t, p, "family", platformtest.Server{Spawn: true, IgnoreTerm: true, Grace: time.Hour})
	pid := grandchild(t, sub, r.ID)
	never := platformtest.Key("never")
	sub.MustApply(revision(never, platformtest.Server{NeverReady: true}))
	sub.MustScale(never, 2)
	sub.MustScale(k, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx, false); err != nil { // long before the hour is over
		t.Fatal(err)
	}
	if runs(r.PID) || runs(pid) {
		t.Errorf("child runs %v, grandchild %v", runs(r.PID), runs(pid))
	}
	if left, err := os.ReadDir(string(p.records)); err != nil || len(left) != 0 {
		t.Errorf("records left: %v, %v", left, err)
	}
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	p := open(t, Config{Fetcher: g, Devices: []string{"0"}})
	sub, _, _ := one(t, p, "ready", platformtest.Server{Liveness: httpProbe("/livez"), GPUs: 1})
	for name, s := range map[string]platformtest.Server{"waits": {GPUs: 1}, "fetches": {ModelURI: "test://m"},
		"fails": {CrashAfter: -1}, "missing": {Program: "no-such-program"}, "starts": {NeverReady: true}} {
		sub.MustApply(revision(platformtest.Key(name), s))
		sub.MustScale(platformtest.Key(name), 1)
		sub.Await(platformtest.Key(name), "begun", func(rs []replica.Replica) bool {
			return len(rs) == 1 && (rs[0].Phase != replica.Pending || rs[0].Reason != "")
		})
	}
	if err := p.Close(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	var left string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		left = ""
		buf := make([]byte, 1<<20)
		for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if (strings.Contains(g, "edge/process.") || strings.Contains(g, "edge/child.")) && !strings.Contains(g, "testing.tRunner") {
				left = g
			}
		}
		if left == "" {
			return
		}
	}
	t.Errorf("left after Close:\n%s", left)
}

func TestFolderThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, named := range map[string]string{file: file, filepath.Join(file, "below"): file, "/proc": "/proc"} {
		if p, err := New(Config{Dir: dir, Devices: []string{}}); err == nil || !strings.Contains(err.Error(), named) {
			t.Errorf("New on %s: %v, %v", dir, p, err)
		}
	}
	if _, err := New(Config{}); err == nil {
		t.Error("New without a folder")
	}
}

func TestFolderLostWhileRunning(t *testing.T) {
	p := open(t, Config{})
	sub, k := platformtest.On(t, p), platformtest.Key("nowhere")
	sub.MustApply(revision(k, platformtest.Server{}))
	if err := os.RemoveAll(string(p.records)); err != nil {
		t.Fatal(err)
	}
	sub.MustScale(k, 1)
	r := sub.Await(k, "failed", phase(replica.Failed, "StateUnwritable"))[0]
	if !strings.Contains(r.Message, p.cfg.Dir) {
		t.Errorf("message: %q", r.Message)
	}
	if err := os.Mkdir(string(p.records), 0o700); err != nil {
		t.Fatal(err)
	}
	sub.AwaitReady(k, 1)
}

func TestDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	replicas := filepath.Join(dir, "replicas")
	if err := os.MkdirAll(replicas, 0o700); err != nil {
		t.Fatal(err)
	}
	for i, text := range []string{"", "{", "null", "[]", `{"id":"x"}`, `{"id":"5","service":{"name":"a"},"role":"engine","port":-1}`} {
		if err := os.WriteFile(filepath.Join(replicas, strconv.Itoa(i)+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t, Config{Dir: dir})
	if keys, _ := p.Services(t.Context()); len(keys) != 0 {
		t.Errorf("services from damaged records: %v", keys)
	}
	one(t, p, "fine", platformtest.Server{})
}
