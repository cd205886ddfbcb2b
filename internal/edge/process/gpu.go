package process

import (
	"context"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
)

// devicesVariable names the variable with the number of accelerators, for
// machines where they cannot be detected.
const devicesVariable = "ROUNDHOUSE_GPUS"

// memoryVariable names the variable with the memory of each of them, and
// mainMemoryVariable that with the main memory that all replicas may have together.
const (
	memoryVariable     = "ROUNDHOUSE_GPU_MEMORY"
	mainMemoryVariable = "ROUNDHOUSE_MEMORY"
)

// Discover names the machine's accelerators as CUDA_VISIBLE_DEVICES takes
// them: as many as ROUNDHOUSE_GPUS says; else those this process was given in
// CUDA_VISIBLE_DEVICES; else those the NVIDIA driver knows. The memory of each is
// the value of ROUNDHOUSE_GPU_MEMORY, such as 24Gi, else what nvidia-smi reports.
func Discover(ctx context.Context) (names []string, memory []int64) {
	names = devices(ctx)
	if len(names) == 0 {
		return nil, nil
	}
	memory = make([]int64, len(names))
	if q, err := resource.ParseQuantity(os.Getenv(memoryVariable)); err == nil {
		for i := range memory {
			memory[i] = max(0, q.Value())
		}
		return names, memory
	}
	if os.Getenv(devicesVariable) != "" { // made up: the driver knows nothing of them
		return names, memory
	}
	for _, d := range driverDevices(ctx) {
		if i := d.among(names); i >= 0 {
			memory[i] = d.memory
		}
	}
	return names, memory
}

// driverTimeout bounds each question to nvidia-smi, and driverAnswer what it may
// answer.
const (
	driverTimeout = 5 * time.Second
	driverAnswer  = 1 << 20
)

// askDriver runs nvidia-smi, whose answer is CSV without units, in which sizes are in
// MiB and what is not known is in brackets, as in [N/A]; "" where there is no answer.
func askDriver(ctx context.Context, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, driverTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nvidia-smi", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // what it left behind may keep its output open
	var out driverOutput
	cmd.Stdout = &out
	if cmd.Run() != nil {
		return ""
	}
	return out.String()
}

// driverOutput takes no more than driverAnswer bytes.
type driverOutput struct{ strings.Builder }

// Write fails once there is too much, which ends the program that writes.
func (b *driverOutput) Write(p []byte) (int, error) {
	if b.Len()+len(p) > driverAnswer {
		return 0, io.ErrShortWrite
	}
	return b.Builder.Write(p)
}

// csvRows are the rows of an answer that have so many fields.
func csvRows(text string, fields int) (out [][]string) {
	for line := range strings.Lines(text) {
		row := strings.Split(strings.TrimSpace(line), ",")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		if len(row) == fields {
			out = append(out, row)
		}
	}
	return out
}

// mebibytes reads a size; false for one that is not known.
func mebibytes(s string) (bytes int64, known bool) {
	n, err := strconv.ParseInt(s, 10, 40)
	return n << 20, err == nil && n > 0
}

// driverDevice is a GPU as the driver knows it.
type driverDevice struct {
	index, uuid string
	memory      int64
}

// driverDevices lists the GPUs whose memory is known. The parts of a GPU that is
// divided (MIG) are not among them.
func driverDevices(ctx context.Context) (out []driverDevice) {
	for _, row := range csvRows(askDriver(ctx, "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"), 3) {
		if bytes, known := mebibytes(row[2]); known {
			out = append(out, driverDevice{row[0], row[1], bytes})
		}
	}
	return out
}

// among is where a GPU is in a list of names as CUDA_VISIBLE_DEVICES has them: by
// index, or by UUID or the beginning of one; -1 for nowhere.
func (d driverDevice) among(names []string) int {
	return slices.IndexFunc(names, func(name string) bool {
		return name == d.index || strings.HasPrefix(name, "GPU-") && strings.HasPrefix(d.uuid, name)
	})
}

func devices(ctx context.Context) []string {
	if n, err := strconv.Atoi(os.Getenv(devicesVariable)); err == nil {
		return numbered(n)
	}
	if v, ok := os.LookupEnv(visibleDevices); ok {
		return given(v)
	}
	if dirs, err := os.ReadDir("/proc/driver/nvidia/gpus"); err == nil {
		return numbered(len(dirs))
	}
	n := 0
	for line := range strings.Lines(askDriver(ctx, "-L")) {
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

// gpus gives accelerators and memory out to replicas. What a replica gives back
// while others of its service wait, or are about to, is kept for these: a
// service that makes room for its own new revision does not lose its accelerators
// to another that waits. What is free goes to those who have waited longest,
// except where it is reserved.
type gpus struct {
	names   []string
	machine residency.Machine

	mu       sync.Mutex
	space    *residency.Space
	kept     []service.Key       // for whom a free one is kept, zero for anybody
	waiting  map[service.Key]int // replicas that wait
	expected map[service.Key]bool
	memory   map[service.Key]share
	held     []holding
	line     []*claim // oldest first
	reserved [][]string
	permits  []string      // services that the last plan starts
	changed  chan struct{} // closed and replaced when some can be had
}

// share is the main memory of a service's replicas: that of the first, since
// replicas that replace each other run at once for a while.
type share struct {
	replicas int
	bytes    int64
}

// holding is what a replica has of GPUs.
type holding struct {
	key  service.Key
	need residency.Need // without main memory
	gpus []int
}

// claim is what a replica that waits is to get.
type claim struct {
	key  service.Key
	need residency.Need
}

// newGPUs has accelerators of these names, of which each has so much memory;
// less is known where sizes are too few.
func newGPUs(names []string, sizes []int64, memory int64) *gpus {
	m := residency.Machine{GPUs: make([]int64, len(names)), Memory: memory}
	copy(m.GPUs, sizes)
	return &gpus{names: names, machine: m, space: residency.NewSpace(m), kept: make([]service.Key, len(names)), waiting: map[service.Key]int{},
		expected: map[service.Key]bool{}, memory: map[service.Key]share{}, changed: make(chan struct{})}
}

// take gives a replica of the service what it needs. With too little it gives
// nothing and reports how many accelerators there are; retry is closed when
// that changes.
func (g *gpus) take(k service.Key, need residency.Need) (got []int, free int, retry <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	space := g.space.Clone()
	for _, c := range g.line {
		if c.key == k {
			break
		}
		if first, ok := g.fit(space, c.key, c.need); ok {
			space.Take(c.need, first)
		}
	}
	got, ok := g.fit(space, k, need)
	if !ok {
		return nil, len(g.open(space, k, need)), g.changed
	}
	g.occupy(k, need, got)
	for _, i := range got {
		g.kept[i] = service.Key{}
	}
	return slices.Clip(got), len(g.open(space, k, need)), nil
}

// occupy notes what a replica holds. The lock is held.
func (g *gpus) occupy(k service.Key, need residency.Need, held []int) {
	need = g.counted(k, need)
	g.space.Take(need, held)
	if len(held) > 0 {
		onGPUs := need
		onGPUs.Memory = 0
		g.held = append(g.held, holding{k, onGPUs, held})
	}
	of := g.memory[k]
	g.memory[k] = share{of.replicas + 1, of.bytes + need.Memory}
}

// counted is a need without the memory that the service has already.
func (g *gpus) counted(k service.Key, need residency.Need) residency.Need {
	if g.memory[k].replicas > 0 {
		need.Memory = 0
	}
	return need
}

// fit chooses accelerators for a replica; the lock is held. What is chosen is not
// nil where it fits.
func (g *gpus) fit(space *residency.Space, k service.Key, need residency.Need) ([]int, bool) {
	open := g.open(space, k, need)
	permitted := slices.Contains(g.permits, k.String())
	if len(open) < need.GPUs || need.Permit && !permitted {
		return nil, false
	}
	// A plan that starts it has reduced an estimate to what there is.
	if !space.MemoryFits(g.counted(k, need)) && (need.MemoryFrom == "" || !permitted) {
		return nil, false
	}
	return append([]int{}, open[:need.GPUs]...), true
}

// open lists the accelerators that a service may have.
func (g *gpus) open(space *residency.Space, k service.Key, need residency.Need) []int {
	return slices.DeleteFunc(space.Open(need, k.String()), func(i int) bool {
		if g.kept[i] != (service.Key{}) {
			return g.kept[i] != k
		}
		return g.promised(i, k)
	})
}

// adjust has a service's account agree with what its replicas were seen to use.
func (g *gpus) adjust(k service.Key, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.memory[k]
	if of.replicas == 0 || of.bytes == bytes {
		return
	}
	g.space.Take(residency.Need{Memory: bytes}, nil)
	g.space.Give(residency.Need{Memory: of.bytes}, nil)
	g.memory[k] = share{of.replicas, bytes}
	if bytes < of.bytes {
		g.announce()
	}
}

// holding is where g.held has what a replica of a service has of these GPUs; -1 for
// nowhere. The lock is held.
func (g *gpus) holding(k service.Key, held []int) int {
	return slices.IndexFunc(g.held, func(h holding) bool { return h.key == k && slices.Equal(h.gpus, held) })
}

// adjustGPUs has the account of GPUs agree with what a replica that states nothing of
// them was seen to use of each.
func (g *gpus) adjustGPUs(k service.Key, held []int, bytes int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.holding(k, held)
	if at < 0 || g.held[at].need.GPUMemory == bytes {
		return
	}
	h := &g.held[at]
	g.space.Give(h.need, held)
	h.need.GPUMemory, h.need.GPUMemoryFrom = bytes, residency.Measured
	g.space.Take(h.need, held)
	g.announce()
}

// use notes how much main memory programs other than replicas use.
func (g *gpus) use(others int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.machine.Others = others
	g.space.Use(others)
}

// shared is what replicas share.
func (g *gpus) shared() residency.Machine {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.machine
}

// promised reports whether an accelerator is reserved for others than a service.
func (g *gpus) promised(i int, k service.Key) bool {
	return i < len(g.reserved) && len(g.reserved[i]) > 0 && !slices.Contains(g.reserved[i], k.String())
}

// available is how many accelerators a replica of a service may have now.
func (g *gpus) available(k service.Key, need residency.Need) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.open(g.space, k, need))
}

// wait counts a replica of the service that waits for what it needs; done ends
// that.
func (g *gpus) wait(k service.Key, need residency.Need) (done func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := &claim{key: k, need: need}
	g.waiting[k]++
	g.line = append(g.line, c)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.line = slices.DeleteFunc(g.line, func(o *claim) bool { return o == c })
		if g.waiting[k]--; g.waiting[k] <= 0 {
			delete(g.waiting, k)
		}
		g.release(k)
		g.announce()
	}
}

// expect notes whether replicas of the service are on their way that will want
// accelerators.
func (g *gpus) expect(k service.Key, expected bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.expected[k] == expected {
		return
	}
	if g.expected[k] = expected; !expected {
		delete(g.expected, k)
		if g.release(k) {
			g.announce()
		}
	}
}

// release lets others have what is kept for a service none of whose replicas
// waits any more. The lock is held.
func (g *gpus) release(k service.Key) (released bool) {
	if g.waiting[k] > 0 || g.expected[k] {
		return false
	}
	for i := range g.kept {
		if g.kept[i] == k {
			g.kept[i], released = service.Key{}, true
		}
	}
	return released
}

// reserve leaves what is free of each accelerator to the services that a plan
// reserves it for, and permits those to start that it starts.
func (g *gpus) reserve(plan residency.Plan) {
	var permits []string
	for _, s := range plan.Start {
		permits = append(permits, s.Service)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.EqualFunc(g.reserved, plan.Reserved, func(a, b []string) bool { return slices.Equal(a, b) }) && slices.Equal(g.permits, permits) {
		return
	}
	g.reserved, g.permits = plan.Reserved, permits
	g.announce()
}

// awaits reports whether a replica has to wait for a plan although there is room.
func (g *gpus) awaits(k service.Key, need residency.Need) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return need.Permit && !slices.Contains(g.permits, k.String())
}

// hold marks those an adopted replica holds.
func (g *gpus) hold(k service.Key, need residency.Need, held []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.occupy(k, need, held)
}

// free takes back what a replica of the service held.
func (g *gpus) free(k service.Key, need residency.Need, held []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.memory[k]
	if of.replicas--; of.replicas > 0 {
		g.memory[k], need.Memory = of, 0
	} else {
		delete(g.memory, k)
		need.Memory = of.bytes
	}
	if at := g.holding(k, held); at >= 0 { // what was measured since
		need.GPUMemory, need.GPUMemoryFrom = g.held[at].need.GPUMemory, g.held[at].need.GPUMemoryFrom
		g.held = slices.Delete(g.held, at, at+1)
	}
	g.space.Give(need, held)
	for _, i := range held {
		if i < 0 || i >= len(g.kept) {
			continue
		}
		if (g.waiting[k] > 0 || g.expected[k]) && !g.promised(i, k) {
			g.kept[i] = k
		}
	}
	g.announce()
}

// announce tells those that wait to look again. The lock is held.
func (g *gpus) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// devices is the value of CUDA_VISIBLE_DEVICES for held.
func (g *gpus) devices(held []int) string {
	var out []string
	for _, i := range held {
		out = append(out, g.names[i])
	}
	return strings.Join(out, ",")
}
