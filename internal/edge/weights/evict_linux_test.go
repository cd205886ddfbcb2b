package weights

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// evict has the page cache forget a folder's files.
func evict(t testing.TB, dir string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err = f.Sync(); err == nil { // dirty pages stay
			err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		}
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
}
