package process

import "golang.org/x/sys/unix"

// machineMemory is the machine's memory in bytes; 0 means unknown.
func machineMemory() int64 {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return 0
	}
	return int64(s.Totalram * uint64(s.Unit))
}
