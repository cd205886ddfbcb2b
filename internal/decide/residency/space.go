package residency

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Need is what one replica takes of a machine.
type Need struct {
	GPUs int `json:"gpus,omitempty"`
	// GPUMemory is what it takes of each of its GPUs, in bytes; 0 takes them
	// whole, and shares them with nobody.
	GPUMemory int64 `json:"gpuMemory,omitempty"`
	// GPUPercent is the same in percent of the memory of each, whether that is known or
	// not; 0 where GPUMemory counts.
	GPUPercent int `json:"gpuPercent,omitempty"`
	// GPUMemoryFrom is where that comes from if its service does not state it. More
	// than a GPU has then takes the GPU whole.
	GPUMemoryFrom string `json:"gpuMemoryFrom,omitempty"`
	// Memory is main memory in bytes; 0 is not counted. MemoryFrom is where it
	// comes from if its service does not state it (Estimated, Measured).
	Memory     int64  `json:"memory,omitempty"`
	MemoryFrom string `json:"memoryFrom,omitempty"`
	// Permit: it starts only once a plan starts it, since its service does not run
	// with some others.
	Permit bool `json:"permit,omitempty"`
}

// Part reports whether it takes a part of each of its GPUs.
func (n Need) Part() bool { return n.GPUMemory > 0 || n.GPUPercent > 0 }

// stated is the need without what nobody stated.
func (n Need) stated() Need {
	if n.MemoryFrom != "" {
		n.Memory, n.MemoryFrom = 0, ""
	}
	if n.GPUMemoryFrom != "" {
		n.GPUMemory, n.GPUMemoryFrom = 1, "" // a part, however small
	}
	return n
}

// Where a need's memory comes from.
const (
	Estimated = "estimated from its files"
	Measured  = "measured"
)

// factors are how much more main memory engines take than the files of a model
// have bytes: weights, the cache of keys and values of a small context, and what
// the library makes of the file. They are rules of thumb, until a replica has been
// measured.
var factors = map[string]float64{"gguf": 1.2, "safetensors": 1.3, "huggingface": 1.3, "pytorch": 1.3, "onnx": 1.5, "tensorflow": 1.5}

// Estimate is the main memory that a replica takes for a model, by the size of its
// files, else by the number of its weights; 0 where both are unknown.
func Estimate(format string, bytes, weights int64) int64 {
	const otherwise, perWeight = 2, 2 // of formats that are parsed into objects; bytes of a half-precision number
	if bytes <= 0 {
		bytes = weights * perWeight
	}
	factor, ok := factors[strings.ToLower(format)]
	if !ok {
		factor = otherwise
	}
	return int64(float64(bytes) * factor)
}

// Machine is what there is to share out.
type Machine struct {
	GPUs   []int64 // the memory of each in bytes; 0 where it is not known: such a GPU is only given whole
	Memory int64   // main memory in bytes; 0 where it is not known, and not counted
	// Others is the part of Memory that is used by programs other than replicas. It
	// counts against needs that are not stated.
	Others int64
}

// Space is a machine with what is taken of it.
type Space struct {
	machine Machine
	gpus    []gpu
	memory  int64 // taken
}

// gpu is what is taken of one GPU.
type gpu struct {
	holders, whole int // replicas, and those that share it with nobody
	memory         int64
	reserved       []string // the only services that may have more of it; none for anybody
}

// NewSpace is a machine of which nothing is taken.
func NewSpace(m Machine) *Space { return &Space{machine: m, gpus: make([]gpu, len(m.GPUs))} }

// Clone is a space of the same state.
func (s *Space) Clone() *Space {
	c := *s
	c.gpus = slices.Clone(s.gpus)
	return &c
}

// Take notes that a replica holds these GPUs and its memory, whether or not they
// were free: an adopted replica holds what it holds.
func (s *Space) Take(n Need, gpus []int) { s.add(n, gpus, 1) }

// Give takes back what a replica held.
func (s *Space) Give(n Need, gpus []int) { s.add(n, gpus, -1) }

func (s *Space) add(n Need, gpus []int, sign int) {
	for _, i := range gpus {
		if i < 0 || i >= len(s.gpus) {
			continue
		}
		g := &s.gpus[i]
		g.holders += sign
		if s.shares(n, i) {
			g.memory += int64(sign) * s.machine.takes(n, i)
		} else {
			g.whole += sign
		}
	}
	s.memory += int64(sign) * n.Memory
}

// shares reports whether a replica leaves the rest of a GPU to others.
func (s *Space) shares(n Need, i int) bool { return s.machine.shares(n, i) }

func (m Machine) shares(n Need, i int) bool {
	return n.GPUPercent > 0 || n.GPUMemory > 0 && m.GPUs[i] > 0 && (n.GPUMemoryFrom == "" || n.GPUMemory <= m.GPUs[i])
}

// size is the memory of a GPU. Of one whose memory is not known percents are taken.
func (m Machine) size(i int) int64 { return cmp.Or(m.GPUs[i], 100) }

// takes is what a replica takes of a GPU that it shares.
func (m Machine) takes(n Need, i int) int64 {
	if n.GPUPercent > 0 {
		return m.size(i) / 100 * int64(n.GPUPercent) // no more than a whole in all
	}
	return n.GPUMemory
}

// Reserve leaves what is free of each GPU to the services listed for it; where
// none is listed, to anybody.
func (s *Space) Reserve(services [][]string) {
	for i := range s.gpus {
		s.gpus[i].reserved = nil
		if i < len(services) {
			s.gpus[i].reserved = services[i]
		}
	}
}

// Open lists the GPUs that a replica of a service could be given now: of whole
// ones the lowest index first, of shared ones those with the least left.
func (s *Space) Open(n Need, service string) (list []int) {
	for i, g := range s.gpus {
		if len(g.reserved) > 0 && !slices.Contains(g.reserved, service) {
			continue
		}
		if s.shares(n, i) {
			if g.whole > 0 || g.memory+s.machine.takes(n, i) > s.machine.size(i) {
				continue
			}
		} else if g.holders > 0 {
			continue
		}
		list = append(list, i)
	}
	if n.Part() {
		slices.SortStableFunc(list, func(a, b int) int { return cmp.Compare(s.left(a), s.left(b)) })
	}
	return list
}

func (s *Space) left(i int) int64 { return s.machine.size(i) - s.gpus[i].memory }

// Fit chooses the GPUs for a replica of a service; false where it does not fit.
func (s *Space) Fit(n Need, service string) (gpus []int, ok bool) {
	if !s.MemoryFits(n) {
		return nil, false
	}
	if n.GPUs <= 0 {
		return nil, true
	}
	open := s.Open(n, service)
	if len(open) < n.GPUs {
		return nil, false
	}
	return slices.Clip(open[:n.GPUs]), true
}

// FitAll chooses the GPUs for replicas of a service that start together, one list
// for each; false where they do not fit.
func (s *Space) FitAll(needs []Need, service string) (gpus [][]int, ok bool) {
	space := s.Clone()
	for _, n := range needs {
		got, ok := space.Fit(n, service)
		if !ok {
			return nil, false
		}
		space.Take(n, got)
		gpus = append(gpus, got)
	}
	return gpus, true
}

// Use notes how much memory programs other than replicas use.
func (s *Space) Use(others int64) { s.machine.Others = others }

// MemoryFits reports whether main memory is left for a replica.
func (s *Space) MemoryFits(n Need) bool {
	taken := s.memory
	if n.MemoryFrom != "" {
		taken += s.machine.Others
	}
	return n.Memory <= 0 || s.machine.Memory <= 0 || taken+n.Memory <= s.machine.Memory
}

// share is the part of the machine that a replica takes: 1 is a whole GPU, or
// all of the main memory.
func (m Machine) share(n Need, gpus []int) float64 {
	total := 0.0
	for _, i := range gpus {
		if i >= 0 && i < len(m.GPUs) && m.shares(n, i) {
			total += min(1, float64(m.takes(n, i))/float64(m.size(i)))
		} else {
			total++
		}
	}
	if n.Memory > 0 && m.Memory > 0 {
		total += min(1, float64(n.Memory)/float64(m.Memory))
	}
	return total
}

// Rate is how often requests come to a service, by its past: what came long ago
// counts less.
type Rate struct {
	At      time.Time // of the last look
	Arrived uint64    // up to then
	Hourly  float64
}

// halfLife is after how long an arrival counts half.
const halfLife = 30 * time.Minute

// Seen is the rate once so many have arrived since the reporter's start, which
// may be later than the last look.
func (r Rate) Seen(arrived uint64, now time.Time) Rate {
	fresh := arrived
	if r.At.IsZero() {
		r.At = now
	} else if arrived >= r.Arrived {
		fresh = arrived - r.Arrived
	}
	past := max(0, now.Sub(r.At).Hours())
	decay := math.Exp2(-past / halfLife.Hours())
	// Each arrival adds what makes a steady stream's rate its own.
	return Rate{At: now, Arrived: arrived, Hourly: r.Hourly*decay + float64(fresh)*math.Ln2/halfLife.Hours()}
}

// String is a need in words, such as "2 GPUs with 8 GiB each, 16 GiB of memory".
func (n Need) String() string {
	var parts []string
	if n.GPUs > 0 {
		p := gpus(n.GPUs)
		part := gibibytes(n.GPUMemory)
		if n.GPUPercent > 0 {
			part = fmt.Sprintf("%d %%", n.GPUPercent)
		}
		if n.Part() && n.GPUs > 1 {
			p += " with " + part + " free each"
		} else if n.Part() {
			p += " with " + part + " free"
		}
		if n.GPUMemoryFrom != "" {
			p += " (" + n.GPUMemoryFrom + ")"
		}
		parts = append(parts, p)
	}
	if n.Memory > 0 {
		p := gibibytes(n.Memory) + " of memory"
		if n.MemoryFrom != "" {
			p += " (" + n.MemoryFrom + ")"
		}
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

// needs is what several replicas take, in words.
func needs(list []Need) string {
	var parts []string
	for _, n := range list {
		parts = append(parts, n.String())
	}
	return strings.Join(parts, " and ")
}

// total adds up what replicas take.
func total(list []Need) (sum Need) {
	for _, n := range list {
		sum.GPUs, sum.Memory = sum.GPUs+n.GPUs, sum.Memory+n.Memory
	}
	return sum
}

// String is a machine in words, such as "2 GPUs (24 GiB, 24 GiB), 64 GiB of memory".
func (m Machine) String() string {
	out := gpus(len(m.GPUs))
	var sizes []string
	for _, g := range m.GPUs {
		if g > 0 {
			sizes = append(sizes, gibibytes(g))
		}
	}
	if len(sizes) > 0 {
		out += " (" + list(sizes) + ")"
	}
	if m.Memory > 0 {
		out += ", " + gibibytes(m.Memory) + " of memory"
	}
	return out
}

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

// gibibytes is a size in words; one that is small beside a machine is in MiB or KiB.
func gibibytes(n int64) string {
	switch {
	case n > 0 && n < 1<<20:
		return fmt.Sprintf("%.0f KiB", math.Ceil(float64(n)/(1<<10)))
	case n > 0 && n < 1<<26:
		return fmt.Sprintf("%.3g MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.4g GiB", float64(n)/(1<<30))
}
