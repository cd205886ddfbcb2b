package child

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	fields := " S 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 10 11"
	for _, name := range []string{"sh", "a b", "x) R 9 9 9", "(((", "\n"} {
		got, err := parseStat([]byte("42 (" + name + ")" + fields))
		if err != nil || got != (stat{state: 'S', parent: 1, group: 42, session: 42, start: 987654}) {
			t.Errorf("%q: %+v, %v", name, got, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(own))
	f.Add("")
	f.Add("1 (x)")
	f.Add("1 (x) ) ) ) S")
	f.Fuzz(func(t *testing.T, s string) {
		st, err := parseStat([]byte(s))
		if err == nil && !strings.Contains(s, ")") {
			t.Errorf("%q read as %+v", s, st)
		}
	})
}

func TestMarked(t *testing.T) {
	t.Setenv("CHILD_TEST_MARK", "here")
	p := sh(t, "sleep 60 & wait", "")
	if pids := Marked("CHILD_TEST_MARK")["here"]; len(pids) == 0 || pids[0] != p.PID() {
		t.Errorf("marked: %v, want %d first", pids, p.PID())
	}
}

func TestEndMarked(t *testing.T) {
	if err := BecomeReaper(); err != nil {
		t.Skip(err)
	}
	t.Setenv("CHILD_TEST_ESCAPE", "me")
	for _, orphaned := range []bool{true, false} {
		out := filepath.Join(t.TempDir(), "out")
		p := sh(t, "setsid sh -c 'echo $$; sleep 60 & sleep 60' & wait", out)
		pid, err := strconv.Atoi(awaitLine(t, out, 1)[0])
		if err != nil {
			t.Fatal(err)
		}
		p.Kill()
		if syscall.Kill(pid, 0) != nil {
			t.Fatal("it did not leave the group")
		}
		EndMarked("CHILD_TEST_ESCAPE", "you", orphaned)
		if syscall.Kill(pid, 0) != nil {
			t.Error("another's was ended")
		}
		EndMarked("CHILD_TEST_ESCAPE", "me", orphaned)
		if left := Marked("CHILD_TEST_ESCAPE")["me"]; len(left) != 0 {
			t.Errorf("orphaned %v: %v are left", orphaned, left)
		}
	}
}

// An older kernel has no pidfds: threads wait, and /proc is polled.
func TestWithoutPidfd(t *testing.T) {
	pidfdOpen = func(int, int) (int, error) { return -1, unix.ENOSYS }
	defer func() { pidfdOpen = unix.PidfdOpen }()
	t.Run("exit", TestExit)
	t.Run("stop", TestStopKillsAfterGrace)
	t.Run("adopt", TestAdopt)
	p := sh(t, "sleep 60", "")
	time.AfterFunc(20*time.Millisecond, func() { _ = p.Signal(syscall.SIGTERM) })
	if e := p.Exit(); e.Signal != syscall.SIGTERM {
		t.Errorf("%s", e)
	}
}
