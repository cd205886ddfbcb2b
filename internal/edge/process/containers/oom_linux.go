package containers

import (
	"errors"
	"os"
	"strings"
	"syscall"
)

// outOfMemory reports whether the kernel's log says that it ended a process of a
// container for want of memory. Engines do not notice that themselves with control
// groups of version 1. A log that may not be read says nothing.
func outOfMemory(id string) bool {
	if len(id) < 12 {
		return false
	}
	fd, err := syscall.Open("/dev/kmsg", os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = syscall.Close(fd) }()
	line := make([]byte, 8<<10) // what the kernel gives at once, at the most
	for {
		n, err := syscall.Read(fd, line)
		switch {
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR): // some were overwritten meanwhile
			continue
		case err != nil || n <= 0:
			return false
		}
		if killedIn(string(line[:n]), id) {
			return true
		}
	}
}

// killedIn reports whether a line of the kernel's log tells of such an end.
func killedIn(line, id string) bool {
	_, group, told := strings.Cut(line, "oom_memcg=")
	group, _, _ = strings.Cut(group, ",")
	return told && strings.Contains(line, "oom-kill:") && strings.Contains(group, id)
}
