package process

import "errors"

// memoryGroups limits no memory: macOS has no means for a group of processes.
type memoryGroups struct{}

func newMemoryGroups() memoryGroups { return memoryGroups{} }

func (memoryGroups) make(string, int64) (string, error) {
	return "", errors.New("macOS limits no process's memory")
}
func (memoryGroups) killed(string) int { return 0 }
func (memoryGroups) remove(string)     {}
