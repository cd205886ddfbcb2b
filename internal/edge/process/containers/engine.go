// Package containers runs containers on this machine with podman or Docker, by
// the command line that the two share. A container's client stays in the
// foreground for as long as the container runs, so that for whoever started it the
// container is a process: it ends when the container ends, with its exit code, writes
// what the container writes, and outlives its parent.
package containers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/decide/selection"
)

// The ways to choose an engine, besides its name.
const (
	Auto = "auto" // podman, else Docker
	Off  = "off"
)

// The engines.
const (
	Podman = "podman"
	Docker = "docker"
)

// Variable is what is chosen where nothing else is said.
const Variable = "ROUNDHOUSE_CONTAINERS"

// Mode is how an engine is chosen: as given, else as the environment says.
func Mode(given string) (string, error) {
	source := "--containers"
	if given == "" {
		if given, source = os.Getenv(Variable), Variable; given == "" {
			return Auto, nil
		}
	}
	switch given {
	case Auto, Off, Podman, Docker:
		return given, nil
	}
	return "", fmt.Errorf("%s: %q is not one of auto, off, podman, docker", source, given)
}

// Engine is podman or Docker on this machine, with what it needs to be told here.
type Engine struct {
	Name    string // Podman or Docker
	Version string
	Path    string
	// NoMemoryLimits is why limits of memory have no effect; "" where they have.
	NoMemoryLimits string
	facts          facts
}

// String is name and version.
func (e *Engine) String() string { return e.Name + " " + e.Version }

// answerTimeout bounds what an engine is asked, and removeTimeout the removal of a
// container.
const (
	answerTimeout = 10 * time.Second
	removeTimeout = 30 * time.Second
)

// maxAnswer bounds what is kept of an answer, in bytes.
const maxAnswer = 1 << 20

// run runs the engine's client to its end and returns what it printed. An error ends
// with the last line of its complaint.
func (e *Engine) run(ctx context.Context, timeout time.Duration, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.Path, append(e.facts.global(e.Name), args...)...)
	cmd.Env = Environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out, complaint bounded
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		switch why := lastLine(complaint.String()); {
		case ctx.Err() == context.DeadlineExceeded:
			return "", fmt.Errorf("%s %s: no answer within %s", e.Name, args[0], timeout)
		case why != "":
			return "", errors.New(why)
		default:
			return "", fmt.Errorf("%s %s: %w", e.Name, args[0], err)
		}
	}
	return out.String(), nil
}

// bounded keeps the end of what is written to it.
type bounded struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if over := b.Len() + len(p) - maxAnswer; over > 0 {
		b.Next(min(over, b.Len()))
	}
	_, _ = b.Buffer.Write(p[max(0, len(p)-maxAnswer):])
	return len(p), nil
}

// lastLine is the last line that says something, without what engines put before it.
func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	line := strings.TrimSpace(lines[len(lines)-1])
	for i := len(lines) - 1; i >= 0; i-- { // "See 'docker run --help'." says nothing
		if l := strings.TrimSpace(lines[i]); l != "" && !strings.HasPrefix(l, "See '") && !strings.HasPrefix(l, "Run '") {
			line = l
			break
		}
	}
	for _, prefix := range []string{"docker: ", "Error response from daemon: ", "Error: "} {
		line = strings.TrimPrefix(line, prefix)
	}
	return line
}

// Environment is what the engine's client is given: this process's own, without
// what holds secrets of ours.
func Environment() []string {
	var out []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ROUNDHOUSE_") {
			out = append(out, e)
		}
	}
	return out
}

// Finder finds the engine of this machine and remembers it. Where there is none it
// looks again, at the most every lookInterval.
type Finder struct {
	Mode string

	mu      sync.Mutex
	looked  time.Time
	engine  *Engine
	lacks   string
	noGPUs  string
	noCalls string
}

const lookInterval = 10 * time.Second

// Find is the engine, nil for none; lacks is why.
func (f *Finder) Find(ctx context.Context) (e *Engine, lacks string) {
	if f.Mode == Off {
		return nil, ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.engine != nil || !f.looked.IsZero() && time.Since(f.looked) < lookInterval {
		return f.engine, f.lacks
	}
	f.engine, f.lacks = find(ctx, f.Mode)
	if f.engine != nil {
		f.noGPUs, f.noCalls = f.engine.noGPUs(), f.engine.noCalls()
	}
	if f.looked = time.Now(); ctx.Err() != nil {
		f.looked = time.Time{}
	}
	return f.engine, f.lacks
}

// Host is what the engine can do, for selection.
func (f *Finder) Host(ctx context.Context) selection.Containers {
	e, lacks := f.Find(ctx)
	if e == nil {
		return selection.Containers{Lacks: lacks}
	}
	return selection.Containers{Engine: e.String(), NoGPUs: f.noGPUs, NoCalls: f.noCalls, NoMemoryLimits: e.NoMemoryLimits}
}

// find looks for an engine that answers.
func find(ctx context.Context, mode string) (*Engine, string) {
	names := []string{Podman, Docker}
	if mode != Auto {
		names = []string{mode}
	}
	var lacks []string
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		e := &Engine{Name: name, Path: path, facts: look()}
		if err := e.open(ctx); err != nil {
			lacks = append(lacks, name+" does not work here: "+err.Error())
			continue
		}
		return e, ""
	}
	if len(lacks) == 0 {
		return nil, "install " + strings.Join(names, " or ")
	}
	return nil, strings.Join(lacks, "; ")
}

// At is the engine of a name, as far as it is known without asking it; nil where it
// is not on this machine.
func At(name string) *Engine {
	if name == "" {
		return nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return nil
	}
	return &Engine{Name: name, Path: path, facts: look()}
}

// open asks the engine what it is.
func (e *Engine) open(ctx context.Context) error {
	if why := e.facts.missing(e.Name); why != "" {
		return errors.New(why)
	}
	out, err := e.run(ctx, answerTimeout, "info", "--format", "{{json .}}")
	if err != nil {
		return err
	}
	said, err := parseInfo(e.Name, []byte(out))
	e.Version, e.facts.rootless = said.version, said.rootless
	if said.unlimited {
		e.NoMemoryLimits = e.Name + " has no control group for memory here: run it as root, or on a machine with control groups of version 2"
	}
	return err
}

// info is what an engine says of itself.
type info struct {
	version   string
	rootless  bool
	unlimited bool // limits of memory have no effect
}

// parseInfo reads what an engine says of itself.
func parseInfo(name string, text []byte) (said info, err error) {
	var podman struct {
		Host struct {
			Security          struct{ Rootless bool }
			CgroupControllers *[]string // what containers are limited by
		}
		Version struct{ Version string }
	}
	var docker struct {
		ServerVersion   string
		ServerErrors    []string
		SecurityOptions []string
		OSType          string
		MemoryLimit     *bool // limits of memory have an effect
	}
	if name == Podman {
		if err := json.Unmarshal(text, &podman); err != nil {
			return info{}, fmt.Errorf("podman info: %w", err)
		}
		h := &podman.Host
		return info{podman.Version.Version, h.Security.Rootless, h.CgroupControllers != nil && !slices.Contains(*h.CgroupControllers, "memory")}, nil
	}
	if err := json.Unmarshal(text, &docker); err != nil {
		return info{}, fmt.Errorf("docker info: %w", err)
	}
	switch {
	case len(docker.ServerErrors) > 0: // its client exits with 0
		return info{}, errors.New(docker.ServerErrors[0])
	case docker.ServerVersion == "":
		return info{}, errors.New("its daemon does not answer")
	case docker.OSType != "" && docker.OSType != "linux":
		return info{}, fmt.Errorf("it runs containers of %s, and images of models are Linux's", docker.OSType)
	}
	rootless := slices.ContainsFunc(docker.SecurityOptions, func(o string) bool { return strings.Contains(o, "rootless") })
	return info{docker.ServerVersion, rootless, docker.MemoryLimit != nil && !*docker.MemoryLimit}, nil
}
