package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
	"roundhouse.dev/roundhouse/internal/edge/child"
)

// sleepTimeout bounds the call that puts an engine to sleep.
const sleepTimeout = 2 * time.Minute

// Sleep is Scale to zero, but ready replicas of the present revision whose engines
// can are put to sleep at a level. Scale wakes them before it starts others.
func (p *Platform) Sleep(_ context.Context, ref workload.Ref, level int) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return ErrClosed
	}
	o := p.owners[ref.Service]
	if o == nil {
		return fmt.Errorf("process: put %s to sleep: the service was not applied", ref)
	}
	return o.scale(ref.Role, 0, level, nil)
}

// Memory is the machine's main memory in bytes, and how much of it is available; 0
// where that is not known.
func (p *Platform) Memory() (available, total int64) {
	total, available = availableMemory()
	return available, total
}

// Swap is how many bytes of swap are free and there are, and why processes cannot be
// moved there; "" where they can.
func (p *Platform) Swap() (free, total int64, why string) { return swap() }

// sleep has the replica put to sleep, if it can be. The owner's lock is held.
func (u *unit) sleep(level int) bool {
	c := u.component.Load()
	if level == 0 || u.view.Phase != replica.Ready || u.revision != u.o.revision.Hash || c.Process == nil || c.Process.Standby.Find(level) == nil {
		return false
	}
	u.level = level
	u.view.Phase, u.view.Message = replica.Asleep, "is to be "+service.AsleepAt(level)
	u.turn()
	return true
}

// wake has the replica woken. The owner's lock is held.
func (u *unit) wake() {
	u.level = 0
	u.view.Phase, u.view.Reason, u.view.Message = replica.Pending, replica.ReasonWaking, "is being woken"
	u.turn()
}

// resume has the replica sent requests again, where it was drained to sleep.
func (u *unit) resume() {
	if u.p.cfg.Resume != nil {
		u.p.cfg.Resume(u.id)
	}
}

// turn tells run that the replica is to be asleep or awake.
func (u *unit) turn() {
	select {
	case u.turned <- struct{}{}:
	default: // about to look
	}
}

// wakeSleepers wakes as many replicas of a role as are wanted, and returns how many
// they are. The lock is held.
func (o *owner) wakeSleepers(role service.Role, want int) (woken int) {
	for _, u := range o.units {
		if woken < want && o.sleeps(u, role) {
			u.wake()
			woken++
		}
	}
	return woken
}

// sleeps reports whether a replica of a role is asleep, and can be woken to serve.
// The lock is held.
func (o *owner) sleeps(u *unit, role service.Role) bool {
	return u.role == role && u.view.Phase == replica.Asleep && !u.recovered() && u.revision == o.revision.Hash
}

// endSleepers ends the replicas that are asleep and will not be woken. The lock is
// held.
func (o *owner) endSleepers() {
	for _, u := range o.units {
		if u.view.Phase == replica.Asleep && !u.recovered() && (o.rest[u.role] == 0 || !o.sleeps(u, u.role)) {
			u.end()
		}
	}
}

// rest puts the process to sleep or wakes it, as is wanted. A failure, or gone,
// ends the process.
func (w *supervisor) rest(ctx context.Context) (tr *failure, gone bool) {
	w.u.o.mu.Lock()
	level := w.u.level
	w.u.o.mu.Unlock()
	switch {
	case level > 0 && w.r.asleep == 0:
		return nil, w.fallAsleep(level)
	case level == 0 && w.r.asleep > 0:
		return w.wakeUp(ctx), false
	case level == 0: // it was to fall asleep, and is wanted again
		w.awake(ctx, nil)
	}
	return nil, false
}

// fallAsleep waits until the process answers nothing any more, puts it to sleep and
// gives back what it held. One that does not fall asleep is ended: gone.
func (w *supervisor) fallAsleep(level int) (gone bool) {
	u, r := w.u, w.r
	if !w.idle() {
		return false
	}
	// On record before it happens: whoever finds a process that sleeps, and takes it
	// for one that is awake, sends it requests that hang.
	r.asleep, r.asleepSince, r.turning = level, u.p.cfg.Now(), true
	w.write()
	w.pause(true)
	var err error
	if level == service.LevelSuspended {
		err = w.suspend()
	} else {
		err = w.calls(sleepTimeout, u.component.Load().Process.Standby.Find(level).Sleep)
	}
	if errors.Is(err, errEnding) {
		return false // the loop sees why
	}
	if err != nil {
		u.p.cfg.Logger.Warn("a replica does not fall asleep, and is stopped", "replica", u.id, "error", err)
		u.o.mu.Lock()
		u.end()
		u.o.publish()
		u.o.mu.Unlock()
		u.stop(r)
		return true
	}
	u.o.update(u, func(v *replica.Replica) {
		if u.o.expects(); r.took {
			u.p.gpus.free(u.o.key, r.need, r.gpus)
		}
		r.took = false
		v.Standby, v.AsleepSince, v.GPUs, v.ReadyAt = level, r.asleepSince, nil, time.Time{}
		if v.Phase == replica.Asleep {
			v.Reason, v.Message = "", service.AsleepAt(level)
		}
	})
	r.turning = false
	w.write()
	w.unready()
	return false
}

// idle waits, up to the grace, until the replica has no requests; false where it is
// to do something else.
func (w *supervisor) idle() bool {
	if w.u.p.cfg.Drain == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(w.u.p.hard, w.r.grace())
	defer cancel()
	var busy error
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		busy = w.u.p.cfg.Drain(ctx, w.u.id)
	}()
	select {
	case <-idle:
		if busy == nil {
			return true
		}
		w.u.turn() // it has requests still: rest is called once more
		return false
	case <-w.u.turned:
		w.u.turn()
	case <-w.u.ending.Done():
	case <-w.u.p.closing:
	case <-w.r.proc.Done():
	}
	cancel()
	<-idle // a drain that began later would undo a Resume
	return false
}

// wakeUp takes what the process needs and wakes it. A process that does not wake, or
// whose accelerators others have now, is started anew.
func (w *supervisor) wakeUp(ctx context.Context) *failure {
	u, r := w.u, w.r
	held := r.gpus
	c := u.component.Load()
	if err := u.takeRoom(r, c.Process.Need()); err != nil {
		return nil // the loop sees why
	}
	if !slices.Equal(held, r.gpus) {
		u.stop(r)
		return &failure{reason: replica.ReasonWaking, message: "others have its accelerators, so it is started anew", retryNow: true}
	}
	u.o.update(u, func(v *replica.Replica) {
		v.Phase, v.Reason, v.Message = replica.Starting, replica.ReasonWaking, "is being woken"
	})
	r.turning = true
	w.write()
	began, level := time.Now(), r.asleep
	limit := cmp.Or(c.Limits.StartupTimeout, service.DefaultStartupTimeout)
	var err error
	if level == service.LevelSuspended {
		err = w.resumeProcesses()
	} else {
		err = w.calls(limit, c.Process.Standby.Find(level).Wake...)
	}
	if err == nil {
		err = w.answers(limit - time.Since(began))
	}
	if errors.Is(err, errEnding) {
		return nil
	}
	if err != nil {
		u.p.cfg.Logger.Warn("a replica does not wake, and is started anew", "replica", u.id, "error", err)
		u.stop(r)
		return &failure{reason: "WakeFailed", message: err.Error(), retryNow: true}
	}
	w.awake(ctx, &replica.Woke{Level: level, Seconds: time.Since(began).Seconds(), At: u.p.cfg.Now()})
	return nil
}

// awake has the replica take requests again. woke is nil where it was not asleep
// yet.
func (w *supervisor) awake(ctx context.Context, woke *replica.Woke) {
	w.r.asleep, w.r.asleepSince, w.r.turning = 0, time.Time{}, false
	w.write()
	w.pause(false)
	w.u.resume()
	w.ready = time.Now()
	w.watchLiveness(ctx)
	at := w.u.p.cfg.Now()
	w.u.o.update(w.u, func(v *replica.Replica) {
		if v.Phase == replica.Asleep { // it is to sleep again already
			return
		}
		v.Phase, v.Reason, v.Message, v.ReadyAt = replica.Ready, "", w.r.note, at
		v.Standby, v.AsleepSince = 0, time.Time{}
		if woke != nil {
			v.Woke = woke
		}
	})
	if woke != nil {
		if k := w.u.keeper.Load(); k != nil {
			k.Recheck()
		}
	}
	w.keepGuests(ctx)
}

// answers waits until the readiness probe succeeds.
func (w *supervisor) answers(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(w.u.ending, limit)
	defer cancel()
	for {
		if ok, _ := w.readyProbe.ask(ctx); ok {
			return nil
		}
		if !sleep(ctx, minPoll) {
			if w.u.ending.Err() != nil {
				return errEnding
			}
			return errors.New("woken, and not ready: " + w.readyProbe.last())
		}
		select {
		case <-w.u.p.closing:
			return errEnding
		default:
		}
	}
}

// pause has the probes stopped while the process sleeps.
func (w *supervisor) pause(paused bool) {
	w.readyProbe.pause(paused)
	w.liveProbe.pause(paused)
}

// suspend stops the processes of the replica and has their memory moved to swap.
func (w *supervisor) suspend() error {
	if err := w.r.proc.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pids := append(child.Marked(replicaVariable)[w.u.id], w.r.proc.PID())
	slices.Sort(pids)
	moved, err := reclaim(slices.Compact(pids), w.r.memory)
	if err == nil && moved == 0 {
		err = errors.New("nothing of its memory was moved to swap")
	}
	if err != nil {
		return fmt.Errorf("suspend: %w", err) // it is ended
	}
	w.u.p.cfg.Logger.Info("a replica is suspended", "replica", w.u.id, "swappedMiB", moved>>20)
	return nil
}

// resumeProcesses is the end of suspend. Pages come back from swap as they are used.
func (w *supervisor) resumeProcesses() error {
	unlock(w.r.memory)
	return w.r.proc.Signal(syscall.SIGCONT)
}

// sleeps reports whether the process sleeps, and nobody waits for it to wake.
func (w *supervisor) sleeps() bool {
	w.u.o.mu.Lock()
	defer w.u.o.mu.Unlock()
	return w.r.asleep > 0 && w.u.level > 0
}

// write replaces the record of the process.
func (w *supervisor) write() {
	if err := w.u.p.records.write(w.u.record(w.r)); err != nil {
		w.u.p.cfg.Logger.Warn("a replica's record could not be written; the next start of Roundhouse may take it for awake", "replica", w.u.id, "error", err)
	}
}

// calls makes calls to the process, one after the other; errEnding where the replica
// is to go meanwhile, or the platform closes.
func (w *supervisor) calls(limit time.Duration, calls ...service.Call) error {
	ctx, cancel := context.WithTimeout(w.u.ending, limit)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		for _, c := range calls {
			if err := post(ctx, hostPort(w.u.p.cfg.Host, w.r.port), c); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		if err != nil && w.u.ending.Err() != nil {
			return errEnding
		}
		return err
	case <-w.u.p.closing:
		return errEnding
	case <-w.r.proc.Done():
		return errors.New("the process ended: " + w.r.proc.Exit().String())
	}
}

// post makes one call. An answer that is not a success is an error.
func post(ctx context.Context, address string, c service.Call) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+c.Path, strings.NewReader(c.Body))
	if err != nil {
		return err
	}
	if c.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := probeClient.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return fmt.Errorf("POST %s: %w", c.Path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, probeBody))
	if resp.StatusCode/100 != 2 {
		return errors.New(oneLine(fmt.Sprintf("POST %s: %s: %.300s", c.Path, resp.Status, said)))
	}
	return nil
}
