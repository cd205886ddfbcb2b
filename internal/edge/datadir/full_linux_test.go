package datadir

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// TestFullDisk: a write that finds no space leaves the old object and no rest,
// and says where.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=0700"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := open(t, dir)
	all := objects(t, manifests)
	if err := d.PutObject(all[0]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Path("filler"), make([]byte, 1<<20), 0o600); err == nil {
		t.Fatal("the file system did not fill")
	}
	err := d.PutObject(all[0])
	wants(t, err, "write "+d.objectPath(all[0].ID()), "no space left")
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v is no ENOSPC", err)
	}
	if got, _, err := d.Load(); err != nil || len(got) != 1 || string(got[0].Original) != string(all[0].Original) {
		t.Errorf("loaded %v (%v)", got, err)
	}
	if err := os.Remove(d.Path("filler")); err != nil {
		t.Fatal(err)
	}
	if err := d.PutObject(all[1]); err != nil {
		t.Error(err)
	}
}
