package command

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Cause returns what a path error is about without the path, for messages that
// name the path first.
func Cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Count returns "1 file" or "2 files".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// ParseSize reads "500GiB", "20GB" or a number of bytes.
func ParseSize(flag, s string) (int64, error) {
	number, unit := s, ""
	if i := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' }); i >= 0 {
		number, unit = s[:i], strings.TrimSpace(s[i:])
	}
	factors := map[string]float64{"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
	v, err := strconv.ParseFloat(number, 64)
	factor, known := factors[strings.ToLower(unit)]
	if err != nil || !known || v*factor < 1 || v*factor > 1<<60 {
		return 0, Usagef("%s is %q: want a size such as 500GiB", flag, s)
	}
	return int64(v * factor), nil
}

func SizeText(n int64) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && v >= 1024 {
		v, units = v/1024, units[1:]
	}
	if units[0] == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[0])
}

// ParseShare reads "500GiB", a number of bytes, or "80%" of the disk that a
// folder is on, or is going to be on.
func ParseShare(flag, s, dir string) (int64, error) {
	number, percent := strings.CutSuffix(s, "%")
	if !percent {
		if n, err := ParseSize(flag, s); err == nil {
			return n, nil
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if !percent || err != nil || v <= 0 || v > 100 {
		return 0, Usagef("%s is %q: want a size such as 500GiB, or a share of the disk such as 80%%", flag, s)
	}
	var st syscall.Statfs_t
	for at := dir; ; at = filepath.Dir(at) {
		if err = syscall.Statfs(at, &st); err == nil || at == filepath.Dir(at) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	return max(1, int64(float64(st.Blocks)*float64(st.Bsize)*v/100)), nil
}
