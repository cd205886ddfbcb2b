package weights

import (
	"os"

	"golang.org/x/sys/unix"
)

// openDirect opens a file for reads past the page cache, nil where its file
// system has none.
func openDirect(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil
	}
	return f
}

// readCached fills the beginning of p from the page cache and returns how many
// bytes that was.
func readCached(f *os.File, p []byte, from int64) int {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	done := 0
	_ = raw.Control(func(fd uintptr) {
		for done < len(p) {
			n, err := unix.Preadv2(int(fd), [][]byte{p[done:]}, from+int64(done), unix.RWF_NOWAIT)
			if err != nil || n <= 0 {
				return
			}
			done += n
		}
	})
	return done
}
