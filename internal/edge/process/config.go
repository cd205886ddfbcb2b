package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// Fetcher brings a model's files to this machine. Fetching what is here
// already must be cheap. Progress may be called from any goroutine, and after
// a cancelled fetch has returned it must not be called any more.
type Fetcher interface {
	Fetch(ctx context.Context, f service.Files, progress func(done, total int64)) (path string, err error)
}

// Config is what a Platform is made from. Dir is required; the zero value of
// everything else takes the default stated.
type Config struct {
	// Dir keeps the replicas' records and logs. One Platform at a time may
	// use it; the caller holds the lock.
	Dir string
	// Executable is the program the name "roundhouse" stands for. Default:
	// this one.
	Executable string
	// Server is the program that runs for "roundhouse serve", and ServerEnv are
	// variables, as NAME=VALUE, that it alone is given. Default: roundhouse-server
	// beside Executable.
	Server    string
	ServerEnv []string
	// Host is the address replicas listen on and are reached at. Default
	// 127.0.0.1.
	Host string
	// Fetcher brings models; nil refuses every model that must be fetched.
	Fetcher Fetcher
	// Fingerprint tells the files at a URI from those that take their place
	// later; "" where it does not know. A replica starts with those of its
	// revision alone. nil knows none.
	Fingerprint func(ctx context.Context, f service.Files) string
	// Secret finds a secret of a namespace, from which replicas take variables. nil
	// has none.
	Secret func(service.Key) (*service.Secret, bool)
	// ConfigMap finds a ConfigMap of a namespace, likewise.
	ConfigMap func(service.Key) (*service.ConfigMap, bool)
	// Devices are the accelerators' names as CUDA_VISIBLE_DEVICES takes them;
	// a replica's GPUs are indexes into it. nil means look (Discover).
	Devices []string
	// DeviceMemory is the memory of each device in bytes, 0 where it is not known:
	// such a device is only given whole.
	DeviceMemory []int64
	// GPUs describe the devices, in their order; none where nothing is known of them.
	GPUs []selection.GPU
	// Env are variables, as NAME=VALUE, that every replica is given; its
	// component's come after them.
	Env []string
	// Drain sends a replica no more requests and waits until those it has are
	// answered, or for ctx; nil means none ever come.
	Drain func(ctx context.Context, id string) error
	// Resume sends a replica requests again, after Drain; nil means none ever come.
	Resume func(id string)
	// Forward serves requests for a role on l until ctx ends or l is closed: each
	// goes to a ready replica of the role. nil: routers are not told addresses.
	Forward func(ctx context.Context, ref workload.Ref, l net.Listener)
	// Containers is how an engine for containers is chosen: containers.Auto, Off or
	// the engine's name. Default: what the environment says, else Auto.
	Containers string
	// LogLimit bounds a log file, in bytes; a replica keeps at most four.
	// Default 8 MiB.
	LogLimit int64
	// DeadLogs is how many logs of replicas that are gone a service keeps.
	// Default 5.
	DeadLogs int
	Restart  Restart
	Now      func() time.Time
	Logger   *slog.Logger
}

// Restart is how fast a replica that ended is tried again: after Min, twice as
// long each time up to Max, and from Min again once it has been ready for
// Settled.
type Restart struct {
	Min, Max time.Duration // default 500 ms and 60 s
	Settled  time.Duration // default 60 s
	// Recheck is how often what a Pending replica lacks is looked for.
	// Default 1 s.
	Recheck time.Duration
}

func (c Config) withDefaults() Config {
	def(&c.Host, "127.0.0.1")
	def(&c.LogLimit, 8<<20)
	def(&c.DeadLogs, 5)
	def(&c.Restart.Min, 500*time.Millisecond)
	def(&c.Restart.Max, 60*time.Second)
	def(&c.Restart.Settled, 60*time.Second)
	def(&c.Restart.Recheck, time.Second)
	def(&c.Logger, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("process: Dir: must be set"))
	}
	if c.Host != "" && net.ParseIP(c.Host) == nil {
		errs = append(errs, fmt.Errorf("process: Host: %q is not an IP address", c.Host))
	}
	if c.LogLimit < 0 || c.DeadLogs < 0 {
		errs = append(errs, errors.New("process: LogLimit, DeadLogs: must not be negative"))
	}
	r := c.Restart
	if r.Min < 0 || r.Max < 0 || r.Settled < 0 || r.Recheck < 0 || r.Max > 0 && r.Min > r.Max {
		errs = append(errs, errors.New("process: Restart: durations must not be negative, nor Min above Max"))
	}
	return errors.Join(errs...)
}
