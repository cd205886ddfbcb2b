package process

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestForeignLeft has a container leave what this process may not delete.
func TestForeignLeft(t *testing.T) {
	u, r, outside, foreign := planted(t)
	if err := os.Chmod(foreign, 0o555); err != nil {
		t.Fatal(err)
	}
	root := os.Geteuid() == 0
	if root {
		base := filepath.Dir(outside)
		for at := filepath.Dir(foreign); at != base; at = filepath.Dir(at) {
			if err := os.Chown(at, 65534, -1); err != nil {
				t.Fatal(err)
			}
		}
		for _, at := range []string{base, filepath.Dir(base)} { // are passed through
			if err := os.Chmod(at, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		runtime.LockOSThread() // its file system user is another now
		_, _ = unix.SetfsuidRetUid(65534)
	}
	_, args, _, err := u.containerInvocation(r)
	if root {
		if _, failed := unix.SetfsuidRetUid(0); failed == nil {
			runtime.UnlockOSThread()
		}
	}
	if err == nil || asFailure(err).reason != "StateUnwritable" || !strings.Contains(err.Error(), u.p.folder(u.id)) {
		t.Errorf("a container starts in what another left: %v %q", err, args)
	}
	untouched(t, outside)
	if err := os.Chmod(foreign, 0o700); err != nil {
		t.Error(err)
	}
}
