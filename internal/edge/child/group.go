package child

import (
	"errors"
	"syscall"
	"time"
)

// groupWait bounds the wait for a killed group to be empty: a member in an
// uninterruptible sleep (a dead network mount) must not hold its owner.
const groupWait = 10 * time.Second

// endGroup kills what is left of a group whose leader has ended, reaps those
// members that became our children, and waits until the group is empty.
//
// While any member lives the kernel does not give the group's number away, and
// the loop ends at the first sign of an empty group, so no stranger is hit.
func endGroup(pgid int) {
	deadline := time.Now().Add(groupWait)
	for pause := 200 * time.Microsecond; time.Now().Before(deadline); pause = min(2*pause, 20*time.Millisecond) {
		reapGroup(pgid)
		if err := syscall.Kill(-pgid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.EPERM) {
			return
		}
		if !groupRuns(pgid) {
			reapGroup(pgid)
			return
		}
		time.Sleep(pause)
	}
}

// reapGroup collects the members that are children of this process. The
// leader must have been reaped already: this would take its status.
func reapGroup(pgid int) {
	for {
		pid, err := syscall.Wait4(-pgid, nil, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
