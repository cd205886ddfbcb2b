package process

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
)

// supervisor watches over one process of a replica.
type supervisor struct {
	u       *unit
	r       *running
	ready   time.Time     // since when it is ready; zero while not
	longest time.Duration // the longest that it was ready before
	ever    bool          // it has been ready
	watched bool          // the liveness probe is being asked
	kept    chan struct{} // closed when its guests are kept no more; nil where none are
	readyProbe,
	liveProbe *prober
	startProbe *prober      // nil once it has passed, and where there is none
	reach      func() error // has it reach the roles that it calls, once
	unreached  chan error   // why it does not reach the roles that it calls; holds one
	oom        int          // processes ended for want of memory before this one started
}

// supervise watches over a process until it has ended, or, when this platform
// closes and keeps its replicas, until then (kept). No failure means that the
// replica is to go.
func (u *unit) supervise(r *running) (tr *failure, lasted time.Duration, kept bool) {
	ctx, cancel := context.WithCancel(context.Background())
	w := newSupervisor(u, r)
	w.reach = sync.OnceValue(func() error { return u.reach(ctx, r) })
	defer w.leave(cancel)
	limit := w.watch(ctx)
	begun, startup := time.Now(), time.NewTimer(limit)
	defer startup.Stop()
	quiet := time.NewTimer(quietStart)
	defer quiet.Stop()
	for {
		select {
		case <-u.ending.Done():
			kept = w.drain()
			return nil, w.lasted(), kept
		case <-u.p.closing:
			return nil, w.lasted(), w.closeDown()
		case <-u.turned:
			if tr, gone := w.rest(ctx); tr != nil || gone {
				return tr, w.lasted(), false
			}
		case <-r.proc.Done():
			return w.exited(), w.lasted(), false
		case err := <-w.unreached:
			return w.end("AddressUnavailable", oneLine(err.Error())), 0, false
		case <-startup.C:
			if !w.ever {
				return w.tooSlow(limit), 0, false
			}
		case <-w.startProbe.verdicts():
			w.startProbe = nil
			limit, begun = w.watch(ctx), time.Now()
			startup.Reset(limit)
		case ok := <-w.readyProbe.verdict:
			if tr := w.judged(ctx, ok); tr != nil {
				return tr, 0, false
			}
		case <-quiet.C:
			w.waits(begun, limit)
		case <-w.asked().said:
			w.waits(begun, limit)
		case <-w.liveProbe.failures():
			return w.unhealthy(), w.lasted(), false
		}
	}
}

// watch begins to ask whether the process is ready, or has started where it has a probe
// of that, and returns how long that may take.
func (w *supervisor) watch(ctx context.Context) (limit time.Duration) {
	first := w.readyProbe.watchReadiness
	if limit = w.u.component.Load().Limits.StartupTimeout; limit <= 0 {
		limit = service.DefaultStartupTimeout
	}
	if b := w.startProbe; b != nil {
		first, limit = b.watchStartup, b.delay+time.Duration(min(int64(b.patience), int64(maxStartup/max(b.period, 1))))*b.period
	}
	go func() {
		if err := w.reach(); err != nil {
			w.unreached <- err
			return
		}
		first(ctx)
	}()
	return limit
}

// maxStartup bounds what a startup probe may ask for.
const maxStartup = 365 * 24 * time.Hour

// asked is the probe that tells how far a start is.
func (w *supervisor) asked() *prober {
	if w.startProbe != nil {
		return w.startProbe
	}
	return w.readyProbe
}

// newSupervisor is for a process that has just been started or adopted.
func newSupervisor(u *unit, r *running) *supervisor {
	w := &supervisor{u: u, r: r, unreached: make(chan error, 1), readyProbe: newProber(u.p.cfg.Host, r, r.spec.Readiness, true, u.suspected), oom: u.p.memory.killed(r.memory)}
	if r.spec.Liveness != nil {
		w.liveProbe = newProber(u.p.cfg.Host, r, r.spec.Liveness, false, nil)
	}
	if r.spec.Startup != nil && r.asleep == 0 {
		w.startProbe = newProber(u.p.cfg.Host, r, r.spec.Startup, false, nil)
	}
	if r.asleep > 0 {
		w.ever = true
		w.pause(true)
		u.turn() // it may be wanted already
	}
	return w
}

// leave ends what was begun for the process. What its keeper still says of it would be no
// news of the next.
func (w *supervisor) leave(cancel context.CancelFunc) {
	if cancel(); w.kept != nil {
		<-w.kept
	}
}

// judged takes in a verdict of the readiness probe. The failure is that of a process
// that has read other files than those of its revision.
func (w *supervisor) judged(ctx context.Context, ok bool) *failure {
	u := w.u
	if ok && !w.ever && !w.r.adopted {
		if err := u.sameFiles(func(uri string) string { return u.files.fingerprint(u.ending, u.model.Credentials.Of(uri)) }); err != nil { // what it has read may be of both
			return w.end(replica.ReasonModelChanged, err.Error())
		}
	}
	if w.r.asleep == 0 { // while it sleeps, its health says nothing
		w.turned(ctx, ok)
	}
	return nil
}

// lasted is how long it has been ready, the longest time that it was: a process that
// dies is often seen to answer no more before it is seen to have ended. 0 means never.
func (w *supervisor) lasted() time.Duration {
	if w.ready.IsZero() {
		return w.longest
	}
	return max(w.longest, time.Since(w.ready))
}

// unready notes that it is not ready.
func (w *supervisor) unready() { w.longest, w.ready = w.lasted(), time.Time{} }

// turned takes in that it became ready or ceased to be.
func (w *supervisor) turned(ctx context.Context, ok bool) {
	if !ok {
		w.unready()
		message := "no longer ready: " + w.readyProbe.last()
		w.u.o.update(w.u, func(v *replica.Replica) {
			v.Phase, v.Reason, v.Message, v.ReadyAt = replica.Starting, "NotReady", message, time.Time{}
		})
		return
	}
	w.watchLiveness(ctx)
	w.u.resume() // its process before may have been put to sleep
	w.ready, w.ever = time.Now(), true
	go w.seePID()
	at := w.u.p.cfg.Now()
	w.u.o.update(w.u, func(v *replica.Replica) {
		v.Phase, v.Reason, v.Message, v.ReadyAt = replica.Ready, "", w.r.note, at
	})
	w.keepGuests(ctx)
}

// keepGuests has the process hold the models of other services.
func (w *supervisor) keepGuests(ctx context.Context) {
	if w.r.spec.Repository == "" {
		return
	}
	if w.kept == nil {
		w.kept = make(chan struct{})
		k := newKeeper(w.u, w.r)
		w.u.keeper.Store(k)
		go func() {
			defer close(w.kept)
			k.Run(ctx)
		}()
	}
	w.u.lodge()
}

// watchLiveness begins to ask the liveness probe, once.
func (w *supervisor) watchLiveness(ctx context.Context) {
	if !w.watched && w.liveProbe != nil {
		go w.liveProbe.watchLiveness(ctx)
	}
	w.watched = true
}

// waits publishes what a process waits for that takes long to start, and for
// how long it may.
func (w *supervisor) waits(begun time.Time, limit time.Duration) {
	why := w.asked().last()
	if w.ever || why == "" || time.Since(begun) < quietStart {
		return
	}
	message := fmt.Sprintf("not ready yet: %s; ended if it is not %s after its start", why, limit)
	if w.r.note != "" {
		message += "; " + w.r.note
	}
	w.u.o.update(w.u, func(v *replica.Replica) { v.Message = message })
}

// exited returns why a process ended that nobody asked to; nil of one that slept,
// which nobody misses.
func (w *supervisor) exited() *failure {
	if w.sleeps() {
		return nil
	}
	if w.r.container != nil {
		return w.containerExited()
	}
	e := w.r.proc.Exit()
	lines := w.u.log.LastLines(causeLines)
	otherwise := 1
	if e.Signal != 0 {
		otherwise = 0 // the last line that a process wrote before a signal does not explain it
	}
	said := replica.Cause(lines, otherwise)
	tr := &failure{reason: "Exited", exit: e.Code, message: withOutput(e.String(), said)}
	killed := e.Signal == syscall.SIGKILL || !e.Known
	switch {
	case w.u.p.memory.killed(w.r.memory) > w.oom:
		tr.reason = "OOMKilled"
		tr.message = fmt.Sprintf("used more than its memory limit of %d MiB: raise resources.limits.memory", w.r.spec.MemoryBytes>>20)
	case killed && e.Known:
		tr.reason = "Killed"
		tr.message = e.String() + ", by a person or for want of memory on this machine"
		if !w.ever { // what a process wrote while it served does not explain why another ended it
			tr.message = withOutput(tr.message, said)
		}
	case !w.ever && portTaken(lines):
		tr.reason, tr.retryNow = "PortTaken", true
	}
	return tr
}

// portTaken reports whether the output speaks of a listening address in use.
func portTaken(lines []string) bool {
	for _, l := range lines {
		l = strings.ToLower(l)
		if strings.Contains(l, "address already in use") || strings.Contains(l, "eaddrinuse") ||
			strings.Contains(l, "port is already in use") || strings.Contains(l, "is in use: stop what listens there") {
			return true
		}
	}
	return false
}

// tooSlow ends a process that did not become ready in time.
func (w *supervisor) tooSlow(limit time.Duration) *failure {
	why := fmt.Sprintf("not ready within %s", limit)
	if w.startProbe != nil {
		why = fmt.Sprintf("its startup probe did not pass within %s", limit)
	}
	if l := w.asked().last(); l != "" {
		why += " (" + l + ")"
	}
	return w.end("StartupTimeout", withOutput(why, replica.Cause(w.u.log.LastLines(causeLines), 3)))
}

// unhealthy ends a process whose liveness probe failed.
func (w *supervisor) unhealthy() *failure {
	why := "liveness probe failed: " + w.liveProbe.last()
	return w.end("Unhealthy", withOutput(why, replica.Cause(w.u.log.LastLines(causeLines), 1)))
}

// end ends a process that failed without ending. That it failed is said first,
// since its end may take its grace.
func (w *supervisor) end(reason, message string) *failure {
	w.u.o.update(w.u, func(v *replica.Replica) {
		v.Phase, v.Reason, v.Message = replica.Failed, reason, message
	})
	e := w.u.stop(w.r)
	return &failure{reason: reason, message: message, exit: e.Code}
}

// causeLines is how many lines of output are looked through for what went
// wrong: engines end with a traceback or two.
const causeLines = 600

func withOutput(why string, lines []string) string {
	if len(lines) == 0 {
		return why
	}
	return why + ": " + strings.Join(lines, " | ")
}

// drain ends a replica that is to go: it waits, within bounds, until it
// answers nothing any more, then stops the process. One whose liveness probe
// fails will not answer what it has. kept reports that instead the platform
// closed and left it running.
func (w *supervisor) drain() (kept bool) {
	if w.ever && w.u.p.cfg.Drain != nil {
		ctx, cancel := context.WithTimeout(w.u.p.hard, w.r.drain())
		defer cancel()
		idle := make(chan struct{})
		go func() {
			defer close(idle)
			// Over the deadline the requests left are cut.
			_ = w.u.p.cfg.Drain(ctx, w.u.id)
		}()
		select {
		case <-idle:
		case <-w.liveProbe.failures():
		case <-w.r.proc.Done():
			return false
		case <-w.u.p.closing:
			return w.closeDown()
		}
	}
	w.u.stop(w.r)
	return false
}

// closeDown ends a process with its platform, or leaves it for the next.
func (w *supervisor) closeDown() (kept bool) {
	if w.u.p.keep.Load() {
		return true
	}
	w.u.o.mu.Lock()
	w.u.end()
	w.u.o.publish()
	w.u.o.mu.Unlock()
	w.u.stop(w.r)
	return false
}
