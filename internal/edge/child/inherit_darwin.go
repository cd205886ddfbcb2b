package child

import (
	"fmt"
	"os"
	"syscall"
)

// Inherit returns ErrGone: launchd is the parent of every orphan.
func Inherit(pid int) (*Process, error) { return nil, fmt.Errorf("process %d: %w", pid, ErrGone) }

// startIn starts a process; there are no control groups.
func startIn(_ string, start func(*syscall.SysProcAttr) (*os.Process, error)) (p *os.Process, outside, err error) {
	p, err = start(&syscall.SysProcAttr{})
	return p, nil, err
}
