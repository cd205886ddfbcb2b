package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// memoryGroups makes one control group per replica with a memory limit, below
// or beside the group this process runs in, where the kernel lets us write.
// Address-space limits (RLIMIT_AS) are no substitute: runtimes reserve far
// more than they use.
type memoryGroups struct{ parent func() (memoryGroup, error) }

// memoryGroup is a folder in which groups with a memory controller can be
// made, and the names of that controller's files.
type memoryGroup struct {
	dir, limit, events string
}

func newMemoryGroups() memoryGroups {
	return memoryGroups{sync.OnceValues(findMemoryGroup)}
}

// make creates the group of a replica and returns its folder.
func (m memoryGroups) make(id string, bytes int64) (string, error) {
	p, err := m.parent()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(p.dir, "roundhouse-"+id)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	if err := write(dir, p.limit, strconv.FormatInt(bytes, 10)); err != nil {
		m.remove(dir)
		return "", err
	}
	// One process of the group out of memory ends the group, and pages are not
	// moved to swap instead; version 1 limits the sum of both. Not every kernel has
	// all of these.
	_ = write(dir, "memory.oom.group", "1")
	_ = write(dir, "memory.swap.max", "0")
	_ = write(dir, "memory.memsw.limit_in_bytes", strconv.FormatInt(bytes, 10))
	return dir, nil
}

// killed returns how many processes of the group the kernel ended for want of
// memory.
func (m memoryGroups) killed(dir string) int {
	p, err := m.parent()
	if err != nil || dir == "" {
		return 0
	}
	b, err := os.ReadFile(filepath.Join(dir, p.events))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			v, _ := strconv.Atoi(n)
			return v
		}
	}
	return 0
}

// remove deletes an empty group. Only a folder of our own making is touched.
func (m memoryGroups) remove(dir string) {
	if !strings.HasPrefix(filepath.Base(dir), "roundhouse-") {
		return
	}
	// A process that has just ended may still be counted in for a moment.
	for range 20 {
		if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func findMemoryGroup() (memoryGroup, error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return memoryGroup{}, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return memoryGroup{}, err
	}
	for _, p := range cgroupCandidates(string(own), string(mounts)) {
		if p.usable() {
			return p, nil
		}
	}
	return memoryGroup{}, errors.New("no control group with a memory controller can be written here")
}

// cgroupCandidates reads /proc/self/cgroup and mountinfo (cgroups(7)): the
// group this process is in and, of version 2, the one above it.
func cgroupCandidates(own, mounts string) []memoryGroup {
	unified, memory := cgroupMounts(mounts)
	var out []memoryGroup
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[0] == "0" && unified != "" {
			dir := filepath.Join(unified, f[2])
			out = append(out, memoryGroup{dir, "memory.max", "memory.events"})
			if dir != filepath.Clean(unified) {
				out = append(out, memoryGroup{filepath.Dir(dir), "memory.max", "memory.events"})
			}
		}
		if memory != "" && hasWord(f[1], "memory") {
			out = append(out, memoryGroup{filepath.Join(memory, f[2]), "memory.limit_in_bytes", "memory.oom_control"})
		}
	}
	return out
}

// cgroupMounts finds where version 2, and version 1's memory controller, are
// mounted; "" when they are not.
func cgroupMounts(mountinfo string) (unified, memory string) {
	for line := range strings.Lines(mountinfo) {
		head, tail, ok := strings.Cut(line, " - ")
		f, t := strings.Fields(head), strings.Fields(tail)
		if !ok || len(f) < 5 || len(t) < 3 {
			continue
		}
		switch {
		case t[0] == "cgroup2":
			unified = f[4]
		case t[0] == "cgroup" && hasWord(t[2], "memory"):
			memory = f[4]
		}
	}
	return unified, memory
}

// hasWord reports whether word is in a list with commas.
func hasWord(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }

// usable reports whether a group made here gets a memory limit, by making one.
func (p memoryGroup) usable() bool {
	dir := filepath.Join(p.dir, fmt.Sprintf("roundhouse-probe-%d", os.Getpid()))
	if os.Mkdir(dir, 0o755) != nil {
		return false
	}
	defer func() { _ = os.Remove(dir) }()
	if write(dir, p.limit, "1073741824") == nil {
		return true
	}
	// The controller may only have to be handed down; a group that itself
	// holds processes refuses.
	return write(p.dir, "cgroup.subtree_control", "+memory") == nil && write(dir, p.limit, "1073741824") == nil
}

// processTrees maps each process to the one of roots whose group it is in, or that
// it descends from.
func processTrees(roots []int) map[int]int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	parent, out := map[int]int{}, map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// After the name, which is in parentheses and may contain any: state, parent, group.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) < 3 {
			continue
		}
		parent[pid], _ = strconv.Atoi(f[1])
		if group, _ := strconv.Atoi(f[2]); slices.Contains(roots, group) {
			out[pid] = group
		}
	}
	for pid := range parent {
		for at, n := pid, 0; at > 1 && n < 64; at, n = parent[at], n+1 {
			if slices.Contains(roots, at) {
				out[pid] = at
				break
			}
		}
	}
	return out
}

// memoryOf is what a process uses, of pages that it shares with others its part;
// all of its resident pages where the kernel does not say.
func memoryOf(pid int) int64 {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	if b, err := os.ReadFile(filepath.Join(dir, "smaps_rollup")); err == nil {
		return field(string(b), "Pss:") << 10
	}
	b, err := os.ReadFile(filepath.Join(dir, "statm"))
	f := strings.Fields(string(b))
	if err != nil || len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 50)
	return pages * int64(os.Getpagesize())
}

// field is the number after a name at the beginning of a line; 0 for none.
func field(text, name string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				n, _ := strconv.ParseInt(f[0], 10, 53)
				return n
			}
		}
	}
	return 0
}

// availableMemory is what the machine has, or the control group of this process
// may have, and what is left of it; 0 means unknown.
func availableMemory() (limit, available int64) {
	limit = machineMemory()
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		available = field(string(b), "MemAvailable:") << 10
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	if err != nil || err2 != nil {
		return limit, available
	}
	unified, _ := cgroupMounts(string(mounts))
	for line := range strings.Lines(string(own)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		for at := filepath.Join(unified, group); ok && unified != "" && strings.HasPrefix(at, unified); at = filepath.Dir(at) {
			if most, used := groupMemory(at); most > 0 {
				limit, available = withinGroup(limit, available, most, used)
			}
			if at == "/" || at == unified {
				break
			}
		}
	}
	return limit, available
}

// withinGroup lays the limit of a control group, and what it uses, over the memory that
// is known. Of a group at its limit a byte is left: 0 would mean unknown.
func withinGroup(limit, available, most, used int64) (int64, int64) {
	return min(limit, most), min(available, max(1, most-used))
}

// groupMemory is the limit of a control group of version 2, 0 for none, and what
// it uses but for pages that the kernel can drop.
func groupMemory(dir string) (limit, used int64) {
	read := func(file string) string {
		b, _ := os.ReadFile(filepath.Join(dir, file))
		return strings.TrimSpace(string(b))
	}
	limit, err := strconv.ParseInt(read("memory.max"), 10, 64)
	if err != nil {
		return 0, 0
	}
	used, _ = strconv.ParseInt(read("memory.current"), 10, 64)
	return limit, used - field(read("memory.stat"), "inactive_file ")
}

// machineMemory is the machine's memory in bytes; 0 means unknown.
func machineMemory() int64 {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return 0
	}
	return int64(s.Totalram * uint64(s.Unit))
}
