package child

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Identity tells one process from every other that had or will have its id.
type Identity struct {
	PID int `json:"pid"`
	// Start is when it started, in microseconds since 1970.
	Start uint64 `json:"start"`
	// Boot is the kernel's id of the boot it runs in.
	Boot string `json:"boot"`
}

var bootID = sync.OnceValues(func() (string, error) { return unix.Sysctl("kern.bootsessionuuid") })

// zombie is SZOMB of sys/proc.h.
const zombie = 5

func identify(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return Identity{}, err
	}
	t := k.Proc.P_starttime
	return Identity{PID: pid, Start: uint64(t.Sec)*1e6 + uint64(t.Usec), Boot: boot}, nil
}

// verify returns ErrGone unless id is the process it was when recorded, still
// running.
func verify(id Identity) error {
	now, err := identify(id.PID)
	if err != nil || now != id {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	k, err := unix.SysctlKinfoProc("kern.proc.pid", id.PID)
	if err != nil || k.Proc.P_stat == zombie || int(k.Eproc.Pgid) != id.PID {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	return nil
}

// groupRuns reports whether any member of the group still exists.
func groupRuns(pgid int) bool { return !errors.Is(syscall.Kill(-pgid, 0), syscall.ESRCH) }
