package child

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watcher waits for the end of one process: through a pidfd and the runtime's
// poller where the kernel has them (5.10), which costs no thread; else by
// looking in /proc.
type watcher struct {
	id    Identity
	pidfd *os.File // nil: poll /proc
}

// pollInterval is how often a process is looked for without a pidfd.
const pollInterval = 50 * time.Millisecond

// watch takes hold of id. The pidfd is opened before the check, so what is
// checked is what is held.
func watch(id Identity) (watcher, error) {
	if id.PID <= 1 || id.PID == os.Getpid() {
		return watcher{}, ErrGone
	}
	w := watcher{id: id, pidfd: openPidfd(id.PID)}
	if err := verify(id); err != nil {
		if w.pidfd != nil {
			_ = w.pidfd.Close()
		}
		return watcher{}, err
	}
	return w, nil
}

// pidfdOpen is changed by a test that stands for an older kernel.
var pidfdOpen = unix.PidfdOpen

func openPidfd(pid int) *os.File {
	fd, err := pidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

func (w watcher) wait() {
	if w.pidfd != nil {
		defer func() { _ = w.pidfd.Close() }()
		if awaitPidfd(w.pidfd) {
			return
		}
	}
	for verify(w.id) == nil {
		time.Sleep(pollInterval)
	}
}

// awaitPidfd waits until the pidfd is readable, which is when its process
// has ended. It is false when the poller cannot watch pidfds.
func awaitPidfd(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	return conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	}) == nil
}

// awaitChild waits, without a thread, for a child of ours to end; the caller
// reaps it. Without pidfds it is false at once and the caller's wait blocks.
func awaitChild(pid int) bool {
	f := openPidfd(pid)
	if f == nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return awaitPidfd(f)
}
