package process

import (
	"runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/child"
)

const (
	// useEvery is how long what replicas take counts as what they take now.
	useEvery = time.Second
	// maxUseInterval is the longest time over which CPU time is averaged: a replica
	// that was not asked about for longer may have slept meanwhile.
	maxUseInterval = 30 * time.Second
)

// uses measures what replicas take, while somebody asks.
type uses struct {
	mu          sync.Mutex
	now, before sampled
}

// sampled is what all process groups had taken at a time.
type sampled struct {
	at     time.Time
	groups map[int]child.Usage
}

// of returns what a group takes: its CPUs since the last sample, and bytes.
func (u *uses) of(group int, now time.Time) (at time.Time, cpus float64, memory int64, known bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.now.at) >= useEvery || now.Before(u.now.at) {
		groups, err := child.Usages()
		if err != nil {
			return at, 0, 0, false
		}
		if u.before, u.now = u.now, (sampled{now, groups}); now.Sub(u.before.at) > maxUseInterval {
			u.before = sampled{}
		}
	}
	b, known := u.before.groups[group]
	a, still := u.now.groups[group]
	took := u.now.at.Sub(u.before.at)
	if !known || !still || took <= 0 {
		return at, 0, 0, false
	}
	// A process of the group that has ended has taken its time with it.
	return u.now.at, max(0, (a.CPU-b.CPU).Seconds()/took.Seconds()), a.Memory, true
}

// Use is what a replica takes, in percent of the limits of its container, and of
// the machine where it has none. nil where that is not known yet.
func (p *Platform) Use(id string) *replica.Use {
	u := p.find(id)
	if u == nil {
		return nil
	}
	u.o.mu.Lock()
	pid := u.view.PID
	u.o.mu.Unlock()
	c := u.component.Load()
	if pid == 0 || c == nil {
		return nil
	}
	at, cpus, memory, known := p.uses.of(pid, p.cfg.Now())
	if !known {
		return nil
	}
	out := &replica.Use{At: at, CPU: 100 * cpus / cpuLimit(c)}
	if limit := memoryLimit(c); limit > 0 {
		out.Memory = 100 * float64(memory) / float64(limit)
	}
	return out
}

// cpuLimit is how many CPUs a replica may take.
func cpuLimit(c *workload.Component) float64 {
	for i := range c.Pod.Containers {
		if m := &c.Pod.Containers[i]; m.Name == c.Main {
			if q, ok := m.Resources.Limits[corev1.ResourceCPU]; ok && q.Sign() > 0 {
				return q.AsApproximateFloat64()
			}
		}
	}
	return float64(runtime.NumCPU())
}

// memoryLimit is how many bytes a replica may take; 0 where that is not known.
func memoryLimit(c *workload.Component) int64 {
	if c.Process != nil && c.Process.MemoryBytes > 0 {
		return c.Process.MemoryBytes
	}
	return machineMemory()
}
