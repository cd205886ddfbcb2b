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
)

// devicesVariable, when set, says how many accelerators there are, for
// machines where looking is not possible.
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

// gpus gives accelerators out, each to one replica at a time.
type gpus struct {
	names []string

	mu      sync.Mutex
	taken   []bool
	changed chan struct{} // closed and replaced when some come back
}

func newGPUs(names []string) *gpus {
	return &gpus{names: names, taken: make([]bool, len(names)), changed: make(chan struct{})}
}

// take gives the n free accelerators of lowest index. With too few free it
// gives none and says how many are; retry is closed when that changes.
func (g *gpus) take(n int) (got []int, free int, retry <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, t := range g.taken {
		if !t {
			free++
			got = append(got, i)
		}
	}
	if free < n {
		return nil, free, g.changed
	}
	got = slices.Clip(got[:n])
	for _, i := range got {
		g.taken[i] = true
	}
	return got, free, nil
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

func (g *gpus) free(held []int) {
	if len(held) == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, i := range held {
		if i >= 0 && i < len(g.taken) {
			g.taken[i] = false
		}
	}
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
