package e2e

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func mountTmpfs(dir, options string) error { return unix.Mount("tmpfs", dir, "tmpfs", 0, options) }

func unmount(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH) }

// terminal opens a pseudoterminal: what is written to the program's side is
// read from ours.
func terminal() (ours, theirs *os.File, err error) {
	ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(ours.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		return nil, nil, err
	}
	theirs, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	return ours, theirs, err
}
