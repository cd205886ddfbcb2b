package child

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ownGroups are the folders of the control groups this process is in, by
// version: that of the memory controller, and that of version 2.
func ownGroups(t *testing.T) map[string]string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Skip(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(mounts)) {
		head, tail, _ := strings.Cut(line, " - ")
		f, kind := strings.Fields(head), strings.Fields(tail)
		for group := range strings.Lines(string(own)) {
			g := strings.SplitN(strings.TrimSpace(group), ":", 3)
			switch {
			case kind[0] == "cgroup2" && g[0] == "0":
				out["v2"] = filepath.Join(f[4], g[2])
			case kind[0] == "cgroup" && strings.HasSuffix(f[4], "/memory") && g[1] == "memory":
				out["v1"] = filepath.Join(f[4], g[2])
			}
		}
	}
	return out
}

// TestEarlyForksAreInside: what a process forks as soon as it runs is in its
// control group, and the thread that started it is not left there.
func TestEarlyForksAreInside(t *testing.T) {
	groups := ownGroups(t)
	for _, version := range []string{"v1", "v2"} {
		t.Run(version, func(t *testing.T) {
			own, ok := groups[version]
			if !ok {
				t.Skip("not mounted here")
			}
			dir := filepath.Join(own, fmt.Sprintf("roundhouse-test-%d", os.Getpid()))
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Skipf("no group can be made here: %v", err)
			}
			out := filepath.Join(t.TempDir(), "out")
			c, err := Start(Spec{Path: "/bin/sh", Args: []string{"sh", "-c", "for i in $(seq 75); do sleep 100 & done; echo started; wait"},
				Env: os.Environ(), Output: out, Cgroup: dir})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				c.Kill()
				for end := time.Now().Add(time.Minute); os.Remove(dir) != nil; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Errorf("%s cannot be removed: somebody is left in it", dir)
						return
					}
				}
			})
			if err := c.Outside(); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
				if b, _ := os.ReadFile(out); strings.Contains(string(b), "started") {
					break
				}
				if time.Now().After(end) {
					t.Fatal("the shell does not start its children")
				}
			}
			inside, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				t.Fatal(err)
			}
			if n := len(strings.Fields(string(inside))); n != 76 {
				t.Errorf("%d of 76 processes are inside", n)
			}
		})
	}
}

// TestStartOutside: a process whose control group cannot be entered runs, and
// says that it is outside.
func TestStartOutside(t *testing.T) {
	c, err := Start(Spec{Path: "/bin/sleep", Args: []string{"sleep", "100"}, Cgroup: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Kill()
	if c.Outside() == nil || syscall.Kill(c.PID(), 0) != nil {
		t.Errorf("a folder that is no group: %v", c.Outside())
	}
	if _, err := Start(Spec{Path: "/no/such/program", Args: []string{"x"}, Cgroup: t.TempDir()}); err == nil {
		t.Error("a missing program starts")
	}
}
