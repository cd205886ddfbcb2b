package hubcache

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"roundhouse.dev/roundhouse/internal/edge/hubcache/hubtest"
)

// smallDisk mounts a file system of a size.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options+",mode=0700"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func fill(t *testing.T, dir string) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 64<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk did not fill: %v", err)
	}
	return filler
}

// TestFullDisk: the disk is full in the middle of a download, before one, and
// then has room again. Clients have every byte all along.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t, "size=8m")
	r := newRig(t, func(c *Config) { c.Dir, c.MinFree, c.MaxBytes = dir, 0, 1<<30 })
	_, config, weights := r.example()
	etag := hashOf(weights)
	hold := make(chan struct{})
	r.hub.Fail(hubtest.Faults{Hold: hold, HoldAfter: 2 << 20})
	got := make(chan reply, 1)
	go func() { got <- r.get(weightsPath) }()
	until(t, "2 MiB are there", func() bool {
		info, err := os.Stat(r.cache.store.blobs.PartPath(etag))
		return err == nil && info.Size() >= 2<<20-chunk
	})
	filler := fill(t, dir)
	r.hub.Fail(hubtest.Faults{})
	close(hold)
	r.wants(<-got, 200, string(weights))
	r.settle()
	// Nothing can be written at all, metadata neither.
	r.wants(r.get(weightsPath), 200, string(weights))
	r.wants(r.get("/org/model/resolve/main/config.json"), 200, string(config))
	if got := r.get("/api/models/org/model/revision/main"); got.status != 200 {
		t.Error(got)
	}
	if _, err := os.Stat(r.cache.store.blobs.Path(etag)); err == nil {
		t.Fatal("there was room")
	}
	r.start(nil) // over the full disk
	r.wants(r.get(weightsPath), 200, string(weights))
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	r.start(nil) // one that has not just looked for room in vain
	r.wants(r.get(weightsPath), 200, string(weights))
	r.settle()
	r.hub.Forget()
	r.wants(r.get(weightsPath), 200, string(weights))
	if r.hub.Sent() != 0 {
		t.Error("it is not kept, though there is room")
	}
}

// TestFullDiskEvicts: a disk that others fill makes room of what is kept.
func TestFullDiskEvicts(t *testing.T) {
	dir := smallDisk(t, "size=12m")
	r := newRig(t, func(c *Config) { c.Dir, c.MinFree, c.MaxBytes = dir, 1<<20, 1<<30 })
	repo := r.hub.Add("models", "org/many")
	for i := range 6 {
		data := append(random(3<<20), byte(i))
		name := string(rune('a' + i))
		repo.Commit("main", map[string][]byte{name: data}, name)
		r.wants(r.get("/org/many/resolve/main/"+name+"?"+name), 200, string(data))
		r.settle()
		if got := free(t, dir); got < 1<<20 {
			t.Errorf("%d bytes of the disk are left", got)
		}
	}
	if r.metric("evictions_total") < 2 || r.metric("sent_bytes_total", "direct") != 0 {
		t.Errorf("%v evicted", r.metric("evictions_total"))
	}
}

// TestRingFullOwner: an owner that can keep nothing costs its share of the keeping.
func TestRingFullOwner(t *testing.T) {
	dir := smallDisk(t, "size=1m")
	n := 0
	rr := newRingRig(t, 2, func(c *Config) {
		if n++; n == 2 {
			c.Dir = dir
		}
	})
	data := rr.owned(1, 2<<20)
	path, etag, _ := rr.blob("m", data)
	for _, n := range rr.nodes {
		n.wants(n.get(path), 200, string(data))
	}
	rr.wantsHas(etag, 0)
	if rr.nodes[0].metric("ring_requests_sent_total", "declined") == 0 || rr.nodes[0].metric("ring_nodes_ejected") != 0 {
		t.Error("the owner is blamed")
	}
}

// free is what a disk has left.
func free(t *testing.T, dir string) int64 {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}
