package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// swap is how many bytes of swap are free and there are, and why processes cannot be
// moved there; "" where they can.
func swap() (free, total int64, why string) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, err.Error()
	}
	free, total = field(string(b), "SwapFree:")<<10, field(string(b), "SwapTotal:")<<10
	if total == 0 {
		return 0, 0, "this machine has no swap"
	}
	if status, err := os.ReadFile("/proc/self/status"); err != nil || !mayAdvise(string(status)) {
		return free, total, "moving other processes' memory to swap needs CAP_SYS_NICE"
	}
	return free, total, ""
}

// mayAdvise reads from /proc/self/status whether process_madvise(2) of others is
// allowed.
func mayAdvise(status string) bool {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && n>>unix.CAP_SYS_NICE&1 == 1
		}
	}
	return false
}

// reclaim moves the memory of stopped processes to swap, and returns how much is
// there. A control group that forbids swap allows it until unlock.
func reclaim(pids []int, group string) (moved int64, err error) {
	if group != "" {
		_ = write(group, "memory.swap.max", "max") // there is none in version 1
	}
	for _, pid := range pids {
		if e := pageOut(pid); e != nil && !errors.Is(e, os.ErrNotExist) && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("process %d: %w", pid, e))
		}
	}
	if moved = swapped(pids); moved > 0 {
		return moved, nil // what could not be moved stays where it is
	}
	return 0, err
}

// unlock forbids a control group swap again; what is there comes back as it is used.
func unlock(group string) {
	if group != "" {
		_ = write(group, "memory.swap.max", "0")
	}
}

// swapped is what processes have in swap, in bytes.
func swapped(pids []int) (n int64) {
	for _, pid := range pids {
		b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		n += field(string(b), "VmSwap:") << 10
	}
	return n
}

// maxVectors is the most ranges of one call (IOV_MAX).
const maxVectors = 1024

// pageOut asks the kernel to move a process's private memory to swap. Pages of files
// are left: the kernel drops them where it needs the room.
func pageOut(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "maps"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	ranges, err := privateRanges(f)
	if err != nil {
		return err
	}
	for len(ranges) > 0 {
		n := min(len(ranges), maxVectors)
		if err := advise(fd, ranges[:n], unix.MADV_PAGEOUT); err != nil {
			return err
		}
		ranges = ranges[n:]
	}
	return nil
}

// iovec is a range of another process's memory, as the kernel has it.
type iovec struct{ base, length uintptr }

// advise is process_madvise(2). A call may advise of fewer bytes than asked; the rest
// follows. A range that may not be advised of is left out.
func advise(pidfd int, ranges []iovec, advice int) error {
	for len(ranges) > 0 {
		n, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(pidfd), uintptr(unsafe.Pointer(&ranges[0])), uintptr(len(ranges)), uintptr(advice), 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EINVAL || errno == unix.ENOMEM || errno == 0 && n == 0:
			ranges = ranges[1:] // of a mapping that is locked, or gone
		case errno != 0:
			return fmt.Errorf("process_madvise: %w", errno)
		}
		for len(ranges) > 0 && n >= ranges[0].length {
			n -= ranges[0].length
			ranges = ranges[1:]
		}
		if len(ranges) > 0 && n > 0 {
			ranges[0].base, ranges[0].length = ranges[0].base+n, ranges[0].length-n
		}
	}
	return nil
}

// maxMappings bounds the mappings of a process that are read.
const maxMappings = 1 << 17

// privateRanges reads from /proc/PID/maps the ranges of memory that is the process's
// own: private and written to, or of no file.
func privateRanges(maps io.Reader) (out []iovec, err error) {
	lines := bufio.NewScanner(maps)
	for lines.Scan() && len(out) < maxMappings {
		f := strings.Fields(lines.Text())
		if len(f) < 5 || len(f[1]) != 4 || f[1][3] != 'p' || f[1][1] != 'w' && f[4] != "0" {
			continue
		}
		if len(f) > 5 && strings.HasPrefix(f[5], "[v") { // vdso, vvar, vsyscall
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		a, errA := strconv.ParseUint(from, 16, 64)
		b, errB := strconv.ParseUint(to, 16, 64)
		if errA == nil && errB == nil && b > a {
			out = append(out, iovec{uintptr(a), uintptr(b - a)})
		}
	}
	return out, lines.Err()
}
