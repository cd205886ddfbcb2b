package containers

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveAll deletes a folder that this process may not: an engine that stands in
// for podman does so where podman is a user's.
func TestRemoveAll(t *testing.T) {
	bin := t.TempDir()
	podman := filepath.Join(bin, "podman")
	script := "#!/bin/sh\nwhile [ \"$1\" != unshare ]; do shift; done\nshift\nfor last; do :; done\nchmod 0700 \"$last/a\"\nexec \"$@\"\n"
	if err := os.WriteFile(podman, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // this thread's file system user alone, not that of programs
		runtime.LockOSThread() // which ends with the test
		defer func() {
			if _, err := unix.SetfsuidRetUid(0); err == nil {
				runtime.UnlockOSThread()
			}
		}()
	}
	passed := filepath.Dir(bin) // to the folders of this test
	if err := os.Chmod(passed, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		engine Engine
		err    string
	}{
		"rootless podman": {Engine{Name: Podman, Path: podman}, ""},
		"podman fails":    {Engine{Name: Podman, Path: "/bin/false"}, "podman unshare rm -rf -- "},
		"docker":          {Engine{Name: Docker, Path: podman}, "docker cannot delete what its containers wrote"},
	} {
		dir := filepath.Join(t.TempDir(), "containers", "r-1")
		foreign := filepath.Join(dir, "a")
		if err := os.MkdirAll(filepath.Join(foreign, "b"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(foreign, 0o500); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			for _, at := range []string{filepath.Dir(dir), dir} {
				if err := os.Chown(at, 65534, -1); err != nil {
					t.Fatal(err)
				}
			}
			_, _ = unix.SetfsuidRetUid(65534)
		}
		err := c.engine.RemoveAll(dir)
		if os.Geteuid() == 0 {
			_, _ = unix.SetfsuidRetUid(0)
		}
		_, left := os.Lstat(dir)
		if c.err == "" && (err != nil || !os.IsNotExist(left)) {
			t.Errorf("%s: %v; left: %v", name, err, left)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), dir)) {
			t.Errorf("%s: %v", name, err)
		}
		if err := os.Chmod(foreign, 0o700); err != nil && !os.IsNotExist(err) {
			t.Error(err)
		}
	}
}
