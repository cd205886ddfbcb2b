package worker

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/edge/child"
)

// tokenVariable is the environment variable with the secret that a worker shows.
const tokenVariable = "ROUNDHOUSE_WORKER_TOKEN"

// launch holds what starts a worker: program, folder, limits.
type launch struct {
	name    string                   // of the worker, unique among those running
	dir     string                   // for its socket and pipe
	command []string                 // the program and its arguments before --socket
	known   func(line string) *Error // Program.Explain
	env     []string                 // of the process
	grace   time.Duration
	limits  Limits
	log     *slog.Logger
	report  report
	forks   *forkServer // nil: the command is run for each worker
}

// start starts a worker and completes the handshake.
func (l launch) start(ctx context.Context) (*worker, error) {
	if l.forks != nil {
		g, err := l.begin(ctx, l.forked)
		if err == nil {
			return l.newWorker(g), nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		l.forks.giveUp(err)
	}
	g, err := l.begin(ctx, l.spawn)
	if err != nil {
		return nil, err
	}
	return l.newWorker(g), nil
}

// begin starts a process and completes the handshake.
func (l launch) begin(ctx context.Context, start starter) (*connected, error) {
	socket := filepath.Join(l.dir, l.name+".sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("worker: cannot listen on %s: %w", socket, err)
	}
	defer func() { _ = listener.Close() }()
	token := rand.Text()
	process, out, err := start(ctx, socket, token)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.limits.StartTimeout)
	defer cancel()
	ended := make(chan struct{})
	defer close(ended)
	go func() { // ends Accept
		select {
		case <-ctx.Done():
		case <-process.Done():
		case <-ended:
		}
		_ = listener.Close()
	}()
	nc, reader, hi, err := l.accept(listener, token)
	if err == nil {
		return &connected{process: process, output: out, conn: nc, reader: reader, hello: hi}, nil
	}
	select {
	case <-process.Done():
		err = l.explain(process.Exit(), out)
	default:
		process.Kill()
		if errors.Is(err, net.ErrClosed) {
			err = NewError(kindUnavailable, fmt.Sprintf("worker did not connect within %s%s", l.limits.StartTimeout, quoted(out)))
		}
	}
	out.close()
	return nil, err
}

// isToken reports whether a variable holds a token, ours or another server's.
func isToken(pair string) bool { return strings.HasPrefix(pair, tokenVariable+"=") }

// spawn is the starter that starts a program.
func (l launch) spawn(_ context.Context, socket, token string) (*child.Process, *output, error) {
	out, err := newOutput(filepath.Join(l.dir, l.name+".out"), outputLines, l.log)
	if err != nil {
		return nil, nil, fmt.Errorf("worker: %w", err)
	}
	process, err := child.Start(child.Spec{
		Path:   l.command[0],
		Args:   append(slices.Clone(l.command), "--socket", socket, "--grace", strconv.FormatFloat(l.grace.Seconds(), 'f', -1, 64)),
		Env:    append(slices.DeleteFunc(slices.Clone(l.env), isToken), tokenVariable+"="+token),
		Output: out.path,
	})
	if err != nil {
		out.discard()
		return nil, nil, fmt.Errorf("worker: %w", err)
	}
	go out.read()
	return process, out, nil
}

// maxStrangers bounds the connections without a valid token.
const maxStrangers = 16

// accept waits for the connection that shows the worker's token.
func (l launch) accept(listener net.Listener, token string) (net.Conn, *frameReader, hello, error) {
	for strangers := 0; ; strangers++ {
		nc, err := listener.Accept()
		if err != nil {
			return nil, nil, hello{}, err
		}
		reader := newFrameReader(nc)
		_ = nc.SetDeadline(time.Now().Add(l.limits.HandshakeTimeout))
		hi, err := greet(nc, reader, token, l.limits)
		if err == nil {
			_ = nc.SetDeadline(time.Time{})
			return nc, reader, hi, nil
		}
		_ = writeFrame(nc, control(kindGoodbye, "reason", excerpt.Of(err.Error(), 1024)))
		_ = nc.Close()
		if !errors.Is(err, errStranger) || strangers == maxStrangers {
			return nil, nil, hello{}, NewError(kindUnavailable, "worker: "+err.Error())
		}
	}
}

var errStranger = errors.New("no such token")

// greet performs the handshake.
func greet(nc net.Conn, reader *frameReader, token string, l Limits) (hello, error) {
	var hi hello
	header, _, err := reader.next()
	if err != nil {
		return hi, fmt.Errorf("no hello within %s: %w", l.HandshakeTimeout, err)
	}
	if err := checkNesting(header); err != nil {
		return hi, err
	}
	if err := json.Unmarshal(header, &hi); err != nil {
		return hi, violation("a hello that cannot be read: %v", err)
	}
	switch {
	case hi.Kind != kindHello:
		return hi, violation("%s before hello", strconv.Quote(excerpt.Of(hi.Kind, 64)))
	case subtle.ConstantTimeCompare([]byte(hi.Token), []byte(token)) != 1:
		return hi, errStranger
	case !slices.Contains(hi.Protocols, protocolHere):
		return hi, fmt.Errorf("the worker speaks protocols %v, the server %d", hi.Protocols[:min(len(hi.Protocols), 16)], protocolHere)
	}
	return hi, writeFrame(nc, control(kindWelcome, "protocol", protocolHere, "server", map[string]string{"name": "roundhouse"},
		"limits", map[string]int64{"max_frame_bytes": l.MaxFrameBytes, "max_in_flight": int64(l.MaxInFlight)}, "features", []string{featureCustomStreams}))
}

// writeFrame writes a small frame before there is a conn.
func writeFrame(nc net.Conn, f *frame) error {
	if err := f.seal(maxHandshakeBytes); err != nil {
		return err
	}
	_, err := nc.Write(f.head)
	return err
}

// explain returns why a worker ended before its hello.
func (l launch) explain(exit child.Exit, out *output) error {
	select { // what it last wrote
	case <-out.done:
	case <-time.After(outputWait):
	}
	if l.known != nil {
		for _, line := range slices.Backward(out.tail()) {
			if e := l.known(line); e != nil {
				return e
			}
		}
	}
	return NewError(kindUnavailable, fmt.Sprintf("worker ended before it connected (%s %s)%s", l.command[0], exit, quoted(out)))
}

// quoted returns the last lines of output, for an error.
func quoted(out *output) string {
	lines := out.tail()
	if len(lines) == 0 {
		return ""
	}
	return ": " + strings.Join(lines[max(0, len(lines)-3):], " | ")
}
