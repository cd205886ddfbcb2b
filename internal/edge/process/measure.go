package process

import (
	"context"
	"os"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"roundhouse.dev/roundhouse/internal/core/replica"
)

// mainMemory is how many bytes replicas may have together: the value of
// ROUNDHOUSE_MEMORY, else all of the machine's, or of the control group that this
// process is in.
func mainMemory() int64 {
	if n := givenMemory(); n > 0 {
		return n
	}
	limit, _ := availableMemory()
	return limit
}

// givenMemory is the value of ROUNDHOUSE_MEMORY in bytes; 0 where it has none.
func givenMemory() int64 {
	if q, err := resource.ParseQuantity(os.Getenv(mainMemoryVariable)); err == nil {
		return max(0, q.Value())
	}
	return 0
}

// measureEvery is how often new replicas are measured, and each fifth time all
// are.
const measureEvery = 2 * time.Second

// measuring measures replicas until the platform closes.
func (p *Platform) measuring() {
	t := time.NewTicker(measureEvery)
	defer t.Stop()
	for n := 1; ; n++ {
		select {
		case <-t.C:
			p.measure(n%5 == 0)
		case <-p.closing:
			return
		}
	}
}

// measured is a replica with a process.
type measured struct {
	u    *unit
	view replica.Replica
}

// running lists the replicas with a process.
func (p *Platform) running() (out []measured) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, o := range p.owners {
		o.mu.Lock()
		for _, u := range o.units {
			if u.view.PID > 0 {
				out = append(out, measured{u, u.view})
			}
		}
		o.mu.Unlock()
	}
	return out
}

// measure notes the most memory that each replica was seen to use, and what the
// rest of the machine uses. Without all it does so only where a replica that is
// ready has not been measured yet.
func (p *Platform) measure(all bool) {
	list := p.running()
	starting, fresh, devices := 0, false, false
	var roots []int
	for _, m := range list {
		if roots = append(roots, m.view.PID); m.view.Phase != replica.Ready {
			starting++
		} else if m.view.Memory == 0 {
			fresh = true
		}
		devices = devices || len(m.view.GPUs) > 0
	}
	if !all && !fresh {
		return
	}
	memory, total := map[int]int64{}, int64(0)
	trees := processTrees(roots)
	for pid, root := range trees {
		n := memoryOf(pid)
		memory[root], total = memory[root]+n, total+n
	}
	onGPUs := map[int]int64{}
	if devices && os.Getenv(devicesVariable) == "" {
		onGPUs = mostOfOne(deviceMemory(), trees)
	}
	for _, m := range list {
		m.note(memory[m.view.PID], onGPUs[m.view.PID])
	}
	// What a replica takes while it starts has been counted with what it needs.
	if limit, available := availableMemory(); available > 0 && givenMemory() == 0 && (starting == 0 || p.gpus.shared().Others == 0) {
		p.gpus.use(max(0, limit-available-total))
	}
}

// note publishes what a replica uses where that is a twentieth more than it was
// seen to use before.
func (m measured) note(memory, onGPUs int64) {
	u, news := m.u, func(now, was int64) bool { return now > was+was/20 }
	if m.view.Phase != replica.Ready || !news(memory, m.view.Memory) && !news(onGPUs, m.view.GPUMemory) {
		return
	}
	same := false
	u.o.update(u, func(v *replica.Replica) {
		if same = v.PID == m.view.PID; same {
			v.Memory, v.GPUMemory = max(v.Memory, memory), max(v.GPUMemory, onGPUs)
		}
	})
	c := u.component.Load()
	if !same || c == nil || c.Process == nil {
		return
	}
	if c.Process.ReservedMemory == 0 {
		u.p.gpus.adjust(u.o.key, max(memory, m.view.Memory))
	}
	if most := max(onGPUs, m.view.GPUMemory); c.Process.ShareGPU && most > 0 {
		u.p.gpus.adjustGPUs(u.o.key, m.view.GPUs, most)
	}
}

// deviceUse is what a process uses of a GPU, in bytes.
type deviceUse struct {
	pid   int
	uuid  string
	bytes int64
}

// deviceMemory is what processes use of GPUs, as nvidia-smi says. It says nothing of
// processes in other namespaces of ids than this one's, or in parts of a GPU that is
// divided (MIG), whose memory is not known.
func deviceMemory() []deviceUse {
	return parseDeviceMemory(askDriver(context.Background(), "--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits"))
}

// parseDeviceMemory reads lines of "UUID, PID, MIB". A process has one for each GPU
// that it uses.
func parseDeviceMemory(text string) (out []deviceUse) {
	for _, row := range csvRows(text, 3) {
		pid, err := strconv.Atoi(row[1])
		if bytes, known := mebibytes(row[2]); err == nil && known {
			out = append(out, deviceUse{pid, row[0], bytes})
		}
	}
	return out
}

// mostOfOne is how much the processes of each root use of the GPU that they use most
// of.
func mostOfOne(uses []deviceUse, roots map[int]int) map[int]int64 {
	type part struct {
		root int
		uuid string
	}
	sums, most := map[part]int64{}, map[int]int64{}
	for _, u := range uses {
		if root, known := roots[u.pid]; known {
			at := part{root, u.uuid}
			sums[at] += u.bytes
			most[root] = max(most[root], sums[at])
		}
	}
	return most
}
