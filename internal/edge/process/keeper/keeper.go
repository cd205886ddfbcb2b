// Package keeper has a running model server hold models of other services than its own:
// each is fetched, put into the server's repository and loaded by the repository extension
// of the Open Inference Protocol, and unloaded again.
package keeper

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"roundhouse.dev/roundhouse/internal/core/excerpt"
	"roundhouse.dev/roundhouse/internal/core/replica"
	"roundhouse.dev/roundhouse/internal/decide/workload"
)

// guestsAtOnce bounds how many models of one process are fetched, loaded and unloaded
// at once. The others wait; a failed one leaves its place until it is tried again.
const guestsAtOnce = 16

// Config is what a Keeper keeps, and where. All fields but Loaded are required.
type Config struct {
	// Dir is the repository of a server that listens at Address, and Layout how that
	// finds models in it.
	Dir     string
	Layout  workload.Layout
	Address string
	// Wanted are the models that the server is to have; ok is false while it can load
	// none. It is called again after Look.
	Wanted func() (all []workload.Guest, ok bool)
	// Fetch brings a model's files and returns where they are.
	Fetch func(ctx context.Context, g workload.Guest, progress func(replica.Progress)) (string, error)
	// Tell publishes how far a model is, and Gone that it was unloaded.
	Tell func(name string, change func(*replica.Guest))
	Gone func(name string)
	// Loaded is called with the files that a model has been loaded with.
	Loaded func(name, path string)
	// LoadTimeout bounds a load. A model that is not loaded is tried again after
	// RetryMin, then after twice as long each time, up to RetryMax.
	LoadTimeout        func() time.Duration
	RetryMin, RetryMax time.Duration
	Client             *http.Client
	Now                func() time.Time
	Logger             *slog.Logger
}

// Keeper has one server hold the models that are wanted: each is fetched, put into the
// repository and loaded by a goroutine of its own, so that one which is slow or fails
// holds up no other.
type Keeper struct {
	cfg  Config
	repo repository
	look chan struct{} // there may be something to do; holds one
	lost atomic.Bool   // the server may no longer have what it had

	held  map[string]*guest // Run's alone
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
	known   bool // it had them already
	err     error
}

// New makes a keeper that has done nothing yet.
func New(cfg Config) *Keeper {
	if cfg.Loaded == nil {
		cfg.Loaded = func(string, string) {}
	}
	return &Keeper{cfg: cfg, repo: repository{dir: cfg.Dir, layout: cfg.Layout}, look: make(chan struct{}, 1), held: map[string]*guest{},
		done: make(chan outcome), slots: make(chan struct{}, guestsAtOnce)}
}

// Look tells the keeper that there may be something to do.
func (k *Keeper) Look() {
	select {
	case k.look <- struct{}{}:
	default: // about to look
	}
}

// Recheck has what is loaded looked at again, as after the server has slept or was
// started again.
func (k *Keeper) Recheck() {
	k.lost.Store(true)
	k.Look()
}

// Run keeps the models until ctx ends, which is when the server does.
func (k *Keeper) Run(ctx context.Context) {
	k.adopt()
	for ctx.Err() == nil {
		again := k.step(ctx)
		t := time.NewTimer(cmp.Or(again, time.Hour))
		select {
		case <-ctx.Done():
		case <-k.look:
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
func (k *Keeper) recheck() {
	if k.lost.Swap(false) {
		for _, g := range k.held {
			g.has = nil
		}
	}
}

// adopt takes in what an owner before this one left in the repository, so that what is no
// longer wanted is unloaded. Of what it had not loaded nothing stays: a server that begins
// with a broken model is not ready.
func (k *Keeper) adopt() {
	loaded, begun := k.repo.list()
	for _, name := range begun {
		if err := k.repo.remove(name); err != nil {
			k.cfg.Logger.Warn("the repository of a server cannot be changed", "model", name, "error", err)
		}
	}
	for _, name := range loaded {
		k.held[name] = &guest{}
	}
}

// step begins what is to be done, and returns when to look again.
func (k *Keeper) step(ctx context.Context) (again time.Duration) {
	list, can := k.cfg.Wanted()
	if !can {
		return 0
	}
	wanted := map[string]workload.Guest{}
	for _, g := range list {
		wanted[g.Name] = g
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
	now := k.cfg.Now()
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
func (k *Keeper) begin(ctx context.Context, name string, g *guest, do func(context.Context, string) outcome) {
	ctx, g.cancel = context.WithCancel(ctx)
	go func() { k.done <- do(ctx, name) }()
}

// take takes in what was done.
func (k *Keeper) take(o outcome) {
	g := k.held[o.name]
	g.cancel()
	g.cancel, g.leaving = nil, false
	switch {
	case o.removed:
		delete(k.held, o.name)
		k.cfg.Gone(o.name)
	case o.err == nil:
		has := g.wants
		g.has, g.path, g.failures, g.retry = &has, o.path, 0, time.Time{}
		k.cfg.Tell(o.name, func(v *replica.Guest) { *v = replica.Guest{Loaded: true} })
		if o.known {
			break
		}
		k.cfg.Loaded(o.name, o.path)
		k.cfg.Logger.Info("a model was loaded", "model", o.name)
	case errors.Is(o.err, context.Canceled):
		// Something else is wanted now.
	default:
		k.failed(o, g)
	}
}

// failed notes why a model is not loaded. The one that it was to replace stays.
func (k *Keeper) failed(o outcome, g *guest) {
	wait := min(k.cfg.RetryMin<<min(g.failures, 16), k.cfg.RetryMax)
	g.failures++
	g.retry = k.cfg.Now().Add(wait)
	var err error
	if g.has != nil {
		err = errors.Join(k.repo.put(*g.has, g.path), k.repo.sign(*g.has, g.path))
	} else {
		err = k.repo.remove(o.name)
	}
	if err != nil {
		k.cfg.Logger.Warn("the repository of a replica cannot be changed", "model", o.name, "error", err)
	}
	message := excerpt.Of(oneLine(o.err.Error()), maxMessage)
	k.cfg.Logger.Warn("a model was not loaded", "model", o.name, "message", message, "retryIn", wait)
	k.cfg.Tell(o.name, func(v *replica.Guest) {
		*v = replica.Guest{Loaded: g.has != nil, Message: message, Failures: g.failures, Retry: g.retry}
	})
}

// maxMessage bounds what is kept of a server's words, in bytes.
const maxMessage = 1024

// load fetches a model's files, puts them into the repository and has the process load
// them, if it has not done so for an owner before this one.
func (k *Keeper) load(ctx context.Context, g workload.Guest) outcome {
	o := outcome{name: g.Name}
	var shown time.Time
	o.path, o.err = k.cfg.Fetch(ctx, g, func(pr replica.Progress) {
		if now := time.Now(); now.Sub(shown) >= progressInterval || pr.Done == pr.Total {
			shown = now
			k.cfg.Tell(g.Name, func(v *replica.Guest) { v.Progress = &pr })
		}
	})
	if o.err != nil {
		return o
	}
	k.cfg.Tell(g.Name, func(v *replica.Guest) { v.Progress = nil })
	if k.repo.has(g, o.path) && k.ready(ctx, g.Name) {
		o.known = true
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
	limit := k.cfg.LoadTimeout()
	loading, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if o.err = k.change(loading, g.Name, "load"); o.err == nil {
		o.err = k.repo.sign(g, o.path)
	}
	if errors.Is(o.err, context.DeadlineExceeded) && ctx.Err() == nil {
		o.err = fmt.Errorf("not loaded within %s", limit)
	}
	return o
}

// remove has the process unload a model, and deletes it from the repository.
func (k *Keeper) remove(ctx context.Context, name string) outcome {
	ctx, cancel := context.WithTimeout(ctx, unloadTimeout)
	defer cancel()
	if err := k.change(ctx, name, "unload"); err != nil {
		// One that never was loaded is not there; one that stays takes memory alone.
		k.cfg.Logger.Debug("a model was not unloaded", "model", name, "error", err)
	}
	if err := k.repo.remove(name); err != nil {
		k.cfg.Logger.Warn("the repository of a replica cannot be changed", "model", name, "error", err)
	}
	return outcome{name: name, removed: true}
}

// unloadTimeout bounds the call that unloads a model.
const unloadTimeout = time.Minute

// change calls the repository extension of the Open Inference Protocol. The error has the
// server's own words.
func (k *Keeper) change(ctx context.Context, name, what string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+k.cfg.Address+"/v2/repository/models/"+url.PathEscape(name)+"/"+what, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := k.cfg.Client.Do(req)
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
	said = []byte("the server's answer to " + what + " is " + resp.Status)
	if len(cause) > 0 {
		return fmt.Errorf("%s: %s", said, strings.Join(cause, " | "))
	}
	return errors.New(string(said))
}

// maxWords bounds what is read of a server's answer to a change, in bytes.
const maxWords = 256 << 10

// ready reports whether the server says that a model is ready.
func (k *Keeper) ready(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+k.cfg.Address+"/v2/models/"+url.PathEscape(name)+"/ready", http.NoBody)
	if err != nil {
		return false
	}
	resp, err := k.cfg.Client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// readyTimeout bounds the question whether a model is ready.
const readyTimeout = 10 * time.Second

// oneLine is a text without line breaks.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// progressInterval bounds how often a fetch's progress is published.
const progressInterval = 100 * time.Millisecond
