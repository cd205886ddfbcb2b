package worker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Config is how an Engine runs its workers.
type Config struct {
	// ParallelWorkers is the number of workers of a pool. 0 means 1: a model
	// that MLServer runs in its own process runs in one worker here, so that
	// its crash does not end the server.
	ParallelWorkers int
	// ForkWorkers forks the workers of a pool from a process that has imported
	// the modules their models use, so that they share that memory. It has an
	// effect on Linux, for pools of several workers whose Program can fork.
	ForkWorkers bool
	// Expected lists models that will be loaded later. The fork server, which
	// starts with the first model, imports the modules of these as well.
	Expected []Settings
	// WorkerTimeout is how long a worker that is asked to stop may finish its
	// requests and unload its models, before it is killed.
	WorkerTimeout time.Duration
	Limits        Limits
}

// Limits bound what workers and their models may take.
type Limits struct {
	MaxFrameBytes int64 // of one message, either way; at most 4 GiB - 1
	MaxInFlight   int   // requests a worker has at a time; more are refused

	StartTimeout     time.Duration // from the start of a process to its first message
	HandshakeTimeout time.Duration // from its connection to the end of the handshake
	// RequestTimeout is how long a model may take for one answer. Beyond it
	// the request fails, and a worker that is stuck with it is replaced.
	// In a stream it is the longest time between two messages of a worker that
	// does not answer heartbeats.
	RequestTimeout time.Duration

	PingInterval time.Duration // between two heartbeats
	// PongTimeout is how late the answer to a heartbeat may be before the
	// worker counts as stuck, unless it is busy within its time.
	PongTimeout time.Duration

	MinBackoff time.Duration // before a worker that ended early is replaced; doubles
	MaxBackoff time.Duration
}

// Environment names the Python environment of a pool's workers: the folder of a
// venv or of a conda environment, or a tarball of one. The zero value is the
// default environment.
type Environment struct {
	Path    string // absolute
	Tarball bool
}

// Program is what the workers of a pool run: a program in any language that
// speaks the protocol.
type Program struct {
	// Command is the program with its arguments; --socket and --grace are added.
	Command []string
	// ForkServer, if set, is the program that forks such workers.
	ForkServer []string
	// Env is the environment of both, "NAME=value".
	Env []string
	// Explain, if set, returns the error that a line of output stands for. The
	// process wrote the line before it ended without connecting. It returns nil
	// for a line that it does not know.
	Explain func(line string) *Error
	// Release, if set, is called once the pool's workers have ended.
	Release func()
}

// Programs finds the program of an environment.
type Programs func(context.Context, Environment) (*Program, error)

// DefaultConfig has MLServer's defaults for the settings that MLServer has.
func DefaultConfig() Config {
	return Config{
		ParallelWorkers: 1,
		ForkWorkers:     true,
		WorkerTimeout:   5 * time.Second,
		Limits: Limits{
			MaxFrameBytes: 1 << 30, MaxInFlight: 1024,
			StartTimeout: 2 * time.Minute, HandshakeTimeout: 10 * time.Second,
			RequestTimeout: 5 * time.Minute,
			PingInterval:   5 * time.Second, PongTimeout: 30 * time.Second,
			MinBackoff: 250 * time.Millisecond, MaxBackoff: 30 * time.Second,
		},
	}
}

// maxFrame is the largest size that the protocol's 32 bits hold.
const maxFrame = 1<<32 - 1

const (
	// loadTimeout bounds loads whose context has no deadline, and every load in a
	// worker that replaces another.
	loadTimeout = 10 * time.Minute
	outputLines = 200 // lines a second of one worker's output that reach the log
)

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("worker: %s: %s", field, fmt.Sprintf(format, args...)))
		}
	}
	check(c.ParallelWorkers >= 0 && c.ParallelWorkers <= 1024, "parallel_workers", "is %d; 0 to 1024", c.ParallelWorkers)
	check(c.WorkerTimeout > 0, "parallel_workers_timeout", "is %s; it must be above 0", c.WorkerTimeout)
	l := c.Limits
	check(l.MaxFrameBytes >= maxHandshakeBytes && l.MaxFrameBytes <= maxFrame, "limits.maxFrameBytes", "is %d; %d to %d", l.MaxFrameBytes, maxHandshakeBytes, maxFrame)
	check(l.MaxInFlight > 0 && l.MaxInFlight <= 1<<20, "limits.maxInFlight", "is %d; 1 to %d", l.MaxInFlight, 1<<20)
	for field, d := range map[string]time.Duration{
		"startTimeout": l.StartTimeout, "handshakeTimeout": l.HandshakeTimeout,
		"requestTimeout": l.RequestTimeout, "pingInterval": l.PingInterval, "pongTimeout": l.PongTimeout,
		"minBackoff": l.MinBackoff, "maxBackoff": l.MaxBackoff,
	} {
		check(d > 0, "limits."+field, "is %s; it must be above 0", d)
	}
	return errors.Join(errs...)
}

// workers is the number of workers of a pool.
func (c Config) workers() int { return max(c.ParallelWorkers, 1) }
