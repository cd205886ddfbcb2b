package process

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
)

// devicesVariable names the variable with the number of accelerators, for
// machines where they cannot be detected.
const devicesVariable = "ROUNDHOUSE_GPUS"

// Discover names the machine's accelerators as CUDA_VISIBLE_DEVICES takes
// them: as many as ROUNDHOUSE_GPUS says; else those this process was given in
// CUDA_VISIBLE_DEVICES; else those the NVIDIA driver knows.
func Discover(ctx context.Context) []string {
	if n, err := strconv.Atoi(os.Getenv(devicesVariable)); err == nil {
		return numbered(n)
	}
	if v, ok := os.LookupEnv(visibleDevices); ok {
		return given(v)
	}
	if dirs, err := os.ReadDir("/proc/driver/nvidia/gpus"); err == nil {
		return numbered(len(dirs))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "-L").Output()
	if err != nil {
		return nil
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "GPU ") {
			n++
		}
	}
	return numbered(n)
}

const visibleDevices = "CUDA_VISIBLE_DEVICES"

// given reads CUDA_VISIBLE_DEVICES: devices after an invalid one are hidden.
func given(v string) []string {
	var out []string
	for _, d := range strings.Split(v, ",") {
		if d = strings.TrimSpace(d); d == "" || d == "-1" {
			break
		}
		out = append(out, d)
	}
	return out
}

func numbered(n int) []string {
	var out []string
	for i := range max(0, n) {
		out = append(out, strconv.Itoa(i))
	}
	return out
}

// gpus gives accelerators out, each to one replica at a time. Those that a
// replica gives back while others of its service wait are kept for these: a
// service that makes room for its own new revision does not lose its
// accelerators to another that waits.
type gpus struct {
	names []string

	mu      sync.Mutex
	taken   []bool
	kept    []service.Key       // for whom a free one is kept, zero for anybody
	waiting map[service.Key]int // replicas that wait
	changed chan struct{}       // closed and replaced when some can be had
}

func newGPUs(names []string) *gpus {
	return &gpus{names: names, taken: make([]bool, len(names)), kept: make([]service.Key, len(names)),
		waiting: map[service.Key]int{}, changed: make(chan struct{})}
}

// take gives the n accelerators of lowest index that the service may have. With
// too few it gives none and reports how many there are; retry is closed when
// that changes.
func (g *gpus) take(k service.Key, n int) (got []int, free int, retry <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	got = g.open(k)
	if free = len(got); free < n {
		return nil, free, g.changed
	}
	got = slices.Clip(got[:n])
	for _, i := range got {
		g.taken[i], g.kept[i] = true, service.Key{}
	}
	return got, free, nil
}

// open lists the free accelerators that a service may have.
func (g *gpus) open(k service.Key) (list []int) {
	for i, t := range g.taken {
		if !t && (g.kept[i] == k || g.kept[i] == service.Key{}) {
			list = append(list, i)
		}
	}
	return list
}

// available is how many accelerators a service may have now.
func (g *gpus) available(k service.Key) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open(k))
}

// wait counts a replica of the service that waits; done ends that.
func (g *gpus) wait(k service.Key) (done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting[k]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.waiting[k]--; g.waiting[k] > 0 {
			return
		}
		delete(g.waiting, k)
		for i := range g.kept {
			if g.kept[i] == k {
				g.kept[i] = service.Key{}
			}
		}
		g.announce()
	}
}

// hold marks those an adopted replica holds.
func (g *gpus) hold(held []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, i := range held {
		if i >= 0 && i < len(g.taken) {
			g.taken[i] = true
		}
	}
}

// free takes back what a replica of the service held.
func (g *gpus) free(k service.Key, held []int) {
	if len(held) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, i := range held {
		if i >= 0 && i < len(g.taken) {
			g.taken[i] = false
			if g.waiting[k] > 0 {
				g.kept[i] = k
			}
		}
	}
	g.announce()
}

// announce tells those that wait to look again. The lock is held.
func (g *gpus) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// visible is the value of CUDA_VISIBLE_DEVICES for held.
func (g *gpus) visible(held []int) string {
	var out []string
	for _, i := range held {
		out = append(out, g.names[i])
	}
	return strings.Join(out, ",")
}
