//go:build kubernetes && linux

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	runDir = "/run/roundhouse" // in the namespaces alone, on a tmpfs
	logDir = runDir + "/log"
)

// daemon is a program of the node's that runs until it is stopped.
type daemon struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // why it ended, once done is closed
}

// start starts a program. Its output is appended to NAME.log.
func start(name, path string, args ...string) (*daemon, error) {
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(filepath.Join(logDir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the program has its own
	d := &daemon{name: name, cmd: exec.Command(path, args...), done: make(chan struct{})}
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is the tests' to handle
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.done)
	}()
	return d, nil
}

// stop ends the program: by a signal, and after a while by force.
func (d *daemon) stop(patience time.Duration) error {
	if d == nil {
		return nil
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-d.done:
	case <-time.After(patience):
		_ = d.cmd.Process.Kill()
		<-d.done
	}
	return nil
}

// ready waits until ask succeeds, or the program ends.
func (d *daemon) ready(ctx context.Context, ask func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond) // a starting program tells nobody when it listens
	defer tick.Stop()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-d.done:
			return fmt.Errorf("%s ended: %w\n%s", d.name, errors.Join(d.err, err), tail(d.name))
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w\n%s", d.name, ctx.Err(), err, tail(d.name))
		}
	}
}

// Says waits until a program's log holds a text n times.
func (c *Cluster) Says(ctx context.Context, name, text string, n int) error {
	return c.daemons[name].ready(ctx, func(context.Context) error {
		log, err := os.ReadFile(filepath.Join(logDir, name+".log"))
		if err == nil && bytes.Count(log, []byte(text)) < n {
			err = fmt.Errorf("it does not say %q %d times", text, n)
		}
		return err
	})
}

// tail is the end of a program's log.
func tail(name string) string {
	text, _ := os.ReadFile(filepath.Join(logDir, name+".log"))
	return string(text[max(0, len(text)-2000):])
}

// command runs a program to its end and gives its output.
func command(ctx context.Context, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %v: %w: %s", filepath.Base(path), args, err, out)
	}
	return string(out), err
}
