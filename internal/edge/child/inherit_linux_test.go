package child

import (
	"errors"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// orphanScript forks a subshell, which writes its id and is an orphan at once.
const orphanScript = `(echo $(exec sh -c 'echo $PPID'); while :; do :; done) & exit 0`

// orphan starts a process that is at once one.
func orphan(t *testing.T) int {
	t.Helper()
	if err := BecomeReaper(); err != nil {
		t.Skip(err)
	}
	out := t.TempDir() + "/out"
	// The subshell is a fork that execs nothing. Its parent is ended rather
	// than waited for by Start, which would end the group with it.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	file, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	p, err := os.StartProcess("/bin/sh", []string{"sh", "-c", orphanScript}, &os.ProcAttr{Files: []*os.File{r, file, file}})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(awaitLine(t, out, 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestInherit(t *testing.T) {
	for what, end := range map[string]func(*Process) Exit{
		"killed":  func(p *Process) Exit { return p.Kill() },
		"stopped": func(p *Process) Exit { return p.Stop(t.Context(), time.Minute) },
		"killed by another": func(p *Process) Exit {
			_ = syscall.Kill(p.PID(), syscall.SIGSEGV)
			return p.Exit()
		},
	} {
		pid := orphan(t)
		p, err := Inherit(pid)
		if err != nil {
			t.Fatal(err)
		}
		if st, err := readStat(pid); err != nil || st.group != pid {
			t.Errorf("%s: %+v, %v", what, st, err)
		}
		want := map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGTERM, "killed by another": syscall.SIGSEGV}[what]
		if e := end(p); !e.Known || e.Signal != want {
			t.Errorf("%s: %+v", what, e)
		}
		if _, err := readStat(pid); err == nil {
			t.Errorf("%s: the process is still there", what)
		}
	}
}

// TestInheritEnded inherits one that has ended already.
func TestInheritEnded(t *testing.T) {
	pid := orphan(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for {
		if st, err := readStat(pid); err != nil {
			t.Fatal(err)
		} else if st.ended() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	p, err := Inherit(pid)
	if err != nil {
		t.Fatal(err)
	}
	if e := p.Exit(); !e.Known || e.Signal != syscall.SIGKILL {
		t.Errorf("%+v", e)
	}
}

func TestInheritStranger(t *testing.T) {
	for _, pid := range []int{1, os.Getppid(), os.Getpid(), 1 << 30} {
		if p, err := Inherit(pid); !errors.Is(err, ErrGone) {
			t.Errorf("%d: %v, %v", pid, p, err)
		}
	}
}
