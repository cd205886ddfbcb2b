package process

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/core/service"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// guestsAtOnce bounds how many models of one process are fetched, loaded and unloaded
// at once. The others wait; a failed one leaves its place until it is tried again.
const guestsAtOnce = 16

// keeper has one process hold the models of other services that its revision names:
// each is fetched, put into the repository and loaded by a goroutine of its own, so that
// one which is slow or fails holds up no other.
type keeper struct {
	u    *unit
	r    *running
	repo repository

	held  map[string]*guest // run's alone
	done  chan outcome
	slots chan struct{}
}

// guest is a model as the process has it.
type guest struct {
	has      *workload.Guest // that the process has loaded; nil for none
	path     string          // of its files
	failures int             // in a row
	retry    time.Time
	wants    workload.Guest     // that a goroutine is loading
	cancel   context.CancelFunc // ends that goroutine; nil where there is none
	leaving  bool
}

// outcome is what a goroutine has done for a guest; removed where it was unloaded.
type outcome struct {
	name    string
	path    string
	removed bool
	err     error
}

func newKeeper(u *unit, r *running) *keeper {
	return &keeper{u: u, r: r, repo: repository{dir: r.model, layout: r.spec.Repository}, held: map[string]*guest{},
		done: make(chan outcome), slots: make(chan struct{}, guestsAtOnce)}
}

// lodge tells a process's keeper that there may be something to do.
func (u *unit) lodge() {
	select {
	case u.lodging <- struct{}{}:
	default: // about to look
	}
}

// guests are the models that the replica is to have loaded; false while it can load
// none.
func (u *unit) guests() (map[string]workload.Guest, bool) {
	u.o.mu.Lock()
	defer u.o.mu.Unlock()
	if u.o.revision == nil || u.view.Phase != replica.Ready {
		return nil, false
	}
	out := map[string]workload.Guest{}
	for _, g := range u.o.revision.Guests {
		out[g.Name] = g
	}
	return out, true
}

// tried reports whether the replica has loaded each model that one of the revision before
// has, or failed to, or has been ready for as long as a start may take: until then those
// of the revision before go on. The owner's lock is held.
func (u *unit) tried() bool {
	if c := u.component.Load(); c == nil || c.Process == nil || c.Process.Repository == "" {
		return true
	}
	limit := cmp.Or(u.component.Load().Limits.StartupTimeout, service.DefaultStartupTimeout)
	if at := u.view.ReadyAt; !at.IsZero() && u.p.cfg.Now().Sub(at) > limit {
		return true
	}
	for _, g := range u.o.revision.Guests {
		if now := u.view.Guests[g.Name]; !now.Loaded && now.Failures == 0 && u.olderHas(g.Name) {
			return false
		}
	}
	return true
}

// olderHas reports whether a replica of another revision, which serves in this one's
// place, has loaded a model. The owner's lock is held.
func (u *unit) olderHas(name string) bool {
	return slices.ContainsFunc(u.o.units, func(v *unit) bool {
		return v.role == u.role && v.revision != u.revision && v.view.Phase == replica.Ready && v.view.Guests[name].Loaded
	})
}

// tell publishes how far a guest is.
func (k *keeper) tell(name string, change func(g *replica.Guest)) {
	k.u.o.update(k.u, func(v *replica.Replica) {
		now := v.Guests[name]
		change(&now)
		v.Guests = maps.Clone(v.Guests)
		if v.Guests == nil {
			v.Guests = map[string]replica.Guest{}
		}
		v.Guests[name] = now
	})
}

// run keeps the guests until ctx ends, which is when the process does.
func (k *keeper) run(ctx context.Context) {
	for ctx.Err() == nil {
		again := k.step(ctx)
		t := time.NewTimer(cmp.Or(again, time.Hour))
		select {
		case <-ctx.Done():
		case <-k.u.lodging:
			k.recheck()
		case o := <-k.done:
			k.take(o)
		case <-t.C:
		}
		t.Stop()
	}
	for _, g := range k.held { // none stays behind
		if g.cancel != nil {
			<-k.done
		}
	}
}

// recheck has what is loaded looked at again: a server that has slept may have failed to
// load what it had.
func (k *keeper) recheck() {
	if k.u.woke.Swap(false) {
		for _, g := range k.held {
			g.has = nil
		}
	}
}

// step begins what is to be done, and returns when to look again.
func (k *keeper) step(ctx context.Context) (again time.Duration) {
	wanted, can := k.u.guests()
	if !can {
		return 0
	}
	for name, g := range k.held {
		if _, wants := wanted[name]; wants {
			continue
		}
		if g.cancel == nil {
			k.begin(ctx, name, g, k.remove)
			g.leaving = true
		} else if !g.leaving {
			g.cancel()
		}
	}
	now := k.u.p.cfg.Now()
	for name, w := range wanted {
		g := k.held[name]
		if g == nil {
			g = &guest{}
			k.held[name] = g
		}
		switch {
		case g.cancel != nil:
			if !g.leaving && !g.wants.Equal(w) {
				g.cancel()
			}
		case g.has != nil && g.has.Equal(w):
		case g.wants.Equal(w) && g.retry.After(now):
			again = sooner(again, g.retry.Sub(now))
		default:
			if !g.wants.Equal(w) {
				g.failures = 0
			}
			g.wants = w
			k.begin(ctx, name, g, func(ctx context.Context, name string) outcome { return k.load(ctx, w) })
		}
	}
	return again
}

func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// begin does something for a guest beside the others.
func (k *keeper) begin(ctx context.Context, name string, g *guest, do func(context.Context, string) outcome) {
	ctx, g.cancel = context.WithCancel(ctx)
	go func() { k.done <- do(ctx, name) }()
}

// take takes in what was done.
func (k *keeper) take(o outcome) {
	g := k.held[o.name]
	g.cancel()
	g.cancel, g.leaving = nil, false
	switch {
	case o.removed:
		delete(k.held, o.name)
		k.u.o.update(k.u, func(v *replica.Replica) {
			v.Guests = maps.Clone(v.Guests)
			delete(v.Guests, o.name)
		})
	case o.err == nil:
		has := g.wants
		g.has, g.path, g.failures, g.retry = &has, o.path, 0, time.Time{}
		k.tell(o.name, func(v *replica.Guest) { *v = replica.Guest{Loaded: true} })
		k.u.p.cfg.Logger.Info("a model was loaded", "replica", k.u.id, "model", o.name)
	case errors.Is(o.err, context.Canceled):
		// Something else is wanted now.
	default:
		k.failed(o, g)
	}
}

// failed notes why a model is not loaded. The one that it was to replace stays.
func (k *keeper) failed(o outcome, g *guest) {
	c := k.u.p.cfg.Restart
	wait := min(c.Min<<min(g.failures, 16), c.Max)
	g.failures++
	g.retry = k.u.p.cfg.Now().Add(wait)
	var err error
	if g.has != nil {
		err = errors.Join(k.repo.put(*g.has, g.path), k.repo.sign(*g.has, g.path))
	} else {
		err = k.repo.remove(o.name)
	}
	if err != nil {
		k.u.p.cfg.Logger.Warn("the repository of a replica cannot be changed", "replica", k.u.id, "model", o.name, "error", err)
	}
	message := excerpt.Of(oneLine(o.err.Error()), maxMessage)
	k.u.p.cfg.Logger.Warn("a model was not loaded", "replica", k.u.id, "model", o.name, "message", message, "retryIn", wait)
	k.tell(o.name, func(v *replica.Guest) {
		*v = replica.Guest{Loaded: g.has != nil, Message: message, Failures: g.failures, Retry: g.retry}
	})
}

// maxMessage bounds what is kept of a server's words, in bytes.
const maxMessage = 1024

// load fetches a model's files, puts them into the repository and has the process load
// them, if it has not done so for an owner before this one.
func (k *keeper) load(ctx context.Context, g workload.Guest) outcome {
	o := outcome{name: g.Name}
	var shown time.Time
	o.path, o.err = k.u.p.fetches.get(ctx, g.Model.Credentials.Of(g.Model.URI), func(pr replica.Progress) {
		if now := time.Now(); now.Sub(shown) >= progressInterval || pr.Done == pr.Total {
			shown = now
			k.tell(g.Name, func(v *replica.Guest) { v.Progress = &pr })
		}
	})
	if o.err != nil {
		return o
	}
	k.tell(g.Name, func(v *replica.Guest) { v.Progress = nil })
	address := hostPort(k.u.p.cfg.Host, k.r.port)
	if k.repo.has(g, o.path) && modelReady(ctx, address, g.Name) {
		return o
	}
	if o.err = k.repo.put(g, o.path); o.err != nil {
		return o
	}
	// A store that is slow holds up its own model alone.
	select {
	case k.slots <- struct{}{}:
		defer func() { <-k.slots }()
	case <-ctx.Done():
		o.err = ctx.Err()
		return o
	}
	limit := cmp.Or(k.u.component.Load().Limits.StartupTimeout, service.DefaultStartupTimeout)
	loading, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if o.err = change(loading, address, g.Name, "load"); o.err == nil {
		o.err = k.repo.sign(g, o.path)
	}
	if errors.Is(o.err, context.DeadlineExceeded) && ctx.Err() == nil {
		o.err = fmt.Errorf("not loaded within %s", limit)
	}
	return o
}

// remove has the process unload a model, and deletes it from the repository.
func (k *keeper) remove(ctx context.Context, name string) outcome {
	ctx, cancel := context.WithTimeout(ctx, unloadTimeout)
	defer cancel()
	if err := change(ctx, hostPort(k.u.p.cfg.Host, k.r.port), name, "unload"); err != nil {
		// One that never was loaded is not there; one that stays takes memory alone.
		k.u.p.cfg.Logger.Debug("a model was not unloaded", "replica", k.u.id, "model", name, "error", err)
	}
	if err := k.repo.remove(name); err != nil {
		k.u.p.cfg.Logger.Warn("the repository of a replica cannot be changed", "replica", k.u.id, "model", name, "error", err)
	}
	return outcome{name: name, removed: true}
}

// unloadTimeout bounds the call that unloads a model.
const unloadTimeout = time.Minute

// change calls the repository extension of the Open Inference Protocol. The error has the
// server's own words.
func change(ctx context.Context, address, name, what string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/repository/models/"+url.PathEscape(name)+"/"+what, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := probeClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, maxWords))
	if resp.StatusCode/100 == 2 {
		return nil
	}
	var words struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(said, &words) == nil && words.Error != "" {
		return errors.New(words.Error)
	}
	// MLServer answers with a traceback, whose end tells.
	cause := replica.Cause(strings.Split(strings.TrimSpace(string(said)), "\n"), 1)
	return errors.New(withOutput("the server's answer to "+what+" is "+resp.Status, cause))
}

// maxWords bounds what is read of a server's answer to a change, in bytes.
const maxWords = 256 << 10

// modelReady reports whether a server says that a model is ready.
func modelReady(ctx context.Context, address, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v2/models/"+url.PathEscape(name)+"/ready", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := probeClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// readyTimeout bounds the question whether a model is ready.
const readyTimeout = 10 * time.Second
