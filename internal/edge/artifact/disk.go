package artifact

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// disk is what downloads are written to; tests put a full one in its place.
type disk interface {
	// open opens a file for reading and writing, creating it with mode 0600.
	open(path string) (diskFile, error)
	// free is the number of bytes an ordinary user can still write below dir.
	free(dir string) (int64, error)
}

type diskFile interface {
	io.ReadWriteSeeker
	io.ReaderAt
	io.WriterAt
	io.Closer
	Truncate(size int64) error
	Sync() error
}

type realDisk struct{}

func (realDisk) open(path string) (diskFile, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
}

func (realDisk) free(dir string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("artifact: %s: %w", dir, err)
	}
	blocks := min(fs.Bavail, 1<<40)             // the unit is at least 512 bytes; no overflow
	return int64(blocks) * int64(fs.Bsize), nil //nolint:unconvert // Bsize is 32 bits wide on macOS
}

// stored is how many bytes of a file are on the disk: one in pieces has gaps.
func stored(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return min(info.Size(), st.Blocks*512)
	}
	return info.Size()
}

// checkSpace refuses a write of need bytes that the disk has no room for.
func (s *Store) checkSpace(need int64) error {
	free, err := s.disk.free(s.cfg.Dir)
	if err != nil || free >= need {
		return err
	}
	return s.fullError(need, free)
}

func (s *Store) fullError(need, free int64) error {
	return fmt.Errorf("artifact: %s: disk full: %s needed, %s free; make room or choose another folder: %w",
		s.cfg.Dir, formatBytes(need), formatBytes(free), syscall.ENOSPC)
}

// explainWrite turns a failed write into an error that says how much room is
// missing. need is the number of bytes still to write, 0 when unknown.
func (s *Store) explainWrite(err error, need int64) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("artifact: %w", err)
	}
	free, ferr := s.disk.free(s.cfg.Dir)
	if ferr != nil {
		return fmt.Errorf("artifact: %s: disk full: %w", s.cfg.Dir, err)
	}
	return s.fullError(max(need, 1), free)
}

// formatBytes prints a size in binary units.
func formatBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
