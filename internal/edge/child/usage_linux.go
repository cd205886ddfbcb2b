package child

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticks is how many of the clock ticks that the kernel counts CPU time in make a
// second: 100 on every architecture that Linux tells them of.
const ticks = 100

// Usages returns what the process groups of this machine take, by the leader's id.
func Usages() (map[int]Usage, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	page := int64(os.Getpagesize())
	out := map[int]Usage{}
	for _, e := range entries {
		if pid := e.Name(); pid[0] < '0' || pid[0] > '9' {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // it has ended
		}
		if group, cpu, pages, err := parseUsage(b); err == nil {
			u := out[group]
			u.CPU += time.Duration(cpu) * (time.Second / ticks)
			u.Memory += pages * page
			out[group] = u
		}
	}
	return out, nil
}

// parseUsage reads the group of a process, its CPU time in ticks and its resident
// pages from a stat line (proc_pid_stat(5)).
func parseUsage(b []byte) (group int, cpu uint64, pages int64, err error) {
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 22 {
		return 0, 0, 0, errors.New("malformed /proc stat line")
	}
	group, err1 := strconv.Atoi(f[2])
	user, err2 := strconv.ParseUint(f[11], 10, 64)
	system, err3 := strconv.ParseUint(f[12], 10, 64)
	pages, err4 := strconv.ParseInt(f[21], 10, 64)
	return group, user + system, max(0, pages), errors.Join(err1, err2, err3, err4)
}
