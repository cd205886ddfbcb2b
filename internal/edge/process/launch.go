package process

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/child"
)

// defaultGrace is SIGTERM to SIGKILL where the component does not say.
const defaultGrace = 30 * time.Second

// running is one process of a replica and what it holds.
type running struct {
	proc         *child.Process
	spec         workload.Process // resolved
	env          []string
	port         int
	grpcPort     int   // 0 when the process is told none
	metricsPort  int   // the same
	kvEventsPort int   // the same
	rankPorts    []int // of its further data-parallel ranks, behind one of those above
	gpus         []int
	need         residency.Need          // what it holds
	took         bool                    // it holds that
	model        string                  // path
	parts        []string                // paths of its parts, nil for a model of one
	laid         []laid                  // where these lie; nil when adopted
	root         string                  // where a container has the model, "" for where it has others
	adapters     map[string]string       // paths, by name
	peers        map[service.Role]string // addresses it was told
	memory       string                  // control group, "" when none
	container    *contained              // nil for a program of this machine's
	verbatim     bool                    // its model is not on this machine
	started      time.Time
	adopted      bool
	note         string // a warning for people
	asleep       int    // the level at which it sleeps; 0: awake
	asleepSince  time.Time
	turning      bool // falling asleep or waking
}

func (r *running) grace() time.Duration {
	if r.spec.TerminationGrace != nil {
		return max(0, *r.spec.TerminationGrace)
	}
	return defaultGrace
}

// drain is how long the requests in flight may go on before the process is ended.
func (r *running) drain() time.Duration {
	if r.spec.Drain > 0 {
		return r.spec.Drain
	}
	return r.grace()
}

// launch waits for what the replica needs and starts its process.
func (u *unit) launch() (_ *running, err error) {
	c := u.component.Load()
	if c.Process == nil {
		return nil, failf("NotRunnable", "%s has no command to run on one machine: give its runtime's %s a local.command", u.o.key, u.role)
	}
	// Looked for before the model is fetched: without it the files are no use.
	r := &running{}
	defer func() {
		if err != nil && len(r.parts) > 0 {
			u.p.clearLayout(u.id)
		}
	}()
	if ct := c.Process.Container; ct != nil {
		r.container = &contained{name: containerName(u.id)}
		r.container.engine, err = u.engine(ct.Image)
	} else {
		_, err = u.program(*c.Process)
	}
	if err != nil {
		return nil, err
	}
	if r.model, r.parts, r.adapters, err = u.fetch(); err != nil {
		return nil, err
	}
	if err := u.sameFiles(func(uri string) string { return u.files.fetched[uri] }); err != nil {
		return nil, err
	}
	if err := u.lay(r); err != nil {
		return nil, err
	}
	if !u.model.Verbatim {
		if r.note, err = checkRepository(r.model, u.o.key.Name, c.Process.Command); err != nil {
			return nil, err
		}
		if r.note != "" {
			u.p.cfg.Logger.Warn("a model is not in its repository", "replica", u.id, "problem", r.note)
		}
	}
	if r.container != nil {
		if r.container.image, err = u.pull(r.container.engine, c.Process.Container); err != nil {
			return nil, err
		}
	}
	if err := u.takeRoom(r, c.Process.Need()); err != nil {
		return nil, err
	}
	if err := u.start(r, *c.Process); err != nil {
		u.release(r)
		return nil, err
	}
	return r, nil
}

// program finds the file to run, waiting until it is there.
func (u *unit) program(s workload.Process) (string, error) {
	if len(s.Command) == 0 || s.Command[0] == "" {
		return "", failf("NotRunnable", "%s: the command of its %s is empty", u.o.key, u.role)
	}
	for said := false; ; said = true {
		path, err := u.p.cfg.lookUp(s)
		if err == nil {
			return path, nil
		}
		if !said {
			u.pending("ProgramMissing", u.p.cfg.missingProgram(s))
		}
		if err := u.wait(u.p.cfg.Restart.Recheck, nil); err != nil {
			return "", err
		}
	}
}

// lookUp finds the file to run for a process.
func (c *Config) lookUp(s workload.Process) (string, error) {
	name, dir := s.Command[0], s.WorkingDir
	switch {
	case serves(s):
		return exec.LookPath(c.Server)
	case name == ownName:
		return c.Executable, nil
	}
	if strings.Contains(name, "{{") {
		return name, nil // resolved later
	}
	if strings.Contains(name, "/") && !filepath.IsAbs(name) && dir != "" {
		name = filepath.Join(dir, name)
	}
	return exec.LookPath(name)
}

// serves reports whether a process is `roundhouse serve`: the model server, which
// is started without roundhouse in between.
func serves(s workload.Process) bool {
	return len(s.Command) > 1 && s.Command[0] == ownName && s.Command[1] == "serve"
}

// invocation is the command line and environment of a replica's process.
func (c *Config) invocation(r *running) (args, env []string) {
	if !serves(r.spec) {
		return r.spec.Command, r.env
	}
	return append([]string{serverName}, r.spec.Command[2:]...), slices.Concat(r.env, c.ServerEnv)
}

// missingProgram is the message where lookUp finds nothing.
func (c *Config) missingProgram(s workload.Process) string {
	name, install := s.Command[0], s.Install
	if serves(s) {
		return c.Server + " is not there: it comes with roundhouse and belongs beside it"
	}
	m := name + " is not on PATH"
	if strings.Contains(name, "/") {
		m = name + " is not a program on this machine"
	}
	if install != "" {
		m += ": " + install
	}
	return m
}

// quoted lists a few names.
func quoted(names []string) string {
	const few = 3
	out := make([]string, 0, few)
	for _, n := range names[:min(few, len(names))] {
		out = append(out, strconv.Quote(n))
	}
	if more := len(names) - few; more > 0 {
		out = append(out, fmt.Sprintf("%d more", more))
	}
	return strings.Join(out, ", ")
}

// progressInterval bounds how often a fetch's progress is published.
const progressInterval = 100 * time.Millisecond

// takeRoom waits for the accelerators and the memory that the replica needs.
// Whether they are taken and what is known of the replica change together: plan
// must not see a waiting replica that has them already.
func (u *unit) takeRoom(r *running, need residency.Need) error {
	if need == (residency.Need{}) {
		return nil
	}
	pool := u.p.gpus
	done := func() {}
	defer func() { done() }()
	defer u.releaseKept()
	for waits := false; ; {
		var retry <-chan struct{}
		u.o.update(u, func(v *replica.Replica) {
			var got []int
			var free int
			if u.ending.Err() != nil {
				return
			}
			if got, free, retry = pool.take(u.o.key, need); got != nil {
				r.need, r.took = need, true
				if len(got) > 0 {
					r.gpus, v.GPUs = got, got
				}
				u.waiting, u.yielding = 0, ""
				return
			}
			v.Phase, v.Progress = replica.Pending, nil
			if v.Reason, v.Message = lacking(need, free, pool.shared()); v.Reason == replica.ReasonInsufficientGPUs {
				v.Message += u.yielding
			} else if pool.awaits(u.o.key, need) && v.Reason == replica.ReasonInsufficientMemory {
				v.Reason, v.Message = replica.ReasonNotTogether, "waits until services that it does not run with have stopped"
			}
			if v.Reason != replica.ReasonUnschedulable {
				if v.Reason == replica.ReasonInsufficientGPUs {
					u.waiting = need.GPUs
				}
				if !waits {
					waits, done = true, pool.wait(u.o.key, need)
				}
			}
		})
		if r.took {
			return nil
		}
		if err := u.wait(time.Hour, retry); err != nil {
			return err
		}
	}
}

// lacking is what a replica waits for, in a word and in words.
func lacking(need residency.Need, free int, m residency.Machine) (reason, message string) {
	if free >= need.GPUs {
		return replica.ReasonInsufficientMemory, fmt.Sprintf("needs %s, which other services hold", need)
	}
	what := count(need.GPUs, "GPU")
	if need.Part() {
		what = need.String()
	}
	message = fmt.Sprintf("needs %s, %d of %d free", what, free, len(m.GPUs))
	if _, ok := residency.NewSpace(m).Fit(need, ""); !ok {
		return replica.ReasonUnschedulable, message
	}
	return replica.ReasonInsufficientGPUs, message
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}

// start starts the process with everything it needs at hand.
func (u *unit) start(r *running, s workload.Process) error {
	if err := r.takePorts(&u.p.ports, s); err != nil {
		return err
	}
	r.peers, r.verbatim, r.root = u.o.addresses(u.role), u.model.Verbatim, u.model.Parts.Root()
	var err error
	if r.spec, err = s.Resolve(r.location()); err != nil {
		return failf("InvalidCommand", "%s", oneLine(err.Error()))
	}
	if r.env, err = u.environment(r); err != nil {
		return err
	}
	spec, err := u.invocation(r)
	if err != nil {
		return err
	}
	if err := u.prepare(r); err != nil {
		return err
	}
	r.started, spec.Cgroup = u.p.cfg.Now(), r.memory
	r.proc, err = child.Start(spec)
	if errors.Is(err, syscall.E2BIG) {
		return failf(replica.ReasonCannotExecute, "%s cannot be executed: %s", spec.Path, tooMuch(spec.Args, spec.Env))
	}
	if why := neverRuns(err); why != "" {
		return failf(replica.ReasonCannotExecute, "%s cannot be executed: %s", spec.Path, why)
	}
	if err != nil {
		return err
	}
	if err := r.proc.Outside(); err != nil {
		u.noLimit(r, err)
	}
	if err := u.p.records.write(u.record(r)); err != nil {
		u.p.cfg.Logger.Warn("a replica's record could not be written; the next start of Roundhouse cannot adopt it", "replica", u.id, "error", err)
	}
	u.started(r)
	return nil
}

// invocation is what is started: the replica's program, or the client that runs its
// container.
func (u *unit) invocation(r *running) (s child.Spec, err error) {
	s = child.Spec{Output: u.log.Path, Session: true}
	if r.container != nil {
		s.Path, s.Args, s.Env, err = u.containerInvocation(r)
		return s, err
	}
	s.Dir = r.spec.WorkingDir
	if s.Path, err = u.p.cfg.lookUp(r.spec); err != nil {
		return s, failf("ProgramMissing", "%s", u.p.cfg.missingProgram(r.spec))
	}
	s.Args, s.Env = u.p.cfg.invocation(r)
	return s, nil
}

// neverRuns is why a program that was not started will not be by a second try;
// "" where it may. What is wanted for the moment (memory, a number for a
// process) is another error of the same call.
func neverRuns(err error) string {
	var call *fs.PathError
	if !errors.As(err, &call) || call.Op != "fork/exec" {
		return ""
	}
	switch {
	case errors.Is(call.Err, syscall.ENOENT):
		return "the interpreter that its first line names, or the loader that it was linked for, is not on this machine"
	case errors.Is(call.Err, syscall.ENOEXEC):
		return "exec format error: it was built for another machine, or is a script whose first line names no interpreter (#!/bin/sh)"
	case errors.Is(call.Err, syscall.EACCES), errors.Is(call.Err, syscall.EPERM), errors.Is(call.Err, syscall.ENOTDIR),
		errors.Is(call.Err, syscall.ELOOP), errors.Is(call.Err, syscall.ENAMETOOLONG):
		return call.Err.Error()
	}
	return ""
}

// tooMuch is which of the words and variables that a program was to be started with is
// too long, or the longest where all of them are too much.
func tooMuch(args, env []string) string {
	what, longest, total := "", 0, 0
	for i, s := range slices.Concat(args, env) {
		if total += len(s) + 1; len(s) <= longest {
			continue
		}
		if longest = len(s); i < len(args) {
			what = fmt.Sprintf("argument %d", i)
		} else {
			name, _, _ := strings.Cut(s, "=")
			what = "the variable " + excerpt.Of(name, 100)
		}
	}
	return fmt.Sprintf("its arguments and variables have %d bytes, more than this machine starts a program with (on Linux %d in each); the longest is %s, with %d: put it into a file, and name that",
		total, service.MaxVariable, what, longest)
}

// prepare makes ready what the process needs besides its command line. It is
// on record before it exists.
func (u *unit) prepare(r *running) error {
	if r.container != nil { // its folder and its limit are the engine's
		if why := r.container.engine.NoMemoryLimits; why != "" && r.spec.MemoryBytes > 0 {
			u.noLimit(r, errors.New(why))
		}
		return u.makeRecord(r)
	}
	if dir := r.spec.WorkingDir; dir != "" {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return failf("InvalidCommand", "workingDir %s is not a folder on this machine", dir)
		}
	}
	if r.spec.MemoryBytes > 0 {
		var err error
		if r.memory, err = u.p.memory.make(u.id, r.spec.MemoryBytes); err != nil {
			u.noLimit(r, err)
		}
	}
	return u.makeRecord(r)
}

func (u *unit) makeRecord(r *running) error {
	if err := u.makeFiles(r); err != nil {
		return failf("StateUnwritable", "%s", oneLine(err.Error()))
	}
	return nil
}

// makeFiles makes the replica's log and record.
func (u *unit) makeFiles(r *running) error {
	if err := os.MkdirAll(filepath.Dir(u.log.Path), 0o700); err != nil {
		return err
	}
	if err := u.log.Retire(); err != nil {
		return err
	}
	return u.p.records.write(u.record(r))
}

// noLimit tells people that the replica has no limit of memory.
func (u *unit) noLimit(r *running, why error) {
	r.note = fmt.Sprintf("its memory limit of %d MiB is not enforced: %s", r.spec.MemoryBytes>>20, oneLine(why.Error()))
	u.p.cfg.Logger.Warn("a memory limit is not enforced", "replica", u.id, "error", why)
}

func (u *unit) record(r *running) record {
	u.o.mu.Lock()
	created, restarts, files := u.view.Created, u.view.Restarts, u.view.Files
	u.o.mu.Unlock()
	rec := record{ID: u.id, Service: u.o.key, Role: u.role, Revision: u.revision, Port: r.port, GRPCPort: r.grpcPort, MetricsPort: r.metricsPort, KVEventsPort: r.kvEventsPort,
		GPUs: r.gpus, Need: r.need, Model: r.model, Parts: r.parts, Adapters: r.adapters, Files: files, Peers: r.peers, Memory: r.memory, Created: created, Started: r.started, Restarts: restarts,
		Asleep: r.asleep, AsleepSince: r.asleepSince, Turning: r.turning}
	if r.proc != nil {
		rec.Process = r.proc.Identity()
	}
	if r.container != nil {
		rec.Engine, rec.MorePorts = r.container.engine.Name, r.container.more
	} else {
		rec.MorePorts = r.rankPorts
	}
	return rec
}

// started publishes a process that runs.
func (u *unit) started(r *running) {
	u.o.update(u, func(v *replica.Replica) {
		if v.PID, v.Started = r.proc.PID(), r.started; r.asleep == 0 {
			v.Phase, v.Reason, v.Message, v.Progress, v.GPUs = replica.Starting, "", r.note, nil, r.gpus
			v.Standby, v.AsleepSince = 0, time.Time{}
		} else if v.Phase == replica.Asleep { // else it is to be woken
			v.Reason, v.Message = "", service.AsleepAt(r.asleep)
		}
		v.Memory, v.GPUMemory = 0, 0
		v.HTTP = hostPort(u.p.cfg.Host, r.port)
		if r.grpcPort > 0 {
			v.GRPC = hostPort(u.p.cfg.Host, r.grpcPort)
		}
		// A port that the manifest states is a pod's: here it is the port that
		// the process is told, else that of its requests.
		m := u.component.Load().Exports()
		m.Port = int32(r.metricsPort)
		v.Metrics = v.MetricsAt(m)
		v.DataParallel = service.DataParallelOf(r.spec.Command)
		if r.container == nil { // whose port for them is not published
			v.KVEvents = service.KVEventsOf(r.spec.Command)
		} else if v.DataParallel.Ports {
			v.DataParallel = service.DataParallel{} // nor are those of other ranks
		}
	})
}

func hostPort(host string, port int) string {
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// adopt makes a recovered process this unit's own.
func (u *unit) adopt(r *running) error {
	c := u.component.Load()
	if c.Process == nil {
		return errors.New("it has no command")
	}
	// One that was told nothing finds the other roles by itself.
	if now := u.o.addresses(u.role); r.peers != nil && !maps.Equal(r.peers, now) {
		return errors.New("the addresses of the roles that it calls have changed")
	}
	var err error
	r.verbatim, r.root = u.model.Verbatim, u.model.Parts.Root()
	if (c.Process.Container != nil) != (r.container != nil) {
		return errors.New("its revision runs it another way")
	}
	if r.spec, err = c.Process.Resolve(r.location()); err != nil {
		return err
	}
	if r.env, err = u.environment(r); err != nil {
		return err
	}
	u.started(r)
	return nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
