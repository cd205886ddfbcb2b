package child

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// startIn starts a process inside the control group dir, so that its first children
// are inside as well; "" is this process's own group. If it cannot start the process
// there, it starts it outside and returns the reason in outside.
func startIn(dir string, start func(*syscall.SysProcAttr) (*os.Process, error)) (p *os.Process, outside, err error) {
	if dir == "" {
		p, err = start(&syscall.SysProcAttr{})
		return p, nil, err
	}
	// Version 2 has no file of threads.
	if _, missing := os.Stat(filepath.Join(dir, "tasks")); missing == nil {
		p, outside, err = startFromInside(dir, start)
	} else {
		p, outside, err = startInto(dir, start)
	}
	if outside != nil {
		if p, err = start(&syscall.SysProcAttr{}); err == nil && join(dir, "cgroup.procs", p.Pid) == nil {
			outside = nil // late, since the kernel knows no other way
		}
	}
	return p, outside, err
}

// startInto makes the kernel create the process in the group (cgroup v2, Linux 5.7).
func startInto(dir string, start func(*syscall.SysProcAttr) (*os.Process, error)) (p *os.Process, outside, err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err, nil
	}
	defer func() { _ = f.Close() }()
	p, err = start(&syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())})
	if err != nil {
		// Not told apart: if it is not the group, the other way fails too.
		return nil, err, nil
	}
	return p, nil, nil
}

// startFromInside starts the process from a thread that is in the group, which
// its children inherit (cgroup v1). The thread's own group lies above.
func startFromInside(dir string, start func(*syscall.SysProcAttr) (*os.Process, error)) (p *os.Process, outside, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread is unlocked only after it has returned to its own group.
		// Otherwise it ends with this goroutine.
		runtime.LockOSThread()
		thread := syscall.Gettid()
		if outside = join(dir, "tasks", thread); outside == nil {
			p, err = start(&syscall.SysProcAttr{})
		}
		if join(filepath.Dir(dir), "tasks", thread) == nil || outside != nil {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return p, outside, err
}

// join writes a number into a group's file.
func join(dir, file string, id int) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.WriteString(strconv.Itoa(id)); err != nil {
		return fmt.Errorf("join control group: %w", err)
	}
	return nil
}
