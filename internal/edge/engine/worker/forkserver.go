package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"roundhouse.dev/roundhouse/internal/edge/child"
)

// maxForkModels bounds the models in one message to a fork server.
const maxForkModels = 1024

// forkServer is the process that forks a pool's workers. It has imported the
// modules that their models use, and the workers share that memory. It starts
// with the first worker and ends with the pool. If it ends early, the next worker
// starts it again. If it cannot start, each worker starts as a program of its own.
type forkServer struct {
	launch func() launch // its own
	models func() []forkModel
	reaper func() error
	log    *slog.Logger

	mu   sync.Mutex
	live *connected // nil while there is none
	last uint64     // request
	off  bool       // it failed
}

// forkModel is a model in a message to the fork server, which imports what it uses.
type forkModel struct {
	Implementation string `json:"implementation"`
	Folder         string `json:"folder,omitempty"`
}

// forks reports whether workers can be forked: macOS' own libraries break after one.
func forks() bool { return runtime.GOOS == "linux" }

// fork forks a worker that connects to l's socket and shows the token.
func (f *forkServer) fork(ctx context.Context, l launch, socket, token, output string) (*child.Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off {
		return nil, errNoForks
	}
	if f.live != nil {
		select {
		case <-f.live.process.Done():
			f.log.Warn("fork server ended; it is restarted", "reason", f.live.process.Exit().String())
			f.drop()
		default:
		}
	}
	if f.live == nil {
		if err := f.start(ctx); err != nil {
			return nil, fmt.Errorf("fork server: %w", err)
		}
	}
	pid, err := f.ask(ctx, l, socket, token, output)
	if err == nil {
		var process *child.Process
		if process, err = child.Inherit(pid); err == nil {
			return process, nil
		}
	}
	// A worker that it may have forked is still in its group and ends with it.
	f.live.process.Kill()
	f.drop()
	return nil, fmt.Errorf("fork server: %w", err)
}

var errNoForks = errors.New("workers are not forked")

// start starts the process.
func (f *forkServer) start(ctx context.Context) error {
	if err := f.reaper(); err != nil {
		return err
	}
	l := f.launch()
	g, err := l.begin(ctx, l.spawn)
	if err != nil {
		return err
	}
	f.live = g
	f.log.Info("fork server started", "pid", g.process.PID(), "python", g.hello.Worker.Version)
	return nil
}

// ask asks the process to fork and returns the new process's id.
func (f *forkServer) ask(ctx context.Context, l launch, socket, token, output string) (int, error) {
	f.last++
	m := control(kindFork, "id", f.last, "socket", socket, "token", token, "output", output, "grace", l.grace.Seconds(), "models", f.models())
	if err := m.seal(maxHeaderBytes); err != nil {
		return 0, err
	}
	nc := f.live.conn
	_ = nc.SetDeadline(time.Now().Add(l.limits.StartTimeout)) // it may have to import more
	defer context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })()
	if _, err := nc.Write(m.head); err != nil {
		return 0, err
	}
	header, _, err := f.live.reader.next()
	if err != nil {
		return 0, err
	}
	if err := checkNesting(header); err != nil {
		return 0, err
	}
	var answer struct {
		Kind  string     `json:"kind"`
		ID    uint64     `json:"id"`
		PID   int        `json:"pid"`
		Error *wireError `json:"error"`
	}
	switch err := json.Unmarshal(header, &answer); {
	case err != nil:
		return 0, violation("an answer that cannot be read: %v", err)
	case answer.ID != f.last:
		return 0, violation("an answer to request %d, not %d", answer.ID, f.last)
	case answer.Kind != kindResult:
		return 0, answer.Error.err()
	}
	return answer.PID, nil
}

// orphanInterval is how often ended orphans are collected.
const orphanInterval = 5 * time.Second

// becomeReaper makes this process the parent of orphans: of forked workers, and of
// processes that models leave behind. It collects both when they end.
func (e *Engine) becomeReaper() error {
	if err := child.BecomeReaper(); err != nil {
		return err
	}
	go func() {
		t := time.NewTicker(e.orphans)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				child.ReapOrphans()
			case <-e.ctx.Done():
				return
			}
		}
	}()
	return nil
}

// giveUp makes every further worker start as a program of its own.
func (f *forkServer) giveUp(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off {
		return
	}
	f.off = true
	f.log.Warn("workers are started one by one, which takes more memory: they cannot be forked", "error", err)
	f.stop()
}

// close ends the process.
func (f *forkServer) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = true
	f.stop()
}

// stop ends the process, if there is one. The caller holds f's lock.
func (f *forkServer) stop() {
	if f.live == nil {
		return
	}
	_ = f.live.conn.Close() // it ends by that
	select {
	case <-f.live.process.Done():
	case <-time.After(exitWait):
		f.live.process.Kill()
	}
	f.drop()
}

// drop forgets a process that has ended. The caller holds f's lock.
func (f *forkServer) drop() {
	_ = f.live.conn.Close()
	f.live.output.close()
	f.live = nil
}

// connected is a process that has completed the handshake.
type connected struct {
	process *child.Process
	output  *output
	conn    net.Conn
	reader  *frameReader
	hello   hello
}

// starter starts a process that connects to the socket and shows the token.
type starter func(ctx context.Context, socket, token string) (*child.Process, *output, error)

// forked is the starter that forks.
func (l launch) forked(ctx context.Context, socket, token string) (*child.Process, *output, error) {
	out, err := newOutput(filepath.Join(l.dir, l.name+".out"), outputLines, l.log)
	if err != nil {
		return nil, nil, fmt.Errorf("worker: %w", err)
	}
	process, err := l.forks.fork(ctx, l, socket, token, out.path)
	if err != nil {
		out.discard()
		return nil, nil, err
	}
	go out.read()
	return process, out, nil
}
