// Package process is the platform of one machine: replicas are child
// processes, each in its own process group, with free ports, a log file, its
// accelerators to itself, and a record by which a later owner finds it again.
//
// Every service has its owner, a value with one lock under which nothing ever
// waits; every replica has a goroutine that takes it through its life (unit)
// and reports to the owner. So a slow fetch, start or end of one delays no
// other.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/residency"
	"roundhouse.dev/roundhouse/internal/decide/selection"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/child"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
	"roundhouse.dev/roundhouse/internal/state/fleet"
)

var _ fleet.Platform = (*Platform)(nil)

// ErrClosed is what a Platform answers after Close.
var ErrClosed = errors.New("process: the platform is closed")

// Platform runs replicas as processes of this machine.
type Platform struct {
	cfg      Config
	records  records
	gpus     *gpus
	fetches  fetches
	engines  *containers.Finder
	pulls    fetches // of images
	memory   memoryGroups
	ports    ports
	inner    addresses
	programs programs
	checks   checks
	uses     uses
	changes  *fleet.Changes

	closing chan struct{} // closed by Close
	keep    atomic.Bool   // Close leaves the processes running
	hard    context.Context
	kill    context.CancelFunc // ends hard: what is still ending is killed
	units   sync.WaitGroup

	mu     sync.RWMutex
	closed bool
	owners map[service.Key]*owner
}

// New opens the folder and takes hold of the replicas an earlier Platform left
// running there. They serve no one until their revision is applied; Sweep ends
// those whose never is.
func New(cfg Config) (*Platform, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	mode, err := containers.Mode(cfg.Containers)
	if err != nil {
		return nil, err
	}
	if cfg.Executable == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("process: find this program's file: %w", err)
		}
		cfg.Executable = exe
	}
	if cfg.Server == "" {
		cfg.Server = filepath.Join(filepath.Dir(cfg.Executable), serverName)
	}
	if cfg.Devices == nil {
		cfg.Devices, cfg.DeviceMemory = Discover(context.Background())
		cfg.GPUs = Describe(context.Background(), cfg.Devices, cfg.DeviceMemory)
	}
	p := &Platform{cfg: cfg, records: records(filepath.Join(cfg.Dir, "replicas")), gpus: newGPUs(cfg.Devices, cfg.DeviceMemory, mainMemory()),
		fetches: fetches{fetcher: cfg.Fetcher}, engines: &containers.Finder{Mode: mode}, memory: newMemoryGroups(), ports: ports{host: cfg.Host, file: sharedPorts()}, checks: checks{executable: cfg.Executable},
		closing: make(chan struct{}), owners: map[service.Key]*owner{}}
	p.pulls.fetcher = puller{p.engines}
	for _, dir := range []string{string(p.records), p.logDir()} {
		if err := writable(dir); err != nil {
			return nil, fmt.Errorf("process: %w", err)
		}
	}
	if err := child.BecomeReaper(); err != nil {
		cfg.Logger.Debug("orphans of replicas are left to init", "error", err)
	}
	p.hard, p.kill = context.WithCancel(context.Background())
	p.changes = fleet.NewChanges()
	p.inner.p, p.inner.file = p, filepath.Join(cfg.Dir, "addresses.json")
	if err := p.inner.load(); err != nil {
		cfg.Logger.Warn(err.Error())
	}
	if err := p.load(); err != nil {
		p.changes.Close()
		return nil, fmt.Errorf("process: %w", err)
	}
	p.measure(true)
	go p.housekeeping()
	go p.measuring()
	return p, nil
}

// writable makes dir and sees whether a file can be made in it.
func writable(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "probe-*.tmp")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// Host tells what can run here, and answers what it is asked.
func (p *Platform) Host(ctx context.Context, ask ...selection.Check) (selection.Host, error) {
	return selection.Host{Programs: p.programs.list(p.cfg.Now()), Accelerators: len(p.gpus.names), GPUs: p.cfg.GPUs,
		Containers: p.engines.Host(ctx), MemoryBytes: p.gpus.shared().Memory, Answers: p.checks.answer(ctx, ask)}, ctx.Err()
}

// Machine is what replicas share.
func (p *Platform) Machine() residency.Machine { return p.gpus.shared() }

// Reserve leaves what is free of each GPU to the services that a plan reserves it
// for; where it reserves it for none, to whoever has waited longest. Services that
// have to wait for a plan start if it starts them.
func (p *Platform) Reserve(plan residency.Plan) { p.gpus.reserve(plan) }

// Apply makes r its service's revision. A replica that an earlier
// process of Roundhouse started, and is of r, or of the revision before it, is adopted, and counts: its role's
// count is as many as were adopted; one of another revision is ended.
func (p *Platform) Apply(_ context.Context, r workload.Revision) error {
	if r.Service.Name == "" || r.Hash == "" {
		return errors.New("process: apply: the revision has no service or no hash")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	o := p.owners[r.Service]
	if o == nil {
		o = newOwner(p, r.Service)
		p.owners[r.Service] = o
	}
	return o.apply(r)
}

// Scale sets the wanted count of a role.
func (p *Platform) Scale(_ context.Context, ref workload.Ref, n int, victims []string) error {
	if n < 0 {
		return fmt.Errorf("process: scale %s: the count is %d: want 0 or more", ref, n)
	}
	p.mu.RLock()
	defer p.mu.RUnlock() // so that nothing is started once Close has begun
	if p.closed {
		return ErrClosed
	}
	o := p.owners[ref.Service]
	if o == nil {
		return fmt.Errorf("process: scale %s: the service was not applied", ref)
	}
	return o.scale(ref.Role, n, 0, victims)
}

// Remove ends everything of a service, its logs too.
func (p *Platform) Remove(_ context.Context, k service.Key) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if o := p.owners[k]; o != nil {
		o.remove()
	}
	return nil
}

// forget drops a removed owner whose last replica is gone.
func (p *Platform) forget(o *owner) {
	p.mu.Lock()
	if o.empty() {
		delete(p.owners, o.key)
		p.removeLogs(o.key)
	}
	p.mu.Unlock()
	p.changes.Add(o.key)
}

// Observe returns the service's replicas, oldest first.
func (p *Platform) Observe(_ context.Context, k service.Key) ([]replica.Replica, error) {
	p.mu.RLock()
	o := p.owners[k]
	p.mu.RUnlock()
	if o == nil {
		return nil, nil
	}
	return slices.Clone(*o.snapshot.Load()), nil
}

// Services lists what is applied, or found running, by name.
func (p *Platform) Services(context.Context) ([]service.Key, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	out := make([]service.Key, 0, len(p.owners))
	for k, o := range p.owners {
		if !o.isRemoved() {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b service.Key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.WorkloadName(), b.WorkloadName()))
	})
	return out, nil
}

// Changed carries the keys of changed services. It is never closed.
func (p *Platform) Changed() <-chan service.Key { return p.changes.Changed() }

// Suspect has a replica asked at once whether it is ready, since somebody could
// not reach it. It does not block.
func (p *Platform) Suspect(id string) {
	if u := p.find(id); u != nil {
		select {
		case u.suspected <- struct{}{}:
		default: // about to be asked
		}
	}
}

// find returns a replica's unit, nil for one that is not there.
func (p *Platform) find(id string) *unit {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, o := range p.owners {
		if u := o.unit(id); u != nil {
			return u
		}
	}
	return nil
}

// Sweep ends what an earlier owner left and nobody applied since. Call it once
// everything wanted has been applied.
func (p *Platform) Sweep() {
	p.mu.RLock()
	defer p.mu.RUnlock()
	for _, o := range p.owners {
		o.sweep()
	}
}

// Close ends the platform and every replica: requests in flight are not waited
// for, SIGTERM is, up to the replica's grace and until ctx ends. With keep the
// processes go on, for the next Platform on the same folder. It returns when
// no goroutine of the platform's is left.
func (p *Platform) Close(ctx context.Context, keep bool) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.keep.Store(keep)
	close(p.closing)
	p.mu.Unlock()
	stop := context.AfterFunc(ctx, p.kill)
	p.units.Wait()
	p.inner.shut()
	stop()
	p.kill()
	p.changes.Close()
	return nil
}

// housekeeping keeps the logs within their bound and collects orphans.
func (p *Platform) housekeeping() {
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for n := 0; ; n++ {
		select {
		case <-t.C:
			p.trimLogs()
			if n%5 == 0 {
				child.ReapOrphans()
			}
		case <-p.closing:
			return
		}
	}
}

// Logs opens a replica's output, also of one that is gone while its file is
// kept. An id nobody knows is fs.ErrNotExist.
func (p *Platform) Logs(ctx context.Context, id string, o fleet.LogOptions) (io.ReadCloser, error) {
	log, ended, err := p.findLog(id)
	if err != nil {
		return nil, err
	}
	if o.Previous {
		return log.Previous().Open(ctx, child.ReadOptions{Tail: o.Tail})
	}
	return log.Open(ctx, child.ReadOptions{Tail: o.Tail, Follow: o.Follow, Ended: ended})
}
