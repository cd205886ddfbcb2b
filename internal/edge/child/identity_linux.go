package child

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Identity tells one process from every other that had or will have its id:
// a process id is reused, but never within one tick of one boot.
type Identity struct {
	PID int `json:"pid"`
	// Start is when it started, in the kernel's clock ticks since boot.
	Start uint64 `json:"start"`
	// Boot is the kernel's id of the boot it runs in.
	Boot string `json:"boot"`
}

var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

func identify(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	st, err := readStat(pid)
	if err != nil {
		return Identity{}, err
	}
	return Identity{PID: pid, Start: st.start, Boot: boot}, nil
}

// stat is the part of /proc/PID/stat used here (proc_pid_stat(5)).
type stat struct {
	state   byte
	parent  int
	group   int
	session int
	start   uint64
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat reads a stat line. The program's name stands in parentheses and
// may hold any byte, parentheses too, so fields count from the last one.
func parseStat(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return stat{}, errors.New("malformed /proc stat line")
	}
	parent, err1 := strconv.Atoi(f[1])
	group, err2 := strconv.Atoi(f[2])
	session, err3 := strconv.Atoi(f[3])
	start, err4 := strconv.ParseUint(f[19], 10, 64)
	return stat{state: f[0][0], parent: parent, group: group, session: session, start: start}, errors.Join(err1, err2, err3, err4)
}

// ended reports whether a state letter means that the process no longer runs.
func (s stat) ended() bool { return s.state == 'Z' || s.state == 'X' || s.state == 'x' }

// verify returns ErrGone unless id is the process it was when recorded, still
// running.
func verify(id Identity) error {
	now, err := identify(id.PID)
	if err != nil || now != id {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	if st, err := readStat(id.PID); err != nil || st.ended() || st.group != id.PID {
		return fmt.Errorf("process %d: %w", id.PID, ErrGone)
	}
	return nil
}

// groupRuns reports whether any member of the group still runs. Members that
// have ended but whose parent has not asked about them do not count.
func groupRuns(pgid int) bool {
	dir, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return false
	}
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil && st.group == pgid && !st.ended() {
			return true
		}
	}
	return false
}
