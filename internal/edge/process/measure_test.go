package process

import (
	"maps"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
)

// TestProcessTrees: children count with the replica that started them, also those
// that made a process group of their own.
func TestProcessTrees(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("nothing is measured on " + runtime.GOOS)
	}
	cmd := exec.Command("sh", "-c", "sleep 60 & echo; wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() }()
	if _, err := out.Read(make([]byte, 1)); err != nil { // its child is started
		t.Fatal(err)
	}
	mine, others := 0, 0
	for _, root := range processTrees([]int{cmd.Process.Pid}) {
		if root == cmd.Process.Pid {
			mine++
		} else {
			others++
		}
	}
	if mine != 2 || others != 0 {
		t.Errorf("%d processes of the tree, %d others", mine, others)
	}
	if tree := processTrees([]int{os.Getpid()}); tree[cmd.Process.Pid] != os.Getpid() {
		t.Error("a child in a group of its own is not counted")
	}
	if n := memoryOf(os.Getpid()); n < 1<<20 || n > 64<<30 {
		t.Errorf("this process uses %d bytes", n)
	}
	if limit, available := availableMemory(); available <= 0 || available > limit {
		t.Errorf("%d of %d bytes are available", available, limit)
	}
}

func TestParseDeviceMemory(t *testing.T) {
	got := parseDeviceMemory("123, 1024\n123, 512\n7, [N/A]\nNo running processes found\n")
	if want := map[int]int64{123: 1536 << 20}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestMeasuredMemoryIsAccounted: what a service was seen to use takes the place of
// what it was expected to, and gives the rest to others.
func TestMeasuredMemoryIsAccounted(t *testing.T) {
	const gib = 1 << 30
	g := newGPUs(nil, nil, 10*gib)
	a, b := service.Key{Name: "a"}, service.Key{Name: "b"}
	need := residency.Need{Memory: 8 * gib, MemoryFrom: residency.Estimated}
	take := func(k service.Key) bool { got, _, _ := g.take(k, need); return got != nil }
	if !take(a) || take(b) {
		t.Fatal("8 GiB twice of 10")
	}
	_, _, retry := g.take(b, need)
	g.adjust(a, gib)
	select {
	case <-retry:
	default:
		t.Error("those that wait do not hear of it")
	}
	g.use(4 * gib)
	if take(b) {
		t.Error("other programs use what an estimate takes")
	}
	g.use(0)
	if !take(b) {
		t.Error("9 GiB of 10")
	}
	g.adjust(b, 20*gib)
	g.free(b, need, nil)
	g.free(a, need, nil)
	if !take(a) {
		t.Error("what was given back is not free")
	}
	// An estimate above all there is starts once a plan starts it.
	need.Memory = 30 * gib
	if take(b) {
		t.Fatal("30 GiB of 10")
	}
	g.reserve(residency.Plan{Start: []residency.Start{{Service: b.String()}}})
	if !take(b) {
		t.Error("the plan starts it")
	}
}
