package process

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/child"
	"roundhouse.dev/roundhouse/internal/state/fleet/platformtest"
)

func TestCgroupCandidates(t *testing.T) {
	const v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	const v1 = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
		"32 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	for _, c := range []struct{ own, mounts, want string }{
		{"", "", "[]"},
		{"0::/\n", v2, "[{/sys/fs/cgroup memory.max memory.events}]"},
		{"0::/user.slice/a.scope\n", v2, "[{/sys/fs/cgroup/user.slice/a.scope memory.max memory.events} {/sys/fs/cgroup/user.slice memory.max memory.events}]"},
		{"4:memory:/x\n1:cpu:/y\n", v1, "[{/sys/fs/cgroup/memory/x memory.limit_in_bytes memory.oom_control}]"},
		{"4:memory\n", "garbage\n - \n", "[]"},
	} {
		if got := fmt.Sprint(cgroupCandidates(c.own, c.mounts)); got != c.want {
			t.Errorf("%q: %s, want %s", c.own, got, c.want)
		}
	}
}

// TestFullControlGroup: no memory left is not the same as memory that is unknown.
func TestFullControlGroup(t *testing.T) {
	for _, c := range []struct{ available, most, used, wantLimit, wantAvailable int64 }{
		{900, 600, 100, 600, 500},
		{900, 600, 600, 600, 1},
		{900, 600, 650, 600, 1},
		{300, 600, 100, 600, 300},
		{900, 5000, 100, 1000, 900},
		{0, 600, 100, 600, 0}, // the machine does not tell
	} {
		if limit, available := withinGroup(1000, c.available, c.most, c.used); limit != c.wantLimit || available != c.wantAvailable {
			t.Errorf("%d of a group that has %d of %d: %d, %d; want %d, %d", c.available, c.used, c.most, limit, available, c.wantLimit, c.wantAvailable)
		}
	}
}

// TestUseAfterPause: CPU time is not averaged over a time in which nobody asked.
func TestUseAfterPause(t *testing.T) {
	begin, group := time.Now(), syscall.Getpgrp()
	for _, c := range []struct {
		pause time.Duration
		known bool
	}{{maxUseInterval, true}, {time.Hour, false}} {
		u := uses{now: sampled{begin, map[int]child.Usage{group: {}}}}
		if _, _, _, known := u.of(group, begin.Add(c.pause)); known != c.known {
			t.Errorf("after %s: known is %v", c.pause, known)
		}
	}
}

func TestMemoryLimitNotEnforced(t *testing.T) {
	p := open(t, Config{})
	p.memory.parent = func() (memoryGroup, error) { return memoryGroup{}, errors.New("nothing to write") }
	_, _, r := one(t, p, "unlimited", platformtest.Server{Memory: 64 << 20})
	if r.Message != "its memory limit of 64 MiB is not enforced: nothing to write" {
		t.Errorf("message: %q", r.Message)
	}
}
