package process

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/selection"
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

// TestMemoryOfGPUs reads what nvidia-smi prints: a line for each process and GPU,
// sizes in MiB, and in brackets what is not known. What counts is the GPU of which a
// replica's processes use the most.
func TestMemoryOfGPUs(t *testing.T) {
	uses := parseDeviceMemory("GPU-a, 10, 1024\nGPU-b, 10, 512\nGPU-b, 11, 700\nGPU-a, 20, [N/A]\nGPU-a, 21, [Insufficient Permissions]\nGPU-a, 99, 4096\n[Unknown Error]\nGPU-a, 20\n")
	got := mostOfOne(uses, map[int]int{10: 10, 11: 10, 20: 20, 21: 20})
	if want := map[int]int64{10: 1212 << 20}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := mostOfOne(uses, nil); len(got) > 0 {
		t.Errorf("of processes that are no replica's: %v", got)
	}
}

// driver puts a program in the place of nvidia-smi.
func driver(t *testing.T, script string) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// TestDriverIsBounded: a driver that hangs, fails, or prints without end is no
// answer.
func TestDriverIsBounded(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"answers":               {"echo \"$1\"", "-L\n"},
		"fails":                 {"echo 'NVIDIA-SMI has failed'; exit 9", ""},
		"prints without end":    {"while :; do echo 0123456789012345678901234567890123456789; done", ""},
		"hangs":                 {"sleep 60", ""},
		"leaves a child behind": {"sleep 9 & echo 'GPU 0'", ""},
	} {
		t.Run(name, func(t *testing.T) {
			driver(t, c.script)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			began := time.Now()
			if got := askDriver(ctx, "-L"); got != c.want {
				t.Errorf("%.80q, want %q", got, c.want)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("after %s", took)
			}
		})
	}
}

// TestDriversGPUs: their memory is found by index, by UUID, and by the beginning of a
// UUID; that of a part of a GPU is not known.
func TestDriversGPUs(t *testing.T) {
	driver(t, `case "$1" in --query-gpu=*) printf '0, GPU-aa11, 24576\n1, GPU-bb22, [N/A]\n2, GPU-cc33, 81920\n';; esac`)
	t.Setenv(devicesVariable, "")
	t.Setenv(memoryVariable, "")
	for visible, want := range map[string][]int64{"2,0,1": {80 << 30, 24 << 30, 0}, "GPU-cc33,GPU-a,GPU-x": {80 << 30, 24 << 30, 0}, "MIG-aa11": {0}} {
		t.Setenv(visibleDevices, visible)
		if _, got := Discover(t.Context()); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", visible, got, want)
		}
	}
}

// TestDriverDescribesGPUs: what is in brackets is not known, and a driver that does not
// know the question about compute capabilities still names its GPUs.
func TestDriverDescribesGPUs(t *testing.T) {
	t.Setenv(devicesVariable, "")
	names, memory := []string{"1", "GPU-aa", "MIG-x"}, []int64{80 << 30, 0}
	const about = `*pci.device_id*) printf '0, GPU-aa11, NVIDIA L4, 0x27B810DE\n1, GPU-bb22, NVIDIA H100 80GB HBM3, [N/A]\n';; `
	h100, l4 := selection.GPU{Name: "NVIDIA H100 80GB HBM3", Memory: 80 << 30}, selection.GPU{Name: "NVIDIA L4", PCIDevice: "27b8", PCIVendor: "10de"}
	driver(t, `case "$1" in `+about+`*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;; esac`)
	if got := Describe(t.Context(), names, memory); !slices.Equal(got, []selection.GPU{h100, l4, {}}) {
		t.Errorf("an older driver: %+v", got)
	}
	driver(t, `case "$1" in `+about+`*compute_cap*) printf 'GPU-aa11, 8.9\nGPU-bb22, 9.0\n';; esac`)
	h100.Capability, l4.Capability = "9.0", "8.9"
	if got := Describe(t.Context(), names, memory); !slices.Equal(got, []selection.GPU{h100, l4, {}}) {
		t.Errorf("got %+v", got)
	}
	t.Setenv(devicesVariable, "3")
	if got := Describe(t.Context(), names, memory); !slices.Equal(got, []selection.GPU{{Memory: 80 << 30}, {}, {}}) {
		t.Errorf("made up: %+v", got)
	}
}

// TestMeasuredGPUMemoryIsAccounted: what a replica was seen to use of a GPU that it
// shares takes the place of what was expected, until it ends.
func TestMeasuredGPUMemoryIsAccounted(t *testing.T) {
	const gib = 1 << 30
	g := newGPUs([]string{"0"}, []int64{24 * gib}, 0)
	a, b := service.Key{Name: "a"}, service.Key{Name: "b"}
	expected := func(n int64) residency.Need {
		return residency.Need{GPUs: 1, GPUMemory: n * gib, GPUMemoryFrom: residency.Estimated}
	}
	take := func(k service.Key, n int64) bool { got, _, _ := g.take(k, expected(n)); return got != nil }
	if !take(a, 16) || take(b, 12) {
		t.Fatal("16 GiB and 12 of 24")
	}
	_, _, retry := g.take(b, expected(12))
	g.adjustGPUs(a, []int{0}, 10*gib)
	select {
	case <-retry:
	default:
		t.Error("those that wait do not hear of it")
	}
	if !take(b, 12) {
		t.Error("10 GiB and 12 of 24")
	}
	g.adjustGPUs(b, []int{0}, 20*gib) // more than there is
	g.free(b, expected(12), []int{0})
	if !take(b, 14) || take(b, 1) {
		t.Error("what was given back is not what was taken")
	}
	g.free(b, expected(14), []int{0})
	g.adjustGPUs(a, []int{0}, 30*gib) // more than the GPU has: it is whole
	if take(b, 1) {
		t.Error("beside one that takes all")
	}
	g.free(a, expected(16), []int{0})
	if got, _, _ := g.take(a, whole(1)); got == nil {
		t.Error("the GPU is not free")
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
