package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/child"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
)

// A replica that is a container has the engine's client as its process, which runs
// for as long as the container: so it is supervised, adopted and told of as a process
// is. What differs is here.

// contained is what a running container is known by.
type contained struct {
	engine *containers.Engine
	name   string
	more   []int // ports of this machine for Container.More
	image  containers.Image
}

// containerName is the name of a replica's container.
func containerName(id string) string { return "roundhouse-" + id }

// labelReplica is the label of a container with its replica's id.
const labelReplica = "roundhouse.dev/replica"

// engine finds the engine for a container, waiting until there is one.
func (u *unit) engine(image string) (*containers.Engine, error) {
	for said := false; ; said = true {
		ctx, cancel := u.untilEnding()
		e, lacks := u.p.engines.Find(ctx)
		cancel()
		if e != nil {
			return e, nil
		}
		if lacks == "" {
			lacks = "this roundhouse runs no containers (--containers=off)"
		}
		if !said {
			u.pending(replica.ReasonProgramMissing, "image "+image+" cannot run as a container: "+lacks)
		}
		if err := u.wait(u.p.cfg.Restart.Recheck, nil); err != nil {
			return nil, err
		}
	}
}

// untilEnding is a context that ends when the replica is to go or the platform
// closes.
func (u *unit) untilEnding() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(u.ending)
	go func() {
		select {
		case <-u.p.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// pull brings the container's image here as its pull policy says.
func (u *unit) pull(e *containers.Engine, c *workload.Container) (containers.Image, error) {
	ctx, cancel := u.untilEnding()
	defer cancel()
	if strings.HasPrefix(c.Image, "-") {
		return containers.Image{}, failf("InvalidImageName", "image %q is not an image's name: %s would take it for a flag", c.Image, e.Name)
	}
	image, err := e.Image(ctx, c.Image)
	if err != nil {
		return image, u.unless(failf("ErrImagePull", "image %q: %s", c.Image, oneLine(err.Error())))
	}
	pull, must := containers.Wanted(c.Pull, c.Image, image.Known)
	if !image.Known && !pull {
		return image, failf("ErrImageNeverPull", "image %q is not on this machine, and its imagePullPolicy is Never: pull it with %s, or change the policy", c.Image, e.Name)
	}
	if pull {
		u.o.update(u, func(v *replica.Replica) {
			v.Phase, v.Reason, v.Message = replica.Fetching, "PullingImage", "pulling image "+c.Image
		})
		_, err := u.p.pulls.get(ctx, service.Files{URI: c.Image}, func(pr replica.Progress) {
			u.o.update(u, func(v *replica.Replica) {
				if v.Phase == replica.Fetching && pr.Total > 0 {
					v.Message = fmt.Sprintf("pulling image %s: %d layers and parts begun, %d complete", c.Image, pr.Total, pr.Done)
				}
			})
		})
		switch {
		case err == nil:
			if image, err = e.Image(ctx, c.Image); err != nil {
				return image, u.unless(failf("ErrImagePull", "image %q: %s", c.Image, oneLine(err.Error())))
			}
		case must:
			return image, u.unless(failf("ErrImagePull", "image %q cannot be pulled: %s", c.Image, pullAdvice(e, oneLine(err.Error()))))
		default:
			u.p.cfg.Logger.Warn("an image could not be pulled anew; the one that is here runs", "image", c.Image, "error", err)
		}
	}
	if c.NonRoot {
		if why := image.MayBeRoot(c.User); why != "" {
			return image, failf(replica.ReasonCannotExecute, "image %q: %s, and its securityContext says runAsNonRoot: give it a runAsUser other than 0", c.Image, why)
		}
	}
	return image, nil
}

// unless is err, or errEnding where that is why it came to it.
func (u *unit) unless(err error) error {
	select {
	case <-u.p.closing:
		return errEnding
	default:
	}
	if u.ending.Err() != nil {
		return errEnding
	}
	return err
}

// pullAdvice is why a pull failed, with what to do where that is known.
func pullAdvice(e *containers.Engine, why string) string {
	lower := strings.ToLower(why)
	if strings.Contains(lower, "unauthorized") || strings.Contains(lower, "denied") || strings.Contains(lower, "authentication required") || strings.Contains(lower, "no basic auth credentials") {
		why += ": log in to its registry with " + e.Name + " login"
	}
	return why
}

// puller pulls images; one that several replicas want is pulled once.
type puller struct{ engines *containers.Finder }

// Fetch implements Fetcher: the URI is an image.
func (p puller) Fetch(ctx context.Context, f service.Files, progress func(done, total int64)) (string, error) {
	e, lacks := p.engines.Find(ctx)
	if e == nil {
		return "", errors.New(lacks)
	}
	return f.URI, e.Pull(ctx, f.URI, func(done, begun int) { progress(int64(done), int64(begun)) })
}

// containerInvocation is the client's command line and environment.
func (u *unit) containerInvocation(r *running) (program string, args, env []string, err error) {
	c := r.spec.Container
	s := containers.Spec{Name: r.container.name, Host: u.p.cfg.Host, Process: r.spec, ImageUser: r.container.image.User, Ports: r.published(),
		Labels: [][2]string{{labelReplica, u.id}, {"roundhouse.dev/service", u.o.key.String()}}}
	// What the last container left is hostile: nothing is made among it.
	if err := u.p.clearFolder(u.id, r.container.engine); err != nil {
		return "", nil, nil, failf("StateUnwritable", "%s", oneLine(err.Error()))
	}
	if s.Mounts, err = u.binds(r); err != nil {
		return "", nil, nil, err
	}
	for _, g := range r.gpus {
		s.GPUs = append(s.GPUs, u.p.gpus.names[g])
	}
	if nonRoot := c.User != nil && *c.User != 0 || c.User == nil && !r.container.image.Root(); nonRoot {
		u.letRead(r)
	}
	env = containers.Environment()
	file := filepath.Join(u.p.folder(u.id), "env")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return "", nil, nil, failf("StateUnwritable", "%s", oneLine(err.Error()))
	}
	lines, inherited, err := variables(r.container.engine.Name, r.env)
	if err != nil {
		return "", nil, nil, err
	}
	for _, e := range inherited {
		name, _, _ := strings.Cut(e, "=")
		s.Inherited, env = append(s.Inherited, name), append(env, e)
	}
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		return "", nil, nil, failf("StateUnwritable", "%s", oneLine(err.Error()))
	}
	s.EnvFile = file
	args = append([]string{r.container.engine.Name}, r.container.engine.Args(s)...)
	return r.container.engine.Path, args, append(lastOfEach(env), replicaVariable+"="+u.id), nil
}

// variables are those of a container; see [containers.Variables].
func variables(engine string, env []string) (lines string, inherited []string, err error) {
	if lines, inherited, err = containers.Variables(engine, env); err != nil {
		return "", nil, failf("InvalidEnv", "%s", err)
	}
	return lines, inherited, nil
}

// published are the ports of this machine and the container's.
func (r *running) published() (out [][2]int) {
	c := r.spec.Container
	out = append(out, [2]int{r.port, int(c.Port)})
	if r.grpcPort > 0 {
		out = append(out, [2]int{r.grpcPort, int(c.GRPCPort)})
	}
	if r.metricsPort > 0 {
		out = append(out, [2]int{r.metricsPort, int(c.MetricsPort)})
	}
	for i, at := range r.container.more {
		if i < len(c.More) {
			out = append(out, [2]int{at, int(c.More[i])})
		}
	}
	return out
}

// portOf is the port of this machine at which a container's is reached.
func (r *running) portOf(inside int) string {
	for _, at := range r.published() {
		if at[1] == inside {
			return strconv.Itoa(at[0])
		}
	}
	return strconv.Itoa(r.port)
}

// containerEnvironment is what a container is given: what its manifest says and where
// it finds itself. Nothing of this machine's environment is.
func (u *unit) containerEnvironment(r *running) ([]string, error) {
	c := r.spec.Container
	env := []string{"PORT=" + strconv.Itoa(int(c.Port))}
	if c.GRPCPort > 0 {
		env = append(env, "GRPC_PORT="+strconv.Itoa(int(c.GRPCPort)))
	}
	if c.MetricsPort > 0 {
		env = append(env, "METRICS_PORT="+strconv.Itoa(int(c.MetricsPort)))
	}
	if at := r.location().Within(c).ModelPath; at != "" {
		env = append(env, "MODEL_PATH="+at)
	}
	if u.model.Verbatim { // it reads the store itself
		for _, e := range os.Environ() {
			if name, _, _ := strings.Cut(e, "="); credential(name) {
				env = append(env, e)
			}
		}
	}
	given, err := u.valuesFrom(r.spec.EnvFrom)
	if err != nil {
		return nil, err
	}
	env = append(env, given...)
	for _, e := range r.spec.Env {
		// Its own address is known to nobody before it is there; each of its
		// addresses will do to listen on.
		v, ok, err := u.value(e, "0.0.0.0")
		if err != nil {
			return nil, err
		}
		if ok {
			env = append(env, e.Name+"="+v)
		}
	}
	return append(lastOfEach(env), replicaVariable+"="+u.id), nil
}

// letRead lets users other than this one read the files of the data directory's that
// a container is given, since it runs as another. They still cannot reach them on
// this machine: the folders above are closed to them.
func (u *unit) letRead(r *running) {
	root := filepath.Dir(u.p.cfg.Dir) + string(filepath.Separator)
	paths := append([]string{r.model}, r.parts...)
	for _, at := range r.adapters {
		paths = append(paths, at)
	}
	for _, path := range paths {
		at, err := filepath.EvalSymlinks(path)
		if err != nil || !strings.HasPrefix(at, root) {
			continue
		}
		_ = filepath.WalkDir(at, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink != 0 {
				return nil
			}
			info, err := d.Info()
			if err != nil {
				return nil
			}
			mode := info.Mode().Perm() | 0o444
			if d.IsDir() {
				mode |= 0o111
			}
			if mode != info.Mode().Perm() {
				_ = os.Chmod(path, mode) // another's: the container will say that it cannot read it
			}
			return nil
		})
	}
}

// reach opens, in the network of a replica's container, the addresses of the other roles
// that it was told, and serves them until ctx ends.
func (u *unit) reach(ctx context.Context, r *running) error {
	if r.container == nil || len(r.peers) == 0 || u.p.cfg.Forward == nil {
		return nil
	}
	pid, err := r.container.pid(ctx)
	if err != nil {
		return err
	}
	for role, at := range r.peers {
		l, err := r.container.engine.Listen(ctx, pid, at, u.p.cfg.Executable, HandListener)
		if err != nil {
			if s, gone := r.container.engine.Inspect(ctx, r.container.name); gone == nil && !s.Running {
				<-ctx.Done() // its client tells why it ended, which is the cause
			}
			return fmt.Errorf("the address of the service's %s: %w", role, err)
		}
		context.AfterFunc(ctx, func() { _ = l.Close() })
		u.p.inner.serve.Go(func() { u.p.cfg.Forward(ctx, workload.Ref{Service: u.o.key, Role: role}, l) })
	}
	return nil
}

// HandListener is the word with which Executable hands a listener over
// ([containers.Hand]).
const HandListener = "hand-listener"

// pid is the id of the container's first process, once it runs.
func (c *contained) pid(ctx context.Context) (int, error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		s, err := c.engine.Inspect(ctx, c.name)
		if err == nil && s.Running && s.PID > 0 {
			return s.PID, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// stop ends a replica's process, and its container with it.
func (u *unit) stop(r *running) child.Exit {
	if r.container == nil {
		return r.proc.Stop(u.p.hard, r.grace())
	}
	// The client passes signals on, but for a moment in which it ends itself.
	if r.container.engine.Terminate(u.p.hard, r.container.name) != nil {
		_ = r.proc.Signal(syscall.SIGTERM) // the container does not run yet
	}
	t := time.NewTimer(r.grace())
	defer t.Stop()
	select {
	case <-r.proc.Done():
		return r.proc.Exit()
	case <-t.C:
	case <-u.p.hard.Done():
	}
	u.removeContainer(r.container)
	return r.proc.Stop(context.Background(), clientGrace)
}

// clientGrace is how long a client may take to end after its container has.
const clientGrace = 5 * time.Second

// removeContainer deletes a container that has ended, or ends and deletes it.
func (u *unit) removeContainer(c *contained) {
	if err := c.engine.Remove(context.Background(), c.name); err != nil {
		u.p.cfg.Logger.Warn("a replica's container could not be deleted", "replica", u.id, "container", c.name, "error", err)
	}
}

// clearContainer deletes what a container leaves.
func (u *unit) clearContainer(r *running) {
	if r.container == nil {
		return
	}
	u.removeContainer(r.container)
	_ = u.p.clearFolder(u.id, r.container.engine) // logged; the next start tries again
}

// strayContainers ends the containers of lost replicas. Of one whose record is
// damaged nobody knows whether it had one.
func (p *Platform) strayContainers(lost []record) {
	for _, rec := range lost {
		names := []string{rec.Engine}
		if rec.Service == (service.Key{}) {
			names = []string{containers.Podman, containers.Docker}
		}
		var engine *containers.Engine // the first that is here
		for _, name := range names {
			e := containers.At(name)
			if e == nil {
				continue
			}
			if err := e.Remove(context.Background(), containerName(rec.ID)); err != nil {
				p.cfg.Logger.Warn("the container of a lost replica could not be deleted", "replica", rec.ID, "error", err)
			}
			engine = cmp.Or(engine, e)
		}
		_ = p.clearFolder(rec.ID, engine) // logged
	}
}

// seePID has the replica known by the id of its container's first process, by which
// what it takes is measured.
func (w *supervisor) seePID() {
	u, r := w.u, w.r
	if r.container == nil || runtime.GOOS != "linux" { // elsewhere engines have a machine of their own
		return
	}
	s, err := r.container.engine.Inspect(u.ending, r.container.name)
	if err != nil || s.PID <= 0 {
		return
	}
	u.o.update(u, func(v *replica.Replica) {
		if v.PID == r.proc.PID() {
			v.PID = s.PID
		}
	})
}

// containerExited is why a container ended that nobody asked to.
func (w *supervisor) containerExited() *failure {
	r := w.r
	lines := w.u.log.LastLines(causeLines)
	s, err := r.container.engine.Inspect(context.Background(), r.container.name)
	e := r.proc.Exit()
	switch {
	case err != nil || !s.Known || !s.Started || s.Error != "" || s.Running:
		return w.clientEnded(e, s, lines)
	case s.OOMKilled:
		return &failure{reason: "OOMKilled", exit: s.ExitCode,
			message: fmt.Sprintf("used more than its memory limit of %d MiB: raise resources.limits.memory", r.spec.MemoryBytes>>20)}
	}
	tr := &failure{reason: "Exited", exit: s.ExitCode}
	otherwise := 1
	if s.ExitCode > 128 {
		otherwise = 0
	}
	said := replica.Cause(lines, otherwise)
	why := fmt.Sprintf("exited with code %d", s.ExitCode)
	if s.ExitCode == 128+int(syscall.SIGKILL) {
		tr.reason, why = "Killed", "its container was killed, by a person or for want of memory on this machine"
	}
	tr.message = withOutput(why, said)
	return tr
}

// clientEnded is why a container did not run, or its client left it.
func (w *supervisor) clientEnded(e child.Exit, s containers.State, lines []string) *failure {
	why := s.Error
	if n := len(lines); n > 0 && why == "" {
		for _, prefix := range []string{"Error: ", "docker: "} {
			if said, ok := strings.CutPrefix(lines[n-1], prefix); ok {
				why = said
			}
		}
	}
	engine := w.r.container.engine.Name
	if why == "" {
		return &failure{reason: "Exited", exit: e.Code, message: withOutput("the client of "+engine+" "+e.String(), replica.Cause(lines, 1))}
	}
	tr := &failure{reason: replica.ReasonCannotExecute, exit: e.Code, message: engine + " does not run its container: " + oneLine(why)}
	if lower := strings.ToLower(why); strings.Contains(lower, "address already in use") || strings.Contains(lower, "port is already allocated") {
		tr.reason, tr.retryNow = "PortTaken", true
	}
	return tr
}
