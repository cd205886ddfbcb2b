package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/child"
	"roundhouse.dev/roundhouse/internal/edge/process/containers"
	"roundhouse.dev/roundhouse/internal/edge/process/keeper"
)

// unit takes one replica through its life, in one goroutine (run):
//
//	recovered ────────(its revision applied)──┐
//	Pending → Fetching → Pending → Starting ⇄ Ready
//	   ▲                              │         │
//	   └────(after a backoff)── Failed ◄────────┘
//	any of them ──(end)→ Draining → gone
//
// A recovered unit is one that an earlier process of Roundhouse started.
type unit struct {
	p        *Platform
	o        *owner
	id       string
	role     service.Role
	revision string
	log      child.Log

	settled   chan struct{} // closed when component and model are known
	component atomic.Pointer[workload.Component]
	model     workload.Model
	files     modelFiles // run's alone
	running   *running   // given to a recovered unit; then run's alone
	keptGPUs  func()     // run's alone: releases the accelerators kept for the next start; nil for none

	ending context.Context // done: the replica is to go
	cancel context.CancelFunc
	gone   chan struct{} // closed when run has returned

	suspected chan struct{}                 // somebody could not reach it; holds one
	turned    chan struct{}                 // level has changed; holds one
	keeper    atomic.Pointer[keeper.Keeper] // of the present process; nil without a repository

	// Guarded by the owner's lock.
	view     replica.Replica
	level    int    // of the sleep that it is to be in; 0: awake
	waiting  int    // accelerators it waits for
	yielding string // which replicas stop to free them, in words
}

func newUnit(o *owner, v replica.Replica) *unit {
	u := &unit{p: o.p, o: o, id: v.ID, role: v.Role, revision: v.Revision, log: o.p.log(o.key, v.ID),
		settled: make(chan struct{}), gone: make(chan struct{}), suspected: make(chan struct{}, 1), turned: make(chan struct{}, 1), view: v,
		files: modelFiles{fetches: &o.p.fetches, stamp: o.p.cfg.Fingerprint, fetched: map[string]string{}}}
	u.ending, u.cancel = context.WithCancel(context.Background())
	return u
}

// newID is a name for a replica that no other has or had: 8 characters of
// base 32 after what a person recognizes.
func newID(name string, role service.Role) string {
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, name)
	return name[:min(len(name), 60)] + "-" + string(role) + "-" + strings.ToLower(rand.Text()[:8])
}

// recovered reports whether the replica was found running and its revision has
// not been applied yet.
func (u *unit) recovered() bool { return u.component.Load() == nil }

// settle sets what the replica runs. It is called once, with the owner's lock held.
func (u *unit) settle(c *workload.Component, m workload.Model) {
	u.component.Store(c)
	u.model = m
	close(u.settled)
}

// end begins the replica's end. The owner's lock is held.
func (u *unit) end() {
	if u.view.Phase != replica.Draining {
		u.view.Phase, u.view.Reason, u.view.Message = replica.Draining, "", ""
		u.view.Progress, u.view.Restart = nil, time.Time{}
	}
	u.waiting = 0
	u.cancel()
}

// failure is why a replica is not running: a reason and a line for people.
type failure struct {
	reason, message string
	exit            int
	retryNow        bool // with other ports
}

func (f *failure) Error() string { return f.message }

func failf(reason, format string, args ...any) error {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...)}
}

// asFailure returns the failure that an error is or wraps.
func asFailure(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	return &failure{reason: "StartFailed", message: err.Error()}
}

// errEnding reports that the replica is to go, or the platform closes.
var errEnding = errors.New("the replica is ending")

// run is the replica's life.
func (u *unit) run() {
	defer u.p.units.Done()
	defer close(u.gone)
	defer u.o.gone(u)
	defer u.releaseKept()
	defer u.cancel()
	defer u.o.prune()
	if u.running != nil && !u.awaitRevision() {
		return
	}
	backoff, clashes := u.p.cfg.Restart.Min, 0
	for {
		tr, lasted := u.once(backoff)
		if tr == nil {
			return
		}
		if tr.retryNow && clashes < maxClashes {
			clashes++
			continue
		}
		clashes = 0
		if lasted >= u.p.cfg.Restart.Settled {
			backoff = u.p.cfg.Restart.Min
		}
		if !u.failed(tr, backoff) {
			return
		}
		backoff = min(2*backoff, u.p.cfg.Restart.Max)
	}
}

// maxClashes is how often a replica whose port was taken is tried at once.
const maxClashes = 4

// once runs one process of the replica to its end. Without a failure the
// replica is to go; lasted is how long it was ready. Its accelerators stay with
// its service over a backoff that is short.
func (u *unit) once(backoff time.Duration) (tr *failure, lasted time.Duration) {
	r := u.running
	u.running = nil
	if r == nil {
		var err error
		if r, err = u.launch(); errors.Is(err, errEnding) {
			return nil, 0
		} else if err != nil {
			return asFailure(err), 0
		}
	}
	tr, lasted, kept := u.supervise(r)
	u.o.update(u, func(v *replica.Replica) {
		if v.FailedStarts++; tr == nil || lasted > 0 {
			v.FailedStarts = 0
		}
	})
	if lasted >= u.p.cfg.Restart.Settled {
		backoff = u.p.cfg.Restart.Min
	}
	if tr != nil && len(r.gpus) > 0 && backoff <= keepGPUs {
		u.keptGPUs = u.p.gpus.wait(u.o.key, r.need)
	}
	if !kept {
		u.release(r)
	}
	return tr, lasted
}

// keepGPUs is the longest backoff over which a replica's accelerators stay with
// its service: one crash does not cost it what others wait for, many in a row
// do.
const keepGPUs = 5 * time.Second

// releaseKept lets others have the accelerators that were kept.
func (u *unit) releaseKept() {
	if u.keptGPUs != nil {
		u.keptGPUs()
		u.keptGPUs = nil
	}
}

// failed publishes a failure and waits until it is time to try again; false when
// the replica is to go.
func (u *unit) failed(tr *failure, backoff time.Duration) bool {
	if backoff > keepGPUs {
		u.releaseKept()
	}
	at := u.p.cfg.Now().Add(backoff)
	u.p.cfg.Logger.Warn("a replica failed", "replica", u.id, "reason", tr.reason, "message", tr.message, "retryIn", backoff)
	u.o.update(u, func(v *replica.Replica) {
		v.Phase, v.Reason, v.Message, v.ExitCode = replica.Failed, tr.reason, tr.message, tr.exit
		v.Restart, v.Progress, v.ReadyAt = at, nil, time.Time{}
	})
	if u.wait(backoff, nil) != nil {
		return false
	}
	u.o.update(u, func(v *replica.Replica) {
		v.Restart = time.Time{}
		v.Restarts++
	})
	return true
}

// wait waits for d or until early is closed; errEnding when the replica is to
// go.
func (u *unit) wait(d time.Duration, early <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-early:
	case <-u.ending.Done():
		return errEnding
	case <-u.p.closing:
		return errEnding
	}
	return nil
}

// pending sets what the replica waits for.
func (u *unit) pending(reason, message string) {
	u.o.update(u, func(v *replica.Replica) {
		v.Phase, v.Reason, v.Message, v.Progress = replica.Pending, reason, message, nil
	})
}

// awaitRevision watches over a recovered replica until its revision is applied;
// false when it ended or is to go.
func (u *unit) awaitRevision() bool {
	r := u.running
	select {
	case <-u.settled:
		if err := u.adopt(r); err != nil {
			u.p.cfg.Logger.Warn("a running replica cannot be adopted; it is stopped and started anew", "replica", u.id, "error", err)
			u.stop(r)
			u.release(r)
			u.running = nil
		}
		return true
	case <-r.proc.Done():
	case <-u.ending.Done():
		u.stop(r)
	case <-u.p.closing:
		if u.p.keep.Load() {
			return false
		}
		u.stop(r)
	}
	u.release(r)
	return false
}

// release gives back the resources of a process that has ended.
func (u *unit) release(r *running) {
	if err := u.p.records.remove(u.id); err != nil {
		u.p.cfg.Logger.Warn("the record of a replica could not be deleted", "replica", u.id, "error", err)
	}
	u.clearContainer(r)
	if r.proc != nil {
		child.EndMarked(replicaVariable, u.id, !r.adopted)
	}
	if len(r.parts) > 0 || r.spec.Repository != "" {
		u.p.clearLayout(u.id)
	}
	u.p.memory.remove(r.memory)
	u.p.ports.free(r.port, r.grpcPort, r.metricsPort, r.kvEventsPort)
	u.p.ports.free(r.rankPorts...)
	if r.container != nil {
		u.p.ports.free(r.container.more...)
	}
	u.o.update(u, func(v *replica.Replica) {
		v.GPUs, v.PID, v.HTTP, v.GRPC, v.Metrics, v.KVEvents, v.DataParallel = nil, 0, "", "", "", service.KVEvents{}, service.DataParallel{}
		v.Guests = nil
		if v.Phase == replica.Ready {
			v.Phase = replica.Starting
		}
		if u.o.expects(); r.took {
			u.p.gpus.free(u.o.key, r.need, r.gpus)
		}
	})
}

// prune keeps the number of dead replicas' logs within its bound.
func (o *owner) prune() {
	o.p.pruneLogs(o.key, func(id string) bool { return o.unit(id) != nil })
}

// load takes hold of what the records say is running.
func (p *Platform) load() error {
	recs, damaged, err := p.records.read()
	if recs == nil {
		return err
	}
	if err != nil {
		p.cfg.Logger.Warn("records of replicas cannot be read; their processes are stopped", "error", err)
	}
	slices.SortFunc(recs, func(a, b record) int { return a.Created.Compare(b.Created) })
	p.tidyFolders(recs)
	p.tidyLayouts(recs)
	var lost []record
	for _, rec := range recs {
		if rec.Turning {
			p.cfg.Logger.Warn("a replica was falling asleep or waking when Roundhouse ended, and is stopped", "replica", rec.ID)
			lost = append(lost, rec)
			continue
		}
		proc, err := child.Adopt(rec.Process)
		if err != nil || rec.Engine != "" && containers.At(rec.Engine) == nil {
			lost = append(lost, rec)
			continue
		}
		p.take(rec, proc)
	}
	for _, id := range damaged {
		lost = append(lost, record{ID: id})
	}
	p.endStrays(lost)
	return nil
}

// take makes a recovered unit of a process that still runs.
func (p *Platform) take(rec record, proc *child.Process) {
	p.mu.Lock() // those taken before run already
	defer p.mu.Unlock()
	o := p.owners[rec.Service]
	if o == nil {
		o = newOwner(p, rec.Service)
		p.owners[rec.Service] = o
	}
	r := &running{proc: proc, port: rec.Port, grpcPort: rec.GRPCPort, metricsPort: rec.MetricsPort, kvEventsPort: rec.KVEventsPort, gpus: rec.GPUs, need: rec.Need, memory: rec.Memory,
		model: rec.Model, parts: rec.Parts, adapters: rec.Adapters, peers: rec.Peers, started: rec.Started, adopted: true, asleep: rec.Asleep, asleepSince: rec.AsleepSince}
	if r.took = rec.Asleep == 0; r.took {
		p.gpus.hold(rec.Service, r.need, rec.GPUs)
	}
	if rec.Engine != "" {
		r.container = &contained{engine: containers.At(rec.Engine), name: containerName(rec.ID), more: rec.MorePorts}
	} else {
		r.rankPorts = rec.MorePorts
	}
	p.ports.hold(rec.Port, rec.GRPCPort, rec.MetricsPort, rec.KVEventsPort)
	p.ports.hold(rec.MorePorts...)
	u := newUnit(o, replica.Replica{ID: rec.ID, Service: rec.Service, Role: rec.Role, Revision: rec.Revision,
		Phase: replica.Starting, Reason: "NotApplied", Message: "found running when Roundhouse started; its service has not been applied yet",
		PID: proc.PID(), Created: rec.Created, Started: rec.Started, Restarts: rec.Restarts, GPUs: rec.GPUs, Files: rec.Files})
	u.running = r
	if rec.Asleep > 0 {
		u.level = rec.Asleep
		v := &u.view
		v.Phase, v.Standby, v.AsleepSince, v.GPUs = replica.Asleep, rec.Asleep, rec.AsleepSince, nil
	}
	o.mu.Lock()
	o.add(u)
	o.publish()
	o.mu.Unlock()
}

// endStrays ends processes whose replica's main process is gone, whose start
// was never fully recorded, or whose record was damaged. They are known by the replica's id in their
// environment, so nobody else's can be meant.
func (p *Platform) endStrays(lost []record) {
	if len(lost) == 0 {
		return
	}
	p.strayContainers(lost)
	marked := child.Marked(replicaVariable)
	for _, rec := range lost {
		for _, pid := range marked[rec.ID] {
			if proc, err := os.FindProcess(pid); err == nil {
				_ = proc.Kill()
			}
		}
		p.memory.remove(rec.Memory)
		if err := p.records.remove(rec.ID); err != nil {
			p.cfg.Logger.Warn("a stale record could not be deleted", "replica", rec.ID, "error", err)
		}
	}
}
