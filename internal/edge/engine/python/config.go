package python

import (
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Config is how an Engine runs its workers.
type Config struct {
	// ParallelWorkers is the number of workers of a pool. 0 means 1: what
	// MLServer runs in its own process runs in one worker here, so that a
	// model that crashes never takes the server with it.
	ParallelWorkers int
	// ForkWorkers has the workers of a pool, where it has more than one and on
	// Linux, forked from a process that has imported what their models use, so
	// that they share that memory. Workers of a Command never are.
	ForkWorkers bool
	// Expected are models that will be loaded, or some of them. Workers are
	// forked with the first model; what the others use is then there too.
	Expected []Settings
	// WorkerTimeout is how long a worker that is asked to stop may finish its
	// requests and unload its models, before it is killed.
	WorkerTimeout time.Duration
	// EnvironmentsDir is where environment tarballs are unpacked.
	EnvironmentsDir string
	// Python is the interpreter of the default environment: a path, or a name
	// on PATH.
	Python string
	// Command, where it is given, is what workers of the default environment
	// run in place of the interpreter and the package: a program in any
	// language that speaks the protocol. --socket and --grace are added.
	Command []string
	// Package holds the roundhouse package, in a folder of that name. It is
	// unpacked below CacheDir, once for each content. Leave it nil where
	// PackageDir is given.
	Package  fs.FS
	CacheDir string
	// PackageDir is a folder that holds the roundhouse package already.
	PackageDir string
	// RuntimeDir is where sockets are; "" is the system's folder for
	// temporary files.
	RuntimeDir string
	// Environ is the environment of workers, "NAME=value".
	Environ []string
	Limits  Limits
}

// Limits bound what workers and their models may take.
type Limits struct {
	MaxFrameBytes int64 // of one message, either way; at most 4 GiB - 1
	MaxInFlight   int   // requests a worker has at a time; more are refused

	StartTimeout     time.Duration // from the start of a process to its first message
	HandshakeTimeout time.Duration // from its connection to the end of the handshake
	// LoadTimeout bounds a load whose context has no deadline, and every load
	// in a worker that replaces another.
	LoadTimeout time.Duration
	// RequestTimeout is how long a model may take for one answer. Beyond it
	// the request fails, and a worker that is stuck with it is replaced.
	// Streams have it between two messages while the worker is stuck.
	RequestTimeout time.Duration

	PingInterval time.Duration // between two heartbeats
	// PongTimeout is how late the answer to a heartbeat may be before the
	// worker counts as stuck, unless it is busy within its time.
	PongTimeout time.Duration

	MinBackoff time.Duration // before a worker that ended early is replaced; doubles
	MaxBackoff time.Duration

	OutputLines int // lines a second of one worker's output that reach the log

	MaxEnvironmentBytes int64 // an environment tarball unpacked
	MaxEnvironmentFiles int
}

// DefaultConfig is MLServer's where MLServer has the setting.
func DefaultConfig() Config {
	return Config{
		ParallelWorkers: 1,
		ForkWorkers:     true,
		WorkerTimeout:   5 * time.Second,
		EnvironmentsDir: ".envs",
		Python:          "python3",
		Limits: Limits{
			MaxFrameBytes: 1 << 30, MaxInFlight: 1024,
			StartTimeout: 2 * time.Minute, HandshakeTimeout: 10 * time.Second,
			LoadTimeout: 10 * time.Minute, RequestTimeout: 5 * time.Minute,
			PingInterval: 5 * time.Second, PongTimeout: 30 * time.Second,
			MinBackoff: 250 * time.Millisecond, MaxBackoff: 30 * time.Second,
			OutputLines:         200,
			MaxEnvironmentBytes: 64 << 30, MaxEnvironmentFiles: 1_000_000,
		},
	}
}

// maxFrame is what the protocol's 32-bit sizes can say.
const maxFrame = 1<<32 - 1

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("python: %s: %s", field, fmt.Sprintf(format, args...)))
		}
	}
	check(c.ParallelWorkers >= 0 && c.ParallelWorkers <= 1024, "parallel_workers", "is %d; 0 to 1024", c.ParallelWorkers)
	check(c.WorkerTimeout > 0, "parallel_workers_timeout", "is %s; it must be above 0", c.WorkerTimeout)
	check(c.EnvironmentsDir != "", "environments_dir", "is empty; name a folder for unpacked environments")
	check(c.Python != "", "python", "is empty; name an interpreter")
	check(len(c.Command) > 0 || (c.Package == nil) != (c.PackageDir == ""), "package", "give the package or its folder, not both")
	check(c.Package == nil || c.CacheDir != "", "cacheDir", "is empty; name a folder for the unpacked package")
	l := c.Limits
	check(l.MaxFrameBytes >= maxHandshakeBytes && l.MaxFrameBytes <= maxFrame, "limits.maxFrameBytes", "is %d; %d to %d", l.MaxFrameBytes, maxHandshakeBytes, maxFrame)
	check(l.MaxInFlight > 0 && l.MaxInFlight <= 1<<20, "limits.maxInFlight", "is %d; 1 to %d", l.MaxInFlight, 1<<20)
	check(l.OutputLines > 0, "limits.outputLines", "is %d; it must be above 0", l.OutputLines)
	check(l.MaxEnvironmentBytes > 0, "limits.maxEnvironmentBytes", "is %d; it must be above 0", l.MaxEnvironmentBytes)
	check(l.MaxEnvironmentFiles > 0, "limits.maxEnvironmentFiles", "is %d; it must be above 0", l.MaxEnvironmentFiles)
	for field, d := range map[string]time.Duration{
		"startTimeout": l.StartTimeout, "handshakeTimeout": l.HandshakeTimeout, "loadTimeout": l.LoadTimeout,
		"requestTimeout": l.RequestTimeout, "pingInterval": l.PingInterval, "pongTimeout": l.PongTimeout,
		"minBackoff": l.MinBackoff, "maxBackoff": l.MaxBackoff,
	} {
		check(d > 0, "limits."+field, "is %s; it must be above 0", d)
	}
	return errors.Join(errs...)
}

// workers is the number of workers of a pool.
func (c Config) workers() int { return max(c.ParallelWorkers, 1) }
