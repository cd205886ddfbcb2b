package command

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{"1": 1, "20GB": 20e9, "1.5GiB": 3 << 29, "7 tib": 7 << 40, "": 0, "x": 0, "5q": 0, "-1": 0, "0": 0, "1e30": 0, "9999999TiB": 0} {
		if got, err := ParseSize("--max-size", in); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d %v", in, got, err)
		}
	}
}

func TestParseShare(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	all, err := ParseShare("x", "100%", dir)
	if err != nil || all < 1<<20 {
		t.Fatal(all, err)
	}
	for in, want := range map[string]int64{"50%": all / 2, "1GiB": 1 << 30, "12.5%": all / 8, "0%": 0, "101%": 0, "x%": 0, "": 0} {
		got, err := ParseShare("x", in, dir)
		if err != nil && !strings.Contains(err.Error(), "want a size such as 500GiB, or a share of the disk such as 80%") {
			t.Errorf("%q: %v does not name all that is allowed", in, err)
		}
		if (err == nil) != (want > 0) || want > 0 && (got < want-1 || got > want+1) {
			t.Errorf("%q: %d, %v; want %d", in, got, err, want)
		}
	}
}
