package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Waits, all bounded.
const (
	stopTimeout  = 20 * time.Second // for a process to end by itself
	readyTimeout = 30 * time.Second // for a server to answer
)

// process is a started program.
type process struct {
	cmd     *exec.Cmd
	started time.Time // just before it was
	logs    bytes.Buffer
	done    chan struct{} // closed once it has ended
	err     error         // how, after done
}

// spawn starts the binary. It ends with ctx, and by stop.
func (b *bench) spawn(ctx context.Context, args ...string) (*process, error) {
	return launch(exec.CommandContext(ctx, b.binary, args...))
}

// launch starts a command, made with a context.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	p.cmd.Stderr = &p.logs
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = stopTimeout
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// stop asks the process to end and waits for it. The error holds the last of
// what it said.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within %s of SIGTERM", p.cmd.Args[1], stopTimeout)
	}
	return p.failure()
}

// failure returns how an ended process failed, nil if it did not.
func (p *process) failure() error {
	if p.err == nil {
		return nil
	}
	said := strings.TrimSpace(p.logs.String())
	return fmt.Errorf("%s: %w: %s", p.cmd.Args[1], p.err, said[max(0, len(said)-500):])
}

// until repeats ask, pause apart, until it succeeds. It gives up when the
// process ends, or after readyTimeout.
func (p *process) until(ctx context.Context, pause time.Duration, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", p.cmd.Args[1], ctx.Err(), err)
		case <-p.done:
			return errors.Join(errors.New("it ended too early"), p.failure())
		case <-time.After(pause):
		}
	}
}

// gone waits until no process has that id.
func gone(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d is still there: %w", pid, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// freePort finds a TCP port of the loopback that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// footprint is a process's memory, in MB.
type footprint struct {
	resident     float64 // RSS: all of its pages in memory
	proportional float64 // PSS: pages shared with others counted in part
	anonymous    float64 // its own pages, which no file backs
}

// readFootprint reads a process's memory from /proc.
func readFootprint(pid int) (f footprint, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return f, err
	}
	fields := map[string]*float64{"Rss:": &f.resident, "Pss:": &f.proportional, "Anonymous:": &f.anonymous}
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if len(words) < 2 || fields[words[0]] == nil {
			continue
		}
		kb, err := strconv.ParseFloat(words[1], 64)
		if err != nil {
			return f, fmt.Errorf("smaps_rollup: %w", err)
		}
		*fields[words[0]] = kb * 1024 / 1e6
	}
	return f, nil
}

// ticksPerSecond is Linux's USER_HZ, the unit of times in /proc.
const ticksPerSecond = 100

// readCPU reads the CPU time a process has used, in seconds, all of its
// threads together. Its grain is a tick.
func readCPU(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name and may hold anything.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("/proc stat: too few fields")
	}
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticksPerSecond, errors.Join(err1, err2)
}
