package modelserver

import (
	"errors"
	"fmt"
	"time"
)

// Config is how a Server runs.
type Config struct {
	ServerName    string
	ServerVersion string
	Host          string
	HTTPPort      int // 0: any free port

	// LoadAtStartup loads every model of the repository when Run begins.
	LoadAtStartup bool
	// Strict ends Run when a model cannot be loaded at the start.
	Strict bool

	// MaxBodyBytes bounds a request's body.
	MaxBodyBytes int64
	// MaxConcurrency bounds the inference requests under way; more are
	// answered 429. 0: no bound.
	MaxConcurrency int
	// ReadTimeout bounds reading a request.
	ReadTimeout time.Duration
	// WriteTimeout bounds sending an answer to a client that reads slowly.
	WriteTimeout time.Duration
	// LoadTimeout bounds loading one model.
	LoadTimeout time.Duration
	// DrainTimeout bounds how long requests under way are waited for, at the
	// end of the server and of an instance of a model.
	DrainTimeout time.Duration
	// MetricsPath is where metrics are served; "" for nowhere.
	MetricsPath string
}

// DefaultConfig is MLServer's, but on loopback, and with bounds.
func DefaultConfig() Config {
	return Config{
		ServerName:    "roundhouse",
		Host:          "127.0.0.1",
		HTTPPort:      8080,
		LoadAtStartup: true,
		MaxBodyBytes:  64 << 20,
		ReadTimeout:   time.Minute,
		WriteTimeout:  time.Minute,
		LoadTimeout:   10 * time.Minute,
		DrainTimeout:  30 * time.Second,
		MetricsPath:   "/metrics",
	}
}

// Validate reports everything that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if c.HTTPPort < 0 || c.HTTPPort > 65535 {
		errs = append(errs, fmt.Errorf("http_port %d: must be 0 to 65535", c.HTTPPort))
	}
	if c.MaxBodyBytes <= 0 {
		errs = append(errs, fmt.Errorf("maximum body of %d bytes: must be above 0", c.MaxBodyBytes))
	}
	if c.MaxConcurrency < 0 {
		errs = append(errs, fmt.Errorf("maximum concurrency %d: must be 0 (none) or above", c.MaxConcurrency))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"read", c.ReadTimeout}, {"write", c.WriteTimeout}, {"load", c.LoadTimeout}, {"drain", c.DrainTimeout}} {
		if d.value <= 0 {
			errs = append(errs, fmt.Errorf("%s timeout %v: must be above 0", d.name, d.value))
		}
	}
	if c.MetricsPath != "" && c.MetricsPath[0] != '/' {
		errs = append(errs, fmt.Errorf("metrics_endpoint %q: must begin with /", c.MetricsPath))
	}
	return errors.Join(errs...)
}
