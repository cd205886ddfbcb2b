package child

import (
	"fmt"
	"os"
	"syscall"
)

// Inherit takes charge of a process that became a child of this one because
// its parent, a descendant of ours, ended (BecomeReaper). It must not have
// called exec since it was forked. It leaves the group it is in and leads one
// of its own, as a process that Start started. It returns ErrGone for a
// process that is no child of this one.
func Inherit(pid int) (*Process, error) {
	st, err := readStat(pid)
	if err != nil || st.parent != os.Getpid() {
		return nil, fmt.Errorf("process %d: %w", pid, ErrGone)
	}
	// Until it is waited for, the number is its own even if it has ended.
	if err := syscall.Setpgid(pid, pid); err != nil {
		return nil, fmt.Errorf("process %d: lead a group: %w", pid, err)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return ours(p), nil
}
