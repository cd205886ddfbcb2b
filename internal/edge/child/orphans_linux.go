package child

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// BecomeReaper makes this process the parent of orphans among its
// descendants, so that they can be ended and none stays a zombie.
func BecomeReaper() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// ReapOrphans collects ended processes that came to this one as orphans while
// the group they are in lives on. What this process itself started it leaves
// to whoever waits for it: that is either in this process's own group or leads
// one in its session. Call it now and then.
func ReapOrphans() {
	own, err := readStat(os.Getpid())
	if err != nil {
		return
	}
	for _, pid := range children() {
		st, err := readStat(pid)
		if err != nil || st.state != 'Z' || st.group == own.group || st.group == pid && st.session == own.session {
			continue
		}
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
	}
}

// EndMarked kills every process whose environment has variable=value: what a
// group's member started in a group or session of its own. Call it when the
// group has ended. orphaned limits the search to children of this process,
// which is where those of its own descendants come to (BecomeReaper); it is
// much cheaper than looking at every process there is.
func EndMarked(variable, value string, orphaned bool) {
	// A killed process leaves its own children to us, so look again until
	// there are none; a bound, since one may fork faster than we look.
	for range 16 {
		pids := allProcesses
		if orphaned {
			pids = children
		}
		var killed []int
		for _, pid := range pids() {
			if v, ok := mark(pid, variable); !ok || v != value {
				continue
			}
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed = append(killed, pid)
			}
			if orphaned {
				_, _ = syscall.Wait4(pid, nil, 0, nil)
			}
		}
		if len(killed) == 0 {
			return
		}
		for _, pid := range killed {
			awaitEnd(pid)
		}
	}
}

// endWait is how long a killed process is given to end: on a busy machine the
// signal takes a while to be heard, and rounds of looking would run out.
const endWait = time.Second

// awaitEnd waits until a process that was killed has ended, whosever child it
// is.
func awaitEnd(pid int) {
	fd, err := pidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH):
		return // gone
	case err != nil: // an older kernel
		for end := time.Now().Add(endWait); time.Now().Before(end) && hasEnvironment(pid); time.Sleep(time.Millisecond) {
		}
		return
	}
	defer func() { _ = unix.Close(fd) }()
	for end := time.Now().Add(endWait); ; {
		left := max(time.Until(end), 0).Milliseconds()
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left)); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// hasEnvironment reports whether a process still has its memory, which a dead
// one has not, collected or not.
func hasEnvironment(pid int) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && len(env) > 0
}

// Marked finds every process whose environment has the variable, by the
// variable's value. Processes of other users cannot be read and are not found.
func Marked(variable string) map[string][]int {
	out := map[string][]int{}
	for _, pid := range allProcesses() {
		if v, ok := mark(pid, variable); ok {
			out[v] = append(out[v], pid)
		}
	}
	return out
}

// mark reads a variable of a process's environment as it was started. One
// that has ended has none.
func mark(pid int, variable string) (string, bool) {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil || pid == os.Getpid() {
		return "", false
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if name, value, ok := bytes.Cut(v, []byte{'='}); ok && string(name) == variable {
			return string(value), true
		}
	}
	return "", false
}

func allProcesses() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// children lists this process's children; where the kernel keeps no list of
// them, every process.
func children() []int {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(lists) == 0 {
		return allProcesses() // waiting for another's child is an error, no harm
	}
	var out []int
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err != nil {
			continue // a thread that ended
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}
