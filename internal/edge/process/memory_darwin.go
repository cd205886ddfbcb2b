package process

import (
	"errors"

	"golang.org/x/sys/unix"
)

// memoryGroups limits no memory: macOS has no means for a group of processes.
type memoryGroups struct{}

func newMemoryGroups() memoryGroups { return memoryGroups{} }

func (memoryGroups) make(string, int64) (string, error) {
	return "", errors.New("macOS limits no process's memory")
}
func (memoryGroups) killed(string) int { return 0 }
func (memoryGroups) remove(string)     {}

// processTrees and memoryOf are not known on macOS: nothing is measured.
func processTrees([]int) map[int]int { return nil }
func memoryOf(int) int64             { return 0 }

// availableMemory is not known.
func availableMemory() (limit, available int64) { return machineMemory(), 0 }

// machineMemory is the machine's memory in bytes; 0 means unknown.
func machineMemory() int64 {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 0
	}
	return int64(n)
}

func swap() (free, total int64, why string) { return 0, 0, "only Linux can move processes to swap" }

func reclaim([]int, string) (int64, error) { return 0, errors.ErrUnsupported }

func unlock(string) {}
