// Package child runs child processes. Each leads its own process group, writes to
// a bounded log file rather than a pipe (so that its output survives its parent),
// and is ended together with everything it started. A later parent can adopt it
// and never mistakes another process for it.
//
// No parent-death signal is set: a child must outlive a parent that is killed,
// for the next parent to adopt; and on Linux that signal follows the death of
// the creating thread, which in a Go program is not the death of the program.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrGone reports that a process to be adopted is no longer there, or that its
// process id now belongs to another.
var ErrGone = errors.New("the process is gone")

// Spec is what to start.
type Spec struct {
	Path string   // the program file, already looked up
	Args []string // the whole command line, Args[0] included
	Env  []string // "NAME=value"; nothing is inherited
	Dir  string   // working directory; "" is the caller's
	// Output receives standard output and error. It is opened for appending
	// and not truncated; "" discards.
	Output string
	// Cgroup is the folder of the control group to start in; "" is that of the
	// caller. On version 1 it lies below the caller's. Linux alone.
	Cgroup string
	// Session starts a session, and not a group in the caller's. Of a session's
	// groups the kernel ends those with stopped processes when the caller ends.
	Session bool
}

// Exit is how a process ended.
type Exit struct {
	// Known is false for an adopted process: the system reports its status only
	// to its real parent.
	Known  bool
	Code   int            // 0-255; -1 when a signal ended it or Known is false
	Signal syscall.Signal // 0 when none
	At     time.Time
}

// String is the exit in words.
func (e Exit) String() string {
	switch {
	case !e.Known:
		return "ended, exit status unknown"
	case e.Signal != 0:
		return fmt.Sprintf("ended by signal %d (%s)", int(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exited with code %d", e.Code)
}

// Process is one child, started here or adopted. Its methods are safe for
// concurrent use.
type Process struct {
	id   Identity
	done chan struct{} // closed once the process ended and its group is empty
	exit Exit          // valid after done
	// leaderGone is set before the leader is reaped, if that can be known in
	// time. After that only the rest of the group keeps the system from giving
	// the group's number to another.
	leaderGone atomic.Bool
	ended      chan struct{} // closed when the leader alone ended
	outside    error         // why it is not in the control group it was to be in
}

// Usage is what a process group takes: the CPU time of the processes that it has
// now, and their resident memory in bytes, which counts what they share more than
// once.
type Usage struct {
	CPU    time.Duration
	Memory int64
}

// Start starts s as the leader of a new process group, or session.
func Start(s Spec) (*Process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	out, err := openOutput(s.Output)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	p, outside, err := startIn(s.Cgroup, func(sys *syscall.SysProcAttr) (*os.Process, error) {
		sys.Setpgid, sys.Setsid = !s.Session, s.Session
		return os.StartProcess(s.Path, s.Args, &os.ProcAttr{Dir: s.Dir, Env: s.Env, Files: []*os.File{null, out, out}, Sys: sys})
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Path, err)
	}
	c := ours(p)
	c.outside = outside
	return c, nil
}

// ours is a child of this process, which waits for it.
func ours(p *os.Process) *Process {
	id, err := identify(p.Pid)
	if err != nil {
		// The child is ours and not yet reaped, so the number is its own even
		// if it has ended; without a start time it cannot be adopted later.
		id = Identity{PID: p.Pid}
	}
	c := newProcess(id)
	go c.wait(p)
	return c
}

// Adopt takes charge of a process that an earlier parent started. It returns
// ErrGone unless the very same process still runs.
func Adopt(id Identity) (*Process, error) {
	w, err := watch(id)
	if err != nil {
		return nil, err
	}
	c := newProcess(id)
	go func() {
		w.wait()
		c.finish(Exit{Code: -1, At: time.Now()})
	}()
	return c, nil
}

func newProcess(id Identity) *Process {
	return &Process{id: id, done: make(chan struct{}), ended: make(chan struct{})}
}

// wait reaps the leader, then the remaining processes of its group.
func (c *Process) wait(p *os.Process) {
	if awaitChild(p.Pid) {
		c.leaderGone.Store(true)
	}
	st, err := p.Wait()
	e := Exit{Known: true, Code: -1, At: time.Now()}
	if err != nil {
		e.Known = false
	} else if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
	} else {
		e.Code = st.ExitCode()
	}
	c.finish(e)
}

// finish ends the rest of the group, as a container ends with its first
// process, and then reports.
func (c *Process) finish(e Exit) {
	c.leaderGone.Store(true)
	c.exit = e
	close(c.ended)
	endGroup(c.id.PID)
	close(c.done)
}

// Identity is what Adopt needs to find the process again.
func (c *Process) Identity() Identity { return c.id }

// Outside is why the process is not in the control group that its Spec names;
// nil when it is.
func (c *Process) Outside() error { return c.outside }

// PID is the process's id, which is its group's too.
func (c *Process) PID() int { return c.id.PID }

// Done is closed when the process has ended and nothing of its group is left.
func (c *Process) Done() <-chan struct{} { return c.done }

// Exit is how it ended; valid once Done is closed.
func (c *Process) Exit() Exit {
	<-c.done
	return c.exit
}

// Signal sends sig to the whole group. A process that has ended is no error.
func (c *Process) Signal(sig syscall.Signal) error {
	select {
	case <-c.done:
		return nil
	default:
	}
	if c.leaderGone.Load() {
		return nil // finish is ending the group already
	}
	if err := syscall.Kill(-c.id.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process group %d: %w", c.id.PID, err)
	}
	return nil
}

// Stop asks the group to end with SIGTERM and, after grace or when ctx ends,
// makes it end with SIGKILL. It returns when nothing of the group is left.
func (c *Process) Stop(ctx context.Context, grace time.Duration) Exit {
	_ = c.Signal(syscall.SIGTERM)
	_ = c.Signal(syscall.SIGCONT) // one that is stopped does not hear the first
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-c.ended:
	case <-t.C:
		_ = c.Signal(syscall.SIGKILL)
	case <-ctx.Done():
		_ = c.Signal(syscall.SIGKILL)
	}
	return c.Exit()
}

// Kill ends the group at once and returns when nothing of it is left.
func (c *Process) Kill() Exit {
	_ = c.Signal(syscall.SIGKILL)
	return c.Exit()
}

func openOutput(path string) (*os.File, error) {
	if path == "" {
		return os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// groupWait bounds the wait for a killed group to be empty: a member in an
// uninterruptible sleep (a dead network mount) must not hold its owner.
const groupWait = 10 * time.Second

// endGroup kills what is left of a group whose leader has ended, reaps those
// members that became our children, and waits until the group is empty.
//
// While any member lives the kernel does not give the group's number away, and
// the loop ends at the first sign of an empty group, so no stranger is hit.
func endGroup(pgid int) {
	deadline := time.Now().Add(groupWait)
	for pause := 200 * time.Microsecond; time.Now().Before(deadline); pause = min(2*pause, 20*time.Millisecond) {
		reapGroup(pgid)
		if err := syscall.Kill(-pgid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.EPERM) {
			return
		}
		if !groupRuns(pgid) {
			reapGroup(pgid)
			return
		}
		time.Sleep(pause)
	}
}

// reapGroup collects the members that are children of this process. The
// leader must have been reaped already: this would take its status.
func reapGroup(pgid int) {
	for {
		pid, err := syscall.Wait4(-pgid, nil, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
